"""Personal data as people and programs write it: tables, lists under one label, lower case, command lines."""

from __future__ import annotations

import pytest

from fledge.data.privacy import PrivacyFilter

FOUND = [
    ("id;Nachname;PLZ;Ort\n1;Börner;64080;Regensburg\n2;Bär;3423;Flensburg", "3423", "LOCATION"),
    ("id;Nachname;PLZ;Ort\n1;Börner;64080;Regensburg\n2;Bär;3423;Flensburg", "Bär", "PERSON"),
    ("name,phone,city\nAmber,905.955.3374,Cork", "905.955.3374", "PHONE_NUMBER"),
    ("| Name | City |\n|---|---|\n| Kwabena Mensah | Lagos |", "Lagos", "LOCATION"),
    ("INSERT INTO patients (name, dob, mrn) VALUES ('Kai Gaba', '1985-03-12', '529461');", "529461", "MEDICAL_ID"),
    ("flight for two, passports X5186268 and F5145220", "F5145220", "PASSPORT"),
    ("PASSPORT ... 586698773", "586698773", "PASSPORT"),
    ("wire it: sort code 20-15-77, account number 39518842", "20-15-77", "BANK_ROUTING"),
    ("IFSC HDFC0001345", "HDFC0001345", "BANK_ROUTING"),
    ("my social is 405711654, is that safe?", "405711654", "NATIONAL_ID"),
    ("sin 518-552-658, call me", "518-552-658", "NATIONAL_ID"),
    ("mi RFC es BARL690710611", "BARL690710611", "TAX_ID"),
    ("die Krankenversichertennummer A800357607", "A800357607", "INSURANCE_ID"),
    ("cartão de cidadão 18981669 2 ZZ1", "18981669 2 ZZ1", "NATIONAL_ID"),
    ("pay to gb82west12345698765432 please", "gb82west12345698765432", "IBAN_CODE"),
    ("auf fr14 2004 1010 0505 0001 3m02 606 bis zum 3.", "fr14 2004 1010 0505 0001 3m02 606", "IBAN_CODE"),
    ("mt84 malt 0110 0001 2345 mtlc ast0 01s", "mt84 malt 0110 0001 2345 mtlc ast0 01s", "IBAN_CODE"),
    ("IBAN GB82 WEST 1234 5698 7654 32 PLEASE PAY", "GB82 WEST 1234 5698 7654 32", "IBAN_CODE"),
    ("write to burrows(at)web.de", "burrows(at)web.de", "EMAIL_ADDRESS"),
    ("I am jane [dot] doe [at] outlook [dot] com", "jane [dot] doe [at] outlook [dot] com", "EMAIL_ADDRESS"),
    ("it is alexander at outlook dot com", "alexander at outlook dot com", "EMAIL_ADDRESS"),
    ("name=John Rogers&email=allen@acme.org", "John Rogers", "PERSON"),
    ("Cluster node 73.103.62.8/24 is down", "73.103.62.8", "IP_ADDRESS"),
    ("curl -u admin:Liverpool1810 https://acme.io", "Liverpool1810", "PASSWORD"),
    ("passwd for the vpn -> staple-river-otter-correct", "staple-river-otter-correct", "PASSWORD"),
    ("PIN 0631 for the alarm", "0631", "PASSWORD"),
    ("my name is priya and i live in santa fe, help", "santa fe", "LOCATION"),
    ("wohnhaft in Freiburg im Breisgau", "Freiburg im Breisgau", "LOCATION"),
    ("demeurant avenue Aurélie Chenaux 58, 2885 Trois-Rivières", "avenue Aurélie Chenaux 58", "STREET_ADDRESS"),
]  # fmt: skip
UNSEEN = [
    ("write to bur\u200browes@out\u00adlook.com now", "bur\u200browes@out\u00adlook.com", "EMAIL_ADDRESS"),
    ("Frag Jürg Mu\u0308ller, bitte", "Jürg Mu\u0308ller", "PERSON"),
    ("I live in Du\u0308sseldorf.", "Du\u0308sseldorf", "LOCATION"),
    ("geb. am 3. Ma\u0308rz 1985", "3. Ma\u0308rz 1985", "DATE_OF_BIRTH"),
    ("\ufeffIBAN GB82\u2060 WEST 1234 5698 7654 32", "GB82\u2060 WEST 1234 5698 7654 32", "IBAN_CODE"),
]
CLEAN = [
    "The earnings call mentioned 3269639942 units shipped.",
    "Morgan Stanley and Marks & Spencer met at Dr. Oetker.",
    "Quero cancelar a Feira da Ladra.",
    "I am an expert in Best Buy coupons.",
    "call 555-0123 or (212) 555-0142",
    "kernel 5.15.0.1 and chrome 12.0.1.2",
    "name,size,color\nscrew,4,red",
]


@pytest.mark.parametrize(("text", "value", "entity"), FOUND + UNSEEN)
def test_a_value_is_found_in_this_shape(privacy: PrivacyFilter, text: str, value: str, entity: str) -> None:
    start = text.index(value)
    assert any(
        f.entity == entity and f.start <= start and start + len(value) <= f.end for f in privacy.scan(text)
    )


@pytest.mark.parametrize("text", CLEAN)
def test_nothing_is_found_where_nothing_is_personal(privacy: PrivacyFilter, text: str) -> None:
    assert privacy.scan(text) == []


def test_only_the_first_date_behind_a_birth_is_one(privacy: PrivacyFilter) -> None:
    text = "Müller, geb. 3.12.1965, stellte sich am 15.10.1982 vor"
    births = [text[f.start : f.end] for f in privacy.scan(text) if f.entity == "DATE_OF_BIRTH"]
    assert births == ["3.12.1965"]


@pytest.mark.parametrize(
    "piece",
    [
        "1 ", "1-", "Anna ", "a at b dot ", "name,", "(", "curl -u ", "rue de la ", "DE12 3456 ", "password for ",
        "pass: ", "passport ", "no. ", "born ", "key=", "on 12 ", "1.2-",
    ],
)  # fmt: skip
def test_a_long_repetition_comes_to_an_end(privacy: PrivacyFilter, piece: str) -> None:
    """With a pattern that backtracks without bounds this would not return."""
    assert isinstance(privacy.scan(piece * 3000), list)
