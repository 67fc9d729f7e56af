"""Definitions shared by Python and C++: the structures that calls pass, field by field, and the kernels' limits.

`check` compares them with the compiled ones (abi.cpp) when the library is loaded: a structure of another size would
corrupt memory in silence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ctypes import CDLL, POINTER, Structure, c_char_p, c_double, c_float, c_int, c_int64, c_void_p, sizeof

PAGE_SIZE = 32  # KV entries
# Of a tree, its root included: a row's window mask is one 64-bit integer. So a window has no more entries, and a node
# no more children.
MOST_NODES = 64
MOST_THREADS = 64
PANEL = 32  # outputs of a packed weight that lie together; each of its parts but the last has whole ones
MOST_PARTS = 4  # of a packed weight
AHEAD = 2  # a head's row at position p proposes x[p + 2]
MOST_HEAD_VECTORS = 16
MOST_CANDIDATES = 256  # of a row of a head
LOOKUP_SOURCE = 1  # who proposed a token: prompt lookup; see drafters/proposal.py
HEAD_TEMPERATURE_PERCENT = 90  # of the target's temperature; see draft/race.py


class Shape(Structure):
    """Sizes of a layer, and its activation: GELU or SiLU. layer.h."""

    _fields_ = [
        *((n, c_int) for n in ("hidden", "intermediate", "heads", "kv_heads", "head_dim")),
        ("eps", c_float),
        ("gelu", c_int),
    ]


class Layer(Structure):
    """One layer's float32 vectors, packed matrices and rotary tables. layer.h."""

    _fields_ = [
        *((n, c_void_p) for n in ("input_norm", "post_norm", "qkv_bias", "q_norm", "k_norm")),
        *((n, c_void_p) for n in ("attention_out_norm", "mlp_out_norm")),
        *((n, c_void_p) for n in ("qkv", "o", "gate_up", "down", "cos", "sin")),
        ("windowed", c_int),
    ]


class Batch(Structure):
    """The rows of a forward; a null mask: causal. attention_plan.h."""

    _fields_ = [
        *((n, c_int) for n in ("rows", "requests", "max_pages")),
        *((n, c_void_p) for n in ("token_ids", "positions", "row_start", "prefix_length", "window_offset")),
        *((n, c_void_p) for n in ("page_table", "window_mask")),
    ]


class Decoder(Structure):
    """A whole target. models.h."""

    _fields_ = [
        ("shape", Shape),
        ("layers", c_int),
        ("vocabulary", c_int),
        ("feature_layers", c_int * 3),
        ("layer", POINTER(Layer)),
        ("embedding", c_void_p),
        ("embedding_scale", c_float),
        ("window", c_int),
        *((n, c_void_p) for n in ("norm", "lm_head", "screen")),
    ]


class Screen(Structure):
    """The 8-bit copy of an lm_head and the bounds of its error. screen.h."""

    _fields_ = [("weights", c_void_p), ("bounds", c_void_p)]


class DecoderOutputs(Structure):
    """Where a decoder forward writes; null: not wanted. models.h."""

    _fields_ = [
        ("logit_rows", c_void_p),
        ("count", c_int64),
        *((n, c_void_p) for n in ("logits", "chosen", "features", "hidden", "filters", "coins", "allowed")),
    ]


class DraftHead(Structure):
    """A draft head. models.h."""

    _fields_ = [
        ("shape", Shape),
        *((n, c_int) for n in ("target_hidden", "draft_vocabulary", "switches", "window", "sinks")),
        ("layer", Layer),
        *((n, c_void_p) for n in ("embedding", "fc", "lm_head", "target_ids")),
        ("vectors", c_void_p * MOST_HEAD_VECTORS),
        ("candidates", c_int),
        *((n, c_void_p) for n in ("candidate_down", "candidate_up", "lm_head_rows")),
    ]


class HeadOutputs(Structure):
    """Inputs of a head forward besides the batch, and its outputs. models.h."""

    _fields_ = [
        ("logit_rows", c_void_p),
        *((n, c_int64) for n in ("count", "k")),
        *((n, c_void_p) for n in ("features", "inputs", "token_ids", "log_probs", "hidden")),
        *((n, c_void_p) for n in ("filters", "coins", "feature_rows")),
    ]


class RoundModels(Structure):
    """The models of a round and their KV; null: no head. round.h."""

    _fields_ = [
        *((n, c_void_p) for n in ("target", "head", "head_kv", "kv")),
        *((n, c_int64) for n in ("pages", "last_position")),
        *((n, c_int) for n in ("layers", "kv_heads", "head_dim")),
    ]


