"""Streams are the whole answer in pieces, and leaving one frees it."""

from __future__ import annotations

import asyncio

from fledge.engine import Engine, TreeShape
from fledge.target.target import Target
from tests.engine.conftest import scripted_head

QUESTIONS = ["Why is the sky blue?", "Tell me a story about the sea.", "How many apples are there?"]


def test_concurrent_streams_give_what_generate_gives(target: Target, plain: Engine) -> None:
    expected = plain.generate(QUESTIONS, max_tokens=30)
    engine = Engine(target, scripted_head(target, expected, 0.9), tree=TreeShape(3, 2, 6))

    async def read(question: str) -> tuple[str, list[int], str]:
        text, tokens, whole = "", [], ""
        async for piece in engine.stream(question, max_tokens=30):
            text += piece.text
            tokens += piece.token_ids
            assert len(piece.origins) == len(piece.token_ids)
            if piece.completion is not None:
                whole = piece.completion.text
        return text, tokens, whole

    async def all_of_them() -> list[tuple[str, list[int], str]]:
        return list(await asyncio.gather(*(read(question) for question in QUESTIONS)))

    for (text, tokens, whole), answer in zip(asyncio.run(all_of_them()), expected, strict=True):
        assert text == whole == answer.text
        assert tokens == answer.token_ids
    assert not engine.busy


def test_leaving_a_stream_cancels_its_request(plain: Engine) -> None:
    async def leave() -> None:
        stream = plain.stream(QUESTIONS[0], max_tokens=30, ignore_eos=True)
        async for piece in stream:
            if piece.token_ids:
                break
        await stream.aclose()  # type: ignore[attr-defined]

    asyncio.run(leave())
    assert not plain.busy
    for piece in plain.stream_sync(QUESTIONS[0], max_tokens=30, ignore_eos=True):
        if piece.token_ids:
            break
    assert not plain.busy


def test_a_sync_stream_is_the_whole_answer(plain: Engine) -> None:
    conversation = [{"role": "user", "content": QUESTIONS[1]}]
    pieces = list(plain.stream_sync(conversation, max_tokens=12))
    last = pieces[-1].completion
    assert last is not None
    assert "".join(piece.text for piece in pieces) == last.text
    assert last.token_ids == plain.generate([QUESTIONS[1]], max_tokens=12)[0].token_ids
