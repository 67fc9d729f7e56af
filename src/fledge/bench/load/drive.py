"""A closed loop: a slot takes the next conversation when its last one has ended.

A conversation's next turn is sent when the previous answer is complete, in the same slot. Like chat clients, it omits
the model's reasoning.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import aiohttp

from fledge.bench.load.client import Call, RequestRecord, send
from fledge.bench.workloads import Prompt


def repeated(prompts: Sequence[Prompt], count: int) -> list[Prompt]:
    """`count` conversations in order, starting over at the end."""
    return [prompts[index % len(prompts)] for index in range(count)]


class Driven(NamedTuple):
    """All requests of a level, in completion order, and the seconds from the first send to the last completion."""

    records: list[RequestRecord]
    seconds: float


async def drive(
    session: aiohttp.ClientSession, call: Call, prompts: Sequence[Prompt], concurrency: int
) -> Driven:
    """Send all conversations, at most `concurrency` of them at a time."""
    records: list[RequestRecord] = []
    waiting = iter(prompts)

    async def converse(prompt: Prompt) -> None:
        messages = prompt.opening
        for turn, text in enumerate(prompt.turns):
            messages.append({"role": "user", "content": text})
            record = RequestRecord(prompt.question_id, turn)
            own = replace(call, max_tokens=prompt.max_tokens(turn, call.max_tokens))
            await send(session, own, messages, record, prompt.extras)
            records.append(record)
            if not record.ok:
                return
            messages.append({"role": "assistant", "content": record.content})

    async def slot() -> None:
        for prompt in waiting:
            await converse(prompt)

    begin = time.perf_counter()
    await asyncio.gather(*(slot() for _ in range(concurrency)))
    return Driven(records, time.perf_counter() - begin)
