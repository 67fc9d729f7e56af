"""Names and places by the key before them, as JSON, YAML, forms, settings and query strings write keys.

    "last_name": "Okafor"     customerName=Ida+Holm     assignee: Caspian Holloway     'ciudad' => 'Lugo'

A key says it alone ("surname"), or only where a value that is quoted or has capitals follows ("assignee"), or beside
other keys that belong to people ("nom" near "prenom": alone it is anything's name).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from fledge.data.privacy import entities as e
from fledge.data.privacy.clues import Clues
from fledge.data.privacy.cues import NOT_NAMES
from fledge.data.privacy.entities import Finding
from fledge.data.privacy.fiction import is_fictional_word
from fledge.data.privacy.lexicon import lexicon, unaccented

_SEPARATOR = re.compile(r"(?:=>|:=|[:=])[ \t]{0,4}(?P<quote>[\"'`]?)(?=[^\W_])")
_KEY = re.compile(r"[^\W\d_][\w.-]*(?: [^\W\d_][\w-]*){0,2}$")
_PARTS = re.compile(r"[A-ZÀ-Þ]?[a-zà-öø-ÿ]+|[A-ZÀ-Þ]+(?![a-zà-ÿ])")
_CAPITAL = r"[A-ZÀ-ÖØ-ÞĀ-Ž][^\W\d_]*(?:['’.-][^\W\d_]+)*\.?"
_UNQUOTED = re.compile(
    rf"{_CAPITAL}(?:[ +](?:(?:de la|de los|da|de|do|dos|das|del|van der|van den|van|von|bin|la|le|y|e)[ +])?{_CAPITAL}){{0,4}}(?=\s*(?:[,;|&<>()\n\]}}#\"']|\.?$|\.?\s))"
)
_NAME_KEYS = frozenset(
    [
        "firstname",
        "lastname",
        "fullname",
        "surname",
        "forename",
        "middlename",
        "givenname",
        "familyname",
        "maidenname",
        "vorname",
        "nachname",
        "familienname",
        "prenom",
        "apellido",
        "apellidos",
        "sobrenome",
        "displayname",
        "realname",
    ]
)
_OF_PEOPLE = frozenset(
    [
        "first",
        "last",
        "full",
        "given",
        "family",
        "middle",
        "maiden",
        "legal",
        "customer",
        "client",
        "patient",
        "contact",
        "employee",
        "owner",
        "author",
        "holder",
        "recipient",
        "sender",
        "student",
        "teacher",
        "tenant",
        "guest",
        "passenger",
        "doctor",
        "manager",
        "applicant",
        "member",
        "beneficiary",
        "cardholder",
        "driver",
        "spouse",
        "parent",
        "child",
        "guardian",
        "emergency",
        "billing",
        "shipping",
        "buyer",
        "seller",
        "kunden",
        "kunde",
        "patienten",
        "mitarbeiter",
        "halter",
        "cliente",
        "paciente",
        "empleado",
        "titular",
        "funcionario",
        "aluno",
        "alumno",
        "usuario",
        "complet",
        "completo",
        "client",
        "salarie",
        "display",
        "real",
    ]
)
_NAMES = frozenset(["name", "names", "nom", "nombre", "nome"])
_ROLES = frozenset(
    [
        "author",
        "owner",
        "assignee",
        "reporter",
        "requester",
        "requestor",
        "reviewer",
        "approver",
        "recipient",
        "addressee",
        "sender",
        "applicant",
        "customer",
        "patient",
        "tenant",
        "landlord",
        "guest",
        "passenger",
        "student",
        "employee",
        "contact",
        "attendee",
        "attendees",
        "participant",
        "participants",
        "signatory",
        "witness",
        "claimant",
        "insured",
        "policyholder",
        "cardholder",
        "accountholder",
        "driver",
        "technician",
        "handler",
        "supervisor",
        "manager",
        "caller",
        "payee",
        "payer",
        "buyer",
        "seller",
        "consignee",
        "spouse",
        "guardian",
        "committer",
        "maintainer",
        "speaker",
        "interviewer",
        "interviewee",
        "candidate",
        "antragsteller",
        "antragstellerin",
        "bearbeiter",
        "bearbeiterin",
        "sachbearbeiter",
        "sachbearbeiterin",
        "ansprechpartner",
        "ansprechpartnerin",
        "kunde",
        "kundin",
        "mieter",
        "mieterin",
        "vermieter",
        "patient",
        "patientin",
        "fahrer",
        "fahrerin",
        "empfaenger",
        "empfanger",
        "absender",
        "zeuge",
        "zeugin",
        "teilnehmer",
        "teilnehmende",
        "anwesend",
        "abwesend",
        "kontoinhaber",
        "halter",
        "versicherter",
        "verantwortlich",
        "verantwortliche",
        "unterzeichner",
        "demandeur",
        "demandeuse",
        "auteur",
        "autrice",
        "titulaire",
        "destinataire",
        "expediteur",
        "beneficiaire",
        "locataire",
        "bailleur",
        "proprietaire",
        "patiente",
        "conducteur",
        "temoin",
        "presents",
        "absents",
        "participants",
        "responsable",
        "eleve",
        "assure",
        "salarie",
        "interlocuteur",
        "redacteur",
        "solicitante",
        "autor",
        "autora",
        "titular",
        "destinatario",
        "remitente",
        "beneficiario",
        "inquilino",
        "arrendador",
        "propietario",
        "conductor",
        "testigo",
        "asistentes",
        "ausentes",
        "paciente",
        "alumno",
        "alumna",
        "asegurado",
        "cliente",
        "empleado",
        "encargado",
        "encargada",
        "firmante",
        "requerente",
        "remetente",
        "inquilino",
        "locador",
        "locatario",
        "proprietario",
        "motorista",
        "testemunha",
        "presentes",
        "ausencia",
        "responsavel",
        "aluno",
        "aluna",
        "segurado",
        "funcionario",
        "atendente",
        "assinante",
        "interessado",
    ]
)
_TOWNS = frozenset(
    [
        "city",
        "town",
        "municipality",
        "hometown",
        "birthplace",
        "village",
        "wohnort",
        "stadt",
        "gemeinde",
        "geburtsort",
        "ville",
        "commune",
        "ciudad",
        "localidad",
        "municipio",
        "poblacion",
        "cidade",
        "localidade",
        "naturalidade",
        "concelho",
    ]
)
_STREETS = frozenset(
    [
        "street",
        "address",
        "streetaddress",
        "strasse",
        "anschrift",
        "adresse",
        "rue",
        "calle",
        "direccion",
        "domicilio",
        "rua",
        "endereco",
        "morada",
    ]
)
_SIBLING = re.compile(
    r"(?:first|last|sur|full|family|given|vor|nach)_?-?name|pr[ée]nom|apellido|sobrenome|apelido|e-?mail|courriel|correo|birth|naiss|nacimiento|nascimento|\bgeb|\bdob\b|phone|t[ée]l[ée]?f|handy|mobil|ssn|\bdni\b|\bcpf\b|patient"
)
_AROUND = 220  # characters on either side in which the other keys of a record stand
_EVERYDAY = 4.0  # Zipf frequency from which on a word alone is no name, whatever the key says


def find_in_fields(clues: Clues, entities: tuple[str, ...]) -> Iterator[Finding]:
    """Values whose key says that they are a name, a town or a street, if that is among `entities`."""
    text = clues.text
    for match in _SEPARATOR.finditer(text):
        before = text[max(0, match.start() - 34) : match.start()]
        key = _KEY.search(before.rpartition("\n")[2].rstrip(" \t\"'`]"))
        if key is None:
            continue
        entity, sure = _kind(clues, key[0], match.start())
        if entity not in entities:
            continue
        span = _value(text, match, sure)
        if span is not None and _fits(entity, text[span[0] : span[1]], sure, bool(match["quote"])):
            yield Finding(*span, entity, 0.75)


def _kind(clues: Clues, key: str, at: int) -> tuple[str | None, bool]:
    """What a key announces, and whether it can be nothing else."""
    parts = [unaccented(part.lower()).replace("ß", "ss") for part in _PARTS.findall(key)]
    if not parts:
        return None, False
    last, joined = parts[-1], "".join(parts[-2:])
    if last in _NAME_KEYS or joined in _NAME_KEYS:
        return e.PERSON, True
    if last in _NAMES or (len(parts) > 1 and parts[0] in _NAMES):
        if any(part in _OF_PEOPLE for part in parts):
            return e.PERSON, True
        near = clues.lower[max(0, at - _AROUND) : at + _AROUND]
        return (e.PERSON, True) if len(parts) == 1 and _SIBLING.search(near) else (None, False)
    if last in _ROLES or (
        parts[0] in _ROLES and last in ("firmante", "justificada", "par", "por", "von", "by")
    ):
        return e.PERSON, False
    if last in _TOWNS or joined == "placeofbirth":
        return e.LOCATION, True
    return (e.STREET_ADDRESS, True) if last in _STREETS else (None, False)


def _value(text: str, match: re.Match[str], sure: bool) -> tuple[int, int] | None:
    start, quote = match.end(), match["quote"]
    if quote:
        end = text.find(quote, start, start + 90)
        return (start, end) if end > start else None
    value = _UNQUOTED.match(text, start, start + 90)
    return (start, value.end()) if value else None


def _fits(entity: str, value: str, sure: bool, quoted: bool) -> bool:
    """Whether a value could be what its key says."""
    words = lexicon()
    parts = [part for part in re.split(r"[\s+,.]+", value.lower()) if len(part) > 1]
    if entity == e.STREET_ADDRESS:
        return (
            quoted
            and 2 <= len(parts) <= 10
            and any(map(str.isdigit, value))
            and "@" not in value
            and "//" not in value
        )
    if not parts or len(parts) > 5 or any(is_fictional_word(part) for part in parts):
        return False
    if not all(c.isalpha() or c in " +'’.-," for c in value):
        return False
    rare = [words.common.get(part, 0.0) < _EVERYDAY or words.is_any_name(part) for part in parts]
    if entity == e.LOCATION:
        return (
            value[0].isupper()
            and (quoted or words.is_city(value.lower()) or all(rare))
            and parts[0] not in NOT_NAMES
        )
    if parts[0] in NOT_NAMES or not (
        any(rare) or (sure and quoted and not any(map(words.is_everyday, parts)))
    ):
        return False
    if sure:
        return value[0].isupper() or (quoted and any(map(words.is_any_name, parts)))
    everyday = any(words.is_everyday(part) for part in (parts[0], parts[-1]))
    return value[0].isupper() and not everyday and (len(parts) > 1 or words.is_plain_given(parts[0], 9.0))
