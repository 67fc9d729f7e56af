"""Hidden states from a server in vLLM's form make the samples that the target itself makes."""

from __future__ import annotations

import fcntl
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from transformers import AutoModelForCausalLM

from fledge.base.errors import DataError
from fledge.features import (
    FeatureOptions,
    FeatureServers,
    FeatureStore,
    ServedExtractor,
    extract_features,
    server_arguments,
)
from fledge.run.folder import Record, Run
from fledge.run.pipeline import run_stage
from fledge.run.recipe import Recipe
from fledge.target import Target
from tests.features.test_features import make_conversations, write_conversations
from tests.heads.tiny_head import load_tiny_target
from tests.stand_in import StandIn, listening


class Server:
    """Does what `vllm serve` does with `server_arguments`, with a transformers model."""

    def __init__(self, target_folder: Path, arguments: list[str], name: str = "") -> None:
        self._name = name
        named = dict(zip(arguments[::2], map(json.loads, arguments[1::2]), strict=True))
        self._layers: list[int] = named["--speculative-config"]["draft_model_config"]["hf_config"][
            "eagle_aux_hidden_state_layer_ids"
        ]
        self._folder = named["--kv-transfer-config"]["kv_connector_extra_config"]["shared_storage_path"]
        self._model = AutoModelForCausalLM.from_pretrained(target_folder, dtype=torch.float32)
        self._count = 0
        self._lock = threading.Lock()
        self.shorten = False

    def reply(self, body: dict[str, Any]) -> dict[str, Any]:
        states: dict[int, torch.Tensor] = {}
        with self._lock, torch.no_grad():
            handles = [
                layer.register_forward_hook(lambda m, a, out, k=k: states.__setitem__(k + 1, out))
                for k, layer in enumerate(self._model.model.layers)
            ]
            self._model(torch.tensor([body["prompt"]]))
            for handle in handles:
                handle.remove()
            self._count += 1
            path = f"{self._folder}/{self._name}{self._count}.safetensors"
        found = {
            k: (v[0] if isinstance(v, tuple) else v).view(len(body["prompt"]), -1) for k, v in states.items()
        }
        hidden = torch.stack([found[k] for k in self._layers], dim=1)
        tensors = {
            "hidden_states": hidden[:-1] if self.shorten else hidden,
            "token_ids": torch.tensor(body["prompt"]),
        }
        lock = open(path + ".lock", "w")  # noqa: SIM115 - held until the file is there, after the reply
        fcntl.flock(lock, fcntl.LOCK_EX)

        def write() -> None:
            safetensors.torch.save_file({k: v.contiguous() for k, v in tensors.items()}, path)
            lock.close()

        threading.Timer(0.05, write).start()
        return {"choices": [{"text": "a"}], "kv_transfer_params": {"hidden_states_path": path}}

    @contextmanager
    def running(self) -> Iterator[str]:
        server = self

        class Handler(StandIn):
            def do_POST(self) -> None:
                found = server.reply(json.loads(self.read()))
                if found is not None:  # else as if killed: the connection ends without a reply
                    self.answer(found if isinstance(found, int) else 200, found)

            def do_GET(self) -> None:
                self.answer(200, {"data": [{"id": "tiny"}]})

        with listening(Handler) as url:
            yield url


def extractor(
    target: Target, *urls: str, pause: Callable[[float], None] = time.sleep, concurrency: int = 8
) -> ServedExtractor:
    return ServedExtractor(target, FeatureServers(urls=urls, concurrency=concurrency), pause)


def test_a_server_s_hidden_states_make_the_target_s_own_store(
    target: Target, tiny_target_folder: Path, tmp_path: Path
):
    url = write_conversations(tmp_path / "conversations", make_conversations(12))
    extract_features(target, url, FeatureOptions(), str(tmp_path / "local"))
    passing = tmp_path / "passing"
    passing.mkdir()
    server = Server(tiny_target_folder, server_arguments(target, str(passing)))
    with server.running() as address:
        extractor = ServedExtractor(target, FeatureServers(urls=[address], model="tiny", concurrency=3))
        extract_features(target, url, FeatureOptions(), str(tmp_path / "served"), extractor=extractor)
    local, served = (FeatureStore(str(tmp_path / name)) for name in ("local", "served"))
    assert len(local.samples) == len(served.samples) == 12
    for info in local.samples:
        one, other = local.read(info), served.read(info)
        assert torch.equal(one.token_ids, other.token_ids)
        assert torch.equal(one.loss_mask, other.loss_mask)
        assert torch.equal(one.argmax, other.argmax)
        for name in ("features", "hidden"):
            torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=0.02, atol=0.02)
    assert list(passing.iterdir()) == []


