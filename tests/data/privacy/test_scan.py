"""What is found, and what isn't."""

import itertools
from pathlib import Path

import pytest

from fledge.data import PrivacyFilter

FOUND = [
    ("My name is Sarah Connor.", "Sarah Connor", "PERSON"),
    ("Dear Mr. Okonkwo, thank you.", "Okonkwo", "PERSON"),
    ("Ich heiße Jürgen Müller.", "Jürgen Müller", "PERSON"),
    ("Bonjour, je m'appelle Élodie Lefebvre.", "Élodie Lefebvre", "PERSON"),
    ("Pregunta a Ximena si viene.", "Ximena", "PERSON"),
    ("Olá, sou o João da Silva.", "João da Silva", "PERSON"),
    ("my name is john miller", "john miller", "PERSON"),
    ("hey its callum whitcombe from sales", "callum whitcombe", "PERSON"),
    ("Attendees: Chaudhry, Bethany; me", "Chaudhry, Bethany", "PERSON"),
    ("@Bethany could you look?", "Bethany", "PERSON"),
    ("I met Declan Tanaka there.", "Declan Tanaka", "PERSON"),
    ("Please ask Dr. Prescott about it.", "Prescott", "PERSON"),
    ("I live in Springfield, IL.", "Springfield", "LOCATION"),
    ("Ich wohne in Düsseldorf.", "Düsseldorf", "LOCATION"),
    ("It is at 742 Evergreen Terrace now.", "742 Evergreen Terrace", "STREET_ADDRESS"),
    ("in der Hauptstraße 12a, 80331 München.", "Hauptstraße 12a, 80331 München", "STREET_ADDRESS"),
    ("write to anna.k+x@mail.example.org!", "anna.k+x@mail.example.org", "EMAIL_ADDRESS"),
    ("ring (212) 555-7834 now", "(212) 555-7834", "PHONE_NUMBER"),
    ("Tel. +49 30 1234567", "+49 30 1234567", "PHONE_NUMBER"),
    ("tél. 0612775237", "0612775237", "PHONE_NUMBER"),
    ("Reisepass-Nr. N22519961", "N22519961", "PASSPORT"),
    ("ann@acme.org / Xy12-3kk and it is locked", "Xy12-3kk", "PASSWORD"),
    ("IBAN DE89 3704 0044 0532 0130 00.", "DE89 3704 0044 0532 0130 00", "IBAN_CODE"),
    (
        "IBAN DE89\u00a03704\u00a00044\u00a00532\u00a00130\u00a000.",
        "DE89\u00a03704\u00a00044\u00a00532\u00a00130\u00a000",
        "IBAN_CODE",
    ),
    ("tél. 06\u202f12\u202f77\u202f52\u202f37", "06\u202f12\u202f77\u202f52\u202f37", "PHONE_NUMBER"),
    ("write to anna＠acme.org", "anna＠acme.org", "EMAIL_ADDRESS"),
    ("card 4111 1111 1111 1111 declined", "4111 1111 1111 1111", "CREDIT_CARD"),
    ("we billed 4222222222222 in May", "4222222222222", "CREDIT_CARD"),
    ("send it to GB82 WEST 1234 5698 7654 32, please", "GB82 WEST 1234 5698 7654 32", "IBAN_CODE"),
    ("ann@acme.org,+47 22 33 44,10.3.4.5", "+47 22 33 44", "PHONE_NUMBER"),
    ("my account number is 12345678.", "12345678", "BANK_ACCOUNT"),
    ("routing number 021000021", "021000021", "BANK_ROUTING"),
    ("SSN 536-22-1234", "536-22-1234", "NATIONAL_ID"),
    ("DNI 12345678Z", "12345678Z", "NATIONAL_ID"),
    ("Steuer-ID 86 095 742 719", "86 095 742 719", "TAX_ID"),
    ("passport no. X1234567", "X1234567", "PASSPORT"),
    ("my driver's license is D1234567", "D1234567", "DRIVER_LICENSE"),
    ("born on 4 May 1981", "4 May 1981", "DATE_OF_BIRTH"),
    ("am 04.05.1981 in Ulm geboren", "04.05.1981", "DATE_OF_BIRTH"),
    ("MRN 12345678", "12345678", "MEDICAL_ID"),
    ("policy number ZX-558812", "ZX-558812", "INSURANCE_ID"),
    ("ping 84.17.52.3 please", "84.17.52.3", "IP_ADDRESS"),
    ("ping 2a02:8106:1::7 please", "2a02:8106:1::7", "IP_ADDRESS"),
    ("MAC 3c:22:fb:12:9a:ff", "3c:22:fb:12:9a:ff", "MAC_ADDRESS"),
    ("get https://bob:s3cret@host.org/x", "https://bob:s3cret@host.org/x", "URL_CREDENTIALS"),
    ("to 1BvBMSEYstWetqTFn5Au4m4GFg7xJaNVN2 now", "1BvBMSEYstWetqTFn5Au4m4GFg7xJaNVN2", "CRYPTO"),
    ("use AKIAQW3RTYPLMKJHGFDA here", "AKIAQW3RTYPLMKJHGFDA", "API_KEY"),
    ("the password is hunter2!x", "hunter2!x", "PASSWORD"),
]