class CarriedState(Structure):
    """State that B requests carry from round to round; see the engine's `Carried`. round.h."""

    _fields_ = [
        *((n, c_int64) for n in ("requests", "pages", "topk", "history_size")),
        *((n, c_void_p) for n in ("length", "bonus", "page_table", "head_start", "head_pages")),
        *((n, c_void_p) for n in ("first_token_ids", "first_log_probs", "hidden", "history")),
    ]


class Drawing(Structure):
    """Draw parameters of B requests; see `selection.Drawing`. round.h."""

    _fields_ = [("filters", c_void_p), ("keys", c_void_p)]


class DraftTerms(Structure):
    """Limits of a draft; see the planner's `Terms`. round.h."""

    _fields_ = [
        *((n, c_int64) for n in ("depth", "topk", "nodes", "lookup", "longest")),
        ("log_rates", c_void_p),
        ("speculates", c_void_p),
        ("calibration", POINTER(c_double)),
        ("next", POINTER(c_double)),
        ("measured", POINTER(c_int64)),
        ("costs", POINTER(c_double)),
        ("step", c_double),
        ("points", c_int64),
    ]


class DraftOffsets(Structure):
    """Where each array of `Drafts` lies in its room, in bytes. round.h."""

    _fields_ = [
        *((n, c_int64) for n in ("proposed", "sources", "matched", "counts", "rates", "scores")),
        *((n, c_int64) for n in ("token_ids", "parents", "depths", "masks", "node_sources", "log_probs")),
        *((n, c_int64) for n in ("picked", "row_masks", "first", "row_start", "tokens", "positions")),
    ]


class Drafts(Structure):
    """Where a call writes its trees. round.h."""

    _fields_ = [
        ("room", c_void_p),
        ("at", DraftOffsets),
        *((n, c_int64) for n in ("levels", "nodes", "rows")),
    ]


class Recent(Structure):
    """Where B requests keep what a head that falls behind will need; null: nowhere. round.h."""

    _fields_ = [("tokens", c_void_p), ("features", c_void_p), ("kept", c_int64)]


class Hooks(Structure):
    """Python callbacks of a round; null: none. round.h."""

    _fields_ = [(n, c_void_p) for n in ("allow", "verify")]


class Accepted(Structure):
    """Where a call writes what a round accepted. round.h."""

    _fields_ = [
        *((n, c_void_p) for n in ("emitted", "path")),
        ("width", c_int64),
        *((n, c_double) for n in ("draft", "verify", "accept")),
        ("states", c_void_p),
    ]


STRUCTURES = (
    *(Shape, Layer, Batch, Decoder, Screen, DecoderOutputs, DraftHead, HeadOutputs),
    *(RoundModels, CarriedState, Drawing, DraftTerms, DraftOffsets, Drafts, Recent, Hooks, Accepted),
)
LIMITS = {
    "PAGE_SIZE": PAGE_SIZE,
    "MOST_NODES": MOST_NODES,
    "MOST_THREADS": MOST_THREADS,
    "PANEL": PANEL,
    "MOST_PARTS": MOST_PARTS,
    "AHEAD": AHEAD,
    "MOST_HEAD_VECTORS": MOST_HEAD_VECTORS,
    "MOST_CANDIDATES": MOST_CANDIDATES,
    "LOOKUP_SOURCE": LOOKUP_SOURCE,
    "HEAD_TEMPERATURE_PERCENT": HEAD_TEMPERATURE_PERCENT,
}


class _Mirrored(Structure):
    """A number that C++ knows, too, by its name."""

    _fields_ = [("name", c_char_p), ("value", c_int64)]


def check(loaded: CDLL, structures: Sequence[type[Structure]], limits: Mapping[str, int]) -> None:
    """Raise RuntimeError if a structure has another size, or a limit another value, than in the loaded library."""
    here = {f"sizeof({s.__name__})": sizeof(s) for s in structures} | dict(limits)
    loaded.fledge_mirrored.restype = POINTER(_Mirrored)
    table, there, n = loaded.fledge_mirrored(), dict[str, int](), 0
    while table[n].name is not None:
        there[table[n].name.decode()] = table[n].value
        n += 1
    for name in here | there:
        if here.get(name) != there.get(name):
            raise RuntimeError(
                f"{name} is {here.get(name)} in Python and {there.get(name)} in the compiled kernels; "
                "give both the same definition"
            )
