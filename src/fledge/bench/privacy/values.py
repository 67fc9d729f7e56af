"""Values for the slots of templates: personal ones with their entity, and hard negatives with none."""

from __future__ import annotations

import random
import string
import uuid
from collections.abc import Callable
from functools import cache

from faker import Faker
from stdnum.br import cpf
from stdnum.de import idnr
from stdnum.es import dni
from stdnum.gb import nhs

from fledge.data.privacy import entities as e

_PRODUCTS = [
    "iPhone 15 Pro",
    "Tesla Model 3",
    "ThinkPad X1",
    "Galaxy S24",
    "Kindle Paperwhite",
    "PlayStation 5",
    "Mercedes C 220",
    "Nikon Z6",
    "Canon R5",
    "Boeing 737-800",
    "Airbus A320",
    "Echo Dot",
    "Surface Pro 9",
    "Windows 11",
    "Ubuntu 22.04",
    "Core i7-13700K",
    "RTX 4090",
    "Raspberry Pi 5",
    "Ford Focus",
    "Fairphone 5",
    "Volkswagen Golf",
    "Renault Clio",
    "Peugeot 208",
    "Dyson V15",
    "Bosch GSR 18V-55",
    "Fritz!Box 7590",
    "Model Y",
    "Pixel 8",
    "AirPods Max",
    "Chromebook 14",
]


class Values:
    """Draws values for one record."""

    def __init__(self, faker: Faker, rng: random.Random, unlisted: bool = False) -> None:
        self.faker = faker
        self.rng = rng
        self._unlisted = unlisted

    def first(self) -> str:
        """A given name."""
        return self.rng.choice(_unlisted_names()[0]) if self._unlisted else self.faker.first_name()

    def last(self) -> str:
        """A family name."""
        return self.rng.choice(_unlisted_names()[1]) if self._unlisted else self.faker.last_name()

    def digits(self, pattern: str) -> str:
        """The pattern with digits for # and capitals for ?."""
        return "".join(
            self.rng.choice(string.digits)
            if c == "#"
            else self.rng.choice("ABCDEFGHJKLMNPRSTUVWXYZ")
            if c == "?"
            else c
            for c in pattern
        )

    def pick(self, *patterns: str) -> str:
        """One of the patterns, filled."""
        return self.digits(self.rng.choice(patterns))

    def text(self, length: int, letters: str = string.ascii_letters + string.digits) -> str:
        """Random characters."""
        return "".join(self.rng.choices(letters, k=length))

    def date(self) -> str:
        """A date as some people write it."""
        date = self.faker.date_of_birth(minimum_age=1, maximum_age=90)
        return date.strftime(self.rng.choice(("%Y-%m-%d", "%d.%m.%Y", "%d/%m/%Y")))


@cache
def _unlisted_names() -> tuple[list[str], list[str]]:
    """Names of the US census of 1990 (package `names`) that are not on the filter's lists."""
    from names import FILES

    from fledge.data.privacy.lexicon import lexicon

    lists = lexicon()

    def read(name: str) -> list[str]:
        with open(FILES[name], encoding="ascii") as file:
            found = [line.split()[0].capitalize() for line in file][:20_000]
        return [
            word
            for word in found
            if len(word) > 3 and not lists.is_any_name(word.lower()) and word.lower() not in lists.common
        ]

    return read("first:male") + read("first:female"), read("last")


def _dni(values: Values) -> str:
    number = values.digits("########")
    return number + dni.calc_check_digit(number)


def _cpf(values: Values) -> str:
    while True:
        number = values.digits("#########")
        for a in range(100):
            if cpf.is_valid(f"{number}{a:02d}"):
                return str(cpf.format(f"{number}{a:02d}"))


def _tax_de(values: Values) -> str:
    while True:
        number = values.digits("###########")
        if idnr.is_valid(number):
            return str(idnr.format(number)) if values.rng.random() < 0.5 else number


def _nhs(values: Values) -> str:
    while True:
        number = values.digits("##########")
        if nhs.is_valid(number):
            return str(nhs.format(number))


def _url_secret(values: Values) -> str:
    host = values.faker.domain_name()
    return values.rng.choice(
        (
            f"https://{values.faker.user_name()}:{values.text(10)}@{host}/v1",
            f"https://{host}/reset?token={values.text(24)}",
            f"postgres://app:{values.text(12)}@{host}:5432/main",
            f"https://{host}/v2/items?api_key={values.text(32)}&page=2",
        )
    )


def _api_key(values: Values) -> str:
    return values.rng.choice(
        (
            "sk-" + values.text(48),
            "ghp_" + values.text(36),
            "AKIA" + values.text(16, string.ascii_uppercase + "234567"),
            "xoxb-" + values.text(12, string.digits) + "-" + values.text(24),
            "glpat-" + values.text(20),
            "AIza" + values.text(35),
            values.text(40, "0123456789abcdef"),
        )
    )


def _private_key(values: Values) -> str:
    body = "\n".join(values.text(64) for _ in range(3))
    return f"-----BEGIN RSA PRIVATE KEY-----\n{body}\n-----END RSA PRIVATE KEY-----"


