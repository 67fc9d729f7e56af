"""Models that find names and places, as Presidio recognisers: spaCy, GLiNER, transformers, or an engine of Presidio's."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from typing import Any, cast

from presidio_analyzer import EntityRecognizer, RecognizerResult
from presidio_analyzer.nlp_engine import NlpArtifacts

from fledge.base.errors import DataError, one_line
from fledge.data.privacy import entities as e
from fledge.data.privacy.options import NerModel

# The models' names for them; other labels are ignored.
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
_INSTALL = {
    "spacy": "spacy",
    "gliner": "gliner",
    "transformers": "transformers",
    "presidio": "presidio_analyzer",
}


class SpacyNer(EntityRecognizer):
    """The entities of an installed spaCy pipeline, with a fixed score, since spaCy has none."""

    _SCORE = 0.75

    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline
        super().__init__(supported_entities=sorted(set(LABELS.values())), name="spacy")

    def load(self) -> None:
        """The pipeline is already loaded."""

    def analyze(
        self, text: str, entities: list[str], nlp_artifacts: NlpArtifacts | None = None
    ) -> list[RecognizerResult]:
        """The pipeline's entities in Presidio's form."""
        spans = ((LABELS.get(span.label_), span) for span in self._pipeline(text).ents)
        return [
            RecognizerResult(entity, span.start_char, span.end_char, self._SCORE)
            for entity, span in spans
            if entity is not None
        ]


class EngineNer(EntityRecognizer):
    """The entities of one of Presidio's language engines, in the first language of its configuration."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._language = engine.get_supported_languages()[0]
        super().__init__(supported_entities=sorted(set(LABELS.values())), name="presidio")

    def load(self) -> None:
        """The engine is already loaded."""

    def analyze(
        self, text: str, entities: list[str], nlp_artifacts: NlpArtifacts | None = None
    ) -> list[RecognizerResult]:
        """The engine's entities."""
        found = self._engine.process_text(text, self._language)
        spans = zip(found.entities, found.scores, strict=True)
        return [
            RecognizerResult(LABELS[span.label_], span.start_char, span.end_char, float(score))
            for span, score in spans
            if span.label_ in LABELS
        ]


def ner_recognizers(models: Iterable[NerModel]) -> Sequence[EntityRecognizer]:
    """A recogniser per model, loaded."""
    return [_load(model) for model in models]


def _load(model: NerModel) -> EntityRecognizer:
    if find_spec(_INSTALL[model.kind]) is None:
        raise DataError(
            f"privacy.ner names the {model.kind} model {model.model}, but {model.kind} isn't installed; "
            f"run pip install {_INSTALL[model.kind]}, or leave the model out"
        )
    try:
        return _LOADERS[model.kind](model)
    except (OSError, ValueError, ImportError) as error:
        raise DataError(
            f"can't load the {model.kind} model {model.model} of privacy.ner ({one_line(error)}); "
            "install it, or leave it out"
        ) from error


def _spacy(model: NerModel) -> EntityRecognizer:
    import spacy

    return SpacyNer(spacy.load(model.model))


def _presidio(model: NerModel) -> EntityRecognizer:
    from presidio_analyzer.nlp_engine import NlpEngineProvider

    engine = NlpEngineProvider(conf_file=model.model).create_engine()
    engine.load()
    return EngineNer(engine)


def _gliner(model: NerModel) -> EntityRecognizer:
    make = _fresh("gliner_recognizer").GLiNERRecognizer
    return cast(
        EntityRecognizer,
        make(model_name=model.model, entity_mapping=_GLINER_LABELS, threshold=_threshold(model)),
    )


def _transformers(model: NerModel) -> EntityRecognizer:
    make = _fresh("huggingface_ner_recognizer").HuggingFaceNerRecognizer
    return cast(
        EntityRecognizer, make(model_name=model.model, label_mapping=LABELS, threshold=_threshold(model))
    )


def _fresh(module: str) -> Any:
    """Presidio's module; a filter without models may have imported it without torch (`countries.without_models`)."""
    return importlib.reload(importlib.import_module(f"presidio_analyzer.predefined_recognizers.ner.{module}"))


def _threshold(model: NerModel) -> float:
    return _THRESHOLD if model.threshold is None else model.threshold


_LOADERS = {"spacy": _spacy, "gliner": _gliner, "transformers": _transformers, "presidio": _presidio}
