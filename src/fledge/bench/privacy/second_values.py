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
from importlib import resources

from stdnum import luhn
from stdnum.iso7064 import mod_97_10

from fledge.data.privacy import entities as e

_HEX = "0123456789abcdef"
_WORD = string.ascii_letters + string.digits
_B64 = _WORD + "+/"
_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"

# Telephones as their countries write them at home. # any digit, N 2 to 9.
_HOME = {
    "en": "(NN#) NN#-#### NN#-NN#-#### NN#.NN#.#### 1-NN#-NN#-#### 07###_###### 020_7###_#### 0161_###_#### 04##_###_### "
    "(02)_9###_#### 087_###_#### 98###_##### 082_###_####",
    "de": "0171_####### 0171/####### 030_######## (089)_####### 0664_####### 0664/######## 079_###_##_## 0221-####### "
    "040_/_######## 07031_######-##",
    "fr": "06_##_##_##_## 06.##.##.##.## 0612###### 01-##-##-##-## 0475_##_##_## 079_###_##_##",
    "es": "6##_###_### 6##_##_##_## 91_###_##_## 9##_###_### 6######## 55_####_#### (55)_####-####",
    "pt": "9##_###_### 21#_###_### (11)_9####-#### (21)_####-#### 11_9####-#### 91#######",
}
# The same with the country's code: telephones anywhere in the world.
_ABROAD = (
    "+1_NN#_NN#_#### +1-NN#-NN#-#### +1NN#NN##### +1_(NN#)_NN#-#### +44_7###_###### +44_(0)20_7###_#### +4479######## "
    "+49_171_####### +49_(0)_89_######-## +49/30/####### +33_6_##_##_##_## +33_(0)6_##_##_##_## +336######## 0033_6_##_##_##_## "
    "+34_6##_###_### +34-6##-##-##-## +351_9##_###_### +55_11_9####-#### +55_(21)_9####-#### +39_3##_###_#### +39_02_####_#### "
    "+31_6_######## +31_(0)20_###_#### +41_79_###_##_## +43_664_####### +91_98###_##### +91-98######## +81_90-####-#### "
    "+86_138_####_#### +61_4##_###_### +52_55_####_#### +54_9_11_####-#### +48_6##_###_### +46_70_###_##_## +7_9##_###-##-## "
    "+90_5##_###_##_## +972_5#-###-#### +27_82_###_#### +82_10-####-#### +234_80#_###_#### +65_9###_#### +353_87_###_#### "
    "+971_50_###_#### +30_69#_###_#### +358_40_#######"
)
_IBANS = {
    "DE": "##################", "FR": "####################?##", "ES": "####################", "PT": "#####################",
    "GB": "????##############", "NL": "????##########", "IT": "?######################", "CH": "#################",
    "AT": "################", "BE": "############", "PL": "########################", "SE": "####################",
    "NO": "###########", "IE": "????##############",
}  # fmt: skip
_PRODUCTS = [
    "Xperia 1 V",
    "Redmi Note 13",
    "MacBook Air M3",
    "Kia EV6",
    "Opel Corsa",
    "Citroën C3",
    "Seat Ibiza",
    "VW Passat",
    "BMW X5",
    "Audi A4",
    "Lenovo Yoga 7",
    "Bosch Serie 6",
    "Philips 5400",
    "Garmin Forerunner 265",
    "GoPro Hero 12",
    "Sony WH-1000XM5",
    "HP LaserJet 1020",
    "Intel Core i5-12400F",
    "Ryzen 7 7800X3D",
    "GeForce GTX 1080",
    "iOS 17.4.1",
    "Debian 12",
    "PostgreSQL 16.2",
    "Python 3.12.1",
    "Node 20.11.0",
    "React 18",
    "CUDA 12.4",
    "Llama 3.1 8B",
    "Airbus A350-900",
    "Boeing 787-9",
    "Nokia 3310",
    "Casio F-91W",
    "Lego 42115",
    "Nespresso Vertuo",
    "Kindle Oasis",
]


class SecondValues:
    """Draws values for one text."""

    def __init__(self, rng: random.Random, language: str) -> None:
        self.rng = rng
        self.language = language

    def shape(self, shapes: str) -> str:
        """One of the shapes, filled: # a digit, N 2 to 9, ? a capital, _ a blank."""
        draw = {"#": string.digits, "N": "23456789", "?": "ABCDEFGHJKLMNPRSTUVWXYZ", "_": " "}
        return "".join(self.rng.choice(draw[c]) if c in draw else c for c in self.rng.choice(shapes.split()))

    def text(self, length: int, letters: str = _WORD) -> str:
        """Random characters."""
        return "".join(self.rng.choices(letters, k=length))

    def word(self, kind: str) -> str:
        """A name of the language's list (`given`, `family`, `town` or `street`)."""
        return self.rng.choice(_NAMES[self.language, kind])


