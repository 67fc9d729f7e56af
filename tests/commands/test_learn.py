"""`fledge learn`: what a server has learnt, from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from fledge.heads import Head
from fledge.learn import Card, Versions
from fledge.target.target import Target
from tests.commands.command import Fledge
from tests.engine.conftest import noisy_head


@pytest.fixture
def learned(tmp_path: Path, tiny_target_folder: Path) -> Path:
    """A folder of two versions."""
    head = noisy_head(Target.load(str(tiny_target_folder), backend="torch"))
    versions = Versions(tmp_path / "learned")
    card = Card(
        0, tau=2.0, before=1.25, low=0.7, high=0.8, conversations=9, steps=20, tokens=5000, created=0.0
    )
    for _ in range(2):
        versions.add(head, card)
    return versions.folder


def test_versions_are_listed_and_pinned(fledge: Fledge, learned: Path) -> None:
    first, second = fledge("learn", "list", "--learn-folder", learned).splitlines()
    assert "tau 1.25 -> 2.00 (+0.70 to +0.80)" in first
    assert second.endswith("served next")
    fledge("learn", "pin", "1", "--learn-folder", learned)
    first, _ = fledge("learn", "list", "--learn-folder", learned).splitlines()
    assert first.endswith("pinned, served next")
    fledge("learn", "pin", "none", "--learn-folder", learned)
    assert Versions(learned).to_serve() == 2


def test_a_version_is_exported_for_llama_cpp(
    fledge: Fledge, learned: Path, tiny_target_folder: Path, tmp_path: Path
) -> None:
    file, folder, of = tmp_path / "head.gguf", tmp_path / "head", ("--learn-folder", learned)
    target = ("--target", tiny_target_folder)
    assert "--spec-type draft-eagle3" in fledge("learn", "export", file, *target, *of)
    assert Head.load(str(file)).config.hidden_size == Versions(learned).load(2).config.hidden_size
    fledge("learn", "export", folder, *target, "--form", "sglang", "--version", "1", *of)
    assert (folder / "config.json").exists()
    assert "has no version 7; it has 1, 2" in fledge.error(
        "learn", "export", file, *target, *of, "--version", "7"
    )
    none = tmp_path / "none"
    assert "no version to serve" in fledge.error("learn", "export", file, *target, "--learn-folder", none)


def test_an_empty_folder_says_so(fledge: Fledge, tmp_path: Path) -> None:
    assert "no versions yet" in fledge("learn", "list", "--learn-folder", tmp_path / "learned")


def test_options_of_learning_need_a_server_that_learns(fledge: Fledge) -> None:
    for option in (("--learn-privacy",), ("--learn-except", "127.0.0.1"), ("--learn-folder", "here")):
        assert f"{option[0]} is for a server that learns: give --learn" in fledge.error(
            "serve", "none", *option
        )
    assert "no client is called 'bob'" in fledge.error("serve", "none", "--learn", "--learn-except", "bob")
