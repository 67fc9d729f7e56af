"""SmolLM2 with our exported head in vLLM on a CPU, in the environment that `make interop` makes."""

from __future__ import annotations

import pytest

from tests.deploy.vllm_comparison import compare
from tests.interop import interpreter


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_vllm_accepts_as_much_as_we_do_and_its_output_stays_its_own(dtype: str) -> None:
    found = compare(interpreter("vllm"), prompts=40, dtype=dtype)
    assert found.tau_vllm == pytest.approx(found.tau_ours, rel=0.05)
    if dtype == "float32":
        assert found.identical == found.prompts
