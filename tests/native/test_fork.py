"""A process that is forked off computes on, and so does the one it came from."""

from __future__ import annotations

import os
import signal

import pytest
import torch

from fledge.native.ops import Weight
from tests.base.forked import forked

pytestmark = pytest.mark.kernels


def fork_beside_kernels() -> None:
    matrix, rows = Weight.of(torch.randn(96, 64)), torch.randn(5, 64)
    expected = matrix.multiply(rows)
    for _ in range(3):
        child = os.fork()
        if not child:
            signal.alarm(20)
            os._exit(not all(torch.equal(matrix.multiply(rows), expected) for _ in range(50)))
        assert torch.equal(matrix.multiply(rows), expected)
        assert os.waitpid(child, 0)[1] == 0


def test_a_forked_process_has_threads_of_its_own() -> None:
    parent = forked(fork_beside_kernels, environment={"FLEDGE_THREADS": "3"})
    parent.join(300)
    assert parent.exitcode == 0
