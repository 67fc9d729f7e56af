"""What CUDA graphs do, on a CPU: operations are noted while Python runs once, and replayed on the same memory.

As there, a replay knows nothing of the host: numbers are those of the recording, tensors are read and written where
they lay. And as there, a recording refuses operations that read a value on the host, write one from it, or whose
shapes follow values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fledge.attention.layout import Window, kv_slots
from fledge.draft import runner
from fledge.engine import build
from fledge.engine.rounds.graphs import Recording
from fledge.target import decoder
from fledge.target.batch import ForwardBatch

T = TypeVar("T")

_REFUSED = {
    "_local_scalar_dense", "item", "nonzero", "is_nonzero", "equal", "masked_select", "unique2", "bincount",
    "lift_fresh", "lift_fresh_copy",
}  # fmt: skip
_INDEXING = {"index", "index_put", "index_put_"}


def act_like_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """No value read on the host, shapes that follow from numbers of requests alone."""
    monkeypatch.setattr(decoder, "paged_attention", PaddedAttention)
    monkeypatch.setattr(runner, "paged_attention", PaddedAttention)
    monkeypatch.setattr(build, "CudaRecorder", OpRecorder)


class OpRecorder:
    """A `Recorder` of torch's operations on a CPU."""

    def __init__(self, device: torch.device) -> None:
        assert device.type == "cpu"

    def record(self, work: Callable[[], T]) -> Recording[T]:
        log = _Log()
        with _no_reads(), log:
            made = work()
        log.undo()
        return Recording(made, log.replay)


_WHOLE = Window()


class PaddedAttention:
    """Attention without a look at any length, as the Triton kernel's: over all pages that a request could have."""

    def __init__(self, rows: ForwardBatch, page_size: int, window: Window = _WHOLE) -> None:
        assert not window.size
        number = torch.arange(rows.token_ids.shape[0])
        request = torch.searchsorted(rows.row_start[1:].long(), number, right=True)
        begin = (rows.prefix_length + rows.window_offset - rows.row_start[:-1]).long()
        index = number + begin[request]
        self.write_slots = kv_slots(rows.page_table, request, index, page_size)
        key = torch.arange(rows.page_table.shape[1] * page_size).expand(len(number), -1)
        self._slots = kv_slots(rows.page_table, request[:, None].expand_as(key), key, page_size)  # [R, S]
        self._seen = key <= index[:, None]
        if rows.window_mask is not None:
            window = key - rows.prefix_length.long()[request][:, None]
            bits = (rows.window_mask[:, None] >> window.clamp(0, 63)) & 1
            self._seen = (window < 0) | ((bits == 1) & (window < 64))

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, sinks: Tensor | None = None) -> Tensor:
        """As `Attention.attend`."""
        assert sinks is None
        group = query.shape[1] // keys.shape[1]
        key, value = (pool[self._slots].repeat_interleave(group, dim=2) for pool in (keys, values))
        scores = torch.einsum("rhd,rshd->rhs", query, key) * query.shape[2] ** -0.5
        scores = scores.masked_fill(~self._seen[:, None], -torch.inf)
        return torch.einsum("rhs,rshd->rhd", scores.softmax(-1), value)


class _Log(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self._operations: list[tuple[Callable[..., Any], Any, Any, list[Tensor | None]]] = []
        self._before: dict[int, tuple[Tensor, Tensor]] = {}  # what was there before it was written to

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name in _REFUSED or (name == "repeat_interleave" and func._overloadname == "Tensor"):
            raise RuntimeError(f"{func} can't be recorded")
        given = _tensors((args, kwargs))
        if name in _INDEXING and any(one.dtype == torch.bool for one in _tensors(args[1])):
            raise RuntimeError(f"{func} can't be recorded with a mask")
        for one, declared in zip(args, func._schema.arguments, strict=False):
            if declared.alias_info is not None and declared.alias_info.is_write:
                self._remember(one)
        out = func(*args, **kwargs)
        memory = {one.untyped_storage().data_ptr() for one in given}
        fresh = [None if one.untyped_storage().data_ptr() in memory else one for one in _tensors(out)]
        self._operations.append((func, args, kwargs, fresh))
        return out

    def _remember(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._before:
            whole = torch.empty(0, dtype=torch.uint8).set_(storage)  # type: ignore[call-overload]
            self._before[storage.data_ptr()] = whole, whole.clone()

    def undo(self) -> None:
        """Recording runs nothing: everything is as it was."""
        for whole, before in self._before.values():
            whole.copy_(before)
        self._before.clear()

    def replay(self) -> None:
        """Everything again; what an operation made is garbage until it has."""
        for *_, fresh in self._operations:
            for tensor in fresh:
                if tensor is not None and tensor.dtype != torch.bool:
                    tensor.fill_(77)
        for func, args, kwargs, fresh in self._operations:
            for tensor, again in zip(fresh, _tensors(func(*args, **kwargs)), strict=True):
                if tensor is not None:
                    tensor.copy_(again)


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [one for part in value for one in _tensors(part)] if isinstance(value, tuple | list) else []


@contextmanager
def _no_reads() -> Iterator[None]:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("a value is read on the host")

    with mock.patch.object(Tensor, "tolist", refuse), mock.patch.object(Tensor, "numpy", refuse):
        yield
