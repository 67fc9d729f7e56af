"""Models and services beside the rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import spacy

from fledge.base.errors import DataError
from fledge.data import PrivacyFilter
from fledge.data.privacy import CloudDlp, NerModel, PrivacyOptions
from fledge.data.privacy.cloud import cloud_rule
from fledge.data.privacy.clues import Clues
from fledge.data.privacy.entities import Finding
from fledge.data.privacy.ner import ner_rule


def test_a_spacy_pipeline_from_a_folder_finds_what_the_rules_miss(tmp_path: Any) -> None:
    pipeline = spacy.blank("en")
    pipeline.add_pipe("entity_ruler").add_patterns([{"label": "PERSON", "pattern": "rumpelstiltskin"}])
    pipeline.to_disk(tmp_path)
    text = "they said rumpelstiltskin is here"
    options = PrivacyOptions(ner=(NerModel(kind="spacy", model=str(tmp_path)),))
    assert PrivacyFilter().scan(text) == []
    assert [text[f.start : f.end] for f in PrivacyFilter(options=options).scan(text)] == ["rumpelstiltskin"]


def test_an_engine_of_presidio_is_configured_by_its_file(tmp_path: Any) -> None:
    pipeline = spacy.blank("en")
    pipeline.add_pipe("entity_ruler").add_patterns([{"label": "PERSON", "pattern": "rumpelstiltskin"}])
    pipeline.to_disk(tmp_path / "model")
    file = tmp_path / "engine.yaml"
    file.write_text(
        f"nlp_engine_name: spacy\nmodels: [{{lang_code: en, model_name: {tmp_path / 'model'}}}]\n"
    )
    text = "they said rumpelstiltskin is here"
    options = PrivacyOptions(ner=(NerModel(kind="presidio", model=str(file)),))
    assert [text[f.start : f.end] for f in PrivacyFilter(options=options).scan(text)] == ["rumpelstiltskin"]


def test_a_model_that_is_not_installed_is_a_clear_error() -> None:
    with pytest.raises(DataError, match=r"no_such_model.*install it"):
        ner_rule(NerModel(kind="spacy", model="no_such_model"))
    with pytest.raises(DataError, match="gliner isn't installed"):
        ner_rule(NerModel(kind="gliner", model="x"))


def test_spacy_labels_without_an_entity_are_ignored(tmp_path: Any) -> None:
    pipeline = spacy.blank("en")
    pipeline.add_pipe("entity_ruler").add_patterns([{"label": "WORK_OF_ART", "pattern": "Hamlet"}])
    pipeline.to_disk(tmp_path)
    assert list(ner_rule(NerModel(kind="spacy", model=str(tmp_path)))(Clues("Hamlet"))) == []


def _ask_cloud(
    text: str, answer: Mapping[str, Any] | Exception, seen: list[Mapping[str, Any]]
) -> list[Finding]:
    def inspect(request: Mapping[str, Any]) -> Mapping[str, Any]:
        seen.append(request)
        if isinstance(answer, Exception):
            raise answer
        return answer

    options = CloudDlp(project="p", location="europe-west1")
    return list(cloud_rule(options, ["PERSON", "EMAIL_ADDRESS"], inspect)(Clues(text)))


def test_cloud_dlp_asks_for_the_wanted_types_and_maps_the_answer() -> None:
    finding = {
        "infoType": {"name": "PERSON_NAME"},
        "likelihood": "VERY_LIKELY",
        "location": {"codepointRange": {"end": "3"}},
    }
    seen: list[Mapping[str, Any]] = []
    results = _ask_cloud("Ann is in", {"result": {"findings": [finding]}}, seen)
    assert results == [Finding(0, 3, "PERSON", 0.95)]
    assert seen[0]["parent"] == "projects/p/locations/europe-west1"
    assert {t["name"] for t in seen[0]["inspect_config"]["info_types"]} == {"PERSON_NAME", "EMAIL_ADDRESS"}
    assert seen[0]["inspect_config"]["include_quote"] is False


def test_a_failing_cloud_dlp_stops_without_quoting_the_text() -> None:
    with pytest.raises(DataError, match="Cloud DLP failed") as raised:
        _ask_cloud("my secret text", RuntimeError("quota exceeded for: my secret text"), [])
    assert "secret" not in str(raised.value)
    assert raised.value.__suppress_context__


def test_a_threshold_for_spacy_is_refused() -> None:
    with pytest.raises(ValueError, match="leave the threshold out"):
        NerModel(kind="spacy", model="en_core_web_lg", threshold=0.7)
    assert NerModel(kind="gliner", model="x", threshold=0.7).threshold == 0.7
