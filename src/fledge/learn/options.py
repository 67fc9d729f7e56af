"""What a server that learns is told."""

from __future__ import annotations

from dataclasses import dataclass, field

from fledge.base.errors import ServerError
from fledge.train.options import TrainOptions

_TRAIN = TrainOptions(ttt_steps=4, batch_tokens=512)


@dataclass(frozen=True, kw_only=True)
class LearnOptions:
    """How a server learns."""

    folder: str  # where the versions are kept
    memory: int | None = None  # bytes of conversations; None: room for 20,480 tokens
    share: float = 0.1  # of the time while requests run that training gets; they wait for it
    privacy: bool = False  # predict no token of what the privacy filter finds
    excluded: tuple[str, ...] = ()  # groups of traffic that nothing is learnt from
    keep: int = 5  # versions
    heldout: float = 0.125  # share of the conversations that candidates are measured on
    heldout_tokens: int = 8192  # at most
    start_tokens: int = 4096  # conversations' tokens before training starts
    measure_every: int = 20  # steps between two measurements
    passes: float = 8.0  # over each conversation, at most; then it waits for more
    least_gain: float = 0.02  # of tau that a swap has to bring for sure
    average: float = (
        0.98  # decay of the averaged weights; learning has no last step, so they are the candidates
    )
    train: TrainOptions = field(default=_TRAIN)

    def __post_init__(self) -> None:
        if self.keep < 2:
            raise ServerError(
                f"keep is {self.keep}; keep at least 2 versions, so that there is one to go back to"
            )
        if self.memory is not None and self.memory < 1 << 20:
            raise ServerError(
                f"memory for learning is {self.memory} bytes; give it at least a MiB, better hundreds"
            )
        if not 0 <= self.share <= 0.9:
            raise ServerError(
                f"the share for learning is {self.share}; give 0 (pauses alone) to 0.9 of the time"
            )
        if not 0 < self.heldout < 1:
            raise ServerError(f"heldout is {self.heldout}; it is a share between 0 and 1")
