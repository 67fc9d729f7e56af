"""Models that find names and places: spaCy, GLiNER, transformers, or a language engine of Presidio's."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

from fledge.base.errors import DataError, one_line
from fledge.data.privacy import entities as e
from fledge.data.privacy.clues import Clues
from fledge.data.privacy.entities import Finding
from fledge.data.privacy.options import NerModel

Find = Callable[[Clues], Iterator[Finding]]

# The models' names for them; other labels are ignored.
LABELS = {
    **dict.fromkeys(("PERSON", "PER", "PS"), e.PERSON),
    **dict.fromkeys(("GPE", "LOC", "LOCATION", "FAC"), e.LOCATION),
    **dict.fromkeys(("ORG", "ORGANIZATION"), e.ORGANIZATION),
}
_GLINER_LABELS = {
    "person": e.PERSON,
    "city": e.LOCATION,
    "location": e.LOCATION,
    "organization": e.ORGANIZATION,
}
_SPACY_SCORE = 0.75  # spaCy has none
_THRESHOLD = 0.5


def ner_rule(model: NerModel) -> Find:
    """The model, loaded; raises DataError if it or its library isn't installed."""
    package = "presidio_analyzer" if model.kind == "presidio" else model.kind
    if find_spec(package) is None:
        raise DataError(
            f"privacy.ner names the {model.kind} model {model.model}, but {model.kind} isn't installed; "
            f"run pip install {package}, or leave the model out"
        )
    try:
        return _LOADERS[model.kind](model)
    except (OSError, ValueError, ImportError) as error:
        raise DataError(
            f"can't load the {model.kind} model {model.model} of privacy.ner ({one_line(error)}); "
            "install it, or leave it out"
        ) from error


def _spacy(model: NerModel) -> Find:
    import spacy

    pipeline = spacy.load(model.model)

    def find(clues: Clues) -> Iterator[Finding]:
        for span in pipeline(clues.original).ents:
            if span.label_ in LABELS:
                yield Finding(span.start_char, span.end_char, LABELS[span.label_], _SPACY_SCORE)

    return find


def _presidio(model: NerModel) -> Find:
    """One of Presidio's language engines, in the first language of its configuration file."""
    from presidio_analyzer.nlp_engine import NlpEngineProvider

    engine = NlpEngineProvider(conf_file=model.model).create_engine()
    engine.load()
    language = engine.get_supported_languages()[0]

    def find(clues: Clues) -> Iterator[Finding]:
        artifacts = engine.process_text(clues.original, language)
        for span, score in zip(artifacts.entities, artifacts.scores, strict=True):
            if span.label_ in LABELS:
                yield Finding(span.start_char, span.end_char, LABELS[span.label_], float(score))

    return find


def _gliner(model: NerModel) -> Find:
    make = _fresh("gliner_recognizer").GLiNERRecognizer
    return _recognizer(
        make(model_name=model.model, entity_mapping=_GLINER_LABELS, threshold=_threshold(model))
    )


def _transformers(model: NerModel) -> Find:
    make = _fresh("huggingface_ner_recognizer").HuggingFaceNerRecognizer
    return _recognizer(make(model_name=model.model, label_mapping=LABELS, threshold=_threshold(model)))


def _recognizer(recognizer: Any) -> Find:
    """One of Presidio's recognisers."""

    def find(clues: Clues) -> Iterator[Finding]:
        for r in recognizer.analyze(clues.original, recognizer.supported_entities, None):
            yield Finding(r.start, r.end, r.entity_type, float(r.score))

    return find


def _fresh(module: str) -> Any:
    """Presidio's module; a filter without models may have imported it without torch (`countries.without_models`)."""
    return importlib.reload(importlib.import_module(f"presidio_analyzer.predefined_recognizers.ner.{module}"))


def _threshold(model: NerModel) -> float:
    return _THRESHOLD if model.threshold is None else model.threshold


_LOADERS = {"spacy": _spacy, "gliner": _gliner, "transformers": _transformers, "presidio": _presidio}
