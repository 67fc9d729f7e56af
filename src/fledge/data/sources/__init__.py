"""Sources of prompts other than the target itself: files, Hugging Face datasets, request logs.

source     rows (or why a row can't be read)   shape         user turns
files ──► {"conversations": [...]} ─────────► sharegpt ──► ["Why ...?", "And then?"]
hub   ──► {"messages": [...]}      ─────────► messages     answers are dropped here and never written
logs  ──► {"body": {...}}          ─────────► request
"""

from typing import TYPE_CHECKING

from fledge.base.lazy import on_first_use

if TYPE_CHECKING:
    from fledge.data.sources.opening import Record, Source, Unusable, open_source
    from fledge.data.sources.options import SourceOptions
    from fledge.data.sources.shapes import SHAPES, detect_shape, user_turns
    from fledge.data.sources.terms import Terms, check_terms
else:
    __getattr__ = on_first_use(__name__)

__all__ = [
    "SHAPES",
    "Record",
    "Source",
    "SourceOptions",
    "Terms",
    "Unusable",
    "check_terms",
    "detect_shape",
    "open_source",
    "user_turns",
]
