"""Values of the second corpus, in other shapes than Faker's: numbers of many countries, names written by hand.

Slot -> (entity, or None for what only looks like personal data; how to draw one). Everything is invented: numbers are
random digits in a country's shape, with a right check digit where one belongs.
"""

from __future__ import annotations

import base64
import ipaddress
import itertools
import json
import random
import string
import uuid
from collections.abc import Callable

from stdnum import luhn
from stdnum.iso7064 import mod_97_10

from fledge.data.privacy import entities as e
from tests.data.privacy_corpus.shapes import (
    HEX,
    MONTHS,
    WORD,
    fill,
    lists,
    number_forms,
    one_filled,
    random_text,
)

_IBANS = {
    "DE": "##################", "FR": "####################?##", "ES": "####################", "PT": "#####################",
    "GB": "????##############", "NL": "????##########", "IT": "?######################", "CH": "#################",
    "AT": "################", "BE": "############", "PL": "########################", "SE": "####################",
    "NO": "###########", "IE": "????##############",
}  # fmt: skip


class SecondValues:
    """Draws values for one text."""

    def __init__(self, rng: random.Random, language: str) -> None:
        self.rng = rng
        self.language = language

    def shape(self, shapes: str) -> str:
        """One of the shapes, filled: # a digit, N 2 to 9, ? a capital, _ a blank; which is drawn too, as it ever was."""
        draw = {"#": string.digits, "N": "23456789", "?": "ABCDEFGHJKLMNPRSTUVWXYZ", "_": " "}
        return "".join(self.rng.choice(draw[c]) if c in draw else c for c in self.rng.choice(shapes.split()))

    def number(self, slot: str) -> str:
        """A number of numbers.txt."""
        return self.shape(" ".join(number_forms("second")[slot][2]))

    def word(self, kind: str) -> str:
        """A name of the language's list (`given`, `family`, `town` or `street`)."""
        return self.rng.choice(lists("second")[f"{self.language} {kind}"])


def _iban(v: SecondValues) -> str:
    country = v.rng.choice(list(_IBANS))
    body = v.shape(_IBANS[country])
    check = mod_97_10.calc_check_digits(body + country)
    plain = f"{country}{check}{body}"
    groups = " ".join(plain[i : i + 4] for i in range(0, len(plain), 4))
    return v.rng.choice((plain, groups, groups))


def _card(v: SecondValues) -> str:
    prefix, length, cuts = v.rng.choice(
        (("4", 16, (4, 8, 12)), ("5412", 16, (4, 8, 12)), ("37", 15, (4, 10)), ("6011", 16, (4, 8, 12)))
    )
    body = prefix + random_text(v.rng, length - len(prefix) - 1, string.digits)
    plain = body + luhn.calc_check_digit(body)
    edges = (0, *cuts, length)
    groups = [plain[a:b] for a, b in itertools.pairwise(edges)]
    return v.rng.choice((" ", "-", "")).join(groups)


def _email(v: SecondValues) -> str:
    given, family = v.word("given").lower().split()[0], v.word("family").lower().replace(" ", "")
    host = v.rng.choice(
        ["gmail.com", "web.de", "orange.fr", "uol.com.br", "mail.co.uk", "bücher-müller.de", "cs.uni.edu"]
    )
    numbered = f"{given[0]}{family}{v.shape('## #### #')}"
    local = v.rng.choice(
        (f"{given}.{family}", numbered, f"{given}+shop", f"{given}_{family}", f"{family}-{given}")
    )
    return v.rng.choice((f"{local}@{host}", f"{local}@{host}", f"{local}@{host}".upper()))


def _date(v: SecondValues) -> str:
    day, month, year = v.rng.randint(1, 28), v.rng.randint(1, 12), v.rng.randint(1935, 2012)
    name = MONTHS[v.language].split()[month - 1]
    long = {"en": f"{name} {day}, {year}", "de": f"{day}. {name} {year}", "fr": f"{day} {name} {year}"}
    return v.rng.choice(
        (
            long.get(v.language, f"{day} de {name} de {year}"),
            f"{year}-{month:02d}-{day:02d}",
            f"{day}/{month}/{year}",
            f"{day:02d}.{month:02d}.{year}",
        )
    )


