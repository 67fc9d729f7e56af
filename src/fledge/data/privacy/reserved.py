"""Values that belong to no one: reserved for examples by standards, or invented here.

Invented values (surrogates) come only from these ranges, and the recognisers ignore them. So a second scan of treated
text needs no record of the replacements, and anyone can distinguish an invented value from a real one.

    addresses of hosts   RFC 5737, RFC 3849, RFC 7042     telephones   555-01xx (NANP), Ofcom, ARCEP, BNetzA ranges
    e-mail               the top-level domain .example    numbers      all zeros but the last two: 000-00-0017
    names, places        invented words of `fiction`      birth        the year 1900
"""

from __future__ import annotations

import ipaddress
import re

from fledge.data.privacy import entities as e
from fledge.data.privacy.fiction import is_fictional

_NETWORKS = [
    ipaddress.ip_network(network)
    for network in ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32")
]
_REDACTED = re.compile(r"<[A-Z][A-Z0-9_]*>|\[[A-Z][A-Z0-9_]*\]")
_VARIABLE = re.compile(r"\{\{?\s*\w+\s*\}?\}|\$\{\w+\}|\$[A-Z_]+|\*+|x{3,}|\.{3,}", re.IGNORECASE)
# North America; Great Britain (Ofcom, drama use); France (ARCEP, audiovisual works); Germany (BNetzA, media).
_PHONES = re.compile(
    r"(?:1?[2-9]\d{2})?55501\d{2}|(?:44|0)(?:2079460|7700900)\d{3}|(?:33|0)19900\d{4}|(?:49|0)3023125\d{3}"
)
_NEARLY_ZERO = re.compile(r"0*\d{0,2}")
_RESERVED_MAC = re.compile(r"00005e0053[0-9a-f]{2}")


def is_reserved_ip(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """True if an address is reserved for documentation."""
    return any(address in network for network in _NETWORKS)


def is_placeholder(value: str) -> bool:
    """True if a value is a placeholder such as `<PERSON>`, `${TOKEN}` or `{{ name }}`."""
    return _REDACTED.search(value) is not None or _VARIABLE.fullmatch(value.strip()) is not None


def is_reserved(entity: str, value: str) -> bool:
    """True if a value is invented or reserved, and so not personal."""
    if is_placeholder(value) or not value.strip():
        return True
    if entity in (e.PERSON, e.LOCATION, e.STREET_ADDRESS, e.ORGANIZATION):
        return is_fictional(value) or value.startswith("PLACEHOLDER")  # after "user name:"
    compact = re.sub(r"[^0-9a-z]", "", value.lower())
    if entity == e.EMAIL_ADDRESS or entity == e.URL_CREDENTIALS:
        host = re.split(r"@|%40|&[#\w]{1,6};", value)[-1].strip().lower()
        return re.split(r"[/:?#]", host)[0].endswith((".example", ".invalid", ".test"))
    if entity == e.PHONE_NUMBER and _PHONES.fullmatch(re.sub(r"x.*|^00", "", compact)):
        return True
    if entity == e.DATE_OF_BIRTH:
        return re.search(r"(?<!\d)1900(?!\d)", value) is not None
    if entity == e.MAC_ADDRESS:
        return _RESERVED_MAC.fullmatch(compact) is not None
    if "placeholder" in compact:
        return True
    if len(re.sub(r"[\dx]", "", compact)) >= 3:
        return False  # invented numbers contain no letter but X
    digits = re.sub(r"\D", "", value)
    return len(digits) >= 4 and _NEARLY_ZERO.fullmatch(digits) is not None
