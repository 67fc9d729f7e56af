"""Writes what SGLang's target and head compute, and the trees that it builds, into $FLEDGE_SGLANG_RECORD.

    00000-loaded.pt     the head: target_ids [Vd], and the names of the checkpoint's tensors that it took
    00001-target.pt     a target forward: token_ids, positions, logits, features [R, 3 * Ht], layers it captures
    00002-head.pt       a head forward: token_ids, positions, fed (features or its own output), logits, hidden
    00003-tree.pt       a tree: token_ids, positions, mask [N, N], next_token and next_sibling, as nodes

Logits and hidden may have fewer rows than the forward: those that SGLang needs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

_MOST = 400  # records of a process: the check's ten prompts make thousands
_numbers = count()


def record(module: ModuleType) -> None:
    """Put a recording function in the place of one of SGLang's."""
    _RECORDED[module.__name__.rsplit(".", 1)[1]](module)


def _write(kind: str, **values: Any) -> None:
    number = next(_numbers)
    if number < _MOST:
        kept = {name: v.clone() if isinstance(v, Tensor) else v for name, v in values.items()}
        torch.save(kept, Path(os.environ["FLEDGE_SGLANG_RECORD"]) / f"{number:05d}-{kind}.pt")


def _target(module: ModuleType) -> None:
    model = module.LlamaForCausalLM
    inner = model.forward

    def forward(self: Any, input_ids: Tensor, positions: Tensor, *rest: Any, **named: Any) -> Any:
        out = inner(self, input_ids, positions, *rest, **named)
        if type(self) is model:  # the head's class is derived from it
            _write(
                "target",
                token_ids=input_ids,
                positions=positions,
                logits=out.next_token_logits,
                features=out.hidden_states,
                layers=list(self.model.layers_to_capture),
            )
        return out

    model.forward = forward


def _head(module: ModuleType) -> None:
    model = module.LlamaForCausalLMEagle3
    inner, load = model.forward, model.load_weights

    def forward(
        self: Any, input_ids: Tensor, positions: Tensor, forward_batch: Any, *rest: Any, **named: Any
    ) -> Any:
        fed = forward_batch.spec_info.hidden_states
        out = inner(self, input_ids, positions, forward_batch, *rest, **named)
        _write(
            "head",
            token_ids=input_ids,
            positions=positions,
            fed=fed,
            logits=out.next_token_logits,
            hidden=out.hidden_states,
        )
        return out

    def load_weights(self: Any, weights: Iterable[tuple[str, Tensor]]) -> Any:
        names: list[str] = []

        def seen() -> Iterator[tuple[str, Tensor]]:
            for name, tensor in weights:
                names.append(name)
                yield name, tensor

        result = load(self, seen())
        _write("loaded", names=names, target_ids=self.hot_token_id)
        return result

    model.forward, model.load_weights = forward, load_weights


def _trees(module: ModuleType) -> None:
    inner = module.build_tree_kernel_efficient

    def build(*arguments: Any, **named: Any) -> Any:
        out = inner(*arguments, **named)
        mask, positions, _, next_token, next_sibling, token_ids = out
        _write(
            "tree",
            token_ids=token_ids,
            positions=positions,
            mask=mask.view(len(token_ids), -1),
            next_token=next_token,
            next_sibling=next_sibling,
        )
        return out

    module.build_tree_kernel_efficient = build


_RECORDED = {"llama": _target, "llama_eagle3": _head, "eagle_worker_common": _trees}
