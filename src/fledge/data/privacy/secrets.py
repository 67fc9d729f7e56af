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
from fledge.data.privacy.spoken_passwords import find_spoken_passwords

# What detect-secrets has besides keys of services: guesses by look, and what is found here already.
_NO_SERVICE = (
    "Base64 High Entropy String", "Basic Auth Credentials", "Hex High Entropy String", "Private Key", "Public IP (ipv4)",
    "Secret Keyword",
)  # fmt: skip
_LONGEST_WORD = 20
_LONG = re.compile(r"[\w+/=.:-]{20,}")  # no key is shorter
_KEYS = re.compile(
    r"(?<![\w-])(?:sk-(?:ant-|proj-|or-|svcacct-)?[\w-]{20,}|AIza[\w-]{35}|hf_[A-Za-z]{30,}|(?:AKIA|ASIA)[A-Z0-9]{16}"
    r"|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{22,}|glpat-[\w-]{20,}|xox[abposr]-[\w-]{10,}|ya29\.[\w-]{20,}"
    r"|[rsp]k_(?:live|test)_[A-Za-z0-9]{16,}|npm_[A-Za-z0-9]{30,}|pypi-[\w-]{40,}|dop_v1_[a-f0-9]{60,}"
    r"|glsa_\w{32,}|lin_api_\w{32,}|figd_[\w-]{32,}|r8_\w{32,}|gsk_\w{40,}|pplx-\w{40,}|key-[0-9a-f]{32}|SK[0-9a-f]{32}|hv[sb]\.[\w-]{20,}|sq0(?:atp|csp|idp)-[\w-]{20,}"
    r"|AGE-SECRET-KEY-1[A-Z0-9]{50,}|EAAC[A-Za-z0-9]{40,}|dapi[0-9a-f]{32}|xapp-[\w-]{20,}|pk_live_\w{16,}|ntn_\w{30,}|tskey-[\w-]{20,}|sntry[su]_[\w=-]{30,}|dckr_pat_[\w-]{20,}"
    r"|PMAK-[\w-]{40,}|rubygems_[0-9a-f]{40,}|CFPAT-[\w-]{30,}|xkeysib-[\w-]{40,}|NRAK-[A-Z0-9]{20,}|do[opr]_v1_[a-f0-9]{60,}|phc_\w{30,}|sbp_[0-9a-f]{30,}|tvly-[\w-]{20,}|nvapi-[\w-]{40,}"
    r"|shp(?:at|ss|ca|pa)_[a-fA-F0-9]{30,}|SG\.[\w-]{16,}\.[\w-]{16,}|eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]{8,})(?![\w])"
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
    rf"(?:{_SECRET_LABEL})\w*(?:\s(?:de|d['’]|of|for|für|pour|para|do|da|del|zum|zur)\s?\w+){{0,2}}[\"']?\]?\s*(?:[:=]{{1,2}}|(?<=[\"'])\s?,|=>|\bis\b|\bist\b|\blautet\b|\best\b|\bes\b|\bé\b|\s)\s*(?:bearer\s+|basic\s+)?[\"'`]?(?P<value>[\w+/=.~-]{{16,}})",
    re.IGNORECASE,
)


def find_secrets(clues: Clues) -> Iterator[Finding]:
    """Keys, tokens and passwords."""
    text = clues.text
    if "PRIVATE KEY" in text:
        for match in _PRIVATE.finditer(text):
            yield Finding(match.start(), match.end(), e.PRIVATE_KEY, 1.0)
    yield from find_passwords(clues)
    yield from find_spoken_passwords(clues)
    if clues.longest < _LONGEST_WORD or not _LONG.search(text):
        return
    for match in _KEYS.finditer(text):
        if _varied(match[0], 2.5):
            yield Finding(match.start(), match.end(), e.API_KEY, 1.0)
    for match in _ASSIGNED.finditer(text):
        value = match["value"].rstrip(".")
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
    """Whether the characters carry at least this many bits each (Shannon): words and fillers carry less than keys."""
    counts = Counter(value)
    return -sum(n / len(value) * math.log2(n / len(value)) for n in counts.values()) >= bits
