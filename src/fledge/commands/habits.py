"""Options and commands known from llama.cpp and Ollama, answered by those that do the same here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

UsageError: Any = typer.BadParameter.__mro__[1]  # of the click that this typer uses, its own or the package

MODEL = ("--model", "-m", "--hf-repo", "-hf", "-hfr")
# Their options, by the one here. It is proposed only for commands that have it.
OPTIONS = {
    "--max-context": ("--ctx-size", "-c", "--num-ctx", "--num_ctx", "--max-model-len"),
    "--max-batch": ("--parallel", "-np", "--max-num-seqs"),
    "--max-tokens": ("--n-predict", "--predict", "-n", "--num-predict"),
    "--temperature": ("--temp",),
    "--head": ("--model-draft", "-md", "--spec-draft-model"),
    "--device cuda": ("--n-gpu-layers", "--gpu-layers", "-ngl"),
    "--model-name": ("--alias", "-a"),
    "--api-key-file": ("--api-key",),
    "--quantization": ("--quant", "--quantize"),
}
THREADS = ("--threads", "-t", "--n-threads", "--num-threads")
COMMANDS = {
    "up": "fledge serve my-model.gguf",
    "start": "fledge serve my-model.gguf",
    "chat": "fledge serve my-model.gguf, which has a playground, or fledge generate",
    "ask": "fledge generate",
    "complete": "fledge generate",
    "pull": "fledge serve, which loads a model of the hub when it is first named",
    "list": "fledge cache for what is cached, fledge learn list for heads that were learnt",
    "ls": "fledge cache",
    "ps": "fledge cache for what is cached; nothing runs in the background",
    "show": "fledge doctor my-model.gguf for what a model takes here, fledge plan for what it costs",
    "convert": "fledge serve my-model.gguf; GGUF files run as they are",
    "quantize": "fledge serve --quantization q8_0; GGUF files run as they are",
}


class HelpedGroup(TyperGroup):
    """Says beside an unknown option or command what does the same here, if it is known from elsewhere."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an error about its arguments is raised again, with the hint."""
        words = [*getattr(ctx, "_protected_args", ()), *ctx.args]
        try:
            return super().invoke(ctx)
        except UsageError as error:
            if hint := _hint(error, words):
                error.message = f"{error.message.rstrip('.')}; {hint}"
                error.possibilities = None
            raise


def _hint(error: Any, words: Sequence[str]) -> str | None:
    if not words or error.ctx is None:
        return None
    if error.message.startswith("No such command"):
        return f"use {COMMANDS[words[0]]}" if words[0] in COMMANDS else None
    if (unknown := getattr(error, "option_name", None)) is None:
        return None
    return _instead(_as_typed(unknown, words[1:]), error.ctx)


def _as_typed(option: str, words: Sequence[str]) -> str:
    """-md, of which only -m was reported."""
    typed = (word.split("=")[0] for word in words if word.startswith(option))
    return next(typed, option) if not option.startswith("--") else option


def _instead(option: str, ctx: Any) -> str | None:
    taken = {name for param in ctx.command.params for name in (*param.opts, param.name)}
    if option in MODEL:
        if "--target" in taken:
            return "use --target"
        return f"it needs no option: fledge {ctx.info_name} MODEL" if {"target", "model"} & taken else None
    if option in THREADS:
        return "set FLEDGE_THREADS in the environment"
    ours = (ours for ours, theirs in OPTIONS.items() if option in theirs and ours.split()[0] in taken)
    return next((f"use {one}" for one in ours), None)
