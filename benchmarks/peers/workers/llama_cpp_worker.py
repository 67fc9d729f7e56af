"""llama.cpp's own server; `program` is llama-server, `model` and `head` are GGUF files. Modes: plain, ngram, eagle3.

Runs in fledge's Python. Every request is one HTTP call; eagle3 is a chain of three drafts.
"""

import atexit
import json
import os
import subprocess
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from protocol import serve

from fledge.base.child import free_port, started


def load(config):
    """The server with a slot per request and all threads."""
    slots, port = config["max_batch"], free_port()
    url = f"http://127.0.0.1:{port}"
    command = [config["program"], "--model", config["model"], "--host", "127.0.0.1", "--port", str(port)]
    command += ["--parallel", str(slots), "--ctx-size", str(slots * config["max_context"])]
    command += ["--threads", str(len(os.sched_getaffinity(0)))]
    if config["mode"] == "ngram":
        command += ["--spec-type", "ngram-simple", "--spec-draft-n-max", "4"]
    if config["mode"] == "eagle3":
        command += ["--spec-type", "draft-eagle3", "--model-draft", config["head"], "--spec-draft-n-max", "3"]
    output = subprocess.run([config["program"], "--version"], capture_output=True, text=True, check=True)
    version = next(line for line in (output.stdout + output.stderr).splitlines() if "version" in line)
    stack = ExitStack()
    atexit.register(stack.close)  # the server ends with this process
    server = stack.enter_context(started(command, name="llama-server"))
    pool = stack.enter_context(ThreadPoolExecutor(slots))
    server.wait_until_ready(f"{url}/health", 300)

    def answer(ids, max_tokens):
        body = {"prompt": ids, "n_predict": max_tokens, "temperature": 0, "ignore_eos": True}
        body |= {"cache_prompt": False, "return_tokens": True}
        request = urllib.request.Request(
            f"{url}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=600) as response:
            return json.load(response)["tokens"]

    def generate(prompts, max_tokens):
        return list(pool.map(lambda one: answer(one["ids"], max_tokens), prompts))

    return f"llama.cpp {version.split(':')[-1].split()[0]}", generate


if __name__ == "__main__":  # engines may import this script again in processes they spawn
    serve(load)
