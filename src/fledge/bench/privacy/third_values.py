"""Values of the third corpus: Faker's locales of ten countries, identifiers with right check digits, names of the world.

Slot -> (entity, or None for what only looks like personal data; how to draw one). A value's format varies as people
write it: with spaces, dots, dashes, or none. Nobody's data is in it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from faker import Faker

from fledge.bench.privacy import third_numbers as n
from fledge.bench.privacy import third_secrets as s
from fledge.bench.privacy.shapes import HEX, MONTHS, ascii_only, lists, random_text, shape
from fledge.data.privacy import entities as e

LOCALES = {
    "en": ("en_US", "en_GB", "en_IN", "en_CA", "en_AU"),
    "de": ("de_DE", "de_AT", "de_CH"),
    "fr": ("fr_FR", "fr_CH", "fr_CA"),
    "es": ("es_ES", "es_MX", "es_AR", "es_CO"),
    "pt": ("pt_BR", "pt_PT"),
}
_WORLD = ("it_IT", "pl_PL", "nl_NL", "tr_TR", "sv_SE", "ro_RO", "hu_HU", "id_ID", "cs_CZ", "vi_VN")


class ThirdValues:
    """Draws for one record: its language, and one of that language's countries."""

    folder = "third"  # whose lists.txt is drawn from

    def __init__(self, rng: random.Random, language: str, fakers: Mapping[str, Faker]):
        self.rng = rng
        self.language = language
        self.faker = fakers[rng.choice(LOCALES[language])]
        self.fakers = fakers
        self.lists = lists(self.folder)

    @classmethod
    def make_fakers(cls, seed: int) -> dict[str, Faker]:
        """One seeded Faker per locale."""
        every = [locale for some in LOCALES.values() for locale in some] + list(_WORLD)
        fakers = {locale: Faker(locale) for locale in every}
        for number, faker in enumerate(fakers.values()):
            faker.seed_instance(seed * 1000 + number)
        return fakers

    def listed(self, kind: str) -> str:
        """One of the hand-written list of this language."""
        return self.rng.choice(self.lists[f"{self.language} {kind}"])

    def of(self, *locales: str) -> Faker:
        """A Faker of one of these locales."""
        return self.fakers[self.rng.choice(locales)]


def _full(v: ThirdValues) -> str:
    return f"{v.faker.first_name()} {v.faker.last_name()}"


def _world(v: ThirdValues) -> str:
    if v.rng.random() < 0.5:
        return v.rng.choice(v.lists["world names"])
    faker = v.of(*_WORLD)
    return f"{faker.first_name()} {faker.last_name()}"


def _comma(v: ThirdValues) -> str:
    return f"{v.faker.last_name()}, {v.faker.first_name()}"


def _middle(v: ThirdValues) -> str:
    middle = v.rng.choice((v.rng.choice("ABCDEFGHJKLMRST") + ".", v.faker.first_name()))
    return f"{v.faker.first_name()} {middle} {v.faker.last_name()}"


def _address(v: ThirdValues) -> str:
    return v.faker.address().strip().replace("\n", v.rng.choice((", ", ", ", "\n")))


def _email(v: ThirdValues) -> str:
    first, last = (ascii_only(x).lower() for x in (v.faker.first_name(), v.faker.last_name()))
    host = v.rng.choice(
        [
            "gmail.com",
            "hotmail.co.uk",
            "gmx.de",
            "orange.fr",
            "uol.com.br",
            "sapo.pt",
            "libero.it",
            "mail.tech-corp.io",
        ]
    )
    local = v.rng.choice(
        (f"{first}.{last}", f"{first[0]}{last}{v.rng.randint(1, 99)}", f"{last}_{first}+news")
    )
    made = f"{local}@{host}"
    fakers = v.faker.email(), v.faker.company_email(), v.faker.free_email()
    return v.rng.choice((made, made, made.upper(), *fakers))


