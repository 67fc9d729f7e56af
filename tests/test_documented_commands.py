"""Every `fledge` command that README and docs show is one that the command line takes, settings included."""

from __future__ import annotations

import importlib
import inspect
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import typer.main

from fledge.commands.main import app
from fledge.run.recipe import load_recipe

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCED = re.compile(r"^```\w*\n(.*?)^```", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`([^`]*\bfledge [^`]*)`", re.DOTALL)
COMMAND = re.compile(r"(?:^|[\s\"'(])(?:\.venv/bin/)?fledge (?!\.\.\.)(.*)", re.DOTALL)
SETTING = re.compile(r"[a-z_]+(\.[a-z_]+)+=")
INSTRUMENT = re.compile(r"python -m\s+benchmarks\.(\w+)([^`\n)]*)")


def fenced(text: str) -> Iterator[str]:
    """Commands in blocks, continued lines joined."""
    for block in FENCED.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            if re.match(r"\s*([A-Z_]+=\S+ )*(\.venv/bin/)?fledge [a-z]", line):
                yield line


def inline(text: str) -> Iterator[str]:
    """Commands within sentences."""
    for code in INLINE.findall(FENCED.sub("", text)):
        if code.strip().startswith(("fledge ", ".venv/bin/fledge ")):
            yield " ".join(code.split())


def words(line: str) -> list[str]:
    """Of a command, `fledge` and what stands before it left out."""
    found = COMMAND.search(line)
    assert found is not None, line
    return shlex.split(found[1], comments=True)


def command(arguments: list[str]) -> tuple[Any, list[str]]:
    """The command that the words name, and its own words."""
    found: Any = typer.main.get_command(app)
    if all(word.startswith("-") for word in arguments):
        return found, arguments
    while arguments[0].startswith("-"):  # options of all commands
        arguments = arguments[1:]
    while hasattr(found, "commands"):
        name = (
            arguments[0] if arguments and arguments[0] in found.commands else "engine"
        )  # of bench: the default
        arguments = arguments[1:] if arguments and arguments[0] == name else arguments
        assert name in found.commands, arguments
        found = found.commands[name]
    return found, arguments


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_in_blocks_can_be_given_as_they_are(page: Path) -> None:
    for line in fenced(page.read_text("utf-8")):
        if " ..." in line:
            continue
        found, arguments = command(words(line))
        try:
            found.make_context(found.name, list(arguments))
        except Exception as error:
            pytest.fail(f"{line}: {error}")
        if any(option.name == "settings" for option in found.params):
            load_recipe("demo", [word for word in arguments if SETTING.match(word)])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_options_within_sentences_exist(page: Path) -> None:
    for line in inline(page.read_text("utf-8")):
        if "|" in line or "..." in line.split(" ")[1]:
            continue
        found, arguments = command(words(line))
        known = {name for option in found.params for name in (*option.opts, *option.secondary_opts)} | {
            "--help"
        }
        given = {word.split("=")[0] for word in arguments if word.startswith("--")}
        assert given <= known, line


def options_of(instrument: str) -> set[str]:
    """The options that one of the instruments takes, by Typer or by argparse."""
    place = f"benchmarks.{instrument}" + (".__main__" if (ROOT / "benchmarks" / instrument).is_dir() else "")
    main = importlib.import_module(place).main
    if inspect.signature(main).parameters:
        app = typer.Typer()
        app.command()(main)
        return {name for option in typer.main.get_command(app).params for name in option.opts}
    asked = patch.object(sys, "argv", [instrument, "--help"])
    with asked, redirect_stdout(StringIO()) as shown, pytest.raises(SystemExit):
        main()
    return set(re.findall(r"--[\w-]+", shown.getvalue()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_instruments_that_pages_name_exist_with_their_options(page: Path) -> None:
    for name, rest in INSTRUMENT.findall(page.read_text("utf-8").replace("\\\n", " ")):
        given = {word.split("=")[0] for word in shlex.split(rest, comments=True) if word.startswith("--")}
        assert given <= options_of(name), f"{name} {rest}"


def test_a_command_that_does_not_exist_is_found() -> None:
    (shown,) = fenced("```\nfledge serve \\\n  --plane\n```\n")
    found, arguments = command(words(shown))
    with pytest.raises(Exception, match="--plane"):
        found.make_context(found.name, arguments)
