# /// script
# dependencies = [
#     "aiohttp==3.14.5", "datasets==5.2.0", "msgspec==0.22.0", "numpy==2.4.6", "orjson==3.13.0", "pillow==13.0.0",
#     "psutil==7.2.2", "pybase64==1.5.1", "pyzmq==27.3.0", "requests==2.34.2", "tqdm==4.70.1", "transformers==5.24.0",
# ]
#
# [tool.clients]
# without-dependencies = ["sglang==0.5.23"] # the engine's
# ///
"""SGLang's load generator. It imports the engine for one constant, which stands here instead of torch and CUDA."""

import json
import sys
from pathlib import Path

from trial import MODEL, TARGET, URL, output_of, tried

PROGRAM = """
import importlib.util, runpy, sys, types
(folder,) = importlib.util.find_spec("sglang").submodule_search_locations
for name in ("", ".srt", ".srt.utils", ".srt.disaggregation", ".srt.disaggregation.utils"):
    module = sys.modules["sglang" + name] = types.ModuleType("sglang" + name)
    module.__path__ = [folder + name.replace(".", "/")]
module.FAKE_BOOTSTRAP_HOST = "2.2.2.2"
sys.argv[0] = "bench_serving"
runpy.run_module("sglang.bench_serving", run_name="__main__")
"""

for backend in ("sglang-oai", "sglang-oai-chat", "vllm"):

    @tried(f"bench_serving --backend {backend}")
    def bench(backend=backend):
        output_of(
            sys.executable, "-c", PROGRAM, "--backend", backend, "--base-url", URL, "--model", MODEL,
            "--tokenizer", TARGET, "--dataset-name", "random-ids", "--random-input-len", "64",
            "--random-output-len", "16", "--random-range-ratio", "1", "--num-prompts", "8", "--max-concurrency", "4",
            "--output-file", f"{backend}.jsonl",
        )  # fmt: skip
        (line,) = Path(f"{backend}.jsonl").read_text().splitlines()
        result = json.loads(line)
        assert (result["completed"], result["total_output_tokens"]) == (8, 128), result