def _email_spoken(v: ThirdValues) -> str:
    name = ascii_only(v.faker.last_name()).lower()
    return v.rng.choice((f"{name} [at] gmail [dot] com", f"{name}(at)web.de", f"{name} at outlook dot com"))


def _phone(v: ThirdValues) -> str:
    if v.rng.random() < 0.5:
        return v.faker.phone_number().strip()
    return shape(v.rng, v.rng.choice(n.HOME[v.faker.locales[0]].split()))


def _date(v: ThirdValues) -> str:
    day, month, year = v.rng.randint(1, 28), v.rng.randint(1, 12), v.rng.randint(1938, 2006)
    name = MONTHS[v.language].split()[month - 1]
    if v.language == "en":
        forms = [f"{day} {name} {year}", f"{name} {day}, {year}", f"{name[:3]} {day} {year}", f"{month:02d}/{day:02d}/{year}",
                 f"{day}-{name[:3]}-{year}", f"{day}th of {name} {year}" if 3 < day < 21 else f"{name} {day}, {year}",
                 f"{month}/{day}/{year % 100:02d}", f"{year}{month:02d}{day:02d}"]  # fmt: skip
    elif v.language == "de":
        forms = [
            f"{day}. {name} {year}",
            f"{day:02d}.{month:02d}.{year}",
            f"{day}.{month}.{year % 100:02d}",
            f"{day}.{month}.{year}",
        ]
    elif v.language == "fr":
        forms = [
            f"{day} {name} {year}",
            *(sign.join((f"{day:02d}", f"{month:02d}", str(year))) for sign in "/-."),
        ]
    else:
        forms = [f"{day} de {name} de {year}", *(sign.join((f"{day:02d}", f"{month:02d}", str(year))) for sign in "/-"),
                 f"{day}/{month}/{year % 100:02d}"]  # fmt: skip
    return v.rng.choice([*forms, f"{year}-{month:02d}-{day:02d}"])


def _zip(v: ThirdValues) -> str:
    return v.faker.postcode()


def _card(v: ThirdValues) -> str:
    digits = v.fakers["en_US"].credit_card_number(v.rng.choice(("visa16", "mastercard", "amex", "discover")))
    gap = v.rng.choice(("", " ", "-", " "))
    if len(digits) == 15:
        return gap.join((digits[:4], digits[4:10], digits[10:]))
    return gap.join(digits[at : at + 4] for at in range(0, len(digits), 4))


def _iban(v: ThirdValues) -> str:
    locales = "de_DE en_GB fr_FR es_ES pt_PT it_IT nl_NL pl_PL de_AT de_CH"
    iban = v.of(*locales.split()).iban()
    spaced = " ".join(iban[at : at + 4] for at in range(0, len(iban), 4))
    return v.rng.choice((iban, spaced, spaced, iban.lower(), spaced.replace(" ", "-")))


def _ip(v: ThirdValues) -> str:
    ip = v.faker.ipv4_public()
    return v.rng.choice((ip, ip, ip, v.faker.ipv4_private()))


def _mac(v: ThirdValues) -> str:
    digits = random_text(v.rng, 12, HEX)
    pairs = [digits[at : at + 2] for at in range(0, 12, 2)]
    colons, dots = ":".join(pairs), ".".join((digits[:4], digits[4:8], digits[8:]))
    return v.rng.choice((colons, "-".join(pairs).upper(), dots, colons.upper()))


Draw = Callable[[ThirdValues], str]


def _numbers(entity: str, draw: Callable[[random.Random], str]) -> tuple[str | None, Draw]:
    return entity, lambda v: draw(v.rng)


def _looks(shapes: str) -> tuple[None, Draw]:
    return None, lambda v: shape(v.rng, v.rng.choice(shapes.split()))


