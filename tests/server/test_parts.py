"""The server's smaller parts: turns between clients, options, keys, start-up checks, dashboards."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fledge.base.errors import EngineError, HeadError, ServerError
from fledge.engine import EngineOptions, Lookup
from fledge.server.fair_queue import FairQueue
from fledge.server.launch import bind, check_memory, listen, load_engine, url
from fledge.server.options import ServerOptions, from_vertex, read_keys
from fledge.server.protocol import ChatRequest
from fledge.server.tokens import Tokens
from fledge.target.options import TargetOptions
from fledge.target.target import Target
from tests.server.conftest import Running, running, wait_for
from tests.tiny import CHATML, TinyShape, save_tiny_target


def test_a_client_with_much_to_ask_does_not_keep_others_waiting() -> None:
    queue: FairQueue[str] = FairQueue()
    for number in range(100):
        queue.push("greedy", f"g{number}")
    queue.push("modest", "m0")
    queue.push("modest", "m1")
    assert queue.take(4) == ["g0", "m0", "g1", "m1"]
    assert queue.take(2) == ["g2", "g3"]


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(["push", "take", "remove"]), st.integers(0, 5))
    )
)
def test_the_queue_loses_and_doubles_nothing(steps: list[tuple[str, str, int]]) -> None:
    queue: FairQueue[int] = FairQueue()
    inside: list[tuple[str, int]] = []
    for number, (client, action, count) in enumerate(steps):
        if action == "push":
            queue.push(client, number)
            inside.append((client, number))
        elif action == "take":
            for item in queue.take(count):
                owner = next(entry for entry in inside if entry[1] == item)
                assert owner == next(entry for entry in inside if entry[0] == owner[0])  # its client's oldest
                inside.remove(owner)
        elif inside:
            assert queue.remove(*inside.pop(count % len(inside)))
        assert len(queue) == len(inside)
    assert not queue.remove("a", -1)


def test_vertex_says_where_to_listen() -> None:
    given_ = {"AIP_HTTP_PORT": "8080", "AIP_HEALTH_ROUTE": "/live", "AIP_PREDICT_ROUTE": "/predict"}
    options = from_vertex(ServerOptions(), given_)
    assert (options.host, options.port) == ("0.0.0.0", 8080)
    assert (options.health_route, options.predict_route) == ("/live", "/predict")
    assert from_vertex(ServerOptions(), {}) == ServerOptions()
    for wrong in ({"AIP_HTTP_PORT": "http"}, {"AIP_PREDICT_ROUTE": "predict"}, {"AIP_HEALTH_ROUTE": "/{x}"}):
        with pytest.raises(ServerError):
            from_vertex(ServerOptions(), wrong)


def test_predictions_are_answers_to_instances(make_engine, options) -> None:  # type: ignore[no-untyped-def]
    with running(make_engine(), options(health_route="/live", predict_route="/predict")) as server:
        assert server.get("/live").status_code == 200
        instances = [
            {"messages": [{"role": "user", "content": "Hi"}], "@requestFormat": "chatCompletions"},
            {"prompt": [40, 50]},
        ]
        answer = server.post(
            "/predict", {"instances": instances, "parameters": {"max_tokens": 3, "temperature": 0}}
        )
        chat, text = answer.json()["predictions"]
        assert chat["choices"][0]["message"]["content"]
        assert text["object"] == "text_completion"
        for wrong in ({"instances": [{"prompt": "a", "stream": True}]}, {"instances": []}, {"x": 1}, []):
            response = server.post("/predict", wrong)
            assert response.status_code == 400
            assert response.json()["error"]["message"]


def test_instances_are_answered_together_or_refused_together(make_engine, options, caplog) -> None:  # type: ignore[no-untyped-def]
    instances = [{"prompt": [40, 50], "ignore_eos": True, "max_tokens": 24}] * 4
    with running(make_engine(), options(predict_route="/predict", max_answers=8)) as server:
        with caplog.at_level("INFO", logger="fledge"):
            answers = server.post("/predict", {"instances": instances, "parameters": {"temperature": 0}})
            lines: list[dict[str, object]] = []

            def told() -> bool:
                lines[:] = [each.fields for each in caplog.records if each.name == "fledge.server.access"]
                return bool(lines)

            wait_for(told)  # a line is written once its answer has left
        assert len({answer["choices"][0]["text"] for answer in answers.json()["predictions"]}) == 1
        stats = server.server.engine.stats()
        assert stats.request_rounds > 2 * stats.rounds
        (line,) = lines
        assert (line["answers"], line["prompt_tokens"], line["completion_tokens"]) == (4, 8, 96)
        for wrong in ({"prompt": [40], "max_tokens": 9999}, {"prompt": [40], "n": 5}):
            refused = server.post("/predict", {"instances": [*instances, wrong]})
            assert refused.status_code == 400
        assert server.server.engine.stats().rounds == stats.rounds


def test_raw_predictions_are_completions_even_where_vertex_uses_the_same_route(make_engine, options) -> None:  # type: ignore[no-untyped-def]
    route = "/v1/chat/completions"
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "temperature": 0}
    with running(make_engine(), options(predict_route=route)) as server:
        raw = server.post(route, body).json()
        content = raw["choices"][0]["message"]["content"]
        wrapped = server.post(route, {"instances": [body]}).json()["predictions"][0]
        assert wrapped["choices"][0]["message"]["content"] == content
        assert server.post(route, {**body, "stream": True}).text.endswith("data: [DONE]\n\n")
        assert server.client().models.list().data


def test_keys_come_from_environment_and_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# for the tests\nfrom-file-1\n\nfrom-file-2 # second\nfrom-file#3#\n")
    keys = read_keys(file, {"FLEDGE_API_KEYS": "from-env-1, from-file-1,"})
    assert keys == ("from-env-1", "from-file-1", "from-file-2", "from-file#3#")
    assert "from-env-1" not in repr(ServerOptions(api_keys=keys))
    file.write_text("\n")
    with pytest.raises(ServerError, match="holds no API key"):
        read_keys(file, {})
    with pytest.raises(ServerError, match="can't read"):
        read_keys(tmp_path / "none", {})
    with pytest.raises(ServerError, match="shorter than 8"):
        ServerOptions(api_keys=("short",))


def test_a_variable_without_a_key_does_not_open_the_server() -> None:
    with pytest.raises(ServerError, match="FLEDGE_API_KEYS"):
        read_keys(None, {"FLEDGE_API_KEYS": " , "})
    assert read_keys(None, {"FLEDGE_API_KEYS": ""}) == ()


def test_a_taken_port_is_noticed_before_anything_is_loaded() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ServerError, match=f"{port} is in use; choose another --port"):
            bind(ServerOptions(port=port))
    with pytest.raises(ServerError, match="can't listen on 203"):
        bind(ServerOptions(host="203.0.113.1", port=0))


def test_too_little_memory_is_noticed_before_loading(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = TargetOptions(model=str(target.folder)).load().memory_bytes  # for the kernels
    check_memory(needed, int(needed * 1.1))
    monkeypatch.setattr("fledge.server.launch.free_memory", lambda device: int(needed * 0.9))
    with pytest.raises(ServerError, match="GiB of memory are available; free some, use --quantization"):
        load_engine(TargetOptions(model=str(target.folder)), EngineOptions(max_batch=1), head=None)


def test_a_head_for_another_target_is_refused(tmp_path: Path, target: Target) -> None:
    from fledge.released import FOLDER

    released = next(FOLDER.glob("*/config.json")).parent
    with pytest.raises(HeadError, match="made for another target"):
        load_engine(
            TargetOptions(model=str(target.folder), dtype="float32"),
            EngineOptions(max_batch=1),
            head=str(released),
        )


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"max_batch": 0}, "max_batch is 0"),
        ({"max_context": 1}, "max_context is 1"),
        ({"kv_tokens": 0}, "kv_tokens is 0"),
        ({"lookup": 4}, "lookup=4 needs a draft head"),
        ({"draft_weights": "int8"}, "draft_weights is for a draft head"),
        ({"drafter": 3}, "drafter is 3; name a class that derives from"),
        ({"drafter": Lookup(), "lookup": 4}, "lookup=4 is merged into a head's trees"),
        ({"drafter": Lookup(), "draft_weights": "int8"}, "draft_weights is for a draft head"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_an_engine_that_cannot_be_is_refused_before_its_target_is_sought(
    wrong: dict[str, object], said: str
) -> None:
    with pytest.raises(EngineError, match=said):
        load_engine(TargetOptions(model="/no/such/target"), EngineOptions(**wrong), head=None, plain=True)  # type: ignore[arg-type]


def test_a_head_and_a_drafter_are_one_too_many() -> None:
    with pytest.raises(EngineError, match="there are a head and a drafter"):
        load_engine(TargetOptions(model="/no/such/target"), EngineOptions(drafter=Lookup()), head="released")


def test_a_server_drafts_with_what_it_is_given(target: Target) -> None:
    """By prompt lookup alone, which finds what is said over and over."""
    prompt, speculated = [[40, 41, 42, 43] * 8], []
    for drafter in (None, Lookup()):
        limits = EngineOptions(max_batch=1, max_context=200, drafter=drafter)
        engine = load_engine(TargetOptions(model=str(target.folder), dtype="float32"), limits, head=None)
        (answer,) = engine.generate(prompt, max_tokens=40, ignore_eos=True, logit_bias={40: 90.0})
        assert answer.token_ids == [40] * 40
        speculated.append(engine.speculative)
    assert speculated == [False, True]
    assert answer.stats.tau > 2


def test_single_tokens_are_bytes_that_add_up(tmp_path: Path) -> None:
    folder = save_tiny_target(tmp_path / "t", shape=TinyShape(layers=1, heads=1, kv_heads=1))
    tokens = Tokens(Target.load(str(folder), dtype="float32", backend="torch"), 512)
    text = "Zażółć 🙂👩‍👩‍👧 नमस्ते 你好 \t\n العربية"
    ids = tokens._tokenizer.encode(text, add_special_tokens=False)
    assert b"".join(tokens.token(token)[1] for token in ids).decode() == text
    assert tokens.token(2) == ("<|im_end|>", b"<|im_end|>")
    assert tokens.token(tokens.vocabulary + 5) == ("", b"")


def test_a_request_tells_the_chat_template_what_it_asks_for(tmp_path: Path) -> None:
    shape = TinyShape(layers=1, heads=1, kv_heads=1)
    folder = save_tiny_target(tmp_path / "t", shape=shape, chat_template=CHATML + "{{ mood }}")
    target = Target.load(str(folder), chat_template_kwargs={"mood": "calm"})
    tokens = Tokens(target, 512)
    body = ChatRequest.model_validate(
        {"messages": [{"role": "user", "content": "Hi"}], "chat_template_kwargs": {"mood": "glad"}}
    )
    asked = target.tokenizer.decode(asyncio.run(tokens.chat(body.messages, body.chat_template_kwargs)))
    assert asked.endswith("assistant\nglad")
    assert target.tokenizer.decode(asyncio.run(tokens.chat(body.messages))).endswith("assistant\ncalm")


def test_a_server_has_what_to_ask_the_chat_template_by_default(tmp_path: Path) -> None:
    shape = TinyShape(layers=1, heads=1, kv_heads=1)
    folder = save_tiny_target(tmp_path / "t", shape=shape, chat_template=CHATML + "{{ mood }}")
    limits = EngineOptions(max_batch=1, max_context=64)
    options = TargetOptions(model=str(folder), dtype="float32", chat_template_kwargs={"mood": "calm"})
    engine = load_engine(options, limits, head=None)
    assert engine.target.tokenizer.decode(engine.prompt_ids("Hi")).endswith("assistant\ncalm")


def test_the_dashboard_asks_only_for_metrics_that_exist(live: Running) -> None:
    dashboard = json.loads(files("fledge.server").joinpath("grafana.json").read_text("utf-8"))
    live.post("/v1/completions", {"prompt": [40, 50], "max_tokens": 4, "ignore_eos": True})
    page = live.get("/metrics").text
    wanted = {
        name
        for panel in dashboard["panels"]
        for query in panel.get("targets", [])
        for name in re.findall(r"(?:fledge|vllm|sglang):[a-z0-9_]+", query["expr"])
    }
    wanted = {name for name in wanted if not name.startswith("fledge:learn_")}  # see test_learn.py
    assert len(wanted) > 15
    assert {name for name in wanted if name not in page} == set()


def test_answers_are_sent_at_once(tmp_path: Path) -> None:
    """With Nagle's algorithm the second small write of an answer waits for the client's delayed acknowledgement."""

    async def accepted() -> int:
        found: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            taken = writer.get_extra_info("socket")
            found.set_result(taken.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        listener = bind(ServerOptions(port=0))
        async with await asyncio.start_server(connected, sock=listener):
            _, writer = await asyncio.open_connection(*listener.getsockname())
            taken = await found
            writer.close()
        return taken

    assert asyncio.run(accepted())


def test_a_port_that_is_bound_already_is_taken_though_nobody_listens_yet() -> None:
    with bind(ServerOptions(port=0)) as first, pytest.raises(ServerError, match="is in use"):
        bind(ServerOptions(port=first.getsockname()[1]))


def test_a_port_is_free_at_once_after_connections_that_the_server_has_closed() -> None:
    """They stay in TIME_WAIT for a minute, on the side that closed first."""
    port = 0
    for _ in range(2):
        with bind(ServerOptions(port=port)) as listener:
            listen(listener)
            port = listener.getsockname()[1]
            with pytest.raises(ServerError, match=f"{port} is in use"):
                bind(ServerOptions(port=port))
            with socket.create_connection(listener.getsockname()) as client:
                listener.accept()[0].close()
                assert client.recv(1) == b""
    with socket.socket() as strict, pytest.raises(OSError, match="in use"):
        strict.bind(("127.0.0.1", port))  # they are there indeed


def test_a_port_that_another_server_took_meanwhile_is_refused() -> None:
    with bind(ServerOptions(port=0)) as late, socket.socket() as other:
        late.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as between `bind` and `listen`
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(late.getsockname())
        other.listen()
        with pytest.raises(ServerError, match="is in use"):
            listen(late)


@pytest.mark.parametrize(
    "wrong", [{"model_names": ("",)}, {"cors_origins": ("notanorigin",)}, {"cors_origins": ("https://a b",)}]
)
def test_options_that_cannot_be_meant_are_refused(wrong: dict[str, tuple[str, ...]]) -> None:
    with pytest.raises(ServerError):
        ServerOptions(**wrong)  # type: ignore[arg-type]
    ServerOptions(model_names=("a",), cors_origins=("*", "https://example.org:8443", "http://localhost"))


@pytest.mark.parametrize(("host", "shown"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")])
def test_the_address_it_tells_can_be_opened(host: str, shown: str) -> None:
    try:
        listener = bind(ServerOptions(host=host, port=0))
    except ServerError:
        pytest.skip(f"no {host} here")
    with listener:
        assert url(listener) == f"http://{shown}:{listener.getsockname()[1]}"
