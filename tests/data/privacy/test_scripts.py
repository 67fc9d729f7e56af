"""Identifiers beside letters of other scripts, encoded, in code, and of countries that only Presidio knows."""

from __future__ import annotations

import pytest

from fledge.data.privacy import PrivacyFilter

FOUND = [
    ("请把钱转到FR1420041010050500013M02606谢谢", "FR1420041010050500013M02606", "IBAN_CODE"),
    ("カードは4539148803436467です", "4539148803436467", "CREDIT_CARD"),
    ("メールはhana.sato@postbox.orgへ", "hana.sato@postbox.org", "EMAIL_ADDRESS"),
    ("서버주소는84.23.191.7입니다", "84.23.191.7", "IP_ADDRESS"),
    ("токенghp_a8Fk29dLq0Zx7Vn3Tb5Rw1Ym6Ju4Pc8Kd2Qe", "ghp_a8Fk29dLq0Zx7Vn3Tb5Rw1Ym6Ju4Pc8Kd2Qe", "API_KEY"),
    ("我的身份证11010519491231002X丢了", "11010519491231002X", "NATIONAL_ID"),
    ("我的手机号是13912345678", "13912345678", "PHONE_NUMBER"),
    ("电话:０１０-８２３４５６７８", "０１０-８２３４５６７８", "PHONE_NUMBER"),
    ("パスワードはKiku88tokyo", "Kiku88tokyo", "PASSWORD"),
    ("كلمة السر email: a.nur@postbox.org", "a.nur@postbox.org", "EMAIL_ADDRESS"),
    ("settings[\"SECRET_KEY\"] = 'b7d1f0a94c3e8266a5d0f1c2b3e4a596'", "b7d1f0a94c3e8266a5d0f1c2b3e4a596", "API_KEY"),
    ("os.environ.setdefault('AUTH_TOKEN', 'b7d1f0a94c3e8266a5d0f1c2b3e4')", "b7d1f0a94c3e8266a5d0f1c2b3e4", "API_KEY"),
    ("cfg['db_password'] = 'Tr0ut-lake'", "Tr0ut-lake", "PASSWORD"),
    ("Your new password is k<9(Vd)2>q! until Friday", "k<9(Vd)2>q!", "PASSWORD"),
    ("POST /login?user=li.wei%40postbox.org", "li.wei%40postbox.org", "EMAIL_ADDRESS"),
    ("mailto:li.wei&#64;postbox.org", "li.wei&#64;postbox.org", "EMAIL_ADDRESS"),
    ("write to li.wei @ postbox.org", "li.wei @ postbox.org", "EMAIL_ADDRESS"),
    ("card 4 5 3 9 1 4 8 8 0 3 4 3 6 4 6 7", "4 5 3 9 1 4 8 8 0 3 4 3 6 4 6 7", "CREDIT_CARD"),
    ("mijn nummer is 06-24813579", "06-24813579", "PHONE_NUMBER"),
    ("chassis number WVWZZZ1JZ3W386752", "WVWZZZ1JZ3W386752", "VEHICLE_ID"),
    ("sold it, 1M8GDM9AXKP042788, to a dealer", "1M8GDM9AXKP042788", "VEHICLE_ID"),
    ("number plate: BD51 SMR", "BD51 SMR", "VEHICLE_ID"),
    ("araç plakası 34 ABC 1234", "34 ABC 1234", "VEHICLE_ID"),
    ("Thai national id 1101700230708", "1101700230708", "NATIONAL_ID"),
    ("Aadhaar 234123412346", "234123412346", "NATIONAL_ID"),
    ("GSTIN 27AAPFU0939F1ZV", "27AAPFU0939F1ZV", "TAX_ID"),
    ("South African ID number 8001015009087", "8001015009087", "NATIONAL_ID"),
    ("PESEL 44051401359", "44051401359", "NATIONAL_ID"),
    ("T.C. kimlik numaram 10000000146", "10000000146", "NATIONAL_ID"),
    ("NIK 3175091203850001", "3175091203850001", "NATIONAL_ID"),
    ("GET /sms?tel=%2B4915112345678", "%2B4915112345678", "PHONE_NUMBER"),
    ("handle: sun_otter7", "sun_otter7", "USERNAME"),
    ("DM me on instagram, I'm @sun_otter7", "@sun_otter7", "USERNAME"),
    ("her CV: https://www.linkedin.com/in/mia-holm-94", "https://www.linkedin.com/in/mia-holm-94", "USERNAME"),
    ("my GPS says 52.51627, 13.37770", "52.51627, 13.37770", "LOCATION"),
    ("meet at 40°26'46\"N 79°58'56\"W", "40°26'46\"N 79°58'56\"W", "LOCATION"),
]  # fmt: skip
CLEAN = [
    "@property\ndef user_name(self) -> str: ...",
    "username = request.form['username']",
    "The vectors (0.1234, 0.5678) and 3.14159, 2.71828 are close.",
    "npm install @types/node_18 and @angular/core",
    "第3章第12節では2019年と2020年の売上を比べる",
    "2023年の人口は1234567人で、価格は3000円です",
    "请解释 Python 3.11 和 Java 17 的区别",
    "The plate of 12 sushi costs 34 dollars; the number plate factory closed in 1998.",
    "The chassis weighs 1200 kg; see github.com/python/cpython for code.",
    "password must be at least 8 characters (letters and digits)",
]


@pytest.mark.parametrize(("text", "value", "entity"), FOUND)
def test_an_identifier_is_found_whole(privacy: PrivacyFilter, text: str, value: str, entity: str) -> None:
    start = text.index(value)
    assert any(
        f.entity == entity and f.start <= start and start + len(value) <= f.end for f in privacy.scan(text)
    ), privacy.scan(text)


@pytest.mark.parametrize("text", CLEAN)
def test_what_only_looks_like_an_identifier_stays(privacy: PrivacyFilter, text: str) -> None:
    assert [text[f.start : f.end] for f in privacy.scan(text)] == []