def test_what_a_server_gets_wrong_is_one_error(target: Target, tiny_target_folder: Path, tmp_path: Path):
    conversations = make_conversations(1)
    server = Server(tiny_target_folder, server_arguments(target, str(tmp_path)))
    with server.running() as address:
        server.shorten = True
        with pytest.raises(DataError, match="conversation c0, expected"):
            extractor(target, address).extract(conversations)
        server.reply = lambda body: {"choices": []}  # type: ignore[method-assign]
    with server.running() as address, pytest.raises(DataError, match="returned no hidden states"):
        extractor(target, address).extract(conversations)
    pauses: list[float] = []
    with pytest.raises(DataError, match="doesn't answer"):
        extractor(target, "http://127.0.0.1:9", pause=pauses.append).extract(conversations)
    assert pauses == [1, 2, 4, 8, 16]
    with pytest.raises(DataError, match="isn't a valid address"):
        extractor(target, "http://host:port")
    missing = {"choices": [], "kv_transfer_params": {"hidden_states_path": str(tmp_path / "elsewhere")}}
    server.reply = lambda body: missing  # type: ignore[method-assign]
    with server.running() as address, pytest.raises(DataError, match="must see the same folder"):
        extractor(target, address, pause=pauses.append).extract(conversations)
    server.reply = lambda body: 404  # type: ignore[method-assign, assignment, return-value]
    with (
        server.running() as address,
        pytest.raises(DataError, match=r"answers 404 .* check features\.server"),
    ):
        extractor(target, address, pause=pauses.append).extract(conversations)


def test_a_busy_server_is_asked_again_and_what_it_refuses_is_left_out(
    target: Target, tiny_target_folder: Path, tmp_path: Path
):
    conversations = make_conversations(6)
    url = write_conversations(tmp_path / "conversations", conversations)
    server = Server(tiny_target_folder, server_arguments(target, str(tmp_path)))
    refused = [conversations[1].token_ids, conversations[5].token_ids]
    answer, asked = server.reply, []

    def reply(body: dict[str, Any]) -> dict[str, Any] | int:
        asked.append(body["prompt"])
        if len(asked) == 1:
            return 503
        return 400 if body["prompt"] in refused else answer(body)

    server.reply = reply  # type: ignore[method-assign, assignment]
    options, folder, pauses = FeatureOptions(batch_tokens=16), str(tmp_path / "features"), list[float]()
    with server.running() as address:
        for left_out in ({"c1", "c5"}, {"c5"}):  # the second time after the last one stored
            served = extractor(target, address, concurrency=1, pause=pauses.append)
            made = extract_features(target, url, options, folder, extractor=served)
            assert served.refused == left_out
            assert made.refused == 2
    assert pauses == [1]
    assert [info.conversation_id for info in FeatureStore(folder).samples] == ["c0", "c2", "c3", "c4"]


