"""Ten faults, each planted into a sound head, each named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from fledge.base.errors import HeadError
from fledge.doctor import Diagnosis, diagnose
from fledge.doctor.files import file_findings
from fledge.draft import HeadMetadata
from fledge.heads import Head
from fledge.heads.checkpoint import write_head
from fledge.target import Target
from tests.doctor.conftest import TOKENS, Patient
from tests.heads.tiny_head import load_tiny_target, random_head
from tests.tiny import CHATML

Files = tuple[dict[str, Any], dict[str, Tensor]]


def examine(target: Target, head: Path, **options: Any) -> Diagnosis:
    return diagnose(target, str(head), max_tokens=TOKENS, **options)


def planted(
    patient: Patient, folder: Path, plant: Callable[[dict[str, Any], dict[str, Tensor]], None]
) -> Path:
    """A copy of the patient's head with something wrong."""
    config = json.loads((patient.head / "config.json").read_text())
    tensors = safetensors.torch.load_file(patient.head / "model.safetensors")
    plant(config, tensors)
    folder.mkdir()
    safetensors.torch.save_file({n: t.contiguous() for n, t in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def layers_off_by_one(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [2, 4, 5]}  # inputs where outputs are meant


def swapped_gate_up(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    gate, up = (f"midlayer.mlp.{name}_proj.weight" for name in ("gate", "up"))
    tensors[gate], tensors[up] = tensors[up], tensors[gate]


def absolute_d2t(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    tensors["d2t"] += torch.arange(len(tensors["d2t"]))


def absolute_d2t_without_t2d(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    absolute_d2t(config, tensors)
    del tensors["t2d"]


def missing_norm(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    del tensors["midlayer.hidden_norm.weight"]


def neutral_norm(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    tensors["norm.weight"] = torch.ones_like(tensors["norm.weight"])


def wrong_rope_base(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    config["rope_theta"] = 500000.0


def truncated_context(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    config["max_position_embeddings"] = 64


def float16_overflow(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    config["torch_dtype"] = "float16"
    tensors["midlayer.mlp.down_proj.weight"] *= 1e7
    for name in tensors:
        if tensors[name].is_floating_point():
            tensors[name] = tensors[name].half()


def float16_activations(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Every weight fits into float16; what they compute doesn't."""
    config["torch_dtype"] = "float16"
    tensors["fc.weight"] *= 1e6 / float(tensors["fc.weight"].abs().max()) / 20


def shuffled_map(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    ids = tensors["d2t"] + torch.arange(len(tensors["d2t"]))
    order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(0))
    tensors["d2t"] = ids[order] - torch.arange(len(ids))


def shuffled_rows(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    rows = tensors["lm_head.weight"]
    tensors["lm_head.weight"] = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]


def test_the_steps_of_an_examination_are_told(patient: Patient) -> None:
    told: list[tuple[float, float, str]] = []
    examine(patient.target, patient.head, progress=lambda *step: told.append(step))
    done = [one for one, _, _ in told]
    assert done == sorted(done)
    assert done[-1] < told[-1][1]
    assert {note for _, _, note in told} == {
        "reads the head",
        "the target answers",
        "the head proposes",
        "mistakes are undone",
    }


def test_a_sound_head_has_no_finding(patient: Patient) -> None:
    for engine in (None, "sglang", "vllm"):
        assert examine(patient.target, patient.head, engine=engine).findings == []


@pytest.mark.parametrize(
    ("plant", "fault"),
    [
        (layers_off_by_one, "layers"),
        (swapped_gate_up, "gate-up"),
        (absolute_d2t, "vocabulary-map"),
        (absolute_d2t_without_t2d, "vocabulary-map"),
        (missing_norm, "missing-norm"),
        (neutral_norm, "missing-norm"),
        (wrong_rope_base, "rope"),
        (truncated_context, "context"),
        (float16_overflow, "float16"),
        (float16_activations, "float16"),
        (shuffled_map, "vocabulary-order"),
        (shuffled_rows, "vocabulary-order"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_planted_fault_is_named(patient: Patient, tmp_path: Path, plant: Any, fault: str) -> None:
    found = examine(patient.target, planted(patient, tmp_path / "head", plant)).findings
    assert {finding.fault for finding in found} == {fault}


def test_a_head_that_accepts_nothing_is_named_unless_it_says_that_it_is_untrained(
    patient: Patient, tmp_path: Path
) -> None:
    untrained = random_head(patient.target)
    untrained.save(str(tmp_path / "untrained"))
    found = examine(patient.target, tmp_path / "untrained")
    assert found.findings == []
    assert "training" in {row.name for row in found.measured}
    for name, metadata in (
        ("foreign", HeadMetadata()),
        ("trained", replace(untrained.metadata, training={"steps": 3})),
    ):
        Head(untrained.config, untrained.weights, metadata).save(str(tmp_path / name))
        findings = examine(patient.target, tmp_path / name).findings
        assert [(f.fault, f.certain) for f in findings] == [("accepts-nothing", False)]


def test_answers_of_a_single_token_say_nothing_of_a_head(patient: Patient) -> None:
    found = diagnose(patient.target, str(patient.head), max_tokens=1)
    assert found.findings == []
    assert [measured.name for measured in found.measured] == ["first proposals"]


def test_the_wrong_template_is_named(patient: Patient, tmp_path: Path) -> None:
    other = Path(shutil.copytree(patient.target.folder, tmp_path / "target"))
    (other / "chat_template.jinja").write_text(CHATML.replace("<|im_start|>assistant", "<|im_start|>bot"))
    found = examine(load_tiny_target(other), patient.head).findings
    assert found[0].fault == "template"
    assert [f.fault for f in found if f.certain] == ["template"]


def test_other_weights_of_the_targets_shape_are_no_fault_and_named(patient: Patient, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(patient.target.folder, tmp_path / "target"))
    weights = load_file(folder / "model.safetensors")
    rounded = {
        name: t.to(torch.float16).to(t.dtype) for name, t in weights.items()
    }  # as a quantisation would
    rounded["model.norm.weight"] = rounded["model.norm.weight"] * 1.001
    save_file(rounded, folder / "model.safetensors", {"format": "pt"})
    found = examine(load_tiny_target(folder), patient.head)
    assert found.findings == []
    (note,) = [m.value for m in found.measured if m.name == "head"]
    assert patient.target.revision[:12] in note


def test_a_quantised_targets_form_is_named(patient: Patient) -> None:
    for form in (None, "q8_0"):
        target = Target.load(str(patient.target.folder), backend="torch", quantization=form)  # type: ignore[arg-type]
        named = [m.value for m in examine(target, patient.head).measured if m.name == "the target's weights"]
        assert named == ([form] if form else [])


def test_features_of_other_layers_are_named_though_no_config_says_so(
    patient: Patient, tmp_path: Path
) -> None:
    """The engine's side of the trap: a target whose features come from one layer further."""
    from fledge.doctor.probe import Probe
    from fledge.engine import Engine

    answers = Engine(patient.target, None).generate(["Why is the sky blue?", "Hello"], max_tokens=TOKENS)
    probe = Probe(patient.target, answers)
    head = Head.load(str(patient.head))
    assert probe.score(head).hits > 2 * max(
        probe.score(head, shifted).hits for shifted in ((0, 2, 3), (2, 4, 5))
    )
    probe._features = [states.roll(1, dims=1) for states in probe._features]
    (finding,) = probe.findings(head, probe.score(head))
    assert finding.fault == "layers"
    assert "the outputs of layers 2, 4, 5" in finding.what


def test_answers_longer_than_the_positions_a_head_names_are_probed(patient: Patient) -> None:
    from fledge.doctor.probe import Probe
    from fledge.engine import Engine

    answers = Engine(patient.target, None).generate([[5] * 80], max_tokens=TOKENS)
    head, probe = Head.load(str(patient.head)), Probe(patient.target, answers)
    short = Head(replace(head.config, max_position_embeddings=8), head.weights)
    assert probe.score(short)[:2] == probe.score(head)[:2]


def test_the_engines_own_traps_are_named(patient: Patient, tmp_path: Path) -> None:
    head = Head.load(str(patient.head))
    write_head(head, str(tmp_path / "vllm"), "vllm")
    assert {f.fault for f in examine(patient.target, tmp_path / "vllm", engine="sglang").findings} == {
        "engine"
    }
    nested = planted(
        patient,
        tmp_path / "nested",
        lambda c, t: c.update(eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 3, 4]}),
    )
    # The same ids are right for SGLang, which counts outputs, and one off for vLLM, which counts inputs.
    assert examine(patient.target, nested, engine="sglang").findings == []
    assert {f.fault for f in examine(patient.target, nested, engine="vllm").findings} == {"layers"}
    residual = planted(patient, tmp_path / "residual", lambda c, t: c.update(norm_before_residual=True))
    assert "engine" in {f.fault for f in examine(patient.target, residual, engine="sglang").findings}
    assert "engine" not in {f.fault for f in examine(patient.target, residual, engine="vllm").findings}
    with pytest.raises(HeadError, match="use vllm, sglang or a server's URL"):
        examine(patient.target, patient.head, engine="tensorrt")


@pytest.mark.parametrize(
    ("layers", "faults"), [([0, 2, 6], set()), ([0, 2, 9], {"layers"}), ([2, 4, 5], {"layers"})]
)
def test_other_layers_than_the_default_ones_are_a_fault_only_where_they_can_not_be_meant(
    patient: Patient, tmp_path: Path, layers: list[int], faults: set[str]
) -> None:
    named = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": layers}}
    raw = json.loads((patient.head / "config.json").read_text()) | named
    tensors = safetensors.torch.load_file(patient.head / "model.safetensors")
    assert {f.fault for f in file_findings(raw, tensors, patient.target, "head")} == faults


def test_the_first_tensor_that_differs_from_the_reference_is_named(patient: Patient, tmp_path: Path) -> None:
    def change(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        tensors["midlayer.self_attn.v_proj.weight"][0, 0] += 1
        tensors["norm.weight"][0] += 1

    changed = planted(patient, tmp_path / "head", change)
    found = examine(patient.target, changed, reference=str(patient.head)).findings
    assert found[0].what.split()[0] == "midlayer.self_attn.v_proj.weight"
    write_head(Head.load(str(patient.head)), str(tmp_path / "same"), "speculators")
    assert examine(patient.target, tmp_path / "same", reference=str(patient.head)).findings == []
