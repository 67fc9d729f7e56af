"""Every form: bit-exact round trips, equal logits, and the traps of each engine."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch

from fledge.base.errors import HeadError
from fledge.deploy.exchange import export_head, first_difference, import_head
from fledge.draft.provenance import HeadMetadata
from fledge.draft.runner import TorchHeadRunner
from fledge.heads import Head
from fledge.heads.checkpoint import write_head
from fledge.heads.forms import FORMS as ALL_FORMS
from fledge.heads.forms import Form
from fledge.target import Target
from fledge.target.batch import ForwardBatch
from tests.heads.tiny_head import KINDS, estimating, load_tiny_target, random_head
from tests.interop import interpreter
from tests.tiny import TinyShape, save_tiny_target

FORMS = tuple(form for form in ALL_FORMS if form != "eagle4")  # those of any draft vocabulary


def bf16(head: Head) -> Head:
    return Head(head.config, head.weights.to(torch.bfloat16), head.metadata)


def make_head(target: Target, kind: str) -> Head:
    head = bf16(random_head(target, **KINDS[kind]))
    return Head(head.config, head.weights, replace(head.metadata, training={"steps": 3, "tau": 1.5}))


@pytest.fixture(scope="module", params=["eagle3", "eagle3.1"])
def head(request: pytest.FixtureRequest, target: Target) -> Head:
    return make_head(target, request.param)


@pytest.fixture(scope="module", params=KINDS)
def any_head(request: pytest.FixtureRequest, target: Target) -> Head:
    return make_head(target, request.param)


def logits(head: Head, target: Target) -> torch.Tensor:
    """Log-probabilities over the whole draft vocabulary after a fixed sequence of tokens and features, [R, Vd]."""
    runner = TorchHeadRunner(head.config, head.weights, target.weights.embedding, page_size=16)
    generator = torch.Generator().manual_seed(0)
    rows = 24
    ids = torch.randint(0, 512, (rows,), generator=generator, dtype=torch.int32)
    features = torch.randn(rows, 3 * head.config.target_hidden_size, generator=generator)
    whole = torch.tensor([0, rows], dtype=torch.int32)
    zero = torch.zeros(1, dtype=torch.int32)
    pages = torch.arange(2, dtype=torch.int32)[None]
    batch = ForwardBatch(ids, torch.arange(rows, dtype=torch.int32), whole, zero, zero, pages)
    k = head.config.draft_vocab_size
    out = runner.forward(batch, runner.allocate_kv(2), features=features, hidden=None, k=k)
    return out.log_probs.gather(1, out.token_ids.argsort(dim=1))


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_a_bit_exact_round_trip(
    any_head: Head, target: Target, form: Form, tmp_path: Path
) -> None:
    write_head(any_head, str(tmp_path / "one"), form)
    read = Head.load(str(tmp_path / "one"))
    assert first_difference(any_head, read) is None
    assert (read.config, read.metadata) == (any_head.config, any_head.metadata)
    assert torch.equal(logits(read, target), logits(any_head, target))
    write_head(read, str(tmp_path / "two"), form)
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_candidates_are_saved_and_read_and_left_out_for_other_engines(
    head: Head, target: Target, tmp_path: Path
) -> None:
    few = bf16(estimating(head, count=7))
    few.save(str(tmp_path / "own"))
    read = Head.load(str(tmp_path / "own"))
    assert first_difference(few, read) is None
    assert read.config == few.config
    assert (read.config.candidates, read.config.candidate_rank) == (7, 32)
    for form in FORMS:
        export_head(str(tmp_path / "own"), str(tmp_path / form), form=form, target=str(target.folder))
        exported = Head.load(str(tmp_path / form))
        assert exported.config.candidates == 0
        assert torch.equal(exported.weights.lm_head, head.weights.lm_head)
        assert "efficient" not in (tmp_path / form / "config.json").read_text()


def test_an_eagle4_head_goes_out_and_comes_back(target: Target, tmp_path: Path) -> None:
    whole = bf16(random_head(target, size=target.config.vocab_size, **KINDS["eagle3.1"]))
    head = estimating(whole).with_window(48, keeps_first=False)
    head.save(str(tmp_path / "own"))
    export_head(str(tmp_path / "own"), str(tmp_path / "out"), form="eagle4", target=str(target.folder))
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    names = set(safetensors.torch.load_file(tmp_path / "out" / "model.safetensors"))
    assert config["architectures"] == ["LlamaForCausalLMEagle4"]
    assert (config["model_type"], config["num_hidden_layers"], config["sliding_window"]) == ("llama", 1, 48)
    assert config["efficient_lm_head_config"] == {"type": "low_rank", "rank": 32, "num_candidates": 8}
    assert not {"fledge", "draft_vocab_size", "sliding_window_sinks"} & config.keys()
    assert {"lm_head.weight", "embed_tokens.weight", "efficient_lm_head.weight"} <= names
    assert {"efficient_lm_head_down_proj.weight", "layers.0.hidden_norm.weight"} <= names
    assert not {"d2t", "t2d"} & names
    import_head(str(tmp_path / "out"), str(tmp_path / "back"), target=str(target.folder))
    back = Head.load(str(tmp_path / "back"))
    own = replace(head.weights, embedding=target.weights.embedding.bfloat16())
    assert first_difference(Head(head.config, own), back) is None
    assert back.config == head.config
    assert torch.equal(logits(back, target), logits(head, target))


def test_what_eagle4_cant_hold_is_refused(target: Target, tmp_path: Path) -> None:
    few = bf16(random_head(target))
    whole = bf16(random_head(target, size=target.config.vocab_size))
    for name, head, message in (
        ("few", few, "96 of 512 tokens: train it on with train.init_head and train.draft_vocab_size=512"),
        ("first", whole.with_window(9), "sliding_window"),
    ):
        head.save(str(tmp_path / name))
        with pytest.raises(HeadError, match=message):
            export_head(str(tmp_path / name), str(tmp_path / "out"), form="eagle4", target=str(target.folder))
        assert not (tmp_path / "out").exists()
    whole.save(str(tmp_path / "whole"))
    with pytest.raises(HeadError, match="name the target"):
        export_head(str(tmp_path / "whole"), str(tmp_path / "out"), form="eagle4")


def test_candidates_that_cant_be_computed_are_refused(head: Head, tmp_path: Path) -> None:
    estimating(head).save(str(tmp_path))
    (tmp_path / "checksums.json").unlink()
    config = json.loads((tmp_path / "config.json").read_text())
    field = config["efficient_lm_head_config"]
    for changed, message in (
        ({**field, "type": "tree"}, "low_rank"),
        ({**field, "num_candidates": 0}, "num_candidates"),
        ({**field, "rank": 64}, "candidate_up is of shape"),
        ({**field, "bias": True}, "bias"),
        (7, "efficient_lm_head_config=7"),
        ({**field, "num_candidates": 97}, "97 candidates of 96 tokens"),
        (None, "efficient_lm_head.weight, but its config no efficient_lm_head_config"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config | {"efficient_lm_head_config": changed}))
        with pytest.raises(HeadError, match=message):
            Head.load(str(tmp_path))


def test_names_and_switches_of_each_form(head: Head, tmp_path: Path) -> None:
    for form in FORMS:
        write_head(head, str(tmp_path / form), form)
        names = set(safetensors.torch.load_file(tmp_path / form / "model.safetensors"))
        config = json.loads((tmp_path / form / "config.json").read_text())
        later = form in ("vllm", "speculators")
        assert ("layers.0.hidden_norm.weight" in names) == later
        assert ("midlayer.hidden_norm.weight" in names) == (not later)
        assert {"d2t", "t2d", "lm_head.weight"} <= names
        assert bool(config.get("fc_norm")) == bool(config.get("norm_output")) == head.config.fc_norm
        assert "eagle_aux_hidden_state_layer_ids" not in json.dumps(config)  # default layers need no ids
        assert "embed_tokens.weight" not in names
    assert json.loads((tmp_path / "sglang" / "config.json").read_text())["draft_vocab_size"] == 96
    assert json.loads((tmp_path / "vllm" / "config.json").read_text())["architectures"] == [
        "Eagle3LlamaForCausalLM"
    ]
    # EAGLE's code takes the target's embedding only without this field.
    assert "target_hidden_size" not in json.loads((tmp_path / "eagle" / "config.json").read_text())
    spec = json.loads((tmp_path / "speculators" / "config.json").read_text())
    assert spec["norm_before_residual"] is False
    assert spec["speculators_config"]["verifier"]["architectures"] == ["LlamaForCausalLM"]


def test_other_layers_are_named_in_each_engines_convention(tmp_path: Path) -> None:
    """Below 7 layers the default ones don't exist; outputs (0, 1, 3) are the inputs of (1, 2, 4)."""
    small = load_tiny_target(save_tiny_target(tmp_path / "small", shape=TinyShape(layers=4)))
    made = bf16(random_head(small))
    ids = {}
    for form in ("sglang", "vllm", "speculators"):
        write_head(made, str(tmp_path / form), form)
        config = json.loads((tmp_path / form / "config.json").read_text())
        ids[form] = (config.get("eagle_config") or config)["eagle_aux_hidden_state_layer_ids"]
        assert Head.load(str(tmp_path / form)).metadata.feature_layers == (0, 1, 3)
    assert ids == {"sglang": [0, 1, 3], "vllm": [1, 2, 4], "speculators": [1, 2, 4]}
    with pytest.raises(HeadError, match="fixed layers"):
        write_head(made, str(tmp_path / "eagle"), "eagle")


