"""The template contract: what training sees is what serving will see, for every shape a conversation can have.

Each shape goes through the very code of the `respond` stage, with set answers in the target's place:

    training   the ids a job asks the target to continue, and the sample it makes of the answers
    serving    the tokenizer's own rendering of the same messages, as servers do it

and the two must be the same ids. Where a template rewrites history the job makes a sample per turn, which is fine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from fledge.base.errors import TargetError
from fledge.data.conversations import Conversation
from fledge.data.dialogue import DialogueJobs
from fledge.data.options import RespondOptions
from fledge.data.prompt_store import Prompt
from fledge.data.reasoning import as_sent_back
from fledge.data.served import no_stats
from fledge.data.turns import decode_all, encode_plain
from fledge.engine import Completion
from fledge.target import Target

Status = Literal["same", "split", "refused", "ignored", "different"]

_SYSTEM = "You answer in verse."
_QUESTIONS = ("What is 2 + 2?", "  And why?\n", "Thanks! Ünïcode, too: 你好?")
_ANSWERS = ("It is 4.", "Because\n\n- two\n- and two", "Gern.")
_THOUGHT = "<think>\nTwo and two.\n</think>\n\n"
_CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "type": "function",
            "id": "call00001",
            "function": {"name": "add_numbers", "arguments": {"a": 2, "b": 2}},
        }
    ],
}
_RESULT = {"role": "tool", "name": "add_numbers", "tool_call_id": "call00001", "content": "TOOLRESULT4"}


@dataclass(frozen=True)
class Shape:
    """A conversation to try."""

    name: str
    questions: tuple[str, ...]
    answers: tuple[str, ...]
    system: str | None = None


SHAPES = (
    Shape("single turn", _QUESTIONS[:1], _ANSWERS[:1]),
    Shape("system prompt", _QUESTIONS[:1], _ANSWERS[:1], _SYSTEM),
    Shape("three turns", _QUESTIONS, _ANSWERS),
    Shape("three turns with system prompt", _QUESTIONS, _ANSWERS, _SYSTEM),
    Shape("thinking", _QUESTIONS[:2], tuple(_THOUGHT + answer for answer in _ANSWERS[:2])),
)


@dataclass(frozen=True)
class Checked:
    """How one shape fared."""

    name: str
    status: Status
    detail: str = ""
    samples: tuple[Conversation, ...] = field(default=())


def check_template(target: Target) -> list[Checked]:
    """Every shape, tool turns last.

    Raises:
        TargetError: the target has no chat template.
    """
    target.chat.prompt_ids([{"role": "user", "content": _QUESTIONS[0]}])
    return [*(check_shape(target, shape) for shape in SHAPES), check_tools(target)]


def notes(target: Target) -> list[str]:
    """What else there is to know about the template."""
    template = str(target.tokenizer.chat_template or "")
    found = []
    if "strftime_now" in template or "date_string" in template:
        found.append(
            "the template writes today's date: training holds the days the answers were made, serving its own"
        )
    if target.chat.reply_end_id is None:
        found.append("the template doesn't close a reply with a special token: the end of text ends a turn")
    return found


def check_shape(target: Target, shape: Shape) -> Checked:
    """One conversation through the respond stage's code, against serving's rendering."""
    options = RespondOptions(temperatures={0.0: 1.0}, max_prompt_tokens=10**6)
    prompt = Prompt("contract", "contract", "", list(shape.questions), 0, "", shape.system)
    job = DialogueJobs(target, options).job(prompt)
    messages: list[dict[str, Any]] = (
        [] if shape.system is None else [{"role": "system", "content": shape.system}]
    )
    turn = 0
    try:
        wanted = next(job)
        while True:
            messages.append({"role": "user", "content": shape.questions[turn]})
            if (problem := _difference(target, wanted.prompt_ids, serving_ids(target, messages))) is not None:
                return Checked(shape.name, "different", f"turn {turn + 1}: {problem}")
            answer = _answer(target, shape.answers[turn], wanted.prompt_ids)
            messages.append({"role": "assistant", "content": as_sent_back(shape.answers[turn])})
            turn += 1
            wanted = job.send(answer)
    except StopIteration as stop:
        samples = stop.value.conversations
    except TargetError as error:
        return Checked(shape.name, "refused", str(error))
    if turn < len(shape.questions):
        return Checked(shape.name, "different", f"training stops after turn {turn}", samples)
    if (problem := _mask_problem(target, shape, samples)) is not None:
        return Checked(shape.name, "different", problem, samples)
    text = "".join(decode_all(target, sample.token_ids) for sample in samples)
    if shape.system is not None and shape.system not in text:
        return Checked(shape.name, "ignored", "the template leaves the system prompt out", samples)
    if len(samples) > 1:
        return Checked(shape.name, "split", f"history is rewritten: {len(samples)} samples", samples)
    return Checked(shape.name, "same", "", samples)


def check_tools(target: Target) -> Checked:
    """A tool call and its result: not trained on from sources, but rendered by serving; the ids must agree."""
    name = "tool turns"
    if not target.chat.shows_calls:
        return Checked(name, "ignored", "the template has no tool turns")
    messages: list[dict[str, Any]] = [{"role": "user", "content": _QUESTIONS[0]}, _CALL, _RESULT]
    try:
        ours = target.chat.prompt_ids(messages)
    except TargetError as error:
        return Checked(name, "refused", str(error))
    problem = _difference(target, ours, serving_ids(target, messages))
    return Checked(name, "different", problem) if problem else Checked(name, "same")


def serving_ids(target: Target, messages: Sequence[dict[str, Any]]) -> list[int]:
    """The ids a server makes of messages: the tokenizer's own rendering and encoding in one step."""
    ids = target.tokenizer.apply_chat_template(
        [dict(message) for message in target.chat.given(messages)],
        tokenize=True,
        add_generation_prompt=True,
        return_dict=False,
        **target.chat.options,
    )
    return list(ids)


def _answer(target: Target, text: str, asked: Sequence[int]) -> Completion:
    ids = _ended(target, text)
    return Completion(text, ids, list(asked), "stop", no_stats(len(ids)))


def _ended(target: Target, text: str) -> list[int]:
    """The ids of an answer with its end."""
    end = target.chat.reply_end_id
    return [*encode_plain(target, text), target.tokenizer.eos_token_id if end is None else end]


def _difference(target: Target, training: Sequence[int], serving: Sequence[int]) -> str | None:
    if list(training) == list(serving):
        return None
    first = next(
        (i for i, (a, b) in enumerate(zip(training, serving, strict=False)) if a != b),
        min(len(training), len(serving)),
    )
    around = slice(max(0, first - 2), first + 3)
    shown = [repr(decode_all(target, list(ids[around]))) for ids in (training, serving)]
    return f"training and serving part at token {first}: {shown[0]} against {shown[1]}"


def _mask_problem(target: Target, shape: Shape, samples: Sequence[Conversation]) -> str | None:
    """The masked ids must be the answers with their ends, nothing more and nothing less."""
    wanted = [token for answer in shape.answers for token in _ended(target, answer)]
    found = [t for s in samples for t, own in zip(s.token_ids, s.loss_mask, strict=True) if own]
    return None if found == wanted else "the mask doesn't cover exactly what the target generates"
