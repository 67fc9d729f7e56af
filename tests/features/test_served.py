"""Hidden states from a server in vLLM's form make the samples that the target itself makes."""

from __future__ import annotations

import fcntl
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from transformers import AutoModelForCausalLM

from fledge.base.errors import DataError
from fledge.features import (
    FeatureOptions,
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


class Server:
    """Does what `vllm serve` does with `server_arguments`, with a transformers model."""

    def __init__(self, target_folder: Path, arguments: list[str]) -> None:
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
            path = f"{self._folder}/{self._count}.safetensors"
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
        answer = self.reply

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                found = answer(body)
                data = json.dumps(found).encode()
                self.send_response(found if isinstance(found, int) else 200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(json.dumps({"data": [{"id": "tiny"}]}).encode())

            def log_message(self, *arguments: Any) -> None:
                pass

        http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{http.server_port}"
        finally:
            http.shutdown()
            http.server_close()


@pytest.fixture(scope="module")
def target(tiny_target_folder: Path) -> Target:
    return load_tiny_target(tiny_target_folder)


def test_a_server_s_hidden_states_make_the_target_s_own_store(
    target: Target, tiny_target_folder: Path, tmp_path: Path
):
    url = write_conversations(tmp_path / "conversations", make_conversations(12))
    extract_features(target, url, FeatureOptions(), str(tmp_path / "local"))
    passing = tmp_path / "passing"
    passing.mkdir()
    server = Server(tiny_target_folder, server_arguments(target, str(passing)))
    with server.running() as address:
        extractor = ServedExtractor(target, address, "tiny", concurrency=3)
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
            ServedExtractor(target, address, "tiny").extract(conversations)
        server.reply = lambda body: {"choices": []}  # type: ignore[method-assign]
    with server.running() as address, pytest.raises(DataError, match="returned no hidden states"):
        ServedExtractor(target, address, "tiny").extract(conversations)
    pauses: list[float] = []
    with pytest.raises(DataError, match="doesn't answer"):
        ServedExtractor(target, "http://127.0.0.1:9", "tiny", pause=pauses.append).extract(conversations)
    assert pauses == [1, 2, 4, 8, 16]


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
        for left_out in (2, 1):  # the second time after the last one stored
            extractor = ServedExtractor(target, address, concurrency=1, pause=pauses.append)
            extract_features(target, url, options, folder, extractor=extractor)
            assert extractor.refused == left_out
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
        served = recipe.model_copy(update={"features": FeatureOptions(server=address)})
        run = Run(served, str(tmp_path / "run"))
        monkeypatch.setattr(
            "fledge.target.target.load_weights", lambda *a: pytest.fail("the target was loaded")
        )
        run_stage(run, "features")
    record = Record.load(run.url("features"))
    assert record is not None
    assert record.figures["tokens"] > 0
