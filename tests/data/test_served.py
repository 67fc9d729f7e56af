"""Answers from a server: the same ids as the engine's own, and every kind of bad reply is counted or stops clearly."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fledge.base.errors import DataError
from fledge.base.storage import Manifest
from fledge.data import AnswerServer, AnswerServerOptions, RespondOptions, read_conversations, respond
from fledge.data.generation import Generation
from fledge.data.prompt_store import PromptWriter, TrainingPrompt
from fledge.data.responses import RespondSummary
from fledge.engine import Engine, SamplingParams
from fledge.server.options import ServerOptions as ServingOptions
from fledge.target import Target
from tests.data.conftest import files_of, made_by_no_backend
from tests.data.fake_server import CompletionServer, Fault
from tests.server.conftest import running

OPTIONS = RespondOptions(max_new_tokens=16, shard_size=3, heldout=0.3)
COUNT = 8


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("served") / "prompts")
    texts = [
        [f"Tell me a story about {n} ships"] + (["And then what?"] if n % 2 else []) for n in range(COUNT)
    ]
    PromptWriter(folder).write(
        [TrainingPrompt(f"p{n}", "log", "chat", t, n, "own") for n, t in enumerate(texts)], [], 0
    )
    return folder


@pytest.fixture(scope="module")
def server(target: Target) -> CompletionServer:
    return CompletionServer(target)


@pytest.fixture(scope="module")
def undisturbed(target: Target, prompts: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "engine"
    respond(
        target, Engine(target, max_batch=4, max_context=1280, kv_tokens=8192), prompts, OPTIONS, str(folder)
    )
    return folder


def ask(
    target: Target,
    server: CompletionServer,
    prompts: str,
    folder: Path,
    fault: Fault | None = None,
    **options: Any,
) -> RespondSummary:
    server.fault = fault or (lambda number, body, reply: reply)
    server.requests = 0
    with server.serving() as url:
        chosen = AnswerServerOptions(url=url, **{"concurrency": 3, "backoff_s": 0.0, "retries": 2, **options})
        made = AnswerServer(target, chosen, pause=lambda seconds: None)
        return respond(target, made, prompts, OPTIONS, str(folder))


def test_a_server_gives_the_engines_ids(
    target: Target, server: CompletionServer, prompts: str, undisturbed: Path, tmp_path: Path
) -> None:
    summary = ask(target, server, prompts, tmp_path)
    assert list(read_conversations(str(tmp_path))) == list(read_conversations(str(undisturbed)))
    assert summary.statistics.prompts == COUNT
    assert Counter(len(c.turn_starts) for c in read_conversations(str(tmp_path)))[4] > 0


def test_fledges_own_server_answers(target: Target, prompts: str, undisturbed: Path, tmp_path: Path) -> None:
    own = Engine(target, max_batch=4, max_context=1280, kv_tokens=8192)
    with running(own, ServingOptions(port=0)) as served:
        made = AnswerServer(target, AnswerServerOptions(url=served.url, concurrency=3))
        respond(target, made, prompts, OPTIONS, str(tmp_path))
    assert list(read_conversations(str(tmp_path))) == list(read_conversations(str(undisturbed)))


def test_a_llama_server_gives_the_engines_ids_too(
    target: Target, server: CompletionServer, prompts: str, undisturbed: Path, tmp_path: Path
) -> None:
    asked: list[dict[str, Any]] = []

    def note(number: int, body: dict[str, Any], reply: Any) -> Any:
        asked.append(body)
        return reply if number else 400

    server.is_llama_server = True
    try:
        ask(target, server, prompts, tmp_path, note, concurrency=1)
    finally:
        server.is_llama_server = False
    ours = {c.conversation_id: c for c in read_conversations(str(tmp_path))}
    theirs = {c.conversation_id: c for c in read_conversations(str(undisturbed))}
    assert len(theirs) - len(ours) == 1  # the one that it refused
    greedy = [name for name, c in ours.items() if c.temperature == 0]  # others have shorter seeds there
    assert greedy
    assert all(ours[name].token_ids == theirs[name].token_ids for name in greedy)
    assert {(b["top_k"], b["min_p"], b["repeat_penalty"], b["return_tokens"]) for b in asked} == {
        (0, 0.0, 1.0, True)
    }


def test_answers_are_drawn_from_all_tokens_whatever_the_server_prefers(
    target: Target, server: CompletionServer, prompts: str, tmp_path: Path
) -> None:
    asked: list[dict[str, Any]] = []

    def note(number: int, body: dict[str, Any], reply: Any) -> Any:
        asked.append(body)
        return reply

    ask(target, server, prompts, tmp_path, note)
    assert {(body["top_k"], body["min_p"], body["repetition_penalty"]) for body in asked} == {(-1, 0.0, 1.0)}


def first(number: int, change: Any) -> Fault:
    """A fault in the given request alone."""
    return lambda n, body, reply: change(reply) if n == number else reply


def changed(**fields: Any) -> Any:
    def change(reply: dict[str, Any]) -> dict[str, Any]:
        return {**reply, "choices": [reply["choices"][0] | fields]}

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (changed(token_ids=[1, 2, 10**9]), "wrong_ids"),
        (changed(token_ids=[5, 6, 7, 8]), "wrong_ids"),
        pytest.param(changed(token_ids=["a"]), "wrong_ids", marks=pytest.mark.slow),
        (changed(token_ids=[], text=""), "wrong_length"),
        (changed(prompt_token_ids=[1, 2, 3]), "wrong_prompt_ids"),
        (changed(finish_reason="abort"), "finish_abort"),
        (changed(text=None), "malformed_reply"),
        pytest.param(lambda reply: {"choices": []}, "malformed_reply", marks=pytest.mark.slow),
        pytest.param(changed(prompt_token_ids=7), "wrong_prompt_ids", marks=pytest.mark.slow),
        (lambda reply: 400, "refused_by_server"),
        (lambda reply: "endless", "endless"),
    ],
)
def test_one_bad_reply_costs_one_prompt(
    target: Target, server: CompletionServer, prompts: str, tmp_path: Path, change: Any, reason: str
) -> None:
    summary = ask(target, server, prompts, tmp_path, first(0, change), concurrency=1, timeout_s=2.0)
    assert summary.rejected == {reason: 1}
    assert summary.statistics.prompts == COUNT - 1


@pytest.mark.parametrize(
    "trouble", [503, "hang up", *(pytest.param(one, marks=pytest.mark.slow) for one in (429, b"not json"))]
)
def test_passing_trouble_is_tried_again(
    target: Target, server: CompletionServer, prompts: str, undisturbed: Path, tmp_path: Path, trouble: Any
) -> None:
    summary = ask(target, server, prompts, tmp_path, lambda n, body, reply: trouble if n in (1, 4) else reply)
    assert summary.rejected == {}
    assert list(read_conversations(str(tmp_path))) == list(read_conversations(str(undisturbed)))


def test_the_pause_a_busy_server_asks_for_is_kept(
    target: Target, server: CompletionServer, prompts: str, tmp_path: Path
) -> None:
    pauses: list[float] = []
    server.requests = 0
    server.fault = lambda number, body, reply: 429 if number == 0 else 503 if number == 1 else reply
    with server.serving() as url:
        made = AnswerServer(target, AnswerServerOptions(url=url, concurrency=1), pauses.append)
        respond(target, made, prompts, OPTIONS, str(tmp_path))
    assert pauses == [7.0, 2.0]


def test_a_server_that_dies_half_way_stops_clearly_and_the_stage_goes_on_later(
    target: Target, server: CompletionServer, prompts: str, undisturbed: Path, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=r"can't be reached .*3 attempts.*start the server, and run again"):
        ask(target, server, prompts, tmp_path, lambda n, body, reply: "hang up" if n > 6 else reply)
    kept = len(list(tmp_path.glob("conversations-*.parquet")))
    assert kept > 0
    ask(target, server, prompts, tmp_path)
    assert server.requests < 12  # what was kept isn't asked for again
    assert list(read_conversations(str(tmp_path))) == list(read_conversations(str(undisturbed)))
    ids = [c.conversation_id for c in read_conversations(str(tmp_path))]
    assert len(ids) == len(set(ids)) == COUNT


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda reply: 400, "status 400"),
        (lambda reply: {"error": "x"}, "malformed_reply"),
        (changed(token_ids=[5, 6, 7, 8]), "wrong_ids"),
        (lambda reply: {"choices": [{"text": "Hi", "finish_reason": "stop"}]}, "no_token_ids"),
    ],
)
def test_a_broken_server_stops_the_stage(
    target: Target, server: CompletionServer, prompts: str, tmp_path: Path, change: Any, what: str
) -> None:
    with pytest.raises(DataError, match=rf"failed 8 times in a row \({what}\)"):
        ask(target, server, prompts, tmp_path, lambda n, body, reply: change(reply), concurrency=1)
    assert server.requests == 8


def test_prompts_that_only_the_server_refuses_dont_stop_the_stage(
    target: Target, server: CompletionServer, prompts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fledge.data.served._FAILURES_IN_A_ROW", 3)
    summary = ask(
        target, server, prompts, tmp_path, lambda n, body, reply: 400 if n else reply, concurrency=1
    )
    assert summary.rejected["refused_by_server"] >= COUNT - 1


def test_nobody_waits_for_requests_under_way_when_the_stage_ends(
    target: Target, server: CompletionServer, prompts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fledge.data.served._FAILURES_IN_A_ROW", 3)
    go_on = threading.Event()

    def first_one_hangs(number: int, body: dict[str, Any], reply: dict[str, Any]) -> Any:
        if number == 0:
            go_on.wait(20)
        return 404

    with pytest.raises(DataError, match="failed 3 times in a row"):
        ask(target, server, prompts, tmp_path, first_one_hangs, concurrency=2)
    waiting = [thread for thread in threading.enumerate() if thread.name == "respond"]
    assert waiting
    assert all(thread.daemon for thread in waiting)
    go_on.set()
    for thread in waiting:
        thread.join()


def test_the_same_server_answers_on_after_the_stage_was_stopped(
    target: Target, server: CompletionServer, prompts: str, undisturbed: Path, tmp_path: Path
) -> None:
    def stopped(done: float, total: float, note: str) -> None:
        if done == 1:
            raise KeyboardInterrupt

    server.fault = lambda number, body, reply: reply
    with server.serving() as url:
        made = AnswerServer(target, AnswerServerOptions(url=url, concurrency=3))
        with pytest.raises(KeyboardInterrupt):
            respond(target, made, prompts, OPTIONS, str(tmp_path), stopped)
        summary = respond(target, made, prompts, OPTIONS, str(tmp_path))
    assert summary.rejected == {}
    assert list(read_conversations(str(tmp_path))) == list(read_conversations(str(undisturbed)))


def test_actors_share_a_servers_limits() -> None:
    whole = AnswerServerOptions(url="http://x", concurrency=10, requests_per_second=6.0, token_budget=100)
    share = whole.share_of(4)
    assert (share.concurrency, share.requests_per_second, share.token_budget) == (2, 1.5, 25)
    assert AnswerServerOptions(url="http://x", concurrency=2).share_of(4) == AnswerServerOptions(
        url="http://x", concurrency=1
    )


def test_the_token_budget_stops_and_the_next_call_goes_on(
    target: Target, server: CompletionServer, prompts: str, undisturbed: Path, tmp_path: Path
) -> None:
    calls = 0
    while True:
        calls += 1
        try:
            ask(target, server, prompts, tmp_path, token_budget=90, concurrency=1)
            break
        except DataError as error:
            assert "token budget of 90 is spent" in str(error)  # noqa: PT017
    assert calls > 1
    assert list(read_conversations(str(tmp_path))) == list(read_conversations(str(undisturbed)))


def test_tokens_of_rejected_answers_are_spent_too(
    target: Target, server: CompletionServer, prompts: str, tmp_path: Path
) -> None:
    costly = first(0, lambda reply: changed(token_ids=[-1])(reply) | {"usage": {"completion_tokens": 500}})
    with pytest.raises(DataError, match="token budget of 500 is spent"):
        ask(target, server, prompts, tmp_path, costly, token_budget=500, concurrency=1)
    assert server.requests == 1


def test_answers_behind_a_late_one_are_kept_when_the_stage_stops(
    target: Target, server: CompletionServer, prompts: str, undisturbed: Path, tmp_path: Path
) -> None:
    late, *rest = read_conversations(str(undisturbed))
    others, all_others = sum(len(c.turn_starts) // 2 for c in rest), threading.Event()

    def first_is_late(number: int, body: Any, reply: dict[str, Any]) -> Any:
        nonlocal others
        if body["prompt"] == late.token_ids[: late.turn_starts[1]]:
            return 429 if all_others.wait(30) else reply
        others -= 1
        if others == 0:
            all_others.set()
        return reply

    with pytest.raises(
        DataError, match=r"is too busy \(status 429, 4 attempts\).*lower respond.server.concurr"
    ):
        ask(target, server, prompts, tmp_path, first_is_late, retries=3)
    assert not Manifest.load(str(tmp_path)).shards
    ask(target, server, prompts, tmp_path)
    assert server.requests <= 2  # the late one, and one that was under way
    assert files_of(tmp_path) == made_by_no_backend(undisturbed)


def test_as_many_requests_are_under_way_as_the_recipe_says(target: Target, server: CompletionServer) -> None:
    most = 110
    together = threading.Barrier(most)

    def answers_once_all_are_there(number: int, body: Any, reply: dict[str, Any]) -> Any:
        together.wait(60)
        return reply

    server.fault = answers_once_all_are_there
    wanted = Generation([5, 6, 7], SamplingParams(max_tokens=1, temperature=0.0, seed=0))
    with server.serving() as url, ThreadPoolExecutor(most) as pool:
        made = AnswerServer(target, AnswerServerOptions(url=url, concurrency=most))
        answers = list(pool.map(made.complete, [wanted] * most))
    assert {len(answer.token_ids) for answer in answers} == {1}


def test_text_alone_is_taken_where_it_round_trips(
    target: Target, server: CompletionServer, prompts: str, undisturbed: Path, tmp_path: Path
) -> None:
    def text_only(number: int, body: Any, reply: dict[str, Any]) -> dict[str, Any]:
        choice = {key: reply["choices"][0][key] for key in ("text", "finish_reason")}
        return {"choices": [choice], "usage": reply["usage"]}

    summary = ask(target, server, prompts, tmp_path, text_only)
    true = {c.conversation_id: c for c in read_conversations(str(undisturbed))}
    kept = list(read_conversations(str(tmp_path)))
    assert set(summary.rejected) <= {"no_round_trip"}
    decode = target.tokenizer.decode
    for conversation in kept:  # a random target writes ids no tokenizer would; most of those are rejected
        ids = true[conversation.conversation_id].token_ids[: len(conversation.token_ids)]
        assert decode(conversation.token_ids) == decode(ids)
    assert sum(summary.rejected.values()) > 0


def test_without_any_server_the_error_names_it(target: Target) -> None:
    with pytest.raises(DataError, match=r"http://127\.0\.0\.1:9 can't be reached \(.*1 attempt\)"):
        AnswerServer(target, AnswerServerOptions(url="http://127.0.0.1:9"))
    with pytest.raises(DataError, match=r"http://gpu:PORT isn't a valid address"):
        AnswerServer(target, AnswerServerOptions(url="http://gpu:PORT"))


def test_the_key_is_sent_and_a_missing_one_is_named(
    target: Target, server: CompletionServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "key", "secret")
    monkeypatch.setenv("SERVER_KEY", "secret\n")
    monkeypatch.setenv("WRONG_KEY", "secrét")
    with server.serving() as url:
        for place in (url, f"{url}/v1/"):
            assert (
                AnswerServer(target, AnswerServerOptions(url=place, api_key_env="SERVER_KEY")).model == "tiny"
            )
        with pytest.raises(DataError, match=r"status 401.*api_key_env"):
            AnswerServer(target, AnswerServerOptions(url=url))
        with pytest.raises(DataError, match=r"names OTHER_KEY, which isn't set"):
            AnswerServer(target, AnswerServerOptions(url=url, api_key_env="OTHER_KEY"))
        with pytest.raises(DataError, match=r"names WRONG_KEY, which holds characters that no key has"):
            AnswerServer(target, AnswerServerOptions(url=url, api_key_env="WRONG_KEY"))


def test_the_rate_is_kept(target: Target, server: CompletionServer, prompts: str, tmp_path: Path) -> None:
    pauses: list[float] = []
    server.fault = lambda number, body, reply: reply
    with server.serving() as url:
        options = AnswerServerOptions(url=url, concurrency=1, requests_per_second=0.01)
        respond(target, AnswerServer(target, options, pauses.append), prompts, OPTIONS, str(tmp_path))
    assert len(pauses) >= COUNT
    assert sorted(pauses) == pauses
    assert pauses[-1] > 100 * (len(pauses) - 2)
