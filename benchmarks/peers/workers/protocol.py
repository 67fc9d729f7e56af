"""Protocol of a peer's process: one JSON object per line on stdin and stdout. Only needs Python.

    <- {"model": ..., "head": ..., "mode": ..., "max_batch": ..., "max_context": ...}     first line: how to load
    -> {"ready": "transformers 5.23.0"}                    or {"error": "..."}
    <- {"prompts": [{"ids": [...], "text": "..."}], "max_tokens": 64}
    -> {"seconds": 1.23, "tokens": [[...], ...]}

All prompts of a request are answered together; every answer has exactly `max_tokens` tokens, ignoring ends of turns, so
that all peers do the same work. Output of engines to stdout would break this, so stdout is redirected at the start.
"""

import json
import os
import sys
import time
import traceback


def serve(load):
    """Run a peer: `load(config)` returns (name and version, generate(prompts, max_tokens) -> token lists)."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever an engine prints goes to stderr

    def answer(value):
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    try:
        name, generate = load(json.loads(sys.stdin.readline()))
        answer({"ready": name})
        for line in sys.stdin:
            request = json.loads(line)
            begin = time.perf_counter()
            tokens = generate(request["prompts"], request["max_tokens"])
            seconds = time.perf_counter() - begin
            answer({"seconds": seconds, "tokens": [[int(token) for token in one] for one in tokens]})
    except Exception as error:
        traceback.print_exc()
        answer({"error": f"{type(error).__name__}: {error}"})