def _jwt(v: SecondValues) -> str:
    def part(value: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    head, body = (
        part({"alg": "HS256", "typ": "JWT"}),
        {"sub": random_text(v.rng, 10, string.digits), "iat": 1516239022},
    )
    return f"{head}.{part(body)}.{random_text(v.rng, 43)}"


# How keys of services look, and JWT. Split, so that no scanner takes this file for a leak.
_KEYS = (
    "AK" + "IA{16A} github" + "_pat_{22}_{59} gh" + "o_{36} sk-" + "proj-{48} sk-" + "ant-api03-{80} h" + "f_{34l} AI" + "za{35} "
    "SG.{22}.{43} sk_" + "live_{24} npm" + "_{36} xox" + "p-{11d}-{12d}-{24} dop_" + "v1_{64h} gsk_{52} r8_{37} lin_" + "api_{40} "
    "hv" + "s.{90} figd_{40} ntn_{46} da" + "pi{32h} xai-{80} sq0" + "atp-{22} ya" + "29.{60} gl" + "sa_{32}_{8h} JWT "
    "ATATT3xFfGF0{120} shp" + "at_{32h} {9d}:AA{33}"
)  # fmt: skip


def _key(v: SecondValues) -> str:
    form = v.rng.choice(_KEYS.split())
    return _jwt(v) if form == "JWT" else fill(v.rng, form)


def _pem(v: SecondValues) -> str:
    kind = v.rng.choice(("", "EC ", "OPENSSH ", "ENCRYPTED "))
    body = fill(v.rng, "\n".join(["{64b}"] * 4))
    return f"-----BEGIN {kind}PRIVATE KEY-----\n{body}\n{fill(v.rng, '{22b}')}==\n-----END {kind}PRIVATE KEY-----"


def _url(v: SecondValues) -> str:
    host = v.rng.choice(("db.intern.acme.io", "10.3.4.17", "api.shop-acme.com", "queue.acme.net"))
    forms = (
        "postgresql://admin:{9}@HOST:5432/orders?sslmode=require mongodb+srv://svc:{14}@HOST/app redis://:{16}@HOST:6379/0 "
        "amqp://rabbit:{8}!@HOST:5672/ https://deploy:{20}@HOST/git/repo.git https://HOST/download?X-Amz-Signature={64h} "
        "https://HOST/invite?access_token={30} ftp://user:{10}@HOST/pub"
    )
    return one_filled(v.rng, forms.replace("HOST", host))


def _ip(v: SecondValues) -> str:
    return f"{v.rng.choice((10, 52, 84, 93, 172, 185))}." + ".".join(
        str(v.rng.randint(1, 254)) for _ in range(3)
    )


def _ipv6(v: SecondValues) -> str:
    full = ipaddress.IPv6Address((0x2A02 << 112) | v.rng.getrandbits(v.rng.choice((32, 64, 100))))
    return v.rng.choice((full.compressed, full.exploded, full.compressed.upper()))


def _mac(v: SecondValues) -> str:
    octets = [random_text(v.rng, 2, HEX) for _ in range(6)]
    plain = "".join(octets)
    forms = (":".join(octets), "-".join(octets).upper(), ".".join((plain[:4], plain[4:8], plain[8:])))
    return v.rng.choice(forms)


def _street(v: SecondValues) -> str:
    street, town, number = v.word("street"), v.word("town"), v.rng.randint(1, 240)
    code = v.shape("#####")
    return {
        "en": v.rng.choice(
            (
                f"{number} {street}",
                f"{number} {street}, {town}",
                f"{number} {street}, Apt {number % 40 + 1}, {town}, OH {code}",
            )
        ),
        "de": v.rng.choice(
            (f"{street} {number}", f"{street} {number}b, {code} {town}", f"{street} {number}, {town}")
        ),
        "fr": v.rng.choice((f"{number} {street}", f"{number} bis {street}, {code} {town}")),
        "es": v.rng.choice((f"{street} {number}", f"{street}, {number}, 3º B, {code} {town}")),
        "pt": v.rng.choice(
            (f"{street}, {number}", f"{street}, {number}, 2º esq., {v.shape('####-###')} {town}")
        ),
    }[v.language]


def _password(v: SecondValues) -> str:
    odd = random_text(v.rng, 12, WORD + "!#$%&*")
    word = v.word("town").split()[0] + v.shape("####") + "!"
    return v.rng.choice((odd, word, fill(v.rng, "{4}-{4d}-{4}"), "S0mmer" + v.shape("####")))


def _wallet(v: SecondValues) -> str:
    return one_filled(v.rng, "0x{40h} bc1q{38w} 3{33s}")


Draw = Callable[[SecondValues], str]


def _number(slot: str) -> Draw:
    return lambda v: v.number(slot)


SECOND_VALUES: dict[str, tuple[str | None, Draw]] = {
    "name": (e.PERSON, lambda v: f"{v.word('given')} {v.word('family')}"),
    "first": (e.PERSON, lambda v: v.word("given")),
    "last": (e.PERSON, lambda v: v.word("family")),
    "lower": (e.PERSON, lambda v: f"{v.word('given')} {v.word('family')}".lower()),
    "upper": (e.PERSON, lambda v: f"{v.word('given')} {v.word('family')}".upper()),
    "comma": (e.PERSON, lambda v: f"{v.word('family')}, {v.word('given')}"),
    "initial": (e.PERSON, lambda v: f"{v.word('given')[0]}. {v.word('family')}"),
    "middle": (e.PERSON, lambda v: f"{v.word('given')} {v.rng.choice('ABDEJKLMRT')}. {v.word('family')}"),
    "town": (e.LOCATION, lambda v: v.word("town")),
    "street": (e.STREET_ADDRESS, _street),
    "email": (e.EMAIL_ADDRESS, _email),
    "phone": (e.PHONE_NUMBER, lambda v: v.number(f"home:{v.language}")),
    "iban": (e.IBAN_CODE, _iban),
    "card": (e.CREDIT_CARD, _card),
    "routing": (e.BANK_ROUTING, lambda v: v.shape("######### ##-##-##") if v.language == "en" else v.shape("########")),
    "dob": (e.DATE_OF_BIRTH, _date),
    "ip": (e.IP_ADDRESS, _ip),
    "ipv6": (e.IP_ADDRESS, _ipv6),
    "mac": (e.MAC_ADDRESS, _mac),
    "url": (e.URL_CREDENTIALS, _url),
    "wallet": (e.CRYPTO, _wallet),
    "key": (e.API_KEY, _key),
    "secret": (e.API_KEY, lambda v: one_filled(v.rng, "{40b} {32h} {64h}")),
    "pem": (e.PRIVATE_KEY, _pem),
    "password": (e.PASSWORD, _password),
    **{slot: (entity, _number(slot)) for slot, (entity, _, _) in number_forms("second").items()},
    # What only looks like personal data.
    "date": (None, _date),
    "product": (None, lambda v: v.rng.choice(lists("second")["any products"])),
    "uuid": (None, lambda v: str(uuid.UUID(int=v.rng.getrandbits(128), version=4))),
    "sha": (None, lambda v: random_text(v.rng, v.rng.choice((7, 40, 64)), HEX)),
    "number": (None, lambda v: f"{v.rng.randint(2, 90_000):,}"),
}  # fmt: skip
