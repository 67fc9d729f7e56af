"""Values of the fourth corpus: own lists of names and places beside Faker's, and other written forms than the third's.

Slot -> (entity, or None for what only looks like personal data; how to draw one). Nobody's data is in it.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Callable

from stdnum.at import vnr
from stdnum.be import nn

from fledge.data.privacy import entities as e
from tests.data.privacy_corpus import third_secrets as s
from tests.data.privacy_corpus.shapes import (
    HEX,
    MONTHS,
    WORD,
    ascii_only,
    numbers,
    one_filled,
    random_text,
    shape,
    with_random,
)
from tests.data.privacy_corpus.third_values import THIRD_VALUES, ThirdValues


class FourthValues(ThirdValues):
    """Draws for one record, half of the names from lists written for this corpus."""

    folder = "fourth"

    def given(self) -> str:
        """A given name."""
        return self.listed("given") if self.rng.random() < 0.6 else " ".join(self.faker.first_name().split())

    def family(self) -> str:
        """A family name."""
        if self.rng.random() < 0.6:
            return self.listed("family")
        return self.faker.last_name().removesuffix(" II")

    def number(self, kind: str) -> str:
        """A number as the language's countries write it."""
        return numbers("fourth")[f"{kind}:{self.language}"][1](self)


class FifthValues(FourthValues):
    """The same draws with other names, towns, streets and products."""

    folder = "fifth"


def _plain(v: FourthValues) -> str:
    two = v.language in ("es", "pt") and v.rng.random() < 0.5
    return f"{v.given()} {v.family()} {v.family()}" if two else f"{v.given()} {v.family()}"


def _world(v: FourthValues) -> str:
    return f"{v.rng.choice(v.lists['world given'])} {v.rng.choice(v.lists['world family'])}"


def _middle(v: FourthValues) -> str:
    return f"{v.given()} {v.rng.choice('ABCDEFGHJKLMNPRSTW')}. {v.family()}"


def _particle(v: FourthValues) -> str:
    return f"{v.given()} {v.listed('particle')}"


def _hyphen(v: FourthValues) -> str:
    kind = v.rng.choice(("given", "family"))
    double = "-".join(v.rng.sample(v.lists[f"{v.language} {kind}"], 2))
    return f"{double} {v.family()}" if kind == "given" else f"{v.given()} {double}"


def _name(v: FourthValues) -> str:
    kinds = (_plain, _plain, _plain, _plain, _world, _middle, _particle, _hyphen)
    return v.rng.choice(kinds)(v)


def _address(v: FourthValues) -> str:
    line, town, gap = _street(v), v.listed("towns"), v.rng.choice((", ", ", ", "\n"))
    if v.language == "en":
        british = v.rng.random() < 0.4
        american = "" if british else v.rng.choice(("OH", "NM", "WA", "TX", "NY"))
        end = shape(v.rng, "??#_#??") if british else f"{american} {v.number('zip')}"
        return f"{line}{gap}{town}{' ' if british else ', '}{end}"
    return f"{line}{gap}{v.number('zip')} {town}"


def _street(v: FourthValues) -> str:
    street, number = v.listed("streets"), v.rng.randint(1, 219)
    return v.rng.choice(
        {
            "en": (f"{number} {street}", f"{number} {street}", f"Flat {number % 9 + 1}, {number} {street}", f"{number} {street}, Apt {number % 30 + 1}B"),
            "de": (f"{street} {number}", f"{street} {number}", f"{street} {number}a", f"{street} {number}/{number % 20 + 1}"),
            "fr": (f"{number} {street}", f"{number}, {street}", f"{number} bis {street}", f"{number % 40 + 1} ter, {street}"),
            "es": (f"{street} {number}", f"{street}, {number}", f"{street}, n.º {number}, {number % 6 + 1}º izq.", f"{street} {number}, {number % 8 + 1}º B"),
            "pt": (f"{street}, {number}", f"{street} {number}", f"{street}, n.º {number}, {number % 9 + 1}.º Dto", f"{street}, {number}, apto {number}"),
        }[v.language]
    )  # fmt: skip


