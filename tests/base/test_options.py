"""An option is declared once: its model says what it is, and keywords, flags and reference pages come from that."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from pydantic import BaseModel

import fledge
from fledge.base.errors import EngineError, FledgeError, ServerError
from fledge.base.options import flag_of
from fledge.commands.main import app
from fledge.deploy.options import LaunchOptions
from fledge.engine import Engine, TreeShape
from fledge.engine.options import EngineOptions
from fledge.learn.options import LearnOptions
from fledge.server.options import ServerOptions

MODELS: list[tuple[type[BaseModel], str]] = [
    (EngineOptions, ""),
    (ServerOptions, ""),
    (LearnOptions, "learn_"),
    (LaunchOptions, ""),
]
SOURCE = Path(fledge.__file__).parent
FIRST = 12  # flags that `fledge serve --help` shows above its headings


def flags_of(command: str) -> dict[str, Any]:
    found = typer.main.get_command(app).commands[command]  # type: ignore[attr-defined]
    return {str(one.name): one for one in found.params}


def test_serve_has_a_flag_for_every_option() -> None:
    flags = flags_of("serve")
    for model, prefix in MODELS:
        for name, field in model.model_fields.items():
            if flag_of(field).hidden:
                continue
            assert flags[prefix + name].help == field.description


def test_the_flags_that_people_need_first_are_few() -> None:
    first = [
        one
        for one in flags_of("serve").values()
        if one.param_type_name == "option" and not one.rich_help_panel
    ]
    assert len([one for one in first if one.name != "help"]) == FIRST


def test_an_engines_keywords_are_its_options() -> None:
    keywords = [
        one.name
        for one in inspect.signature(Engine.__init__).parameters.values()
        if one.kind is one.KEYWORD_ONLY
    ]
    assert keywords == list(EngineOptions.model_fields)


def test_no_command_declares_an_option_that_a_model_has() -> None:
    """Only `target`, `head` and their likes are a command's own."""
    names = {prefix + name for model, prefix in MODELS for name in model.model_fields}
    declared = [
        (path.name, argument.arg)
        for path in (SOURCE / "commands").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef) and node.name in ("serve", "generate")
        for argument in (*node.args.args, *node.args.kwonlyargs)
        if argument.arg in names - {"target"}
    ]
    assert declared == []


@pytest.mark.parametrize(
    ("model", "given", "error", "said"),
    [
        (EngineOptions, {"max_batch": 0}, EngineError, "max_batch is 0; use 1 or more"),
        (EngineOptions, {"max_batch": True}, EngineError, "max_batch is True; use a whole number"),
        (EngineOptions, {"max_batch": "8"}, EngineError, "max_batch is '8'; use a whole number"),
        (EngineOptions, {"max_batch": 2.5}, EngineError, r"max_batch is 2.5; use a whole number"),
        (EngineOptions, {"fair_prefill": 1}, EngineError, "fair_prefill is 1; use True or False"),
        (EngineOptions, {"max_bach": 4}, EngineError, "no option max_bach; did you mean max_batch"),
        (EngineOptions, {"tree": "4x4"}, EngineError, "'4x4' is not a tree shape"),
        (EngineOptions, {"tree": (4, 4)}, EngineError, r"tree is \(4, 4\)"),
        (
            EngineOptions,
            {"draft_weights": "int2"},
            EngineError,
            "draft_weights is 'int2'; use 'int8', 'int4' or",
        ),
        (EngineOptions, {"drafter": "json:JSONDecoder"}, EngineError, "derives from fledge.engine.Drafter"),
        (EngineOptions, {"drafter": "no_such_module:x"}, FledgeError, "can't be imported"),
        (ServerOptions, {"port": 70000}, ServerError, "port is 70000; use 65,535 or less"),
        (ServerOptions, {"request_timeout": 0}, ServerError, "request_timeout is 0; use more than 0"),
        (ServerOptions, {"max_body_mb": float("nan")}, ServerError, "max_body_mb is nan"),
        (LearnOptions, {"share": 0.95}, ServerError, "share is 0.95; use 0.9 or less"),
        (LaunchOptions, {"port": -1}, EngineError, "port is -1; use 0 or more"),
    ],
)
def test_what_an_option_cannot_be_is_said(
    model: Any, given: dict[str, Any], error: type[FledgeError], said: str
) -> None:
    with pytest.raises(error, match=said):
        model(**given)


def test_options_take_numpys_numbers_and_texts() -> None:
    options = EngineOptions(max_batch=np.int64(3), tree="4-4-16", drafter="fledge.engine:Lookup")
    assert (options.max_batch, options.tree) == (3, TreeShape(4, 4, 16))
    assert type(options.max_batch) is int
    assert type(options.drafter).__name__ == "Lookup"


def test_a_changed_copy_is_checked() -> None:
    options = EngineOptions(max_batch=3)
    assert options.changed(lookup=4).given() == {"max_batch": 3, "lookup": 4}
    with pytest.raises(EngineError, match="lookup is 99"):
        options.changed(lookup=99)
