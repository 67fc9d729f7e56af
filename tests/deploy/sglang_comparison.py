"""What SGLang itself computed with our exported head (tests/interop/sglang_cpu) against our own forwards and trees.

A round of SGLang's, as its recorder writes it down:

    tree      the nodes it drafted                          ours: the tree of our engine's round with that prefix
    target    verifies them
    head      reads the accepted tokens and their features  ours: the same rows of one forward over the whole sequence

The rows of such a head forward come accepted tokens first; those at the next tree's root and beyond are padding.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fledge.draft import DraftTree
from fledge.draft.runner import TorchHeadRunner
from fledge.heads import Head
from fledge.target import Target
from fledge.target.batch import one_sequence
from tests import interop

# What runs without CUDA; float32, in which orders of summation hardly show.
ARGUMENTS = (
    *("--device", "cpu", "--attention-backend", "intel_amx", "--dtype", "float32"),
    *("--max-total-tokens", "4096", "--context-length", "2048", "--max-running-requests", "4"),
)
Record = dict[str, Any]


def environment(records: Path) -> dict[str, str]:
    """Where SGLang finds what stands in for its kernels, and where it writes its records."""
    return {
        "PYTHONPATH": str(Path(interop.__file__).parent / "sglang_cpu"),
        "SGLANG_USE_CPU_ENGINE": "1",
        "TRITON_INTERPRET": "1",
        "OMP_NUM_THREADS": os.environ.get(
            "OMP_NUM_THREADS", "1"
        ),  # more make it slower beside other processes
        "FLEDGE_SGLANG_RECORD": str(records),
    }


class Row(NamedTuple):
    """A row of a head forward that read features: it has read x[position + 1]."""

    position: int
    features: Tensor  # [3 * Ht]
    logits: Tensor | None  # [Vd]; None: not computed


@dataclass
class Request:
    """One request that SGLang answered."""

    prompt_ids: list[int]
    token_ids: list[int]  # prompt and answer, as far as the head has read them
    rows: list[Row] = field(default_factory=list)
    trees: list[Record] = field(default_factory=list)


class Differences(NamedTuple):
    """Of all rows of a request."""

    rows: int
    features: float  # the largest, of one layer's features, as a share of their norm
    log_probs: float  # the largest, over the draft vocabulary
    other_proposals: int  # rows whose most probable token is another one


def recorded(records: Path) -> list[Request]:
    """The requests that SGLang answered one after the other, without those that it drafted nothing for."""
    requests: list[Request] = []
    ids: list[int] = []  # of the request; where a cached prefix isn't computed again, of the one before
    previous = ""
    extended: Record = {}
    for path in sorted(records.glob("*.pt")):
        kind, record = path.stem.split("-")[1], torch.load(path)
        if kind == "target" and previous != "tree":
            ids = ids[: int(record["positions"][0])] + record["token_ids"].tolist()
            requests.append(Request(list(ids), list(ids)))
        elif kind == "head" and previous == "target":
            extended = record
        elif kind == "tree":
            rows = _rows(extended, int(record["positions"][0]))
            ids = ids[: rows[0].position + 1] + extended["token_ids"][: len(rows)].tolist()
            requests[-1].token_ids = list(ids)
            requests[-1].rows += rows
            requests[-1].trees.append(record)
        previous = kind
    return [request for request in requests if request.trees]


def differences(request: Request, target: Target, head: Head) -> Differences:
    """Between SGLang's rows and the same rows of one forward of ours."""
    decoder, reader = target.decoder, target.ends.embedding.float()
    runner = TorchHeadRunner(head.config, head.weights, reader, page_size=decoder.page_size)
    batch = one_sequence(request.token_ids[:-1], decoder.page_size, decoder.device)
    kv = decoder.allocate_kv(batch.page_table.numel())
    features = decoder.forward(batch, kv, logits="none", features=True).features
    assert features is not None  # requested
    batch = one_sequence(request.token_ids[1:], decoder.page_size, decoder.device)
    kv = runner.allocate_kv(batch.page_table.numel())
    out = runner.forward(batch, kv, features=features, hidden=None, k=head.config.draft_vocab_size)
    log_probs = out.log_probs.gather(1, out.token_ids.argsort(1))  # as d2t has them, which ascends
    gaps, shares, other = [0.0], [0.0], 0
    for row in request.rows:
        ours, theirs = (each.view(3, -1) for each in (features[row.position], row.features))
        shares.append(float(((ours - theirs).norm(dim=1) / ours.norm(dim=1)).max()))
        if row.logits is not None:
            gaps.append(float((log_probs[row.position] - row.logits.log_softmax(0)).abs().max()))
            other += int(log_probs[row.position].argmax() != row.logits.argmax())
    return Differences(len(request.rows), max(shares), max(gaps), other)


def same_tree(theirs: Record, ours: DraftTree) -> bool:
    """Whether nodes, their order, depths, masks and links are the same."""
    links = _parents(theirs["next_token"].flatten().tolist(), theirs["next_sibling"].flatten().tolist())
    bits = torch.ones((), dtype=torch.int64) << torch.arange(len(links))
    return (
        theirs["token_ids"].tolist() == ours.token_ids[0].tolist()
        and (theirs["positions"] - theirs["positions"][0]).tolist() == ours.depths[0].tolist()
        and (theirs["mask"] * bits).sum(1).tolist() == ours.window_mask[0].tolist()
        and links == ours.parents[0].tolist()
    )


def _rows(extended: Record, end: int) -> list[Row]:
    """Those of accepted tokens. SGLang computes the last logits alone where a prompt is read."""
    positions, logits = extended["positions"].tolist(), extended["logits"]
    none: list[Tensor | None] = [None] * (len(positions) - len(logits))
    every = zip(positions, extended["fed"], [*none, *logits], strict=True)
    return [Row(position, fed, row) for position, fed, row in every if position < end]


def _parents(next_token: list[int], next_sibling: list[int]) -> list[int]:
    """Of each node, from every node's first child and next sibling; -1 is none."""
    parents = [-1] * len(next_token)
    for node, child in enumerate(next_token):
        while child != -1:
            parents[child] = node
            child = next_sibling[child]
    return parents
