"""Values identified only by the header of their column: CSV, Markdown tables, tab-separated lines, SQL inserts.

    id;Nachname;PLZ;Ort              INSERT INTO patients (name, mrn) VALUES ('Ng', '529461')
    1;Börner;64080;Regensburg        | Name | City |
                                     | Ng   | Cork |

A header needs two columns with known names. A row has as many cells as the header; the first line with another
number ends the table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from fledge.data.privacy import entities as e
from fledge.data.privacy.clues import Clues
from fledge.data.privacy.entities import Finding
from fledge.data.privacy.keyed import field_kind
from fledge.data.privacy.word_lists import read_sections

_ENTITY = {name: entity for entity, names in read_sections("column_heads").items() for name in names}
_DIGITS = {  # minimum number of digits of each kind
    e.PHONE_NUMBER: 7, e.NATIONAL_ID: 5, e.TAX_ID: 6, e.PASSPORT: 4, e.DRIVER_LICENSE: 4, e.DATE_OF_BIRTH: 4, e.MEDICAL_ID: 4, e.INSURANCE_ID: 4,
    e.BANK_ACCOUNT: 5, e.BANK_ROUTING: 3, e.IBAN_CODE: 8, e.CREDIT_CARD: 12,
}  # fmt: skip
_NO_WORD = re.compile(r"[\W_]+")
_CELL = {mark: re.compile(rf'"[^"\n]*"|[^{re.escape(mark)}\n]*') for mark in ",;\t|"}
_RULER = re.compile(r"[\s|:+-]+")
_INSERT = re.compile(r"insert\s+into\s+[\w.\"`]{1,60}\s*\((?P<head>[^()\n]{3,400})\)\s*values", re.IGNORECASE)
_ROW = re.compile(r"\s*,?\s*\((?P<row>[^()\n]{3,600})\)")
_QUOTED = re.compile(r"'(?:[^'\n]|'')*'|\"[^\"\n]*\"|[^,\n]*")
_CASUAL = frozenset(["null", "none", "n/a", "na", "unknown", "true", "false", "nan", "test", "name", "default"])  # fmt: skip
_LONGEST = 500  # characters of a line that could be a table's

Span = tuple[int, int]


def find_in_columns(clues: Clues) -> Iterator[Finding]:
    """Cells of columns that hold personal data."""
    text = clues.text
    for match in _INSERT.finditer(text):
        entities = _entities(text, _cells(_QUOTED, text, *match.span("head")))
        at = match.end()
        while entities and (row := _ROW.match(text, at)):
            yield from _row(clues, entities, _cells(_QUOTED, text, *row.span("row")))
            at = row.end()
    if text.count("\n") >= 1:
        yield from _tables(clues)


def _tables(clues: Clues) -> Iterator[Finding]:
    entities: list[str | None] = []
    mark, at = "", 0
    for line in clues.text.split("\n"):
        start, end = at, at + len(line)
        at = end + 1
        if len(line) > _LONGEST:
            entities = []
            continue
        if entities:
            cells = _cells(_CELL[mark], clues.text, start, end)
            if len(cells) == len(entities):
                yield from _row(clues, entities, cells)
                continue
            if _RULER.fullmatch(line):
                continue
            entities = []
        for mark in _CELL:
            if line.count(mark) >= 1:
                entities = _entities(clues.text, _cells(_CELL[mark], clues.text, start, end))
                if entities:
                    break


def _cells(cell: re.Pattern[str], text: str, start: int, end: int) -> list[Span]:
    """The spans of a line's cells, between the separators, including empty ones."""
    cells = []
    while start <= end:
        match = cell.match(text, start, end)
        stop = match.end() if match else end
        cells.append((start, stop))
        start = stop + 1
    return cells


def _entities(text: str, heads: Sequence[Span]) -> list[str | None]:
    """The entity of each column; empty if fewer than two are known, or a cell is too long for a header."""
    names = [text[start:end] for start, end in heads]
    entities = [_head(name) for name in names]
    count = sum(entity is not None for entity in entities)
    return entities if count >= 2 and max(map(len, names)) <= 40 else []


@lru_cache(maxsize=4096)
def _head(name: str) -> str | None:
    """The entity a header names or is a field of: "N° de passeport", "employee_ssn"."""
    entity = _ENTITY.get(_NO_WORD.sub("", name.lower()))
    if entity or not 2 <= len(name) <= 40:
        return entity
    kind = field_kind(name)
    return kind if kind is None or isinstance(kind, str) else kind.entity


def _row(clues: Clues, entities: Sequence[str | None], cells: Sequence[Span]) -> Iterator[Finding]:
    for entity, (start, end) in zip(entities, cells, strict=False):
        value = clues.text[start:end]
        bare = value.strip(" \t\r\"'`*")
        if entity is not None and _fits(entity, bare):
            at = start + value.index(bare)
            yield Finding(at, at + len(bare), entity, 0.95)


def _fits(entity: str, value: str) -> bool:
    """Whether a cell could hold such a value."""
    digits = sum(character.isdigit() for character in value)
    if not 2 <= len(value) <= 120 or value.lower() in _CASUAL or value[0] in "<{[$%":
        return False
    if entity == e.PERSON:
        return digits == 0 and len(value.split()) <= 5 and value[0].isalpha() and "@" not in value
    if entity in _DIGITS:
        letters = sum(character.isalpha() for character in value)
        return digits >= _DIGITS[entity] and (letters <= digits + 6)
    if entity == e.LOCATION:
        return len(value.split()) <= 5 and value[0].isalnum() and (digits >= 3 or digits == 0)
    if entity == e.STREET_ADDRESS:
        return digits > 0 and " " in value
    return len(value) >= 4
