"""Draft heads as artefacts to load, save and export; their forward pass is in `fledge.draft`.

head.py         the head: initialised from a target, checked against one; backend.py: where it runs
checkpoint.py   head files; forms.py writes each engine's form, foreign.py reads them
engines.py      which targets SGLang and vLLM can draft for
card.py         the model card of an exported head; hub.py pushes it
"""

from fledge.heads.backend import head_runner
from fledge.heads.head import Head

__all__ = ["Head", "head_runner"]