def _wallet(values: Values) -> str:
    base58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
    return values.rng.choice(
        (
            "bc1q" + values.text(38, "023456789acdefghjklmnpqrstuvwxyz"),
            "0x" + values.text(40, "0123456789abcdef"),
            "1" + values.text(33, base58),
        )
    )


def _password(values: Values) -> str:
    return values.rng.choice(
        (
            values.faker.password(length=values.rng.randint(8, 14)),
            values.faker.word() + values.digits("##") + "!",
            values.text(10),
        )
    )


def _price(values: Values) -> str:
    return f"{values.rng.randint(1, 9999):,}.{values.rng.randint(0, 99):02d} {values.rng.choice(('EUR', 'USD', '€'))}"


# slot -> (entity, or None for a hard negative; how to draw one)
VALUES: dict[str, tuple[str | None, Callable[[Values], str]]] = {
    "name": (e.PERSON, lambda v: f"{v.first()} {v.last()}"),
    "first": (e.PERSON, Values.first),
    "last": (e.PERSON, Values.last),
    "city": (e.LOCATION, lambda v: v.faker.city()),
    "address": (e.STREET_ADDRESS, lambda v: v.faker.address().replace("\n", ", ")),
    "phone": (e.PHONE_NUMBER, lambda v: v.faker.phone_number()),
    "email": (
        e.EMAIL_ADDRESS,
        lambda v: v.rng.choice((v.faker.email, v.faker.free_email, v.faker.company_email))(),
    ),
    "iban": (e.IBAN_CODE, lambda v: v.faker.iban()),
    "card": (e.CREDIT_CARD, lambda v: v.faker.credit_card_number()),
    "account": (e.BANK_ACCOUNT, lambda v: v.pick("##########", "########", "############")),
    "routing": (
        e.BANK_ROUTING,
        lambda v: v.faker.aba() if v.faker.locales[0].startswith("en") else v.digits("########"),
    ),
    "ssn": (
        e.NATIONAL_ID,
        lambda v: f"{v.rng.randint(1, 665):03d}-{v.rng.randint(1, 99):02d}-{v.rng.randint(1, 9999):04d}",
    ),
    "tax_us": (e.TAX_ID, lambda v: v.pick("##-#######", "9##-7#-####")),
    "tax_de": (e.TAX_ID, _tax_de),
    "tax_fr": (e.TAX_ID, lambda v: v.pick("#############", "## ## ### ### ###")),
    "nino": (e.NATIONAL_ID, lambda v: v.pick("AB######C", "JK ## ## ## A")),
    "svnr": (
        e.NATIONAL_ID,
        lambda v: f"{v.digits('##')}{v.rng.randint(1, 28):02d}{v.rng.randint(1, 12):02d}{v.digits('##?###')}",
    ),
    "nir": (e.NATIONAL_ID, lambda v: v.faker.ssn()),
    "dni": (e.NATIONAL_ID, _dni),
    "cpf": (e.NATIONAL_ID, _cpf),
    "nhs": (e.MEDICAL_ID, _nhs),
    "passport": (e.PASSPORT, lambda v: v.pick("?########", "#########", "C##X##T##", "??#######")),
    "license": (e.DRIVER_LICENSE, lambda v: v.pick("?#######", "?###-####-####", "########", "B###XY##N##")),
    "medical": (e.MEDICAL_ID, lambda v: v.pick("########", "MRN######", "##-##-##-##", "?######")),
    "insurance": (e.INSURANCE_ID, lambda v: v.pick("?#########", "POL-########", "### ### ###", "??-######")),
    "dob": (e.DATE_OF_BIRTH, Values.date),
    "ip": (e.IP_ADDRESS, lambda v: v.faker.ipv4_public()),
    "ipv6": (e.IP_ADDRESS, lambda v: v.faker.ipv6()),
    "mac": (e.MAC_ADDRESS, lambda v: v.faker.mac_address()),
    "url_secret": (e.URL_CREDENTIALS, _url_secret),
    "wallet": (e.CRYPTO, _wallet),
    "apikey": (e.API_KEY, _api_key),
    "privkey": (e.PRIVATE_KEY, _private_key),
    "password": (e.PASSWORD, _password),
    # What only looks like personal data.
    "honorific": (None, lambda v: v.rng.choice(("Mr.", "Mrs.", "Dr.", "Ms."))),
    "version": (None, lambda v: v.pick("#.##.#", "#.#", "1#.0.#.#", "v#.#.##-rc1")),
    "date": (None, Values.date),
    "product": (None, lambda v: v.rng.choice(_PRODUCTS)),
    "order": (None, lambda v: v.pick("########", "####-####-##", "#########-##", "DE########")),
    "ticket": (None, lambda v: v.pick("PROJ-####", "#######", "BUG-###")),
    "price": (None, _price),
    "sha": (None, lambda v: v.text(40, "0123456789abcdef")),
    "isbn": (None, lambda v: v.faker.isbn13()),
    "number": (None, lambda v: str(v.rng.randint(2, 5000))),
    "time": (None, lambda v: f"{v.rng.randint(0, 23):02d}:{v.rng.randint(0, 59):02d}"),
    "uuid": (None, lambda v: str(uuid.UUID(int=v.rng.getrandbits(128), version=4))),
}