def test_the_stage_takes_features_that_a_server_wrote_without_loading_the_target(
    tiny_target_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    loaded = load_tiny_target(tiny_target_folder)
    write_conversations(tmp_path / "run" / "conversations", make_conversations(4))
    recipe = Recipe.model_validate({"target": {"model": str(tiny_target_folder), "backend": "torch"}})
    server = Server(tiny_target_folder, server_arguments(loaded, str(tmp_path)))
    with server.running() as address:
        refused = make_conversations(4)[2].token_ids
        answer = server.reply
        server.reply = lambda body: 400 if body["prompt"] == refused else answer(body)  # type: ignore[method-assign, assignment, return-value]
        served = recipe.model_copy(update={"features": FeatureOptions.model_validate({"server": address})})
        run = Run(served, str(tmp_path / "run"))
        monkeypatch.setattr(
            "fledge.target.target.load_weights", lambda *a: pytest.fail("the target was loaded")
        )
        run_stage(run, "features")
    record = Record.load(run.url("features"))
    assert record is not None
    assert record.figures["tokens"] > 0
    assert record.figures["refused"] == 1
    assert "1 conversation refused by the server" in record.line


def unreliable(server: Server, *, killed_at: int | None = None) -> None:
    """Let every tenth reply be 503, and from a request on none come; the last file before is half a one."""
    answer, asked = server.reply, []

    def reply(body: dict[str, Any]) -> dict[str, Any] | int | None:
        asked.append(body)
        if killed_at is not None and len(asked) >= killed_at:
            if len(asked) > killed_at:
                return None
            path = Path(server._folder) / "half.safetensors"
            path.write_bytes(bytes(7))
            return {"kv_transfer_params": {"hidden_states_path": str(path)}}
        return 503 if len(asked) % 10 == 0 else answer(body)

    server.reply = reply  # type: ignore[method-assign, assignment]


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_of_two_busy_servers_one_is_killed_midway_and_nothing_is_missing(
    target: Target, tiny_target_folder: Path, tmp_path: Path
) -> None:
    url = write_conversations(tmp_path / "conversations", make_conversations(60))
    options = FeatureOptions(batch_tokens=64, shard_mib=1)
    arguments = server_arguments(target, str(tmp_path))
    with Server(tiny_target_folder, arguments).running() as sound:
        served = extractor(target, sound)
        extract_features(target, url, options, str(tmp_path / "undisturbed"), extractor=served)
    one, other = (Server(tiny_target_folder, arguments, name) for name in ("one", "other"))
    unreliable(one)
    unreliable(other, killed_at=13)
    with one.running() as first, other.running() as second:
        servers = FeatureServers(urls=(first, second), concurrency=8, backoff_s=0.01)
        served = ServedExtractor(target, servers)
        extract_features(target, url, options, str(tmp_path / "disturbed"), extractor=served)
    assert served.refused == set()
    assert files(tmp_path / "disturbed") == files(tmp_path / "undisturbed")


def test_after_all_servers_were_killed_the_rest_is_extracted(
    target: Target, tiny_target_folder: Path, tmp_path: Path
) -> None:
    url = write_conversations(tmp_path / "conversations", make_conversations(140))
    options, folder = FeatureOptions(batch_tokens=16, shard_mib=1), str(tmp_path / "features")
    arguments = server_arguments(target, str(tmp_path))
    extract_features(target, url, options, str(tmp_path / "local"))
    killed = [Server(tiny_target_folder, arguments, name) for name in ("one", "other")]
    for server in killed:
        unreliable(server, killed_at=65)
    with killed[0].running() as first, killed[1].running() as second:
        served = extractor(target, first, second, pause=lambda seconds: None)
        served.shards_ahead = 1  # else it depends on threads whether a shard is finished before
        with pytest.raises(DataError, match="run again to resume"):
            extract_features(target, url, options, folder, extractor=served)
    asked: list[list[int]] = []
    server = Server(tiny_target_folder, arguments)
    answer = server.reply
    server.reply = lambda body: asked.append(body["prompt"]) or answer(body)  # type: ignore[method-assign, func-returns-value]
    with server.running() as address:
        extract_features(target, url, options, folder, extractor=extractor(target, address))
    ids = [info.conversation_id for info in FeatureStore(folder).samples]
    assert ids == [info.conversation_id for info in FeatureStore(str(tmp_path / "local")).samples]
    assert 0 < len(asked) < 140


def test_a_server_that_refuses_everything_is_an_error(
    target: Target, tiny_target_folder: Path, tmp_path: Path
) -> None:
    url = write_conversations(tmp_path / "conversations", make_conversations(3))
    server = Server(tiny_target_folder, server_arguments(target, str(tmp_path)))
    server.reply = lambda body: 400  # type: ignore[method-assign, assignment, return-value]
    with server.running() as address:
        served = extractor(target, address)
        with pytest.raises(DataError, match="refused every conversation"):
            extract_features(target, url, FeatureOptions(), str(tmp_path / "features"), extractor=served)


def test_addresses_may_stand_alone() -> None:
    for given in ("http://a", ["http://a", "http://b"], {"urls": ["http://a"], "retries": 2}):
        servers = FeatureOptions.model_validate({"server": given}).server
        assert servers is not None
        assert servers.urls[0] == "http://a"
    with pytest.raises(ValueError, match="urls"):
        FeatureOptions.model_validate({"server": []})
    with pytest.raises(ValueError, match="not the last hidden state"):
        FeatureServers.model_validate({"urls": ["http://a"], "engine": "sglang"})