THIRD_VALUES: dict[str, tuple[str | None, Draw]] = {
    "name": (e.PERSON, _full),
    "world": (e.PERSON, _world),
    "first": (e.PERSON, lambda v: v.faker.first_name()),
    "last": (e.PERSON, lambda v: v.faker.last_name()),
    "lower": (e.PERSON, lambda v: _full(v).lower()),
    "upper": (e.PERSON, lambda v: _full(v).upper()),
    "comma": (e.PERSON, _comma),
    "commaup": (e.PERSON, lambda v: f"{v.faker.last_name().upper()}, {v.faker.first_name()}"),
    "initial": (e.PERSON, lambda v: f"{v.faker.first_name()[0]}. {v.faker.last_name()}"),
    "middle": (e.PERSON, _middle),
    "town": (e.LOCATION, lambda v: v.listed("towns")),
    "townlow": (e.LOCATION, lambda v: v.listed("towns").lower()),
    "city": (e.LOCATION, lambda v: v.faker.city()),
    "zip": (e.LOCATION, _zip),
    "street": (e.STREET_ADDRESS, lambda v: v.faker.street_address().strip()),
    "road": (e.STREET_ADDRESS, lambda v: v.listed("streets").replace("#", str(v.rng.randint(1, 180)))),
    "address": (e.STREET_ADDRESS, _address),
    "email": (e.EMAIL_ADDRESS, _email),
    "spoken": (e.EMAIL_ADDRESS, _email_spoken),
    "phone": (e.PHONE_NUMBER, _phone),
    "abroad": (e.PHONE_NUMBER, lambda v: shape(v.rng, v.rng.choice(n.ABROAD.split()))),
    "card": (e.CREDIT_CARD, _card),
    "iban": (e.IBAN_CODE, _iban),
    "dob": (e.DATE_OF_BIRTH, _date),
    "ip": (e.IP_ADDRESS, _ip),
    "ipv6": (e.IP_ADDRESS, lambda v: v.faker.ipv6()),
    "mac": (e.MAC_ADDRESS, _mac),
    **{name: _numbers(entity, draw) for name, (entity, draw) in n.NUMBERS.items()},
    **{name: _numbers(entity, draw) for name, (entity, draw) in s.SECRETS.items()},
    # What only looks like personal data.
    "date": (None, _date),
    "product": (None, lambda v: v.rng.choice(v.lists["any products"])),
    "company": (None, lambda v: v.rng.choice(v.lists["any companies"])),
    "thing": (None, lambda v: v.listed("things")),
    "version": _looks("#.## ##.#.# v#.#.#-beta.# #.#.#.### 20##.##.# ^##.#.# r####"),
    "order": _looks("######## ###-#######-####### SO-#### I\\NV-20##-#### #########? ??######## ##/#### 4##########"),
    "tracking": _looks("1Z###??############# ??#########DE 0034043############# 9400##################"),
    "big": _looks("########## ############ #,###,###,### #.###.### ##_###_### 16######## 1###########"),
    "decimal": _looks("#.#### ##.######## 0.##### -##.## 1.##e-# ##,## #.###,##"),
    "isbn": _looks("978-#-###-#####-# 978########## #-####-####-# 979-##-######-#-#"),
    "time": _looks("1#:3#:5# 20:0# 0#:1#:2#.### 20##-0#-1#T1#:2#:3#Z"),
    "price": _looks("$#,###.## €##.## £##.### #_###,##_€ ##.##_USD R$_#.###,##"),
    "score": _looks("#-# ##-## #:# ###-### 6-4,_7-5,_6-#"),
    "sha": (None, lambda v: random_text(v.rng, v.rng.choice((7, 12, 40, 64)), HEX)),
    "uuid": (None, lambda v: str(v.faker.uuid4())),
    "doi": (None, lambda v: shape(v.rng, v.rng.choice(("10.####/s#####-0##-#####-#", "10.#####/???.20##.######")))),
    "vin": (None, lambda v: "WVWZZZ1J" + random_text(v.rng, 9, "0123456789")),
}  # fmt: skip
