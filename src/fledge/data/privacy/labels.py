"""Numbers that only the words around them make personal: "passport no. X1234567", "born on 4 May 1981".

    My order 4711-23 came, my passport is X1234567.       labels found:  order (other)   passport
                                                          values found:  4711-23         X1234567

A value belongs to the nearest label before it, if no other value and no end of a sentence stands between them; else
to a label right after it ("12345678 is my account number"). The label `other` claims what is nobody's business:
orders, invoices, versions, books.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from fledge.data.privacy import entities as e
from fledge.data.privacy.clues import Clues
from fledge.data.privacy.entities import Finding

OTHER = "OTHER"
_NO = r"(?:[\s-]?(?:numbers?|num\b\.?|no\b\.?|nr\b\.?|n\.?[º°]\.?|nummern?|numéro|número|id\b|#))?"


class Label(NamedTuple):
    """Words that name a kind of value, and the form such a value must have."""

    entity: str
    words: str  # alternatives of a regular expression, in lower case
    value: re.Pattern[str]  # of the value's letters and digits


def _label(entity: str, value: str, *words: str) -> Label:
    return Label(entity, "|".join(words), re.compile(value))


LABELS = (
    _label(
        OTHER,
        r".*",
        r"orders?\b", r"invoices?", r"tracking", r"tickets?\b", r"versions?", r"release", r"isbn\S*", r"issn", r"doi",
        r"models?\b", r"serial", r"parts?\b", r"article", r"items?\b", r"products?", r"sku", r"batch", r"commit",
        r"pages?\b", r"chapter", r"room\b", r"flight", r"case\b", r"port\b", r"error", r"code\b(?! postal)", r"bug", r"rfc",
        r"bestell\w*", r"rechnung\w*", r"artikel\w*", r"sendung\w*", r"auftrag\w*", r"seriennummer", r"modell", r"seite",
        r"commande", r"facture", r"colis", r"suivi", r"modèle", r"référence", r"pedido", r"factura", r"envío", r"fatura",
        r"encomenda", r"modelo", r"artículo", r"artigo", r"protocolo", r"population", r"revenue", r"transaction",
        r"uuid", r"hash", r"checksum", r"timestamp",
    ),
    _label(
        e.PASSPORT,
        r"(?=(?:.*\d){4})[A-Z0-9]{6,12}",
        r"passports?(?:nummer)?", r"reisepass\w*", r"passnummer", r"pass-nr", r"passeport", r"pasaporte", r"passaporte",
    ),
    _label(
        e.DRIVER_LICENSE,
        r"(?=(?:.*\d){4})[A-Z0-9]{5,18}",
        r"driver'?s?'? licen[sc]es?", r"driving licen[sc]es?", r"\bdl\b", r"licen[sc]e (?:number|no)", r"führerschein\w*",
        r"permis de conduire", r"(?:carnet|licencia|permiso) de conduci\w+", r"carteira de (?:motorista|habilitação)",
        r"\bcnh\b", r"carta de condução", r"driver licen[sc]e",
    ),
    _label(
        e.MEDICAL_ID,
        r"(?=(?:.*\d){4})[A-Z0-9]{5,15}",
        r"medical records?", r"\bmrn\b", r"patient(?:en)?[ -]?(?:id|number|no|nummer|nr)\b", r"health (?:card|record)s?",
        r"\bnhs\b", r"medicare", r"medicaid", r"health care number", r"dossier (?:médical|patient)", r"historia clínica",
        r"prontuário", r"processo clínico", r"número de utente", r"cartão (?:nacional de saúde|(?:do )?sus)", r"\butente\b", r"\bnhc\b", r"\bipp\b", r"\bhosp\.?(?:ital)? (?:no|nr|num|number|id)\b", r"\bcns\b",
        r"patientenakte", r"krankenakte", r"hospital number", r"tarjeta sanitaria",
    ),
    _label(
        e.INSURANCE_ID,
        r"(?=(?:.*\d){4})[A-Z0-9]{5,16}",
        r"insurance", r"policy(?=\s?(?:number|no|nr|id|#|:|is))", r"member(?:ship)?[ -]?(?:id|number|no)\b", r"subscriber",
        r"versicherten\w*", r"krankenversicherung\w*", r"krankenkasse\w*", r"versicherungs?\w*", r"police\b(?=\s?(?:n|:))",
        r"kvnr", r"(?:kranken|lebens|haftpflicht|kfz-?|auto|hausrat|unfall)(?:versicher|kassen)\w*", r"assurance", r"mutuelle", r"seguro(?! social)", r"póliza", r"apólice", r"policen?nummer", r"contrat d'assurance",
    ),
    _label(
        e.BANK_ROUTING,
        r"\d{6}|\d{8}|\d{9}|[A-Z]{6}[A-Z0-9]{2}(?:[A-Z0-9]{3})?",
        r"routing", r"\baba\b", r"sort[ -]?code", r"\bblz\b", r"bankleitzahl", r"transit number", r"\bbsb\b", r"ifsc",
        r"code (?:banque|guichet)", r"\bswift\b(?!\s?(?:code|ui|\d\.))", r"\bbic\b", r"swift code", r"swift/bic", r"bic/swift",
    ),
    _label(
        e.BANK_ACCOUNT,
        r"[A-Z]{0,4}\d{5,24}[A-Z0-9]{0,12}",
        r"(?:bank |checking |savings |current )?account\b", r"\bacct\b", r"\ba/c\b", r"konto\w*", r"\bkto\b", r"\brib\b",
        r"\bclabe\b", r"(?:numéro de )?compte", r"cuenta", r"conta(?: corrente| bancária| poupança)?\b", r"\bnib\b", r"\bccc\b",
        r"\bbban\b", r"\bacc\b",
    ),
    _label(e.IBAN_CODE, r"[A-Z]{2}\d{2}[A-Z0-9]{8,30}", r"\biban\b"),
    _label(
        e.CREDIT_CARD,
        r"\d{12,19}",
        r"(?:credit|debit|bank|visa|master)[ -]?cards?", r"card (?:number|no)", r"kreditkarte\w*", r"kartennummer",
        r"carte (?:bancaire|bleue|de crédit|visa)", r"tarjeta(?: de (?:crédito|débito))?", r"cartão(?! d[eo] cidad)(?: de (?:crédito|débito))?",
        r"\bvisa\b", r"mastercard", r"\bamex\b", r"american express", r"card\b",
    ),
    _label(
        e.TAX_ID,
        r"(?=(?:.*\d){6})[A-Z0-9]{8,15}",
        r"tax\b(?: payer| file)?(?: identification)?", r"\btin\b", r"\bein\b", r"\bitin\b", r"\btfn\b", r"\butr\b", r"\bvat\b",
        r"steuer-?\s?id\w*", r"steuer-?\s?nummer", r"steueridentifikationsnummer", r"idnr", r"ust-?id\S*", r"numéro fiscal",
        r"identifiant fiscal", r"\bspi\b", r"\btva\b", r"\bcif\b", r"\bnif\b", r"contribuinte", r"\bcnpj\b", r"\brfc\b",
        r"identificación fiscal", r"\bpan\b", r"steuer-?nr", r"\bsiren\b", r"\bsiret\b", r"\bp\.? ?iva\b", r"partita iva",
    ),
    _label(
        e.NATIONAL_ID,
        r"(?=(?:.*\d){5})[A-Z0-9]{7,18}",
        r"social security", r"\bssn\b", r"(?:my|his|her|their) social\b(?! \w{3})", r"\bni (?:number|no)\b", r"national (?:id|insurance|identity|identification)\S*", r"\bnino\b", r"id[ -]?cards?",
        r"identity card", r"citizen card", r"personalausweis\w*", r"ausweis\w*", r"sozialversicherung\w*", r"\bsvnr\b", r"rentenversicherung\w*",
        r"sécurité sociale", r"\bnir\b", r"\binsee\b", r"carte (?:nationale )?d'identité", r"\bcni\b", r"\bdni\b", r"\bnie\b",
        r"documento de identidad", r"seguridad social", r"seguro social", r"\bcpf\b", r"\brg\b", r"cartão (?:de|do) cidadão",
        r"bilhete de identidade", r"segurança social", r"\bniss\b", r"\bcurp\b", r"aadhaar", r"\bsin(?=(?: ?(?:#|no\.?|number|is))?[:\s]{1,2}$)", r"\bbsn\b", r"\bpesel\b",
        r"codice fiscale", r"personnummer", r"\bahv\b", r"identidade",
    ),
    _label(
        e.PHONE_NUMBER,
        r"\+?\d{7,15}(?:X\d{1,6})?",
        r"(?:tele)?phones?", r"\btel\b", r"\bmobile\b", r"cell(?:phone)?\b", r"(?<!earnings )(?<!conference )\bcall(?:ing|ed)?\b", r"\bdial\b", r"text me",
        r"\bfax\b", r"whats?app", r"\bsms\b", r"reach (?:me|us|him|her|them)", r"hotline", r"contact(?: me| us| number)",
        r"telefon\w*", r"handy\w*", r"\bmobil\w*", r"rufnummer\w*", r"(?:an)?rufen?\b", r"ruf\b", r"erreichbar", r"erreichen",
        r"téléphone", r"\btél\b", r"\bfon\b", r"\btlf\b", r"\btelm\b", r"portable", r"\bappele[rz]", r"appelle", r"joindre", r"joignable", r"teléfono", r"móvil", r"celular",
        r"ll[aá]m(?:ar|e|ame|eme|adme|anos)\w*", r"telefone", r"telemóvel", r"\bligar?\b", r"ligue(?:-me)?", r"\bzap\b", r"contact\w{1,3}(?:-me)?\b", r"contat\w+(?:-me)?",
        r"text (?:him|her|us|at)", r"ring me", r"numéro", r"mein(?:e)? nummer", r"my number", r"mi número", r"meu número",
    ),
)  # fmt: skip
_LABEL = re.compile(
    "(?<![^\\W_])(?:"
    + "|".join(rf"(?P<L{number}>(?:{label.words}){_NO})" for number, label in enumerate(LABELS))
    + ")"
)
_VALUE = re.compile(
    r"(?<![\w.])(?:[A-Z]{1,4}-)?\+?\(?[A-Z0-9]*\d[A-Z0-9]*\)?(?:(?: ?[-./] ?| ?\(|\) ?|  ?)(?:[A-Z0-9]*\d[A-Z0-9]*\)?)|-[A-Z]{1,2}(?![\w]))*"
    r"(?:\s?x\d{1,6})?(?![\w])"
)
_BIC = re.compile(r"(?<!\w)[A-Z]{6}[A-Z0-9]{2}(?:[A-Z0-9]{3})?(?!\w)")
_BROKEN = re.compile(r"(?<!\.)(?<!\b[^\W\d_])[.!?;]\s|\n\s*\n|\s[-–—]\s|, (?:and|und|et|y|e) ")
_AFTER = re.compile(
    r"\s?(?:,|\()?\s?(?:an? valid|is|was|ist|war|est|es|é|=|\()?\s?(?:my|the|our|his|her|mein\w?|die|das|ma|mon|mi|la|el|o|a|meu|minha)?\s"
)
# Between two values of one label: "passports X1234567 and Y7654321".
_AND = r"(?:and|und|et|y|e|or|oder|ou|o)"
_ENUMERATED = re.compile(rf"\s?[,;/&+]\s?(?:{_AND}\s)?|\s{_AND}\s")
# What is counted in these is no number of anybody's: "3269639942 units".
_UNIT = re.compile(
    r"\s?(?:units?|tokens?|bytes?|[kmgt]i?b|bits|rows?|lines?|records?|people|users|items|shares|copies|dollars?|euros?|times|views|requests|inhabitants|seconds|ms"
    r"|stück|zeilen|einheiten|einwohner|sekunden|euro|lignes|unités|habitants|octets|fois|filas|líneas|unidades|habitantes|linhas|veces|vezes|%|€|\$|£)(?!\w)"
)
_REACH = 45  # characters between a label and its value

_MONTHS = (
    "jan(?:uary|uar|vier|eiro)?|enero|ene|feb(?:ruary|ruar|rero)?|février|fevereiro|mar(?:ch|s|zo|ço)?|märz|apr(?:il)?|avril|abril|may|mai"
    "|mayo|maio|jun(?:e|i|io|ho)?|juin|jul(?:y|i|io|ho)?|juillet|aug(?:ust)?|août|agosto|sep(?:t|tember|tembre|tiembre)?|setembro"
    "|oct(?:ober|obre|ubre)?|okt(?:ober)?|outubro|nov(?:ember|embre|iembre|embro)?|dec(?:ember)?|dez(?:ember|embro)?|décembre|dic(?:iembre)?"
)
_YEAR = r"(?:1[89]|20)\d\d"
_DATE = re.compile(
    rf"(?<![\w])(?:{_YEAR}[-/.](?:0?[1-9]|1[0-2])[-/.](?:[0-2]?\d|3[01])|(?:[0-2]?\d|3[01])[-/. ]{{1,2}}(?:[0-2]?\d|3[01])[-/. ]{{1,2}}(?:{_YEAR}|\d\d)"
    rf"|(?:[0-2]?\d|3[01])(?:st|nd|rd|th|er|\.|º)?[ -](?:de |of )?(?:{_MONTHS})\.?,?[ -](?:de |del )?(?:{_YEAR}|\d\d)"
    rf"|(?:{_MONTHS})\.? (?:[0-2]?\d|3[01])(?:st|nd|rd|th)?,? {_YEAR})(?!\w)"
)  # fmt: skip
_BORN = re.compile(
    r"(?<![^\W_])(?=[bdgnafc])(?:date of birth|birth ?-?dates?|birthday|\bdob\b|d\.o\.b|born|geburtsdatum|geburtstag|geboren|\bgeb\b|née?\b|date de naissance"
    r"|anniversaire|naissance|nacid[oa]|nac[ií]|fecha de nacimiento|nacimiento|cumpleaños|nascid[oa]|nasci|nasceu|data de nascimento|nascimento)"
)


_DIGITS_DATE = re.compile(
    r"[^\w\n]{0,6}\s?((?:19[2-9]\d|20[0-2]\d)(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01]))(?!\d)"
)
# Another event's date: "DOB 4/5/81 / issued 3/2/2010".
_OTHER_EVENT = re.compile(
    r"(?<![^\W_])(?:issued?|expir\w*|valid|admi\w+|discharg\w+|seen|visit\w*|died|deceased|since|hired|joined|married|ausgestellt|gültig|aufgenommen|gestorben|verstorben"
    r"|seit|délivr\w*|expire|décéd\w*|depuis|expedid\w*|caduca|vence|fallec\w*|desde|emitid\w*|válid\w*|falec\w*)(?![^\W_])"
)
_VERB_LAST = re.compile(r"(?<![^\W_])geb(?:oren|\.)")  # German: "am 4.5.1981 in Ulm geboren"
_NEXT = re.compile(r"[!?;]\s|\n\s*\n|\.\s+[A-ZÀ-Þ]")


def find_labelled(clues: Clues) -> Iterator[Finding]:
    """Numbers with a label, and dates of birth."""
    if clues.digits:
        yield from _numbers(clues)
        yield from _births(clues)
    yield from _bank_codes(clues)


def _numbers(clues: Clues) -> Iterator[Finding]:
    for match, label in _labelled_values(clues):
        start, end = match.span()
        if label.entity == OTHER or counts(clues, end):
            continue
        if _DATE.fullmatch(clues.lower, start, end) and label.entity != e.BANK_ROUTING:
            continue
        if label.value.fullmatch(re.sub(r"[^0-9A-Z+x]", "", match[0]).upper()):
            yield Finding(start, end, label.entity, 0.92)


def counts(clues: Clues, end: int) -> bool:
    """Whether the number that ends there says how many of something there are."""
    return _UNIT.match(clues.lower, end) is not None


def belongs_to_other(clues: Clues, start: int, end: int) -> bool:
    """Whether a number there is an order, an invoice, a version or the like by the words around it."""
    labelled = _labelled_values(clues)
    return any(
        label.entity == OTHER and match.start() < end and start < match.end() for match, label in labelled
    )


def _labelled_values(clues: Clues) -> list[tuple[re.Match[str], Label]]:
    """Values with the label each belongs to."""
    found = []
    past = 0  # end of the value before
    size, label = 0, None  # of the value before
    for match in _VALUE.finditer(clues.text):
        digits = sum(character.isalnum() for character in match[0])
        listed = (
            label is not None
            and abs(digits - size) <= (5 if label.entity == e.PHONE_NUMBER else 1)
            and _ENUMERATED.fullmatch(clues.lower, past, match.start())
        )
        label = _before(clues, past, match.start()) or (label if listed else _behind(clues, match.end()))
        past, size = match.end(), digits
        if label is not None:
            found.append((match, label))
    return found


def _before(clues: Clues, past: int, start: int) -> Label | None:
    """The nearest label before a value that is not another value's."""
    last = None
    for last in _LABEL.finditer(clues.lower, max(past - 1, start - 2 * _REACH), start):  # noqa: B007
        pass
    if last is None or start - last.end() > _REACH:
        return None
    dotted = last.end() - last.start() <= 6 and clues.text.startswith(".", last.end())  # "Tel. 030 ..."
    if _BROKEN.search(clues.text, last.end() + dotted, start):
        return None
    return LABELS[int((last.lastgroup or "L0")[1:])]


