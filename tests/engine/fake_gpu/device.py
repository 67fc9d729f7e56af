"""Torch's CUDA part, pretended: what FakeTensors don't do by themselves in a build without CUDA."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily

from fledge.base.device import to_host
from fledge.engine import build
from fledge.engine.flight import Flight, Landed
from fledge.engine.planner import CostCurve, CostModel
from fledge.engine.rounds import graphs
from fledge.engine.rounds.graphs import Recording
from fledge.native.build import compile_library
from tests.engine.fake_gpu.audit import Audit

_aten: Any = torch.ops.aten
T = TypeVar("T")


def load_guard(compiler: str) -> None:
    """Compile and load guard.cpp; RuntimeError if that can't be compiled."""
    from torch.utils.cpp_extension import include_paths

    flags = ("-std=c++20", "-O1", "-shared", "-fPIC", *(f"-I{folder}" for folder in include_paths()))
    ctypes.CDLL(
        str(Path(torch.__file__).parent / "lib" / "libc10.so"), mode=ctypes.RTLD_GLOBAL
    )  # its symbols
    ctypes.CDLL(str(compile_library(compiler, "fake-cuda", Path(__file__).parent, flags)))


class FakeGpu:
    """The audit, the device that launches go to, and what was launched on another one."""

    def __init__(self, layers: int) -> None:
        """`layers` of the targets that are served."""
        self.layers = layers
        self.audit = Audit()
        self.index = 0  # torch.cuda.current_device()
        self.astray: list[str] = []  # Triton kernels that were launched on another device than their tensors'
        self.kinds: dict[
            str, list[tuple[int, list[str]]]
        ] = {}  # by kind of launch: kernels and waits of each

    @contextmanager
    def on(self) -> Iterator[None]:
        """Within this there is a GPU."""
        from triton.runtime.jit import KernelInterface

        with ExitStack() as stack:
            replace: Callable[..., Any] = lambda *names: stack.enter_context(mock.patch.object(*names))  # noqa: E731
            fakes = FakeTensorMode(allow_non_fake_inputs=True)
            real = {"tensor": torch.tensor, "from_numpy": torch.from_numpy, "empty": torch.empty}

            def exchange(index: int) -> int:
                before, self.index = self.index, index if index >= 0 else self.index
                return before

            replace(torch.cuda, "_exchange_device", exchange)
            replace(torch.cuda, "_maybe_exchange_device", exchange)
            replace(torch.cuda, "current_device", lambda: self.index)
            replace(KernelInterface, "__getitem__", lambda kernel, grid: self._kernel(kernel))
            replace(torch, "tensor", lambda data, **options: self._tensor(real["tensor"], data, **options))
            replace(torch, "from_numpy", lambda array: _like_numpy(real["from_numpy"], array))
            replace(torch, "empty", lambda *size, **options: self._empty(real["empty"], *size, **options))
            replace(Tensor, "numpy", lambda tensor: np.zeros(tensor.shape, _kinds[tensor.dtype]))
            replace(FakeTensor, "tolist", lambda tensor: self._tolist(tensor))
            replace(Tensor, "__getitem__", _getitem)
            replace(Tensor, "__setitem__", _setitem)
            replace(build, "free_memory", lambda device: 1 << 36)
            replace(graphs, "free_memory", lambda device: 1 << 36)
            replace(build, "CudaRecorder", lambda device: FakeRecorder(self.audit))
            replace(build, "make_flight", lambda device, ahead: FakeFlight(self, device))
            curve = CostCurve((1, 64), (1e-3, 2e-3))
            replace(build, "measure_cost", lambda *given: CostModel(curve, curve))
            stack.enter_context(fakes)
            stack.enter_context(self.audit)
            stack.enter_context(torch.inference_mode())
            yield

    def _kernel(self, kernel: Any) -> Callable[..., None]:
        def launch(*arguments: Any, **options: Any) -> None:
            name = getattr(kernel, "fn", kernel).__name__
            self.audit.launch(f"triton {name}")
            for one in (*arguments, *options.values()):
                if isinstance(one, Tensor):
                    assert one.device.type == "cuda", f"{name} gets a tensor on {one.device}"
                    if one.device.index != self.index:
                        self.astray.append(f"{name} on cuda:{self.index} with a tensor on {one.device}")

        return launch

    def _tolist(self, tensor: Tensor) -> Any:
        if tensor.device.type == "cuda":
            self.audit.wait("values are read (tolist)")
            return np.full(tensor.shape, 200, _kinds[tensor.dtype]).tolist()
        raise ValueError("a tensor on the host has no values here; patch what reads it")

    def _tensor(self, real: Callable[..., Tensor], data: Any, **options: Any) -> Tensor:
        """Made on the host, and copied from there."""
        device = torch.device(options.pop("device", None) or "cpu")
        host = data if isinstance(data, Tensor) else real(data, **options)
        if device.type == "cpu":
            return torch.empty(host.shape, dtype=host.dtype)
        self.audit.wait("torch.tensor copies pageable memory")
        self.audit.launch("copy of torch.tensor")
        return torch.empty(host.shape, dtype=host.dtype, device=device)

    def _empty(self, real: Callable[..., Tensor], *size: Any, **options: Any) -> Tensor:
        pinned = options.pop("pin_memory", False)
        made = real(*size, **options)
        return self.audit.pin(made) if pinned else made


