"""`fledge template TARGET`: each conversation shape as ids, trained tokens coloured, and whether serving agrees."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from fledge.base.console import console, say
from fledge.data.contract import Checked, check_template, notes
from fledge.data.conversations import Conversation
from fledge.target import Target, TargetOptions

_MEANING = {
    "same": "training and serving ids are the same",
    "split": "the same, each turn as a sample of its own",
    "ignored": "not in this template",
    "refused": "refused by the template",
    "different": "DIFFERENT",
}
_TRAINED = ("bold green", "bold bright_green")  # alternate, so that adjacent tokens are distinguishable
_GIVEN = ("dim", "dim italic")
_LONGEST_CHARACTER = 6  # tokens


def show_template(options: TargetOptions, *, show_ids: bool) -> bool:
    """Print everything; True if training and serving agree on every shape."""
    target = options.load()
    checked = check_template(target)
    colour = console.color_system is not None
    marks = "green tokens are trained" if colour else "«trained» tokens stand in marks"
    say(f"{target.name}: {marks}, the others are given")
    for shape in checked:
        console.print()
        say(f"{shape.name}: {_MEANING[shape.status]}{_detail(shape)}")
        for sample in shape.samples:
            console.print(render(target, sample, show_ids=show_ids, colour=colour), soft_wrap=True)
    say(*(f"note: {note}" for note in notes(target)))
    return all(shape.status != "different" for shape in checked)


def render(target: Target, sample: Conversation, *, show_ids: bool, colour: bool) -> Text:
    """A sample's tokens; without colour, trained runs are enclosed in « and »."""
    text = Text()
    previous = False
    for number, (piece, trained) in enumerate(_pieces(target, sample, show_ids)):
        if not colour and trained != previous:
            text.append("«" if trained else "»")
        previous = trained
        text.append(piece, style=(_TRAINED if trained else _GIVEN)[number % 2])
    if not colour and previous:
        text.append("»")
    return text


def _pieces(target: Target, sample: Conversation, show_ids: bool) -> Iterator[tuple[str, bool]]:
    """Text and mask of each token; tokens that share a character are shown together."""
    held: list[int] = []
    for position, (token, trained) in enumerate(zip(sample.token_ids, sample.loss_mask, strict=True)):
        held.append(token)
        piece = target.tokenizer.decode(held, skip_special_tokens=False)
        border = position + 1 == len(sample.token_ids) or sample.loss_mask[position + 1] != trained
        if piece.endswith("\ufffd") and not border and len(held) < _LONGEST_CHARACTER:
            continue
        yield piece + "".join(f"[{i}]" for i in held) if show_ids else piece, trained
        held = []


def _detail(shape: Checked) -> str:
    return f" ({shape.detail})" if shape.detail and shape.status != "same" else ""
