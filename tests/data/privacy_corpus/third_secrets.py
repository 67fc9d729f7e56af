"""Secrets and wallets of the third corpus: keys of thirty services, URLs, passwords, private keys. All random."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import string
from collections.abc import Callable

from fledge.data.privacy import entities as e
from tests.data.privacy_corpus.shapes import BASE58, HEX, WORD, one_filled, random_text

_UPPER = string.ascii_uppercase + string.digits
_B64 = WORD + "+/"
_URL64 = WORD + "-_"
_BECH32 = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"
# How a service's keys begin, how long the rest is, and of what. Split, so that no scanner takes this file for a leak.
_KEYS = (
    ("sk-" + "proj-", 64, _URL64), ("sk-" + "ant-api03-", 93, _URL64), ("gh" + "o_", 36, WORD), ("github" + "_pat_", 82, WORD + "_"),
    ("AK" + "IA", 16, _UPPER), ("AS" + "IA", 16, _UPPER), ("AI" + "zaSy", 33, _URL64), ("h" + "f_", 34, WORD), ("npm" + "_", 36, WORD),
    ("pypi-" + "AgEIcHlwaS5vcmc", 90, _URL64), ("sk_" + "live_", 24, WORD), ("rk_" + "live_", 24, WORD), ("pk_" + "live_", 24, WORD),
    ("shp" + "at_", 32, HEX), ("dop_" + "v1_", 64, HEX), ("da" + "pi", 32, HEX), ("lin_" + "api_", 40, WORD), ("hv" + "s.", 90, _URL64),
    ("gl" + "sa_", 32, WORD), ("sq0" + "atp-", 22, _URL64), ("key-", 32, HEX), ("SK", 32, HEX), ("gl" + "pat-", 20, _URL64),
    ("xapp-" + "1-A0", 60, WORD), ("xox" + "p-9", 60, string.digits + "-" + HEX), ("ya" + "29.", 100, _URL64), ("EAACEd" + "Eose0cBA", 80, WORD),
    ("AGE-SECRET-" + "KEY-1", 58, _BECH32.upper()), ("figd_", 40, _URL64), ("r8_", 37, WORD), ("gsk_", 52, WORD), ("pplx-", 48, HEX),
)  # fmt: skip


def _key(rng: random.Random) -> str:
    start, length, alphabet = rng.choice(_KEYS)
    return start + random_text(rng, length, alphabet)


def _opaque(rng: random.Random) -> str:
    return one_filled(rng, "{40b} {32h} {64h} {44} {24}")


def _coded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _jwt(rng: random.Random) -> str:
    head = _coded(json.dumps({"alg": rng.choice(("HS256", "RS256")), "typ": "JWT"}).encode())
    claims = {"sub": str(rng.randint(10**6, 10**9)), "iat": 1_700_000_000 + rng.randint(0, 10**7)}
    body = _coded(json.dumps(claims).encode())
    return f"{head}.{body}.{_coded(rng.randbytes(32))}"


def _url(rng: random.Random) -> str:
    user = rng.choice(("admin", "svc_reports", "root", "deploy", "app"))
    word = random_text(rng, rng.randint(8, 16))
    host = rng.choice(
        ["db.internal", "10.3.1.9", "cluster0.ab12c.mongodb.net", "mq.prod.acme.io", "git.acme.dev"]
    )
    return rng.choice(
        (
            f"postgresql://{user}:{word}@{host}:5432/main", f"mysql+pymysql://{user}:{word}@{host}/shop", f"mongodb+srv://{user}:{word}@{host}/app",
            f"redis://:{word}@{host}:6379/0", f"amqps://{user}:{word}@{host}/vhost", f"https://{user}:{word}@{host}/repo.git",
            f"https://api.{host}/v2/items?access_token={random_text(rng, 32)}", f"https://{host}/cb?code=200&api_key={random_text(rng, 24)}",
            f"ftp://{user}:{word}@{host}/pub", f"https://storage.blob.core.windows.net/c/f.zip?sv=2022-11-02&sig={random_text(rng, 43)}%3D",
            f"https://hooks.slack.com/services/T{random_text(rng, 8, _UPPER)}/B{random_text(rng, 8, _UPPER)}/{random_text(rng, 24)}",
            f"https://bucket.s3.amazonaws.com/k.csv?X-Amz-Credential=x&X-Amz-Signature={random_text(rng, 64, HEX)}",
            f"https://app.acme.io/reset?token={random_text(rng, 40, HEX)}",
        )
    )  # fmt: skip


def _password(rng: random.Random) -> str:
    words = "sunshine Dragon monkey Passw0rd qwerty Liverpool trustno Fluffy winter Tr0ub4dor"
    word = rng.choice(words.split())
    return rng.choice(
        (
            f"{word}{rng.randint(10, 2024)}", f"{word}{rng.randint(1, 99)}{rng.choice('!?#*$')}", random_text(rng, 12, WORD + "!@#%^&*"),
            "-".join(rng.sample(("correct", "horse", "battery", "staple", "purple", "otter", "lamp", "river"), 4)), f"{random_text(rng, 5)}_{word}",
        )
    )  # fmt: skip


def _pem(rng: random.Random) -> str:
    kind = rng.choice(("RSA ", "EC ", "OPENSSH ", "", "ENCRYPTED ", "PGP "))
    kind += "PRIVATE KEY BLOCK" if kind == "PGP " else "PRIVATE KEY"
    ends = rng.choice(("\n", "\n", "\\n"))
    body = ends.join(random_text(rng, 64, _B64) for _ in range(rng.randint(2, 6)))
    return f"-----BEGIN {kind}-----{ends}{body}{ends}-----END {kind}-----"


def _base58check(rng: random.Random, version: int) -> str:
    data = bytes([version]) + rng.randbytes(20)
    data += hashlib.sha256(hashlib.sha256(data).digest()).digest()[:4]
    number, made = int.from_bytes(data), ""
    while number:
        number, digit = divmod(number, 58)
        made = BASE58[digit] + made
    return "1" * (len(data) - len(data.lstrip(b"\0"))) + made


def _wallet(rng: random.Random) -> str:
    return rng.choice(
        (
            _base58check(rng, 0), _base58check(rng, 5), _base58check(rng, 48), _base58check(rng, 30), _base58check(rng, 65),
            "bc1q" + random_text(rng, 38, _BECH32), "bc1p" + random_text(rng, 58, _BECH32), "ltc1q" + random_text(rng, 38, _BECH32),
            "0x" + random_text(rng, 40, HEX), "0x" + random_text(rng, 40, HEX + "ABCDEF"), "0x" + random_text(rng, 40, HEX),
            "4" + rng.choice("1234567AB") + random_text(rng, 93, BASE58),
        )
    )  # fmt: skip


SECRETS: dict[str, tuple[str, Callable[[random.Random], str]]] = {
    "key": (e.API_KEY, _key),
    "opaque": (e.API_KEY, _opaque),
    "jwt": (e.API_KEY, _jwt),
    "urlsecret": (e.URL_CREDENTIALS, _url),
    "password": (e.PASSWORD, _password),
    "pin": (e.PASSWORD, lambda rng: random_text(rng, rng.choice((4, 6)), string.digits)),
    "pem": (e.PRIVATE_KEY, _pem),
    "wallet": (e.CRYPTO, _wallet),
    "wallet58": (e.CRYPTO, lambda rng: random_text(rng, 44, BASE58)),
}
