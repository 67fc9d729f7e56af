"""Sources of prompts other than the target itself: files, Hugging Face datasets, request logs.

source     rows (or why a row can't be read)   shape         user turns
files ──► {"conversations": [...]} ─────────► sharegpt ──► ["Why ...?", "And then?"]
hub   ──► {"messages": [...]}      ─────────► messages     answers are dropped here and never written
logs  ──► {"body": {...}}          ─────────► request
"""

from typing import TYPE_CHECKING

from fledge.base.lazy import on_first_use

if TYPE_CHECKING:
    from fledge.data.sources.opening import Record as Record
    from fledge.data.sources.opening import Source as Source
    from fledge.data.sources.opening import Unusable as Unusable
    from fledge.data.sources.opening import open_source as open_source
    from fledge.data.sources.options import SourceOptions as SourceOptions
    from fledge.data.sources.shapes import SHAPES as SHAPES
    from fledge.data.sources.shapes import detect_shape as detect_shape
    from fledge.data.sources.shapes import user_turns as user_turns
    from fledge.data.sources.terms import check_terms as check_terms
else:
    __getattr__ = on_first_use(__name__)
