"""Where a head runs: on the CPU kernels or in torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from fledge.base.errors import HeadError
from fledge.base.options import DraftWeights
from fledge.draft.cpu import NativeHeadRunner, native_head_reason
from fledge.draft.runner import HeadRunner, TorchHeadRunner
from fledge.heads.head import Head
from fledge.target.cpu import NativeDecoder

if TYPE_CHECKING:
    from fledge.target.target import Target


def head_runner(
    target: Target,
    head: Head,
    backend: Literal["auto", "native", "torch"] = "auto",
    draft_weights: DraftWeights | None = None,
) -> HeadRunner:
    """The runner that fits the target's decoder; a head made for another target is an error.

    draft_weights: default int8 on the native CPU kernels. Plain torch uses the target's dtype and has no int8 or int4.
    """
    if draft_weights not in (None, *get_args(DraftWeights)):
        raise HeadError(
            f"draft_weights is {draft_weights!r}; choose one of {', '.join(get_args(DraftWeights))}"
        )
    head = head.running_with(target)
    reason = "the target decodes with torch"
    if backend == "native" or (backend == "auto" and target.decoder.backend == "native"):
        reason = native_head_reason(head.config)
        if not reason:
            decoder, form = target.decoder, draft_weights or "int8"
            shared = decoder.embedding if isinstance(decoder, NativeDecoder) else target.ends.embedding
            own = head.weights.embedding
            return NativeHeadRunner(
                head.config, head.weights, shared if own is None else own, draft_weights=form
            )
    if backend == "native":
        raise HeadError(f"the native CPU kernels can't run this head: {reason}. Use backend='torch'")
    if draft_weights not in (None, str(target.dtype).removeprefix("torch.")):
        raise HeadError(
            f"draft_weights={draft_weights!r} needs the native CPU kernels ({reason}); in torch a head computes in the "
            f"target's {str(target.dtype).removeprefix('torch.')}: leave draft_weights out"
        )
    own = head.weights.embedding
    embedding = (target.ends.embedding if own is None else own).to(target.device, target.dtype)
    return TorchHeadRunner(head.config, head.weights, embedding, page_size=target.decoder.page_size)
