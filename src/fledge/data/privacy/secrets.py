"""Secrets: API keys by detect-secrets' rules and some newer forms, private keys, passwords in context."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class

from fledge.data.privacy import entities as e
from fledge.data.privacy.clues import Clues
from fledge.data.privacy.entities import Finding
from fledge.data.privacy.passwords import find_passwords

# Plugins of detect-secrets that aren't for a service's keys: guesses by look, and kinds that other rules here find.
_NO_SERVICE = (
    "Base64 High Entropy String", "Basic Auth Credentials", "Hex High Entropy String", "Private Key", "Public IP (ipv4)",
    "Secret Keyword",
)  # fmt: skip
_LONG = re.compile(r"[\w+/=.:-]{20,}")  # no key is shorter
# Services mark their keys by a short prefix: sk-proj-..., ghp_..., glpat-..., xoxb-..., SG.abc.def; and JSON web tokens.
_KEYS = re.compile(
    r"(?<![\w-])(?:(?!sha\d)[A-Za-z]\w{1,8}[-_.](?:[A-Za-z]\w{1,8}[-_.]){0,2}(?=[\w-]*\d)[\w-]*[A-Za-z0-9]{16}[\w.-]*"
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}|(?:AIza|hf_|ya29\.|dapi|EAAC|SK)[\w-]{30,}|eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]{8,})(?!\w)"
)
_PRIVATE = re.compile(
    r"-----BEGIN (?:[A-Z0-9 ]+ )?PRIVATE KEY(?: BLOCK)?-----(?:.*?-----END (?:[A-Z0-9 ]+ )?PRIVATE KEY(?: BLOCK)?-----|[\sA-Za-z0-9+/=:,-]*)",
    re.DOTALL,
)
_SECRET_LABEL = (
    r"(?:api|access|secret|auth|client|account|private|encryption|signing|master)[ _-]?(?:key|token|secret)s?|bearer|token|"
    r"authorization|schl(?:ü|ue)ssel|jeton|cl[ée](?: d'api| api| secrète)?|clave (?:de )?api|clave secreta|chave (?:da |de )?api|chave secreta|apikey|secret"
)
_ASSIGNED = re.compile(
    rf"(?:{_SECRET_LABEL})\w*(?:\s(?:de|d['’]|of|for|für|pour|para|do|da|del|zum|zur)\s?\w+){{0,2}}[\"']?\]?\s*(?:[:=]{{1,2}}|value=|(?<=[\"'])\s?,|=>|\bis\b|\bist\b|\blautet\b|\best\b|\bes\b|\bé\b|\s)\s*(?:bearer\s+|basic\s+)?[\"'`]?(?P<value>[\w+/=.~-]{{16,}})"
)


def find_secrets(clues: Clues) -> Iterator[Finding]:
    """Keys, tokens and passwords."""
    text = clues.text
    if "PRIVATE KEY" in text:
        for match in _PRIVATE.finditer(text):
            yield Finding(match.start(), match.end(), e.PRIVATE_KEY, 1.0)
    yield from find_passwords(clues)
    if not _LONG.search(text):
        return
    for match in _KEYS.finditer(text):
        if _varied(match[0], 2.5):
            yield Finding(match.start(), match.end(), e.API_KEY, 1.0)
    for match in _ASSIGNED.finditer(clues.lower):
        value = text[slice(*match.span("value"))].rstrip(".")
        if _looks_random(value):
            yield Finding(match.start("value"), match.start("value") + len(value), e.API_KEY, 0.85)
    yield from _known_keys(text)


def _known_keys(text: str) -> Iterator[Finding]:
    for line in text.splitlines():
        if not _LONG.search(line):
            continue
        for plugin in _plugins():
            for value in plugin.analyze_string(line):
                start = text.find(value) if isinstance(value, str) and len(value) >= 12 else -1
                while start >= 0:
                    yield Finding(start, start + len(value), e.API_KEY, 0.95)
                    start = text.find(value, start + len(value))


@cache
def _plugins() -> list[Any]:
    types = get_mapping_from_secret_type_to_class()
    return [plugin() for kind, plugin in types.items() if kind not in _NO_SERVICE]


def _looks_random(value: str) -> bool:
    return any(c.isdigit() for c in value) and any(c.isalpha() for c in value) and _varied(value, 3.0)


def _varied(value: str, bits: float) -> bool:
    """True if the characters carry at least this many bits each (Shannon): words and fillers carry less than keys."""
    counts = Counter(value)
    return -sum(n / len(value) * math.log2(n / len(value)) for n in counts.values()) >= bits
