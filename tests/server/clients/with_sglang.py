# /// script
# dependencies = ["aiohttp==3.14.5", "requests==2.34.2", "numpy==2.4.6", "tqdm==4.70.1", "transformers==5.24.0"]
#
# [tool.clients]
# without-dependencies = ["sglang==0.5.23"]
# ///
"""SGLang's load generator, without the engine."""

import json
import sys
from pathlib import Path

from trial import MODEL, TARGET, URL, output_of, tried

for backend in ("sglang", "sglang-oai", "sglang-oai-chat", "vllm"):

    @tried(f"bench_serving as {backend}")
    def bench(backend=backend):
        output_of(
            sys.executable, "-m", "sglang.bench_serving", "--backend", backend, "--base-url", URL, "--model", MODEL,
            "--tokenizer", TARGET, "--dataset-name", "random-ids", "--random-input-len", "64",
            "--random-output-len", "16", "--random-range-ratio", "1", "--num-prompts", "8", "--max-concurrency", "4",
            "--output-file", f"{backend}.jsonl",
        )  # fmt: skip
        (line,) = Path(f"{backend}.jsonl").read_text().splitlines()
        result = json.loads(line)
        assert (result["completed"], result["total_output_tokens"]) == (8, 128), result
