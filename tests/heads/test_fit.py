"""A head serves every quantisation and fine-tune of its model, and nothing with other tokens or another template."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from fledge.base.errors import HeadError
from fledge.heads import Head
from fledge.released import load_head, load_pair, released_folder
from fledge.target import Target, TargetOptions
from fledge.target.identity import template_hash, vocabulary_hash
from tests.heads.tiny_head import load_tiny_target, random_head
from tests.tiny import CHATML, TinyShape, save_tiny_target


@pytest.fixture
def shipped(tiny_target_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Head:
    """A head for the tiny target, as if it came with the package."""
    head = random_head(load_tiny_target(tiny_target_folder))
    head.save(str(tmp_path / "shipped" / "tiny"))
    monkeypatch.setattr("fledge.released.FOLDER", tmp_path / "shipped")
    return head


def retokenised(folder: Path, copy: Path) -> Path:
    """The target with two tokens exchanged."""
    copy.mkdir()
    for file in folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    tokenizer = json.loads((copy / "tokenizer.json").read_text("utf-8"))
    vocab = tokenizer["model"]["vocab"]
    one, other = [token for token, number in vocab.items() if number in (20, 21)]
    vocab[one], vocab[other] = vocab[other], vocab[one]
    (copy / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")
    return copy


def test_other_weights_of_the_same_model_are_a_line_of_information(
    shipped: Head, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tuned = save_tiny_target(tmp_path / "tuned", seed=7)
    with caplog.at_level(logging.INFO, "fledge"):
        for named in (None, "released", str(tmp_path / "shipped" / "tiny")):
            caplog.clear()
            target, head = load_pair(TargetOptions(model=str(tuned)), named)
            assert head is not None
            assert head.metadata.target_revision != target.revision
            assert "trained on other weights of this shape" in caplog.text
            assert "fledge doctor" in caplog.text
            assert "drafting with the" in caplog.text


def test_a_heads_own_target_gets_no_such_line(
    shipped: Head, tiny_target_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "fledge"):
        assert load_pair(TargetOptions(model=str(tiny_target_folder)), None)[1] is not None
    assert "other weights" not in caplog.text


def test_without_a_fitting_head_decoding_is_plain_and_says_so(
    shipped: Head, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = save_tiny_target(tmp_path / "other", shape=TinyShape(hidden=128))
    with caplog.at_level(logging.INFO, "fledge"):
        assert load_pair(TargetOptions(model=str(other)), None)[1] is None
    assert "decoding plainly, since no head ships for it" in caplog.text
    with pytest.raises(HeadError, match="no head ships for"):
        load_pair(TargetOptions(model=str(other)), "released")


def test_a_head_made_here_drafts_where_none_ships(
    shipped: Head, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, drafts, line in (
        ("fits", True, "drafting with the head runs/"),
        ("other", False, "fit (this head was"),
    ):
        folder = save_tiny_target(
            tmp_path / name, shape=TinyShape(hidden=128, intermediate=96 if drafts else 64)
        )
        target = folder if drafts else save_tiny_target(tmp_path / "another", shape=TinyShape(layers=9))
        head = random_head(load_tiny_target(folder))
        head.save(str(tmp_path / "runs" / target.name / "head"))
        with caplog.at_level(logging.INFO, "fledge"):
            assert (load_pair(TargetOptions(model=str(target)), None)[1] is not None) is drafts
        assert line in caplog.text
    assert "decoding plainly, since no head ships for it, and runs/another/head doesn't fit" in caplog.text


def test_plain_loads_no_head(shipped: Head, tiny_target_folder: Path) -> None:
    assert load_pair(TargetOptions(model=str(tiny_target_folder)), None, plain=True)[1] is None


def test_other_tokens_are_refused(shipped: Head, tiny_target_folder: Path, tmp_path: Path) -> None:
    target = Target.load(str(retokenised(tiny_target_folder, tmp_path / "retokenised")))
    assert released_folder(target) is None
    with pytest.raises(HeadError, match="other tokens, though as many"):
        shipped.check_target(target)


def test_another_template_is_refused_and_import_takes_the_head_over(shipped: Head, tmp_path: Path) -> None:
    from fledge.deploy.exchange import import_head

    template = CHATML.replace("<|im_start|>", "[START]")
    folder = save_tiny_target(tmp_path / "templated", chat_template=template)
    target = Target.load(str(folder))
    assert released_folder(target) is None
    with pytest.raises(HeadError, match="another chat template"):
        shipped.check_target(target)
    import_head(str(tmp_path / "shipped" / "tiny"), str(tmp_path / "mine"), target=str(folder))
    assert load_head(target, str(tmp_path / "mine")).metadata.template_hash == target.template_hash


def test_a_template_written_otherwise_with_the_same_result_fits(shipped: Head, tmp_path: Path) -> None:
    folder = save_tiny_target(tmp_path / "same", chat_template="{# a comment #}" + CHATML)
    target = Target.load(str(folder))
    shipped.check_target(target)
    assert released_folder(target) is not None


def test_a_head_without_a_record_fits_whatever_has_its_shape(shipped: Head, tmp_path: Path) -> None:
    bare = Head(
        shipped.config, shipped.weights, replace(shipped.metadata, template_hash="", vocabulary_hash="")
    )
    bare.check_target(Target.load(str(save_tiny_target(tmp_path / "t", chat_template="{{ messages }}"))))


def test_a_template_that_writes_the_date_hashes_alike_on_every_day(shipped: Head, tmp_path: Path) -> None:
    class Tokenizer:
        chat_template = "dated"

        def __init__(self, today: str) -> None:
            self._today = today

        def apply_chat_template(self, messages: list[dict[str, str]], **options: object) -> str:
            now = options.get("strftime_now")
            return (now("%d") if callable(now) else self._today) + str(messages)

    assert template_hash(Tokenizer("1")) == template_hash(Tokenizer("2"))


def test_padding_at_the_end_of_the_vocabulary_does_not_count() -> None:
    def tokens(padding: str):  # type: ignore[no-untyped-def]
        return lambda ids: [f"token {i}" if i < 95 else f"{padding} {i}" for i in ids]

    assert vocabulary_hash(tokens("a"), 100) == vocabulary_hash(tokens("b"), 100)
    assert vocabulary_hash(tokens("a"), 100) != vocabulary_hash(lambda ids: [str(i) for i in ids], 100)