def _email(v: FourthValues) -> str:
    given, family = (ascii_only(x).lower() for x in (v.given(), v.family()))
    host = v.rng.choice(
        ("proton.me", "yahoo.co.uk", "posteo.de", "free.fr", "terra.com.br", "telefonica.net", "icloud.com", "uni-kassel.edu", "kanzlei-lindner.at",
         "atelier-duval.fr", "grupo.solaris.mx", "clinica.org.pt", "mail.ru", "northgate-dental.com")
    )  # fmt: skip
    local = v.rng.choice(
        (f"{given}.{family}", f"{given}{v.rng.randint(1950, 2008)}", f"{given[0]}.{family}", f"{family}{given[0]}", f"{given}-{family}",
         f"{given}.{family}+shop", f"x_{given}_x{v.rng.randint(1, 99)}", f"{family}.family")
    )  # fmt: skip
    made = f"{local}@{host}"
    return v.rng.choice((made, made, made, f"{local.title()}@{host}", made.upper()))


_BIRTHS = (1936, 2007)


def _day(v: FourthValues, years: tuple[int, int]) -> tuple[int, int, int]:
    return v.rng.randint(1, 28), v.rng.randint(1, 12), v.rng.randint(*years)


def _dob(v: FourthValues, years: tuple[int, int] = _BIRTHS) -> str:
    """A date as people write it, mostly with the month in words."""
    day, month, year = _day(v, years)
    name = MONTHS[v.language].split()[month - 1]
    short, low = f"{year % 100:02d}", name.lower()
    if v.language == "en":
        ending = {1: "st", 2: "nd", 3: "rd", 21: "st", 22: "nd", 23: "rd"}.get(day, "th")
        forms = [f"{name} {day}{ending}, {year}", f"{day}{ending} {name} {year}", f"{day} {name[:3]} {year}", f"the {day}{ending} of {name} {year}",
                 f"{name[:3]}. {day}, {year}", f"{low} {day} {year}", f"{day} {name} '{short}"]  # fmt: skip
    elif v.language == "de":
        forms = [
            f"{day}. {name} {year}",
            f"{day}. {name[:3]}. {year}",
            f"{day}.{name} {year}",
            f"{day}. {name} {short}",
        ]
    elif v.language == "fr":
        first = "1er" if day == 1 else str(day)
        forms = [f"{first} {name} {year}", f"{first} {name} {short}", f"{day:02d} {name} {year}"]
    else:
        of = (
            f"{day} de {name.capitalize()} de {year}" if v.language == "pt" else f"{day} de {name} del {year}"
        )
        forms = [f"{day} de {name} de {year}", of, f"{day} {name} {year}", f"{day}-{name[:3]}-{year}"]
    return v.rng.choice((*forms, _dob_digits(v, years)))


def _dob_digits(v: FourthValues, years: tuple[int, int] = _BIRTHS) -> str:
    day, month, year = _day(v, years)
    short, first, second = f"{year % 100:02d}", *((month, day) if v.language == "en" else (day, month))
    return v.rng.choice(
        (f"{first}/{second}/{short}", f"{first:02d}/{second:02d}/{year}", f"{year}-{month:02d}-{day:02d}", f"{first:02d}-{second:02d}-{year}",
         f"{day:02d}.{month:02d}.{year}", f"{first:02d} {second:02d} {year}", f"{day}.{month}.{short}", f"{year}/{month:02d}/{day:02d}")
    )  # fmt: skip


def _dob_iso(v: FourthValues, years: tuple[int, int] = _BIRTHS) -> str:
    day, month, year = _day(v, years)
    return f"{year}-{month:02d}-{day:02d}"


def _date(v: FourthValues) -> str:
    """When something that isn't a birth happened."""
    return v.rng.choice((_dob, _dob_digits, _dob_iso))(v, (2019, 2026))


def _card(v: FourthValues) -> str:
    card = THIRD_VALUES["card"][1](v)
    return v.rng.choice((card, card, card.replace("-", "."), card.replace(" ", "  ")))


