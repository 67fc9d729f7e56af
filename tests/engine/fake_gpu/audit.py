"""What torch operations on fake CUDA tensors would do on a GPU."""

from __future__ import annotations

import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import fledge

_PACKAGE = Path(fledge.__file__).parent
_VIEWS = {
    "view", "_unsafe_view", "expand", "slice", "select", "t", "transpose", "permute", "unsqueeze", "squeeze", "split",
    "split_with_sizes", "chunk", "detach", "alias", "as_strided", "unbind", "_reshape_alias", "lift_fresh",
}  # fmt: skip
_FREE = {"device", "sym_size", "sym_stride", "sym_numel", "is_contiguous", "is_pinned", "_pin_memory"} | {
    f"{new}{kind}" for new in ("", "new_") for kind in ("empty", "empty_like", "empty_strided")
}
_MAYBE_COPIES = {
    "to",
    "contiguous",
    "reshape",
    "flatten",
    "float",
    "long",
    "clone",
}  # launch if they return new memory
_LAUNCHES = {"sort": 2, "topk": 3, "argsort": 2}  # kernels of one call; others have one
_READS = {"nonzero", "masked_select", "equal", "is_nonzero"}


class Audit(TorchDispatchMode):
    """Counts launches; notes what makes the host wait. Errors of wrong devices are torch's own."""

    def __init__(self) -> None:
        super().__init__()
        self.launches = 0
        self.operations: Counter[str] = Counter()
        self.waits: list[str] = []
        self.pinned: dict[int, Tensor] = {}  # by storage
        self.recording = False  # a replay wouldn't know what the host has now

    def restart(self) -> None:
        """Count from here on."""
        self.launches, self.waits = 0, []
        self.operations.clear()

    def launch(self, name: str, count: int = 1) -> None:
        """A kernel or a copy."""
        self.launches += count
        self.operations[name] += count

    def wait(self, what: str) -> None:
        """The host waits for the device here."""
        places = reversed(own_places(traceback.extract_stack())[-2:])
        self.waits.append(f"{what} in {' < '.join(places)}")

    def pin(self, tensor: Tensor) -> Tensor:
        """This tensor's memory is page-locked."""
        self.pinned[tensor.untyped_storage()._cdata] = tensor
        return tensor

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name == "_local_scalar_dense" and args[0].device.type == "cuda":
            self.wait("a value is read")
            return True if args[0].dtype == torch.bool else 1.0 if args[0].is_floating_point() else 1
        out = func(*args, **kwargs)
        given, made = (
            [one for one in tree_leaves(part) if isinstance(one, Tensor)] for part in ((args, kwargs), out)
        )
        if not any(one.device.type == "cuda" for one in given + made):
            return out
        if name in _READS:
            self.wait(f"a value is read ({name})")
        if name in ("_to_copy", "copy_", "to") and given and made:
            self._copy(
                given[-1] if name == "copy_" else given[0], made[0], bool(_non_blocking(func, args, kwargs))
            )
        fresh = bool(given and made) and not _same_memory(made[0], given[0])
        launches = fresh if name in _MAYBE_COPIES else name not in _VIEWS and not func.is_view
        if launches and name not in _FREE:
            self.launch(name, _LAUNCHES.get(name, 1))
        return out

    def _copy(self, source: Tensor, there: Tensor, non_blocking: bool) -> None:
        kinds = source.device.type, there.device.type
        if "cuda" not in kinds or kinds[0] == kinds[1]:
            return
        if self.recording:
            self.wait("a copy between host and device is recorded")
        host = source if kinds[0] == "cpu" else there
        if host.untyped_storage()._cdata not in self.pinned:
            self.wait("a copy of pageable memory")
        elif not non_blocking:
            self.wait("a copy that waits")


def own_places(frames: traceback.StackSummary) -> list[str]:
    """Files and lines of the package; not of tests, whatever the folder that they are in is called."""
    paths = [(Path(frame.filename), frame.lineno) for frame in frames]
    return [f"{path.relative_to(_PACKAGE)}:{line}" for path, line in paths if path.is_relative_to(_PACKAGE)]


def _non_blocking(func: Any, args: Any, kwargs: dict[str, Any]) -> object:
    names = [argument.name for argument in func._schema.arguments]
    if "non_blocking" in kwargs:
        return kwargs["non_blocking"]
    place = names.index("non_blocking") if "non_blocking" in names else len(args)
    return args[place] if place < len(args) else False


def _same_memory(one: Tensor, other: Tensor) -> bool:
    return bool(one.untyped_storage()._cdata == other.untyped_storage()._cdata)
