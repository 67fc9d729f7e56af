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
        sys.executable, "-m", "guidellm", "run", "--backend", f"kind=openai_http,target={URL},model={MODEL}",
        "--profile", "kind=concurrent,streams=4", "--constraint", "kind=max_requests,count=16",
        "--tokenizer", f"kind=huggingface_auto,model={TARGET}",
        "--data", "kind=synthetic_text,prompt_tokens=64,output_tokens=32",
        "--output", "kind=json,path=result.json", "--disable-console-interactive",
    )  # fmt: skip
    (benchmark,) = json.loads(Path("result.json").read_text())["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    assert (totals["successful"], totals["errored"]) == (16, 0), totals
