"""A source's terms: refused when undeclared, warned about when known to restrict this use.

None of this is legal advice: the lists reflect what licences commonly found on data sets state, and a recipe
overrides them with `training_allowed`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from fledge.base.errors import DataError

_OPEN = re.compile(
    r"apache-2\.0|mit|isc|bsd-[23]-clause|bsd|unlicense|cc0-1\.0|cc-by-(sa-)?[1234]\.\d|odc-by|odc-by-1\.0|"
    r"pddl|odbl|cdla-(permissive|sharing)-[12]\.0|public-domain|own|wtfpl|zlib"
)
_NONCOMMERCIAL = re.compile(r"(^|[-_ ])nc([-_ ]|$)|non-?commercial|research-only|academic")
# Terms under which outputs may not be used to build models that compete with the provider's.
_NO_COMPETE = re.compile(
    r"openai|chatgpt|gpt-?4|anthropic|claude|gemini|google-tos|llama-?2|llama-?3(?!\.)|xai|grok"
)


@dataclass(frozen=True)
class Terms:
    """Known terms of a source; all of them allow training."""

    licence: str
    declared_by: str  # "licence" or "recipe"
    warnings: tuple[str, ...] = ()


def check_terms(source: str, licence: str, training_allowed: bool | None) -> Terms:
    """Accept a source's terms, or raise.

    Raises:
        DataError: no terms are declared, the recipe says training isn't allowed, or the licence is unknown and the
        recipe doesn't say.
    """
    name = " ".join(licence.split())
    if training_allowed is False:
        raise DataError(
            f"the terms of source {source} don't allow training; remove the source from the recipe"
        )
    if not name and training_allowed is None:
        raise DataError(
            f"source {source} has no declared terms; read them, then give it a `licence` (`own` for your own data) "
            "or `training_allowed: true` in the recipe"
        )
    normalised = name.lower().replace(" ", "-")
    warnings = tuple(_warnings(source, name, normalised))
    if training_allowed is None and not warnings and not _OPEN.fullmatch(normalised):
        raise DataError(
            f"source {source} has the licence {name!r}, which fledge doesn't know; read it, then set "
            "`training_allowed: true` in the recipe, or remove the source"
        )
    return Terms(name or "not stated", "licence" if training_allowed is None else "recipe", warnings)


def _warnings(source: str, name: str, normalised: str) -> list[str]:
    warnings = []
    if _NONCOMMERCIAL.search(normalised):
        warnings.append(
            f"source {source}: {name} forbids commercial use; don't serve a head trained on it to customers"
        )
    if _NO_COMPETE.search(normalised):
        warnings.append(f"source {source}: {name} forbids training models that compete with its provider's")
    return warnings
