"""Values for the slots of templates: personal ones with their entity, and hard negatives with none."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from functools import cache

from faker import Faker
from stdnum.br import cpf
from stdnum.de import idnr
from stdnum.es import dni
from stdnum.gb import nhs

from fledge.data.privacy import entities as e
from tests.data.privacy_corpus.shapes import HEX, lists, numbers, one_filled, random_text, shape


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

    def digits(self, form: str) -> str:
        """The form, filled as `shape` does."""
        return shape(self.rng, form)

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
    forms = (
        f"https://{values.faker.user_name()}:{{10}}@{host}/v1",
        f"https://{host}/reset?token={{24}}",
        f"postgres://app:{{12}}@{host}:5432/main",
        f"https://{host}/v2/items?api_key={{32}}&page=2",
    )
    return one_filled(values.rng, " ".join(forms))


def _api_key(values: Values) -> str:
    return one_filled(values.rng, "sk-{48} ghp_{36} AKIA{16A} xoxb-{12d}-{24} glpat-{20} AIza{35} {40h}")


def _private_key(values: Values) -> str:
    body = "\n".join(random_text(values.rng, 64) for _ in range(3))
    return f"-----BEGIN RSA PRIVATE KEY-----\n{body}\n-----END RSA PRIVATE KEY-----"


def _wallet(values: Values) -> str:
    return one_filled(values.rng, "bc1q{38w} 0x{40h} 1{33s}")


def _password(values: Values) -> str:
    made = values.faker.password(length=values.rng.randint(8, 14))
    word = f"{values.faker.word()}{values.digits('##')}!"
    return values.rng.choice((made, word, random_text(values.rng, 10)))


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
    "routing": (
        e.BANK_ROUTING,
        lambda v: v.faker.aba() if v.faker.locales[0].startswith("en") else v.digits("########"),
    ),
    "ssn": (
        e.NATIONAL_ID,
        lambda v: f"{v.rng.randint(1, 665):03d}-{v.rng.randint(1, 99):02d}-{v.rng.randint(1, 9999):04d}",
    ),
    "tax_de": (e.TAX_ID, _tax_de),
    "svnr": (
        e.NATIONAL_ID,
        lambda v: f"{v.digits('##')}{v.rng.randint(1, 28):02d}{v.rng.randint(1, 12):02d}{v.digits('##?###')}",
    ),
    "nir": (e.NATIONAL_ID, lambda v: v.faker.ssn()),
    "dni": (e.NATIONAL_ID, _dni),
    "cpf": (e.NATIONAL_ID, _cpf),
    "nhs": (e.MEDICAL_ID, _nhs),
    "dob": (e.DATE_OF_BIRTH, Values.date),
    "ip": (e.IP_ADDRESS, lambda v: v.faker.ipv4_public()),
    "ipv6": (e.IP_ADDRESS, lambda v: v.faker.ipv6()),
    "mac": (e.MAC_ADDRESS, lambda v: v.faker.mac_address()),
    "url_secret": (e.URL_CREDENTIALS, _url_secret),
    "wallet": (e.CRYPTO, _wallet),
    "apikey": (e.API_KEY, _api_key),
    "privkey": (e.PRIVATE_KEY, _private_key),
    "password": (e.PASSWORD, _password),
    **numbers("templates"),
    # What only looks like personal data.
    "honorific": (None, lambda v: v.rng.choice(("Mr.", "Mrs.", "Dr.", "Ms."))),
    "date": (None, Values.date),
    "product": (None, lambda v: v.rng.choice(lists("templates")["any products"])),
    "price": (None, _price),
    "sha": (None, lambda v: random_text(v.rng, 40, HEX)),
    "isbn": (None, lambda v: v.faker.isbn13()),
    "number": (None, lambda v: str(v.rng.randint(2, 5000))),
    "time": (None, lambda v: f"{v.rng.randint(0, 23):02d}:{v.rng.randint(0, 59):02d}"),
    "uuid": (None, lambda v: str(uuid.UUID(int=v.rng.getrandbits(128), version=4))),
}
