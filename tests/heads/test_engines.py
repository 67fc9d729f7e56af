"""The table of targets that engines draft for: who is warned, and where."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from fledge.base.errors import HeadError
from fledge.deploy.exchange import export_head
from fledge.doctor.traps import engine_findings
from fledge.draft import DraftVocabulary
from fledge.heads.engines import engine_targets, refusal, refusals
from fledge.train.start import random_head
from tests.heads import tiny_head
from tests.heads.tiny_head import load_tiny_target
from tests.tiny import TinyShape, save_tiny_target


def test_every_row_says_what_it_was_read_from() -> None:
    for table in engine_targets().values():
        assert re.fullmatch(r"\d+(\.\d+)+", table.version)
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", table.read)
        assert table.source
        assert table.refuses


def test_what_is_not_known_is_not_refused() -> None:
    assert refusals("LlamaForCausalLM") == refusals("NeverHeardOfIt") == []
    assert refusal("fledge", "MixtralForCausalLM") == ""
    assert [sentence.split()[0] for sentence in refusals("MixtralForCausalLM")] == ["vllm", "sglang"]


def test_export_and_doctor_warn_of_a_target_that_the_engine_refuses(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = save_tiny_target(tmp_path / "target", "MixtralForCausalLM")
    target = load_tiny_target(folder)
    vocabulary = DraftVocabulary.from_counts(torch.arange(512), 64, target.chat.turn_end_ids)
    random_head(target, vocabulary).save(str(tmp_path / "head"))
    export_head(str(tmp_path / "head"), str(tmp_path / "eagle"), form="eagle", target=str(folder))
    assert "can't draft" not in caplog.text
    export_head(str(tmp_path / "head"), str(tmp_path / "vllm"), form="vllm", target=str(folder))
    assert "vllm 0.32 can't draft with EAGLE-3 for MixtralForCausalLM" in caplog.text
    raw = {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 96}
    (finding,) = engine_findings("sglang", raw, [], target)
    assert finding.fault == "engine"
    assert "MixtralForCausalLM" in finding.what
    tied = {**raw, "tie_word_embeddings": True}
    found = [f.what for f in engine_findings("sglang", tied, ["lm_head.weight"], target)]
    assert any("drops the head's lm_head" in what for what in found)


@pytest.mark.parametrize(("layers", "others"), [(8, [1, 3, 4]), (6, [0, 2, 4]), (4, [0, 1, 2])])
def test_a_head_that_reads_the_last_layer_is_not_exported_to_sglang_and_doctor_says_why(
    layers: int, others: list[int], tmp_path: Path
) -> None:
    """SGLang captures what goes into layers, and ends at the first request of such a head."""
    folder = save_tiny_target(tmp_path / "target", shape=TinyShape(layers=layers))
    target = load_tiny_target(folder).with_feature_layers((0, 1, layers - 1))
    tiny_head.random_head(target).save(str(tmp_path / "head"))
    remedy = rf"target\.feature_layers=\{re.escape(str(others))[1:]}"
    for form in ("sglang", "specforge"):
        with pytest.raises(HeadError, match=rf"last layer \({layers - 1}, .*--form vllm.*{remedy}"):
            export_head(str(tmp_path / "head"), str(tmp_path / form), form=form)
        assert not (tmp_path / form).exists()
    export_head(str(tmp_path / "head"), str(tmp_path / "vllm"), form="vllm")
    raw = json.loads((tmp_path / "head" / "config.json").read_text())
    (finding,) = engine_findings("sglang", raw, [], target)
    assert finding.fault == "layers"
    assert "the target's last layer" in finding.what
    assert str(others) in finding.remedy
    earlier = load_tiny_target(folder).with_feature_layers(others)
    tiny_head.random_head(earlier).save(str(tmp_path / "earlier"))
    export_head(str(tmp_path / "earlier"), str(tmp_path / "sglang"), form="sglang", target=str(folder))
    raw = json.loads((tmp_path / "sglang" / "config.json").read_text())
    assert list(engine_findings("sglang", raw, [], earlier)) == []
