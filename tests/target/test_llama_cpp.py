"""SmolLM2's GGUF file by fledge's kernels and by llama.cpp, built by `make interop`."""

from __future__ import annotations

import pytest

from benchmarks.perplexity import evaluation_text, perplexity, their_perplexity
from fledge.sources.find import DEFAULT_TARGET
from fledge.target import Target
from tests import interop

_CHUNKS = 8  # of 512 tokens


@pytest.mark.slow
def test_perplexity_on_the_same_file_is_llama_cpps() -> None:
    program = interop.llama_cpp("llama-perplexity")
    target, text = Target.load(DEFAULT_TARGET), evaluation_text()
    theirs = their_perplexity(program, target.place, text, _CHUNKS)
    assert perplexity(target, text, _CHUNKS) == pytest.approx(theirs, rel=0.005)
