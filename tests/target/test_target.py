"""`Target.load`: options, backends, and errors."""

from __future__ import annotations

import json
import logging
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from fledge.base.errors import FledgeError, TargetError
from fledge.engine import Engine
from fledge.run.folder import Run
from fledge.run.recipe import Recipe
from fledge.target import Target
from fledge.target.revision import _shape
from tests.target.paging import logits_of, make_batch, scattered_pages
from tests.tiny import CHATML, TinyShape, save_tiny_target


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_loaded_target_decodes(tiny_target_folder: Path, tmp_path: Path, dtype: str) -> None:
    target = Target.load(str(tiny_target_folder), dtype=dtype, backend="torch", cache_dir=tmp_path)
    decoder = target.decoder
    ids = target.chat.prompt_ids([{"role": "user", "content": "Tell me a story."}])
    logits = logits_of(decoder, make_batch([ids], scattered_pages(1, 3)), decoder.allocate_kv(3))
    assert logits.shape == (len(ids), target.config.vocab_size)
    assert target.dtype == decoder.dtype == getattr(torch, dtype)
    assert target.decoder is decoder


def test_the_path_taken_and_its_reason_are_logged_once(
    tiny_target_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="fledge"):
        target = Target.load(str(tiny_target_folder), dtype="float32", cache_dir=tmp_path)
        assert target.backend == "torch"
        assert target.decoder.backend == "torch"
    lines = [line for line in caplog.messages if "decoding with" in line]
    assert len(lines) == 1
    assert "torch" in lines[0]
    assert "because" in lines[0]
    assert "float32" in lines[0]


def test_a_cpu_without_the_kernels_is_warned_of_unless_it_was_asked_for(
    tiny_target_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("fledge.target.cpu.unavailable_reason", lambda: "there is no C++ compiler")
    assert Target.load(str(tiny_target_folder)).decoder.backend == "torch"
    (line,) = caplog.messages
    assert "many times slower" in line
    assert "no C++ compiler" in line
    caplog.clear()
    assert Target.load(str(tiny_target_folder), backend="torch").decoder.backend == "torch"
    monkeypatch.setenv("FLEDGE_NATIVE", "0")
    assert Target.load(str(tiny_target_folder)).decoder.backend == "torch"
    assert not caplog.messages


def test_native_is_refused_with_the_reason(tiny_target_folder: Path, tmp_path: Path) -> None:
    target = Target.load(str(tiny_target_folder), dtype="float32", backend="native", cache_dir=tmp_path)
    with pytest.raises(TargetError, match=r"float32.*backend='torch'"):
        _ = target.decoder


def test_unknown_options_name_the_known_ones(tiny_target_folder: Path, tmp_path: Path) -> None:
    spec = str(tiny_target_folder)
    with pytest.raises(TargetError, match=r"int3.*bfloat16"):
        Target.load(spec, dtype="int3", cache_dir=tmp_path)
    with pytest.raises(TargetError, match=r"magic.*native"):
        Target.load(spec, backend="magic", cache_dir=tmp_path)  # type: ignore[arg-type]
    with pytest.raises(TargetError, match="device 'nowhere'"):
        Target.load(spec, device="nowhere", cache_dir=tmp_path)


def test_under_torchrun_each_process_has_the_gpu_of_its_rank(
    tiny_target_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "77")
    with pytest.raises(TargetError, match="device 'cuda:77'"):
        Target.load(str(tiny_target_folder), device="cuda", cache_dir=tmp_path)


def test_end_tokens_of_the_generation_config_end_turns(tiny_target_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_target_folder, tmp_path / "copy"))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 7]}))
    assert Target.load(str(folder), cache_dir=tmp_path).chat.turn_end_ids == {2, 7}
    for odd in ([], {"eos_token_id": [2, 7, "8", -1, 512]}):  # nothing that could end a turn
        (folder / "generation_config.json").write_text(json.dumps(odd))
        assert Target.load(str(folder), cache_dir=tmp_path).chat.turn_end_ids == ({2, 7} if odd else {2})


