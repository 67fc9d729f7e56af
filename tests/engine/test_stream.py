"""Streams are the whole answer in pieces, and leaving one frees it."""

from __future__ import annotations

import asyncio
import gc
import threading
from dataclasses import replace

import pytest
from torch import Tensor

from fledge.base.errors import EngineError
from fledge.engine import Engine, SamplingParams, StepResult, TreeShape
from fledge.target.batch import ForwardBatch
from fledge.target.target import Target
from tests.engine.conftest import VOCABULARY, scripted_head
from tests.engine.context_head import Context, ContextHead

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


class CollectingHead(ContextHead):
    """Its next forward collects what has been abandoned, as Python may do at any time."""

    collects = False

    def _contexts(self, batch: ForwardBatch, kv: Tensor) -> list[Context | None]:
        if self.collects:
            self.collects = False
            gc.collect()
        return super()._contexts(batch, kv)


@pytest.mark.usefixtures("late_flights")
@pytest.mark.parametrize("overlap", [False, True])
def test_a_stream_that_is_abandoned_and_collected_in_the_middle_of_a_round_holds_nobody_up(
    target: Target, plain: Engine, overlap: bool
) -> None:
    expected = plain.generate(QUESTIONS, max_tokens=20, ignore_eos=True)
    head = CollectingHead(target.decoder.page_size, VOCABULARY)
    engine = Engine(target, head, tree=TreeShape(3, 2, 6), overlap=overlap)
    stream = engine.stream_sync(QUESTIONS[0], max_tokens=100, ignore_eos=True)
    next(stream)
    kept: list[object] = [stream]
    kept.append(kept)  # so that leaving it alone doesn't end it at once
    del stream, kept
    head.collects = True
    answers: list[list[int]] = []

    def serve() -> None:
        found = engine.generate(QUESTIONS, max_tokens=20, ignore_eos=True)
        answers.extend(answer.token_ids for answer in found)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    thread.join(60)
    assert answers == [answer.token_ids for answer in expected]
    assert not engine.busy


def test_a_sync_stream_is_the_whole_answer(plain: Engine) -> None:
    conversation = [{"role": "user", "content": QUESTIONS[1]}]
    pieces = list(plain.stream_sync(conversation, max_tokens=12))
    last = pieces[-1].completion
    assert last is not None
    assert "".join(piece.text for piece in pieces) == last.text
    assert last.token_ids == plain.generate([QUESTIONS[1]], max_tokens=12)[0].token_ids


@pytest.mark.parametrize("drop", ["cancel", "reset"])
def test_a_stream_whose_request_is_dropped_ends_with_an_error(plain: Engine, drop: str) -> None:
    stream = plain.stream_sync(QUESTIONS[0], max_tokens=30, ignore_eos=True)
    next(stream)
    if drop == "reset":
        plain.reset()
    else:
        (request,) = plain._core._requests
        plain.cancel(request)
    with pytest.raises(EngineError, match="dropped"):
        list(stream)
    assert not plain.busy


def test_a_reset_ends_what_another_thread_waits_for(target: Target) -> None:
    engine, begun, was_reset, failed = Engine(target), threading.Event(), threading.Event(), []
    serve = engine._core.step

    def step() -> list[StepResult]:
        begun.set()
        assert was_reset.wait(60)
        return serve()

    engine._core.step = step  # type: ignore[method-assign, assignment]

    def ask() -> None:
        try:
            engine.generate(QUESTIONS, max_tokens=150, ignore_eos=True)
        except EngineError as error:
            failed.append(str(error))

    asking = threading.Thread(target=ask)
    asking.start()
    assert begun.wait(60)
    engine.reset()
    was_reset.set()
    asking.join(60)
    assert not asking.is_alive()
    assert "dropped" in failed[0]


def test_cancelling_a_stream_does_not_hold_up_the_event_loop(target: Target) -> None:
    """Cancelling waits for the step that runs: here until others have had their turn."""
    engine, others, in_step = Engine(target), threading.Event(), threading.Event()
    forward = engine._core._step

    def slow_step() -> list[StepResult]:
        in_step.set()
        assert others.wait(60)
        return forward()

    engine._core._step = slow_step  # type: ignore[method-assign]

    async def run() -> None:
        async def read() -> None:
            async for _ in engine.stream(QUESTIONS[0], max_tokens=30):
                pass

        reading = asyncio.create_task(read())
        await asyncio.to_thread(in_step.wait)
        reading.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0.05)  # `read` is cancelling by now
        others.set()
        with pytest.raises(asyncio.CancelledError):
            await reading

    asyncio.run(run())
    assert not engine.busy
    engine.check()


def test_what_made_a_step_fail_is_told_to_those_who_suffer(target: Target) -> None:
    engine = Engine(target)
    engine.submit([9, 9], SamplingParams())

    def broken() -> None:
        raise ValueError("out of luck")

    engine._core._step = broken  # type: ignore[assignment, method-assign]
    with pytest.raises(ValueError, match="luck"):
        engine.step()
    with pytest.raises(EngineError, match="earlier step failed") as failure:
        engine.step()
    assert isinstance(failure.value.__cause__, ValueError)


def test_statistics_can_begin_after_a_warm_up(target: Target, plain: Engine) -> None:
    expected = plain.generate(QUESTIONS[:1], max_tokens=12, ignore_eos=True)
    engine = Engine(target, scripted_head(target, expected, 0.9), tree=TreeShape(3, 2, 6))
    fresh = engine.stats()
    engine.generate(QUESTIONS[:1], max_tokens=12, ignore_eos=True)
    assert engine.stats().drafts > 0
    engine.restart_stats()
    began = engine.stats()
    assert replace(began, pages_cached=0) == fresh
    engine.generate(QUESTIONS[:1], max_tokens=12, ignore_eos=True)
    assert 0 < engine.stats().rounds < 12