class FakeRecorder:
    """A `Recorder`: what can't be recorded is refused, as by CUDA, and a replay is one launch."""

    def __init__(self, audit: Audit) -> None:
        self._audit = audit

    def record(self, work: Callable[[], T]) -> Recording[T]:
        """See `Recorder.record`."""
        audit = self._audit
        before, audit.recording = len(audit.waits), True
        try:
            made = work()
        finally:
            audit.recording = False
        if len(audit.waits) > before:
            raise RuntimeError(audit.waits[before])
        return Recording(made, lambda: audit.launch("graph"))


class FakeFlight(Flight):
    """Results are taken at once, as if every request had emitted one token, 1; launches are counted by kind."""

    def __init__(self, gpu: FakeGpu, device: torch.device) -> None:
        super().__init__()
        self._gpu, self._index = gpu, device.index or 0

    @contextmanager
    def on_device(self) -> Iterator[None]:
        """As a stream does, which makes its device the present one."""
        before, self._gpu.index = self._gpu.index, self._index
        try:
            yield
        finally:
            self._gpu.index = before

    def _start(self, work: Callable[[], Any]) -> Callable[[], Landed]:
        audit, kind = self._gpu.audit, _kind(work)
        self._gpu.kinds.setdefault("between", []).append((audit.launches, audit.waits))
        audit.restart()
        value = to_host(work())
        self._gpu.kinds.setdefault(kind, []).append((audit.launches, audit.waits))
        audit.restart()
        landed = Landed(_ones(value), 1e-3)
        return lambda: landed

    def take(self, keep: int) -> None:
        """As in `Flight`, with real values."""
        with unset_fake_temporarily():
            super().take(keep)


def _kind(work: Any) -> str:
    """decode: a round; target, join: a prefill's parts."""
    return str(getattr(work, "func", work).__name__)


def _ones(value: Any) -> Any:
    if isinstance(value, Tensor):
        with unset_fake_temporarily():
            return torch.ones(value.shape, dtype=value.dtype)
    if isinstance(value, tuple | list):
        parts = [_ones(part) for part in value]
        if isinstance(value, list):
            return parts
        return value._make(parts) if hasattr(value, "_make") else tuple(parts)
    return value


def _like_numpy(real: Callable[..., Tensor], array: np.ndarray) -> Tensor:
    return torch.empty(array.shape, dtype=real(np.zeros(1, array.dtype)).dtype)


_kinds = {getattr(torch, name): getattr(np, name) for name in ("uint8", "int32", "int64", "float32")}
_real_getitem, _real_setitem = Tensor.__getitem__, Tensor.__setitem__


def _indexed(tensor: Tensor, key: Any) -> tuple[Tensor, list[Tensor | None]]:
    """What slices and numbers select, and the tensors that index it; as torch's C++ does."""
    dimension, indices = 0, list[Tensor | None]()
    for one in key if isinstance(key, tuple) else (key,):
        if isinstance(one, Tensor) and (one.dim() or one.dtype == torch.bool):
            indices.append(one)
            dimension += 1
        elif one is None or isinstance(one, slice):
            if one is None:
                tensor = _aten.unsqueeze(tensor, dimension)
            else:
                tensor = _aten.slice(tensor, dimension, one.start, one.stop, one.step or 1)
            indices.append(None)
            dimension += 1
        else:  # a tensor of no dimensions is a number, which the host has to know
            number = one.item() if isinstance(one, Tensor) and one.device.type == "cpu" else one
            if isinstance(number, Tensor):
                _aten._local_scalar_dense(number)
            tensor = _aten.select(tensor, dimension, int(number))
    while indices and indices[-1] is None:
        indices.pop()
    return tensor, indices


def _getitem(self: Tensor, key: Any) -> Tensor:
    if self.device.type != "cuda":
        return _real_getitem(self, key)
    tensor, indices = _indexed(self, key)
    return _aten.index(tensor, indices) if indices else tensor


def _setitem(self: Tensor, key: Any, value: Any) -> None:
    if self.device.type != "cuda":
        _real_setitem(self, key, value)
        return
    tensor, indices = _indexed(self, key)
    if indices:
        given = (
            value
            if isinstance(value, Tensor)
            else torch.full((), value, dtype=tensor.dtype, device=tensor.device)
        )
        _aten.index_put_(tensor, indices, given.to(tensor.dtype))
    elif isinstance(value, Tensor):
        tensor.copy_(value)
    elif tensor.dim():
        tensor.fill_(value)
    else:  # torch makes a tensor of it on the host, and copies that (copy_to in TensorIndexing.h)
        tensor.copy_(torch.tensor(value, dtype=tensor.dtype))
