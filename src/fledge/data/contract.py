"""The template contract: for every shape of conversation, training sees the same ids that serving will see.

Each shape runs through the code of the `respond` stage itself, with fixed answers instead of the target's:

    training   the ids a job gives the target to continue, and the sample it builds from the answers
    serving    the tokenizer's own rendering of the same messages, as in servers

The ids must be equal. If a template rewrites history, the job makes one sample per turn, which is fine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from fledge.base.errors import TargetError
from fledge.data.conversations import Conversation
from fledge.data.dialogue import REFUSED, DialogueJobs
from fledge.data.options import RespondOptions
from fledge.data.prompt_store import TrainingPrompt
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
    """A conversation to check."""

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
    """The result for one shape."""

    name: str
    status: Status
    detail: str = ""
    samples: tuple[Conversation, ...] = field(default=())


def check_template(target: Target) -> list[Checked]:
    """Check every shape, tool turns last.

    Raises:
        TargetError: the target has no chat template.
    """
    target.chat.prompt_ids([{"role": "user", "content": _QUESTIONS[0]}])
    return [*(check_shape(target, shape) for shape in SHAPES), check_tools(target)]


def notes(target: Target) -> list[str]:
    """Other properties of the template worth knowing."""
    template = str(target.tokenizer.chat_template or "")
    remarks = []
    if "strftime_now" in template or "date_string" in template:
        remarks.append(
            "the template writes today's date: training has the dates of the answers, serving the current one"
        )
    if target.chat.reply_end_id is None:
        remarks.append("the template doesn't close a reply with a special token: the end of text ends a turn")
    return remarks


def check_shape(target: Target, shape: Shape) -> Checked:
    """Run one conversation through the respond stage's code and compare it with serving's rendering."""
    options = RespondOptions(temperatures={0.0: 1.0}, max_prompt_tokens=10**6)
    prompt = TrainingPrompt("contract", "contract", "", list(shape.questions), 0, "", shape.system)
    job = DialogueJobs(target, options).job(prompt)
    messages: list[dict[str, Any]] = (
        [] if shape.system is None else [{"role": "system", "content": shape.system}]
    )
    turn = 0
    try:
        request = next(job)
        while True:
            messages.append({"role": "user", "content": shape.questions[turn]})
            problem = _difference(target, request.prompt_ids, serving_ids(target, messages))
            if problem is not None:
                return Checked(shape.name, "different", f"turn {turn + 1}: {problem}")
            answer = _answer(target, shape.answers[turn], request.prompt_ids)
            messages.append(dict(as_sent_back(shape.answers[turn])))
            turn += 1
            request = job.send(answer)
    except StopIteration as stop:
        samples = stop.value.conversations
        if stop.value.reason == REFUSED:
            asked = {"role": "user", "content": shape.questions[turn]}
            return Checked(shape.name, "refused", _refusal(target, [*messages, asked]))
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
    """A tool call and its result: tool turns of sources aren't trained on, but serving renders them."""
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


def _refusal(target: Target, messages: Sequence[dict[str, Any]]) -> str:
    """The template's reason for refusing these messages."""
    try:
        target.chat.prompt_ids(messages)
    except TargetError as error:
        return str(error)
    return ""


def serving_ids(target: Target, messages: Sequence[dict[str, Any]]) -> list[int]:
    """The ids a server produces for messages: the tokenizer renders and encodes in one step."""
    ids = target.tokenizer.apply_chat_template(
        [dict(message) for message in target.chat.given(messages)],
        tokenize=True,
        add_generation_prompt=True,
        return_dict=False,
        **target.chat.options,
    )
    return list(ids)


def _answer(target: Target, text: str, prompt_ids: Sequence[int]) -> Completion:
    ids = _ended(target, text)
    return Completion(text, ids, list(prompt_ids), "stop", no_stats(len(ids)))


def _ended(target: Target, text: str) -> list[int]:
    """The ids of an answer including its end."""
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
    return f"training and serving differ from token {first}: {shown[0]} against {shown[1]}"


def _mask_problem(target: Target, shape: Shape, samples: Sequence[Conversation]) -> str | None:
    """The masked ids must be exactly the answers with their ends."""
    expected = [token for answer in shape.answers for token in _ended(target, answer)]
    masked = [t for s in samples for t, generated in zip(s.token_ids, s.loss_mask, strict=True) if generated]
    return None if masked == expected else "the mask doesn't cover exactly what the target generates"