def _read_names() -> dict[tuple[str, str], list[str]]:
    text = (resources.files("fledge.bench.privacy") / "second" / "names.txt").read_text("utf-8")
    rows = [line.split(": ", 1) for line in text.splitlines()]
    return {(head.split()[0], head.split()[1]): tail.split(", ") for head, tail in rows}


_NAMES = _read_names()


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
    body = prefix + v.text(length - len(prefix) - 1, string.digits)
    plain = body + luhn.calc_check_digit(body)
    edges = (0, *cuts, length)
    groups = [plain[a:b] for a, b in itertools.pairwise(edges)]
    return v.rng.choice((" ", "-", "")).join(groups)


def _email(v: SecondValues) -> str:
    given, family = v.word("given").lower().split()[0], v.word("family").lower().replace(" ", "")
    host = v.rng.choice(
        ("gmail.com", "web.de", "orange.fr", "uol.com.br", "mail.co.uk", "bücher-müller.de", "cs.uni.edu")
    )
    local = v.rng.choice(
        (
            f"{given}.{family}",
            f"{given[0]}{family}{v.shape('## #### #')}",
            f"{given}+shop",
            f"{given}_{family}",
            f"{family}-{given}",
        )
    )
    return v.rng.choice((f"{local}@{host}", f"{local}@{host}", f"{local}@{host}".upper()))


def _date(v: SecondValues) -> str:
    day, month, year = v.rng.randint(1, 28), v.rng.randint(1, 12), v.rng.randint(1935, 2012)
    names = {
        "en": "January February March April May June July August September October November December",
        "de": "Januar Februar März April Mai Juni Juli August September Oktober November Dezember",
        "fr": "janvier février mars avril mai juin juillet août septembre octobre novembre décembre",
        "es": "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre",
        "pt": "janeiro fevereiro março abril maio junho julho agosto setembro outubro novembro dezembro",
    }
    name = names[v.language].split()[month - 1]
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

    return f"{part({'alg': 'HS256', 'typ': 'JWT'})}.{part({'sub': v.text(10, string.digits), 'iat': 1516239022})}.{v.text(43)}"


def _key(v: SecondValues) -> str:
    t = v.text
    return v.rng.choice(
        (
            lambda: "AKIA" + t(16, string.ascii_uppercase + "234567"),
            lambda: "github_pat_" + t(22) + "_" + t(59),
            lambda: "gho_" + t(36),
            lambda: "sk-proj-" + t(48),
            lambda: "sk-ant-api03-" + t(80),
            lambda: "hf_" + t(34, string.ascii_letters),
            lambda: "AIza" + t(35),
            lambda: f"SG.{t(22)}.{t(43)}",
            lambda: "sk_" + "live_" + t(24),
            lambda: "npm_" + t(36),
            lambda: "xoxp-" + t(11, string.digits) + "-" + t(12, string.digits) + "-" + t(24),
            lambda: "dop_v1_" + t(64, _HEX),
            lambda: "gsk_" + t(52),
            lambda: "r8_" + t(37),
            lambda: "lin_api_" + t(40),
            lambda: "hvs." + t(90),
            lambda: "figd_" + t(40),
            lambda: "ntn_" + t(46),
            lambda: "dapi" + t(32, _HEX),
            lambda: "xai-" + t(80),
            lambda: "sq0atp-" + t(22),
            lambda: "ya29." + t(60),
            lambda: "glsa_" + t(32) + "_" + t(8, _HEX),
            lambda: _jwt(v),
            lambda: "ATATT3xFfGF0" + t(120),
            lambda: "shpat_" + t(32, _HEX),
            lambda: t(9, string.digits) + ":AA" + t(33),
        )
    )()


def _pem(v: SecondValues) -> str:
    kind = v.rng.choice(("", "EC ", "OPENSSH ", "ENCRYPTED "))
    body = "\n".join(v.text(64, _B64) for _ in range(4))
    return f"-----BEGIN {kind}PRIVATE KEY-----\n{body}\n{v.text(22, _B64)}==\n-----END {kind}PRIVATE KEY-----"


def _url(v: SecondValues) -> str:
    host = v.rng.choice(("db.intern.acme.io", "10.3.4.17", "api.shop-acme.com", "queue.acme.net"))
    return v.rng.choice(
        (
            f"postgresql://admin:{v.text(9)}@{host}:5432/orders?sslmode=require",
            f"mongodb+srv://svc:{v.text(14)}@{host}/app",
            f"redis://:{v.text(16)}@{host}:6379/0",
            f"amqp://rabbit:{v.text(8)}!@{host}:5672/",
            f"https://deploy:{v.text(20)}@{host}/git/repo.git",
            f"https://{host}/download?X-Amz-Signature={v.text(64, _HEX)}",
            f"https://{host}/invite?access_token={v.text(30)}",
            f"ftp://user:{v.text(10)}@{host}/pub",
        )
    )


