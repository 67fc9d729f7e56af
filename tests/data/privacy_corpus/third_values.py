"""Values of the third corpus: Faker's locales of ten countries, identifiers with right check digits, names of the world.

Slot -> (entity, or None for what only looks like personal data; how to draw one). A value's format varies as people
write it: with spaces, dots, dashes, or none. Nobody's data is in it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from faker import Faker
from stdnum.fr import nir
from stdnum.it import codicefiscale
from stdnum.mx import curp, rfc

from fledge.data.privacy import entities as e
from tests.data.privacy_corpus import third_secrets as s
from tests.data.privacy_corpus.shapes import (
    HEX,
    MONTHS,
    ascii_only,
    lists,
    numbers,
    random_text,
    shape,
    valid,
    with_random,
)

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
    return numbers("third")[f"home:{v.faker.locales[0]}"][1](v)


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


def _nir(rng: random.Random) -> str:
    made = valid(nir, "17#01#501####0#", "28#1075########", "19#0813########")(rng)
    spaced = " ".join((made[0], made[1:3], made[3:5], made[5:7], made[7:10], made[10:13], made[13:]))
    return rng.choice((made, spaced, spaced))


_LETTERS = "BCDFGHLMNPRSTVZ"


def _fiscal(rng: random.Random) -> str:
    head = "".join(rng.choices(_LETTERS, k=6))
    tail = f"{rng.randint(40, 99)}{rng.choice('ABCDEHLMPRST')}{rng.randint(1, 28):02d}{rng.choice('HFLDAG')}{rng.randint(100, 999)}"
    return head + tail + codicefiscale.calc_check_digit(head + tail)


def _curp(rng: random.Random) -> str:
    while True:
        made = f"{rng.choice('GMLRH')}{rng.choice('AEO')}{rng.choice('RLM')}{rng.choice('JMAL')}{rng.randint(60, 99)}{rng.randint(1, 12):02d}{rng.randint(1, 28):02d}"
        made += f"{rng.choice('HM')}{rng.choice(('DF', 'JC', 'NL', 'PL'))}{''.join(rng.choices('RLMNSTGZ', k=3))}0{rng.randint(0, 9)}"
        if curp.is_valid(made):
            return made


def _rfc(rng: random.Random) -> str:
    while True:
        made = (
            f"{''.join(rng.choices('GMLRHBCS', k=1))}{rng.choice('AEO')}{''.join(rng.choices('RLMZ', k=2))}"
        )
        made += f"{rng.randint(60, 99)}{rng.randint(1, 12):02d}{rng.randint(1, 28):02d}{shape(rng, '*#*')}"
        if rfc.is_valid(made):
            return made


def _rvnr(rng: random.Random) -> str:
    day, month, year = rng.randint(1, 28), rng.randint(1, 12), rng.randint(40, 99)
    gap = rng.choice(("", " "))
    return gap.join(
        (f"{rng.randint(10, 89)}", f"{day:02d}{month:02d}{year}", shape(rng, "?"), shape(rng, "###"))
    )


def _dl_gb(rng: random.Random) -> str:
    return (
        rng.choice(("MORGA", "SMITH", "JONES", "PATEL", "KHAN9"))
        + shape(rng, "6")
        + f"{rng.randint(1, 12):02d}"
        + shape(rng, "1#5?M9??")
    )


_MADE = {
    "rvnr": (e.NATIONAL_ID, _rvnr),
    "nir": (e.NATIONAL_ID, _nir),
    "curp": (e.NATIONAL_ID, _curp),
    "fiscal": (e.NATIONAL_ID, _fiscal),
    "rfc": (e.TAX_ID, _rfc),
    "dlgb": (e.DRIVER_LICENSE, _dl_gb),
}
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
    "card": (e.CREDIT_CARD, _card),
    "iban": (e.IBAN_CODE, _iban),
    "dob": (e.DATE_OF_BIRTH, _date),
    "ip": (e.IP_ADDRESS, _ip),
    "ipv6": (e.IP_ADDRESS, lambda v: v.faker.ipv6()),
    "mac": (e.MAC_ADDRESS, _mac),
    **numbers("third"),
    **{name: (entity, with_random(draw)) for name, (entity, draw) in {**_MADE, **s.SECRETS}.items()},
    # What only looks like personal data.
    "date": (None, _date),
    "product": (None, lambda v: v.rng.choice(v.lists["any products"])),
    "company": (None, lambda v: v.rng.choice(v.lists["any companies"])),
    "thing": (None, lambda v: v.listed("things")),
    "sha": (None, lambda v: random_text(v.rng, v.rng.choice((7, 12, 40, 64)), HEX)),
    "uuid": (None, lambda v: str(v.faker.uuid4())),
    "doi": (None, lambda v: shape(v.rng, v.rng.choice(("10.####/s#####-0##-#####-#", "10.#####/???.20##.######")))),
    "vin": (e.VEHICLE_ID, lambda v: "WVWZZZ1J" + random_text(v.rng, 9, "0123456789")),
}  # fmt: skip