def _behind(clues: Clues, end: int) -> Label | None:
    """The label right after a value."""
    link = _AFTER.match(clues.lower, end)
    label = _LABEL.match(clues.lower, link.end()) if link else None
    return LABELS[int((label.lastgroup or "L0")[1:])] if label else None


def _births(clues: Clues) -> Iterator[Finding]:
    born = [match.span() for match in _BORN.finditer(clues.lower)]
    if not born:
        return
    for _, end in born:
        plain = _DIGITS_DATE.match(clues.lower, end)
        if plain:
            yield Finding(plain.start(1), plain.end(1), e.DATE_OF_BIRTH, 0.93)
    last = None  # end of the date of birth before
    for match in _DATE.finditer(clues.lower):
        after = any(
            0 <= match.start() - end <= _REACH
            and not _NEXT.search(clues.text, end, match.start())
            and not _OTHER_EVENT.search(clues.lower, end, match.start())
            for _, end in born
        )
        verb = _VERB_LAST.search(clues.lower, match.end(), match.end() + _REACH)
        # One date belongs to a label, the first, unless the next follows at once: "born 3/4/81, 5/6/79 and 1/2/90".
        if (
            after
            and last is not None
            and match.start() - last > 6
            and not any(last <= start < match.start() for start, _ in born)
        ):
            after = False
        if after:
            last = match.end()
        if after or (verb is not None and not _NEXT.search(clues.text, match.end(), verb.start())):
            yield Finding(match.start(), match.end(), e.DATE_OF_BIRTH, 0.85)


def _bank_codes(clues: Clues) -> Iterator[Finding]:
    """BIC codes need no digit."""
    for label in re.finditer(r"\b(?:swift|bic)\b", clues.lower):
        match = _BIC.search(clues.text, label.end(), label.end() + _REACH)
        if match:
            yield Finding(match.start(), match.end(), e.BANK_ROUTING, 0.8)