def _ip(v: FourthValues) -> str:
    ip = v.faker.ipv4_public()
    home = f"192.168.{v.rng.randint(0, 254)}.{v.rng.randint(2, 254)}"
    return v.rng.choice((ip, ip, home, f"10.{v.rng.randint(0, 99)}.4.{v.rng.randint(2, 254)}"))


def _key(v: FourthValues) -> str:
    if v.rng.random() < 0.5:
        return s.SECRETS["key"][1](v.rng)
    start, length, alphabet = v.rng.choice(
        (("sk-or-" + "v1-", 64, HEX), ("wh" + "sec_", 32, WORD), ("NRAK-", 27, "ABCDEFGHJKLMNPQRSTUVWXYZ0123456789"), ("tvly-" + "dev-", 32, WORD),
         ("SG." + random_text(v.rng, 22) + ".", 43, WORD), ("xox" + "b-" + shape(v.rng, "############-#############-"), 24, WORD),
         ("cf" + "ut_", 40, WORD), ("PM" + "AK-", 59, HEX), ("sk-" + "svcacct-", 74, WORD + "-_"), ("phc" + "_", 43, WORD), ("sntry" + "s_", 120, WORD))
    )  # fmt: skip
    return start + random_text(v.rng, length, alphabet)


def _opaque(v: FourthValues) -> str:
    long = base64.b64encode(v.rng.randbytes(32)).decode()
    return one_filled(v.rng, long + " {32h} {48} {40u}")


def _password(v: FourthValues) -> str:
    words = "Sommer azerty Pumpkin Gatito saudade Blumentopf chouchou Futebol tequila Wh1sky"
    word = v.rng.choice(words.split())
    return v.rng.choice(
        (f"{word}{v.rng.randint(1, 2025)}!", f"{word.swapcase()}_{v.rng.randint(10, 99)}", random_text(v.rng, 14, WORD + "!@#%&*"),
         f"{word}.{random_text(v.rng, 4)}", random_text(v.rng, 10), f"{word}-{v.rng.choice(('tisch', 'lune', 'verde', 'rain'))}-{v.rng.randint(100, 999)}")
    )  # fmt: skip


def _url(v: FourthValues) -> str:
    if v.rng.random() < 0.4:
        return s.SECRETS["urlsecret"][1](v.rng)
    user = v.rng.choice(("sa", "etl", "reporting", "ci-bot", "wp_user"))
    word = random_text(v.rng, v.rng.randint(8, 18))
    host = v.rng.choice(("pg01.corp.lan", "172.20.4.11", "db-eu.kontora.app", "mq.fretes.com.br"))
    return v.rng.choice(
        (f"postgres://{user}:{word}@{host}/billing", f"mssql://{user}:{word}@{host}:1433/erp", f"http://{user}:{word}@{host}:3128",
         f"sftp://{user}:{word}@{host}/upload", f"clickhouse://{user}:{word}@{host}:9000/events", f"smtp://{user}:{word}@{host}:587",
         f"jdbc:mysql://{host}:3306/shop?user={user}&password={word}", f"https://{host}/export.csv?token={random_text(v.rng, 36)}",
         f"https://{host}/magic-login?auth_token={random_text(v.rng, 40, HEX)}", f"rediss://default:{word}@{host}:6380")
    )  # fmt: skip


Draw = Callable[[FourthValues], str]


def _svnr(rng: random.Random) -> str:
    date = f"{rng.randint(1, 28):02d}{rng.randint(1, 12):02d}{rng.randint(40, 99):02d}"
    while True:
        number = f"{rng.randint(100, 999)}{rng.randint(0, 9)}{date}"
        if vnr.is_valid(number):
            return number[:4] + rng.choice(("", " ", " ", "-")) + number[4:]


