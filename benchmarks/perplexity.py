"""Perplexity of a GGUF file's target on the evaluation prompts, by fledge's kernels and by llama-perplexity.

python -m benchmarks.perplexity FILE.gguf ... [--llama-perplexity PROGRAM] [--chunks 16]

Both follow llama-perplexity: chunks of 512 tokens, of each the second half counts.
"""

from __future__ import annotations

import argparse
import math
import re
import subprocess
import tempfile
from pathlib import Path

import torch

from fledge.bench.workloads import find_workload
from fledge.target import Target
from fledge.target.batch import one_sequence

_WORKLOADS = ("mixed", "code", "summarisation", "mathematics", "question_answering")
_CHUNK = 512


def evaluation_text() -> str:
    """All prompts of the workloads, each once, until there is enough of them."""
    prompts = [prompt for name in _WORKLOADS for prompt in find_workload(name).prompts]
    contents = [str(message["content"]) for prompt in prompts for message in prompt.messages]
    return "\n\n".join(dict.fromkeys(contents))


def perplexity(target: Target, text: str, chunks: int) -> float:
    """By fledge's decoder, whichever runs the target."""
    decoder = target.decoder
    ids = target.tokenizer.encode(text, add_special_tokens=False)
    if len(ids) < chunks * _CHUNK:
        raise SystemExit(f"the text has {len(ids)} tokens, {chunks * _CHUNK} are needed")
    losses = []
    for start in range(0, chunks * _CHUNK, _CHUNK):
        chunk = ids[start : start + _CHUNK]
        rows = torch.arange(_CHUNK // 2, _CHUNK - 1, dtype=torch.int32)
        batch = one_sequence(chunk, decoder.page_size, decoder.device)._replace(logit_rows=rows)
        logits = decoder.forward(batch, decoder.allocate_kv(batch.page_table.numel()), logits="logits").logits
        assert logits is not None
        following = torch.tensor(chunk[_CHUNK // 2 + 1 :])
        losses.append(torch.nn.functional.cross_entropy(logits, following, reduction="none"))
    return math.exp(float(torch.cat(losses).double().mean()))


def their_perplexity(program: str | Path, file: Path, text: str, chunks: int) -> float:
    """By llama-perplexity. Raises a CalledProcessError if it fails."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        command = [str(program), "-m", str(file), "-f", stream.name, "-t", "2", "--no-escape"]
        command += ["-c", str(_CHUNK), "--chunks", str(chunks)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    found = re.search(r"Final estimate: PPL = ([\d.]+)", done.stdout + done.stderr)
    if found is None:
        raise SystemExit(f"llama-perplexity printed no estimate for {file}")
    return float(found[1])


def main() -> None:
    """Print a line for each file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.perplexity", description=__doc__)
    parser.add_argument("models", nargs="+", help="GGUF files, or packages that hold one")
    parser.add_argument("--llama-perplexity", help="llama.cpp's program, to compare with")
    parser.add_argument("--chunks", type=int, default=16)
    asked, text = parser.parse_args(), evaluation_text()
    for model in asked.models:
        target = Target.load(model)
        ours = perplexity(target, text, asked.chunks)
        line = f"{target.name} {target.quantization}: {ours:.4f}"
        if asked.llama_perplexity:
            theirs = their_perplexity(asked.llama_perplexity, target.place, text, asked.chunks)
            line += f", llama.cpp {theirs:.4f}: {100 * (ours / theirs - 1):+.2f} %"
        print(line, flush=True)


if __name__ == "__main__":
    main()
