"""Models that find names and places: spaCy, GLiNER or a transformers token classifier, the latter two as Presidio's."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Any

from fledge.data.privacy import entities as e
from fledge.data.privacy.clues import Find
from fledge.data.privacy.entities import Finding
from fledge.data.privacy.options import NerModel
from fledge.errors import DataError, one_line

# What models call them; other labels are not used.
LABELS = {
    "PERSON": e.PERSON,
    "PER": e.PERSON,
    "PS": e.PERSON,
    "GPE": e.LOCATION,
    "LOC": e.LOCATION,
    "LOCATION": e.LOCATION,
    "FAC": e.LOCATION,
    "ORG": e.ORGANIZATION,
    "ORGANIZATION": e.ORGANIZATION,
}
_GLINER_LABELS = {
    "person": e.PERSON,
    "city": e.LOCATION,
    "location": e.LOCATION,
    "organization": e.ORGANIZATION,
}
_THRESHOLD = 0.5
_SPACY_SCORE = 0.75  # spaCy gives none


@cache
def load_model(model: NerModel) -> Find:
    """What finds a model's entities.

    Raises:
        DataError: the model or the library that runs it isn't installed.
    """
    needed = ["spacy"] if model.kind == "spacy" else [model.kind, "presidio_analyzer"]
    missing = [package for package in needed if find_spec(package) is None]
    if missing:
        raise DataError(
            f"privacy.ner names the {model.kind} model {model.model}, but {' and '.join(missing)} isn't installed; "
            f"run pip install {' '.join(missing)}, or leave the model out"
        )
    try:
        return _spacy(model) if model.kind == "spacy" else _presidio(model)
    except (OSError, ValueError, ImportError) as error:
        raise DataError(
            f"can't load the {model.kind} model {model.model} of privacy.ner ({one_line(error)}); "
            "install it, or leave it out"
        ) from error


def _spacy(model: NerModel) -> Find:
    import spacy

    pipeline = spacy.load(model.model)
    return lambda clues: [
        Finding(span.start_char, span.end_char, LABELS[span.label_], _SPACY_SCORE)
        for span in pipeline(clues.text).ents
        if span.label_ in LABELS
    ]


def _presidio(model: NerModel) -> Find:
    """Presidio's recogniser of the model: it cuts long texts to what the model can read."""
    from presidio_analyzer.predefined_recognizers.ner import gliner_recognizer, huggingface_ner_recognizer

    threshold = _THRESHOLD if model.threshold is None else model.threshold
    recognizer: Any
    if model.kind == "gliner":
        recognizer = gliner_recognizer.GLiNERRecognizer(
            model_name=model.model, entity_mapping=_GLINER_LABELS, threshold=threshold
        )
    else:
        recognizer = huggingface_ner_recognizer.HuggingFaceNerRecognizer(
            model_name=model.model, label_mapping=LABELS, threshold=threshold
        )
    return lambda clues: [
        Finding(r.start, r.end, r.entity_type, float(r.score))
        for r in recognizer.analyze(clues.text, recognizer.supported_entities)
    ]