def test_a_head_trained_on_other_layers_is_refused(head: Head, target: Target) -> None:
    other = Head(head.config, head.weights, replace(head.metadata, feature_layers=(2, 4, 5)))
    with pytest.raises(HeadError, match="features of layers 2, 4, 5, but this target has 1, 3, 4") as caught:
        other.check_target(target)
    assert "target.feature_layers=[2, 4, 5]" in str(caught.value)
    other.check_target(target.with_feature_layers((2, 4, 5)))


def test_eagles_own_pickle_and_sharded_files_load(head: Head, target: Target, tmp_path: Path) -> None:
    write_head(head, str(tmp_path / "head"), "eagle")
    tensors = safetensors.torch.load_file(tmp_path / "head" / "model.safetensors")
    config = (tmp_path / "head" / "config.json").read_text()
    for name in ("pickle", "sharded"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(config)
    torch.save(tensors, tmp_path / "pickle" / "pytorch_model.bin")
    names = sorted(tensors)
    weight_map = {}
    for shard, part in enumerate((names[:5], names[5:])):
        file = f"model-{shard}.safetensors"
        safetensors.torch.save_file({n: tensors[n] for n in part}, tmp_path / "sharded" / file)
        weight_map |= dict.fromkeys(part, file)
    (tmp_path / "sharded" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    for name in ("pickle", "sharded"):
        assert torch.equal(logits(Head.load(str(tmp_path / name)), target), logits(head, target))


def test_a_pickle_with_code_in_it_is_refused(head: Head, tmp_path: Path) -> None:
    write_head(head, str(tmp_path), "eagle")
    (tmp_path / "model.safetensors").unlink()
    torch.save({"fc.weight": subprocess.Popen}, tmp_path / "pytorch_model.bin")
    with pytest.raises(HeadError, match="can't be read"):
        Head.load(str(tmp_path))


def test_a_head_in_8_bits_and_a_damaged_index_are_refused(head: Head, tmp_path: Path) -> None:
    write_head(head, str(tmp_path))
    file = tmp_path / "model.safetensors"
    tensors = safetensors.torch.load_file(file)
    tensors["fc.weight"] = tensors["fc.weight"].to(torch.float8_e4m3fn)
    safetensors.torch.save_file(tensors, file)
    with pytest.raises(HeadError, match=r"fc\.weight in 8 bits"):
        Head.load(str(tmp_path))
    file.rename(tmp_path / "model-00001-of-00001.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(HeadError, match=r"index\.json can't be used"):
        Head.load(str(tmp_path))


def test_norms_without_their_switch_are_refused(head: Head, tmp_path: Path) -> None:
    """An engine would leave them out without a word."""
    if not head.config.fc_norm:
        pytest.skip("only EAGLE-3.1 has these norms")
    write_head(head, str(tmp_path))
    config = json.loads((tmp_path / "config.json").read_text())
    del config["fc_norm"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(HeadError, match="doesn't switch them on"):
        Head.load(str(tmp_path))


def test_export_and_import_end_where_they_began(head: Head, target: Target, tmp_path: Path) -> None:
    source = tmp_path / "head"
    head.save(str(source))
    here = str(source)
    for form in FORMS:
        export_head(here, str(tmp_path / form), form=form, target=str(target.folder))
        here = str(tmp_path / form)
    import_head(here, str(tmp_path / "back"), target=str(target.folder))
    back = Head.load(str(tmp_path / "back"))
    # The eagle form was given the target's embedding on the way: EAGLE's own code needs it there.
    assert back.weights.embedding is not None
    assert first_difference(Head(back.config, replace(back.weights, embedding=None)), head) is None
    export_head(str(tmp_path / "back"), str(tmp_path / "bare"), form="sglang", embedding=False)
    assert (tmp_path / "bare" / "model.safetensors").read_bytes() == (
        source / "model.safetensors"
    ).read_bytes()


def test_heads_that_differ_in_a_bit_a_type_or_a_tensor_are_told_apart(head: Head, target: Target) -> None:
    w = head.weights
    others = {
        "d2t": replace(w, d2t=w.d2t + 1),
        "midlayer.mlp.up_proj.weight": replace(w, gate_up=torch.cat((w.gate_up[:-1], -w.gate_up[-1:]))),
        "norm.weight": replace(w, norm=w.norm.float()),  # the same numbers
        "embed_tokens.weight": replace(w, embedding=target.ends.embedding.to(torch.bfloat16)),
    }
    for name, weights in others.items():
        other = Head(head.config, weights, head.metadata)
        assert first_difference(head, other) == first_difference(other, head) == name
    assert first_difference(head, Head(head.config, replace(w, norm=w.norm.clone()))) is None


def test_a_head_that_names_fewer_positions_is_handed_on_with_its_targets(
    head: Head, target: Target, tmp_path: Path
) -> None:
    Head(replace(head.config, max_position_embeddings=128), head.weights).save(str(tmp_path / "short"))
    import_head(str(tmp_path / "short"), str(tmp_path / "in"), target=str(target.folder))
    export_head(str(tmp_path / "short"), str(tmp_path / "out"), form="vllm", target=str(target.folder))
    assert Head.load(str(tmp_path / "in")).config == Head.load(str(tmp_path / "out")).config == head.config


def test_the_card_tells_what_the_head_is(head: Head, tmp_path: Path) -> None:
    head.save(str(tmp_path / "head"))
    export_head(str(tmp_path / "head"), str(tmp_path / "out"), form="vllm")
    card = (tmp_path / "out" / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: fledge\n")
    assert head.metadata.target_revision in card
    assert "96 of 512 tokens" in card
    assert "| tau | 1.5 |" in card
    assert "vllm serve" in card


def test_the_card_names_the_form_of_the_weights_the_head_was_trained_on(
    head: Head, target: Target, tmp_path: Path
) -> None:
    for form in (None, "q8_0"):
        quantised = Target.load(str(target.folder), backend="torch", quantization=form)  # type: ignore[arg-type]
        Head(head.config, head.weights, HeadMetadata.of(quantised)).save(str(tmp_path / "head"))
        export_head(str(tmp_path / "head"), str(tmp_path / "out"), form="sglang")
        card = (tmp_path / "out" / "README.md").read_text()
        assert f"| target quantization | {form or 'none'} |" in card


def test_a_residual_that_an_engine_leaves_out_is_refused_in_its_form(target: Target, tmp_path: Path) -> None:
    head = make_head(target, "speculators")
    head.save(str(tmp_path / "head"))
    for form in FORMS:
        if form in ("vllm", "speculators"):
            export_head(str(tmp_path / "head"), str(tmp_path / form), form=form)
            assert json.loads((tmp_path / form / "config.json").read_text())["norm_before_residual"] is True
        else:
            with pytest.raises(HeadError, match="use the vllm or speculators form"):
                export_head(str(tmp_path / "head"), str(tmp_path / form), form=form)
    import_head(str(tmp_path / "speculators"), str(tmp_path / "back"), target=str(target.folder))
    assert Head.load(str(tmp_path / "back")).config == head.config


def test_a_window_is_refused_in_every_form_of_other_engines(target: Target, tmp_path: Path) -> None:
    make_head(target, "windowed").save(str(tmp_path / "head"))
    config = json.loads((tmp_path / "head" / "config.json").read_text())
    assert (config["sliding_window"], config["sliding_window_sinks"]) == (5, 4)
    for form in FORMS:
        with pytest.raises(
            HeadError, match=rf"uses sliding_window, .* the {form} form .*: serve it with fledge"
        ):
            export_head(str(tmp_path / "head"), str(tmp_path / form), form=form)


def test_export_refuses_what_would_lose_values(head: Head, tmp_path: Path) -> None:
    large = Head(head.config, replace(head.weights, down=head.weights.down * 1e6), head.metadata)
    large.save(str(tmp_path / "head"))
    with pytest.raises(HeadError, match=r"down_proj\.weight has values float16 can't hold"):
        export_head(str(tmp_path / "head"), str(tmp_path / "out"), form="sglang", dtype="float16")
    with pytest.raises(HeadError, match="name it with --target"):
        export_head(str(tmp_path / "head"), str(tmp_path / "out"), form="sglang", embedding=True)
    with pytest.raises(HeadError, match="no checkpoint form 'onnx'"):
        export_head(str(tmp_path / "head"), str(tmp_path / "out"), form="onnx")
    with pytest.raises(HeadError, match=r"'llama\.cpp': use gguf"):
        export_head(str(tmp_path / "head"), str(tmp_path / "out"), form="llama.cpp")
    assert not (tmp_path / "out").exists()


_WITH_SPECULATORS = """
import sys, torch, safetensors.torch
from speculators.models.eagle3 import Eagle3DraftModel
model = Eagle3DraftModel.from_pretrained(sys.argv[1], dtype=torch.float32)
given = safetensors.torch.load_file(sys.argv[1] + "/model.safetensors")
state = model.state_dict()
for name, tensor in given.items():
    assert torch.equal(state[name], tensor.to(state[name].dtype)), name
with torch.no_grad():
    inputs = safetensors.torch.load_file(sys.argv[2])
    model.embed_tokens.weight.copy_(inputs["embedding"])
    fused = model.fc(torch.cat([n(c) for n, c in zip(model.fc_norm, inputs["features"].chunk(3, -1))], -1)
                     if model.fc_norm is not None else inputs["features"])
    ids, rows = inputs["ids"][None], len(inputs["ids"])
    both = torch.cat([model.embed_tokens(ids), fused[None]], -1)
    mask = model._build_attn_mask(torch.zeros(rows, dtype=torch.long), rows, "cpu")
    positions = torch.arange(rows)[None]
    out = model.layers[0](both, attention_mask=mask, position_ids=positions,
                          position_embeddings=model.rotary_emb(both, positions))
    logits = model.lm_head(model.norm(out))[0]
safetensors.torch.save_file({"log_probs": logits.log_softmax(-1).contiguous()}, sys.argv[3])
"""


@pytest.mark.slow
def test_the_formats_own_library_computes_the_same_logits(
    any_head: Head, target: Target, tmp_path: Path
) -> None:
    python = interpreter("speculators")
    clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    known = replace(
        any_head.metadata, target_name=str(target.folder)
    )  # from which it loads embedding and norm
    write_head(Head(any_head.config, any_head.weights, known), str(tmp_path / "head"), "speculators")
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 512, (24,), generator=generator, dtype=torch.int32)
    features = torch.randn(24, 3 * any_head.config.target_hidden_size, generator=generator)
    given = {"ids": ids.long(), "features": features, "embedding": target.weights.embedding.contiguous()}
    safetensors.torch.save_file(given, tmp_path / "inputs")
    command = [python, "-c", _WITH_SPECULATORS, *(str(tmp_path / n) for n in ("head", "inputs", "outputs"))]
    subprocess.run(command, check=True, env=clean)  # pytest shows what it prints
    theirs = safetensors.torch.load_file(tmp_path / "outputs")["log_probs"]
    torch.testing.assert_close(logits(any_head, target), theirs, rtol=1e-4, atol=1e-4)
