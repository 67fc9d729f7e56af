# /// script
# dependencies = ["guidellm==0.8.1"]
# ///
"""guidellm: made prompts, four at once."""

import json
import sys
from pathlib import Path

from trial import MODEL, TARGET, URL, output_of, tried


@tried("concurrent streams")
def concurrent():
    output_of(
        sys.executable, "-m", "guidellm", "benchmark", "run", "--target", URL, "--model", MODEL,
        "--processor", TARGET, "--profile", "concurrent", "--rate", "4", "--max-requests", "16",
        "--data", "prompt_tokens=64,output_tokens=32", "--output-path", "result.json",
    )  # fmt: skip
    (benchmark,) = json.loads(Path("result.json").read_text())["benchmarks"]
    print(json.dumps(benchmark)[:3000])