def _ip(v: SecondValues) -> str:
    return f"{v.rng.choice((10, 52, 84, 93, 172, 185))}." + ".".join(
        str(v.rng.randint(1, 254)) for _ in range(3)
    )


def _ipv6(v: SecondValues) -> str:
    full = ipaddress.IPv6Address((0x2A02 << 112) | v.rng.getrandbits(v.rng.choice((32, 64, 100))))
    return v.rng.choice((full.compressed, full.exploded, full.compressed.upper()))


def _mac(v: SecondValues) -> str:
    octets = [v.text(2, _HEX) for _ in range(6)]
    plain = "".join(octets)
    return v.rng.choice(
        (":".join(octets), "-".join(octets).upper(), ".".join((plain[:4], plain[4:8], plain[8:])))
    )


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
    return v.rng.choice(
        (
            v.text(12, _WORD + "!#$%&*"),
            v.word("town").split()[0] + v.shape("####") + "!",
            v.text(4) + "-" + v.text(4, string.digits) + "-" + v.text(4),
            "S0mmer" + v.shape("####"),
        )
    )


def _wallet(v: SecondValues) -> str:
    return v.rng.choice(
        (
            "0x" + v.text(40, _HEX),
            "bc1q" + v.text(38, "023456789acdefghjklmnpqrstuvwxyz"),
            "3" + v.text(33, _BASE58),
        )
    )


Draw = Callable[[SecondValues], str]
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
    "phone": (e.PHONE_NUMBER, lambda v: v.shape(_HOME[v.language])),
    "phone_abroad": (e.PHONE_NUMBER, lambda v: v.shape(_ABROAD)),
    "iban": (e.IBAN_CODE, _iban),
    "card": (e.CREDIT_CARD, _card),
    "account": (e.BANK_ACCOUNT, lambda v: v.shape("######## ########## ####-###### ##-####-#######")),
    "routing": (e.BANK_ROUTING, lambda v: v.shape("######### ##-##-##") if v.language == "en" else v.shape("########")),
    "ssn": (e.NATIONAL_ID, lambda v: v.shape("5##-4#-1### 2##_3#_4###")),
    "ein": (e.TAX_ID, lambda v: v.shape("##-#######")),
    "passport": (e.PASSPORT, lambda v: v.shape("?######## ??####### C0#?#####")),
    "license": (e.DRIVER_LICENSE, lambda v: v.shape("?####### ?##-###-###-### ########")),
    "medical": (e.MEDICAL_ID, lambda v: v.shape("####### ??-###### ###-##-####X")),
    "insurance": (e.INSURANCE_ID, lambda v: v.shape("?######### ###-####-### ??########")),
    "dob": (e.DATE_OF_BIRTH, _date),
    "ip": (e.IP_ADDRESS, _ip),
    "ipv6": (e.IP_ADDRESS, _ipv6),
    "mac": (e.MAC_ADDRESS, _mac),
    "url": (e.URL_CREDENTIALS, _url),
    "wallet": (e.CRYPTO, _wallet),
    "key": (e.API_KEY, _key),
    "secret": (e.API_KEY, lambda v: v.rng.choice((v.text(40, _B64), v.text(32, _HEX), v.text(64, _HEX)))),
    "pem": (e.PRIVATE_KEY, _pem),
    "password": (e.PASSWORD, _password),
    # What only looks like personal data.
    "date": (None, _date),
    "product": (None, lambda v: v.rng.choice(_PRODUCTS)),
    "version": (None, lambda v: v.shape("#.#.# ##.#.#.## v#.##.# #.#.#-rc.# 20##.#.#")),
    "uuid": (None, lambda v: str(uuid.UUID(int=v.rng.getrandbits(128), version=4))),
    "sha": (None, lambda v: v.text(v.rng.choice((7, 40, 64)), _HEX)),
    "isbn": (None, lambda v: v.shape("978-#-##-######-# 978##########")),
    "order": (None, lambda v: v.shape("#### ######## ###-#######-####### PO-##### ??-####-## ##########")),
    "number": (None, lambda v: f"{v.rng.randint(2, 90_000):,}"),
    "decimal": (None, lambda v: v.shape("#.##### 0.#### ##.## -#.##e-#")),
    "big": (None, lambda v: v.shape("########## 1############ #########")),
    "time": (None, lambda v: v.shape("1#:##:## 0#:3# 2#:#5:#1.###")),
}  # fmt: skip
