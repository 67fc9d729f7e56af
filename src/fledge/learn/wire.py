"""Messages between the server and the learning process, over two pipes.

    server -> process    a line of JSON, and behind it the bytes that it announces
    process -> server    lines of JSON

Nothing of it is written anywhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any, NamedTuple

import torch
from torch import Tensor

from fledge.engine.record import Recorded
from fledge.features import FeatureSample


class Frame(NamedTuple):
    """A message to the process."""

    facts: dict[str, Any]
    data: bytearray


def send(pipe: IO[bytes], facts: Mapping[str, Any], tensors: Sequence[Tensor] = ()) -> None:
    """Write one message."""
    parts = [memoryview(t.contiguous().view(-1).view(torch.uint8).numpy()) for t in tensors]  # type: ignore[arg-type]
    pipe.write((json.dumps({**facts, "bytes": sum(map(len, parts))}) + "\n").encode())
    for part in parts:
        pipe.write(part)
    pipe.flush()


def frames(pipe: IO[bytes]) -> Iterator[Frame]:
    """The messages up to the end of the pipe."""
    while line := pipe.readline():
        facts = json.loads(line)
        data = bytearray(facts.pop("bytes"))
        view, read = memoryview(data), 0
        while read < len(data):
            count = pipe.readinto(view[read:])  # type: ignore[attr-defined]
            if not count:
                return
            read += count
        yield Frame(facts, data)


def send_conversation(pipe: IO[bytes], done: Recorded) -> None:
    """A finished request."""
    prompt = len(done.prompt_features)
    width = done.answer_states.shape[1] // 4
    facts = {
        "kind": "conversation",
        "group": done.group,
        "tokens": len(done.token_ids),
        "prompt": prompt,
        "greedy": done.greedy,
        "width": width,
    }
    ids = torch.tensor(done.token_ids, dtype=torch.int32)
    send(pipe, facts, [ids, done.prompt_features.bfloat16(), done.answer_states.bfloat16()])


def sample_of(frame: Frame, number: int) -> FeatureSample:
    """A conversation in the form in which heads are trained; the most probable tokens are known of greedy ones alone.

    The answer's first token isn't supervised: it comes with the prompt and is never drafted.
    """
    facts = frame.facts
    tokens, prompt, width = facts["tokens"], facts["prompt"], facts["width"]
    answer = tokens - prompt
    ids = torch.frombuffer(frame.data, dtype=torch.int32, count=tokens)
    states = torch.frombuffer(frame.data, dtype=torch.bfloat16, offset=4 * tokens)
    before, after = states.split([prompt * 3 * width, (answer - 1) * 4 * width])
    features, hidden = (
        torch.zeros(tokens, 3 * width, dtype=torch.bfloat16),
        torch.zeros(tokens, width, dtype=torch.bfloat16),
    )
    features[:prompt] = before.view(prompt, 3 * width)
    rows = after.view(answer - 1, 4 * width)
    features[prompt:-1], hidden[prompt:-1] = rows[:, : 3 * width], rows[:, 3 * width :]
    mask = torch.zeros(tokens, dtype=torch.uint8)
    mask[prompt + 1 :] = 1
    argmax = torch.full((tokens,), -1, dtype=torch.int32)
    if facts["greedy"]:
        argmax[prompt:-1] = ids[prompt + 1 :]
    return FeatureSample(
        conversation_id=str(number),
        category=facts["group"],
        split="train",
        temperature=0.0 if facts["greedy"] else 1.0,
        token_ids=ids.clone(),
        loss_mask=mask,
        argmax=argmax,
        features=features,
        hidden=hidden,
    )