def test_a_tokenizer_may_have_added_tokens_that_the_model_has_not(tmp_path: Path) -> None:
    """Gemma 3 1B's has one, which stands for an image."""
    folder = save_tiny_target(tmp_path, shape=TinyShape(layers=1))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["<image_soft_token>"], special_tokens=True)
    tokenizer.save_pretrained(folder)
    target = Target.load(str(folder))
    assert len(target.tokenizer) == target.config.vocab_size + 1
    prompt = target.tokenizer.encode("Hello<image_soft_token>")
    with pytest.raises(FledgeError, match=r"outside 0\.\.511"):
        Engine(target).generate([prompt], max_tokens=1)


def test_a_template_in_a_file_of_its_own_is_read(tmp_path: Path) -> None:
    """Where transformers 4 put that of a multimodal model."""
    folder = save_tiny_target(tmp_path, shape=TinyShape(layers=1))
    question = [{"role": "user", "content": "Why is the sky blue?"}]
    before = Target.load(str(folder))
    template = (folder / "chat_template.jinja").read_text()
    (folder / "chat_template.jinja").unlink()
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": template}))
    after = Target.load(str(folder))
    assert after.chat.prompt_ids(question) == before.chat.prompt_ids(question)
    assert (after.revision, after.chat.hash) == (before.revision, before.chat.hash)
    (folder / "chat_template.json").write_text("[]")
    with pytest.raises(TargetError, match=r"can't read .*chat_template\.json"):
        Target.load(str(folder))


def test_a_missing_or_foreign_tokenizer_is_one_clear_error(tiny_target_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_target_folder, tmp_path / "copy"))
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(TargetError, match="tokenizer"):
        Target.load(str(folder), cache_dir=tmp_path)
    small = save_tiny_target(tmp_path / "small", shape=TinyShape(layers=1))
    config = json.loads((small / "config.json").read_text())
    (small / "config.json").write_text(json.dumps({**config, "vocab_size": 100}))
    with pytest.raises(TargetError, match="512 tokens"):
        Target.load(str(small), cache_dir=tmp_path)


def test_no_code_of_a_checkpoint_runs_whatever_a_terminal_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_tiny_target(tmp_path / "t")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config.update(tokenizer_class="Own", auto_map={"AutoTokenizer": ["own.Own", None]})
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text(
        f"from transformers import PreTrainedTokenizerFast\nopen({str(tmp_path / 'ran')!r}, 'w')\n"
        "class Own(PreTrainedTokenizerFast): pass\n"
    )
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    with pytest.raises(TargetError, match="code of the checkpoint") as caught:
        Target.load(str(folder))
    assert "trust_remote_code" not in str(caught.value)
    assert not (tmp_path / "ran").exists()


def test_a_recipe_s_target_is_the_same_in_the_run_and_in_an_actor(tmp_path: Path) -> None:
    folder = save_tiny_target(tmp_path / "t", chat_template=CHATML + "{{ mood }}")
    chosen = {"model": str(folder), "chat_template_kwargs": {"mood": "calm"}, "feature_layers": (0, 2, 6)}
    run = Run(Recipe.model_validate({"target": chosen}), str(tmp_path / "run"))
    for target in (run.target, pickle.loads(pickle.dumps(run.recipe.target)).load()):
        assert target.chat.options == {"mood": "calm"}
        assert target.config.feature_layers == (0, 2, 6)


def test_a_field_that_a_plain_target_leaves_empty_changes_no_revision(tiny_target_folder: Path) -> None:
    """The shipped head, and every head out there, names the revision that was made of these."""
    target = Target.load(str(tiny_target_folder))
    assert sorted(_shape(target.config)) == [
        "architecture", "head_dim", "hidden_size", "intermediate_size", "max_position_embeddings", "num_heads",
        "num_kv_heads", "num_layers", "qk_norm", "qkv_bias", "rms_norm_eps", "rope_scaling", "rope_theta",
        "tie_word_embeddings", "vocab_size",
    ]  # fmt: skip
    assert _shape(target.with_feature_layers((0, 2, 6)).config) == _shape(target.config)