def _niss(rng: random.Random) -> str:
    year, month, day = rng.randint(40, 99), rng.randint(1, 12), rng.randint(1, 28)
    while True:
        serial = rng.randint(1, 997)
        body = f"{year}{month:02d}{day:02d}{serial:03d}"
        number = f"{body}{97 - int(body) % 97:02d}"
        if nn.is_valid(number):
            dotted = f"{year}.{month:02d}.{day:02d}-{serial:03d}.{number[-2:]}"
            return rng.choice((number, dotted, dotted))


def _licence_gb(rng: random.Random) -> str:
    family = "".join(rng.choices("BCDFGHKLMNPRSTW", k=1)) + "".join(rng.choices("AEIORLNST", k=4))
    born = f"{rng.randint(4, 9)}{rng.randint(1, 12):02d}{rng.randint(1, 28):02d}{rng.randint(0, 9)}"
    return f"{family}{born}{shape(rng, '?9#??')}"


_MADE = {
    "svnr": (e.NATIONAL_ID, _svnr),
    "niss": (e.NATIONAL_ID, _niss),
    "dlgb": (e.DRIVER_LICENSE, _licence_gb),
}
FOURTH_VALUES: dict[str, tuple[str | None, Draw]] = {
    **THIRD_VALUES,
    "name": (e.PERSON, _name),
    "plain": (e.PERSON, _plain),
    "world": (e.PERSON, _world),
    "middle": (e.PERSON, _middle),
    "particle": (e.PERSON, _particle),
    "hyphen": (e.PERSON, _hyphen),
    "first": (e.PERSON, FourthValues.given),
    "last": (e.PERSON, FourthValues.family),
    "firstlow": (e.PERSON, lambda v: v.given().lower()),
    "lower": (e.PERSON, lambda v: f"{v.given()} {v.family()}".lower()),
    "upper": (e.PERSON, lambda v: _plain(v).upper()),
    "comma": (e.PERSON, lambda v: f"{v.family()}, {v.given()}"),
    "commaup": (e.PERSON, lambda v: f"{v.family().upper()}, {v.given()}"),
    "initial": (e.PERSON, lambda v: f"{v.given()[0]}. {v.family()}"),
    "town": (e.LOCATION, lambda v: v.listed("towns")),
    "townlow": (e.LOCATION, lambda v: v.listed("towns").lower()),
    "zip": (e.LOCATION, lambda v: v.number("zip")),
    "street": (e.STREET_ADDRESS, _street),
    "address": (e.STREET_ADDRESS, _address),
    "email": (e.EMAIL_ADDRESS, _email),
    "phone": (e.PHONE_NUMBER, lambda v: v.number("home")),
    "abroad": (e.PHONE_NUMBER, lambda v: v.number("abroad")),
    "card": (e.CREDIT_CARD, _card),
    "account": (e.BANK_ACCOUNT, lambda v: v.number("account")),
    "pass": (e.PASSPORT, lambda v: v.number("pass")),
    "licence": (e.DRIVER_LICENSE, lambda v: v.number("licence")),
    "dob": (e.DATE_OF_BIRTH, _dob),
    "dobdigits": (e.DATE_OF_BIRTH, _dob_digits),
    "dobiso": (e.DATE_OF_BIRTH, _dob_iso),
    "ip": (e.IP_ADDRESS, _ip),
    "key": (e.API_KEY, _key),
    "opaque": (e.API_KEY, _opaque),
    "password": (e.PASSWORD, _password),
    "urlsecret": (e.URL_CREDENTIALS, _url),
    **numbers("fourth"),
    **{slot: (entity, with_random(draw)) for slot, (entity, draw) in _MADE.items()},
    # What only looks like personal data.
    "date": (None, _date),
    "product": (None, lambda v: v.rng.choice(v.lists["any products"])),
    "gadget": (None, lambda v: v.rng.choice(v.lists["any gadgets"])),
    "company": (None, lambda v: v.rng.choice(v.lists["any companies"])),
    "flight": (None, lambda v: v.rng.choice(v.lists["any carriers"]) + shape(v.rng, v.rng.choice(("###", "_####", "####")))),
    "sha": (None, lambda v: random_text(v.rng, v.rng.choice((7, 8, 40)), HEX)),
}  # fmt: skip