NOTHING = [
    "Is it june, or is this summer? It's working, this is great, c'est bon, ich bin müde.",
    "Box 4: Employee SSN, or ABA? The James Webb telescope saw it; the Turing test, too.",
    "With Python 3.11.4.2 and CUDA 12.4.0.1 it fails; call 12 times and dial it down to 300000.",
    "See Theorem 3.2, Lemma 4.1 and Figure 12.5. A. Overview. B. Methods.",
    "Upgrade from version 1.2.3.4 to 10.0.19.1 on 2023-06-06.",
    "Order 4711-2233-44 was shipped on 04.05.2021 and costs 1,299.00 EUR.",
    "Compare the Tesla Model 3 with the iPhone 15 Pro and Windows 11.",
    "Explain the Nash equilibrium, Newton's laws and the Turing test.",
    "What is the capital of France, and which countries border it?",
    "See commit 9fceb02d0ae598e95dc970b74767f19372d61af8 and ISBN 978-3-16-148410-0.",
    "Will you help? Mark my words, summer is near, and hope is no plan.",
    "password = input('Password: ')",
    "The password is required. The token is invalid.",
    "for i in range(1000): print(i * 3.14159)",
    "Use 127.0.0.1, 192.0.2.7 or 255.255.255.0 in the example.",
    "Java, Kotlin, Ruby and Swift run on Linux and Android.",
    "Das Zimmer ist 4,5 m mal 3,20 m groß und hat 1200 Fliesen.",
]


@pytest.mark.parametrize(("text", "value", "entity"), FOUND)
def test_personal_data_is_found_whole(privacy: PrivacyFilter, text: str, value: str, entity: str) -> None:
    found = [(text[f.start : f.end], f.entity) for f in privacy.scan(text)]
    assert (value, entity) in found


@pytest.mark.parametrize("text", NOTHING)
def test_what_only_looks_like_personal_data_is_left_alone(privacy: PrivacyFilter, text: str) -> None:
    assert [(text[f.start : f.end], f.entity) for f in privacy.scan(text)] == []


@pytest.mark.parametrize("language", ["en", "de", "fr", "es", "pt"])
def test_prompts_about_nobody_stay_as_they_are(privacy: PrivacyFilter, language: str) -> None:
    """Maths, code, news, fiction, products: a filter that changes them isn't kept on."""
    lines = (Path(__file__).parent / "negatives" / f"{language}.txt").read_text("utf-8").splitlines()
    assert lines
    assert [line for line in lines if line and privacy.scan(line.replace("\\n", "\n"))] == []


def test_a_name_alone_counts_only_beside_personal_data(privacy: PrivacyFilter) -> None:
    def found(text: str) -> list[str]:
        return [text[f.start : f.end] for f in privacy.scan(text)]

    assert found("Martha Whitfield has 3 apples in Leeds.") == []
    assert found("Martha Whitfield, 020 7123 4567, likes Leeds.") == [
        "Martha Whitfield",
        "020 7123 4567",
        "Leeds",
    ]
    assert found("Martha Whitfield is my sister and likes Leeds.") == ["Martha Whitfield", "Leeds"]


def test_findings_are_in_order_and_apart(privacy: PrivacyFilter) -> None:
    findings = privacy.scan(" ".join(text for text, _, _ in FOUND))
    assert all(a.end <= b.start for a, b in itertools.pairwise(findings))


def test_a_value_found_once_is_found_everywhere_in_the_conversation(privacy: PrivacyFilter) -> None:
    first, second = privacy.scan_turns(["My name is Zxyvik Tarwoll.", "So what should Tarwoll do?"])
    assert first[0].entity == "PERSON"
    assert [(f.start, f.end) for f in second] == [(15, 22)]


def test_a_value_is_not_found_inside_other_words(privacy: PrivacyFilter) -> None:
    _, second = privacy.scan_turns(["My name is Zxyvik Tarwoll.", "preTarwoll, Tarwollen and Tarwoll differ"])
    assert [(f.start, f.end) for f in second] == [(26, 33)]


def test_a_number_dialled_to_a_country_that_there_is_not_is_no_error(privacy: PrivacyFilter) -> None:
    assert privacy.scan("she is on 011 999 12345, or the part 01199912345 for ann@mail.example") == []


def test_a_text_longer_than_a_piece_is_scanned_to_its_end(privacy: PrivacyFilter) -> None:
    text = "word " * 50_000 + "mail jo.k@acme.org"
    assert [text[f.start : f.end] for f in privacy.scan(text)] == ["jo.k@acme.org"]
