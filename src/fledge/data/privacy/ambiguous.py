"""Names and places that are also everyday words, brands or months: they need more than a capital letter.

Compiled by hand from the names and cities that are frequent as words (see `lexicon`); the lists are in `words/`.
"""

from __future__ import annotations

from fledge.data.privacy.word_lists import read_words

COMMON_NAMES = read_words("common_names")
COMMON_PLACES = read_words("common_places")
