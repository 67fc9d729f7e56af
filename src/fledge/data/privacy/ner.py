"""Models that find names and places, as Presidio recognisers: spaCy, GLiNER or a transformers token classifier."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from typing import Any

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
_INSTALL = {"spacy": "spacy", "gliner": "gliner", "transformers": "transformers"}


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


def _gliner(model: NerModel) -> EntityRecognizer:
    from presidio_analyzer.predefined_recognizers.ner.gliner_recognizer import GLiNERRecognizer

    return GLiNERRecognizer(
        model_name=model.model, entity_mapping=_GLINER_LABELS, threshold=_threshold(model)
    )


def _transformers(model: NerModel) -> EntityRecognizer:
    from presidio_analyzer.predefined_recognizers.ner.huggingface_ner_recognizer import (
        HuggingFaceNerRecognizer,
    )

    return HuggingFaceNerRecognizer(model_name=model.model, label_mapping=LABELS, threshold=_threshold(model))


def _threshold(model: NerModel) -> float:
    return _THRESHOLD if model.threshold is None else model.threshold


_LOADERS = {"spacy": _spacy, "gliner": _gliner, "transformers": _transformers}
