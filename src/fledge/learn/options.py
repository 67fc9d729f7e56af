"""Options of a server that learns."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fledge.base.errors import ServerError
from fledge.base.options import Flag, Options, Switch, Whole
from fledge.train.options import TrainOptions

_TRAIN = TrainOptions(ttt_steps=4, batch_tokens=512)


class LearnOptions(Options):
    """Options of learning while serving."""

    error = ServerError

    folder: str = Field("learned", description="where learnt heads are kept, and the last one is found again")
    memory_mb: float | None = Field(
        None, ge=1, description="memory for answers to learn from, in MB; by default room for 20,480 tokens"
    )
    share: float = Field(
        0.1,
        ge=0,
        le=0.9,
        description="share of the time that training gets while requests run, and that they take longer; 0: pauses "
        "alone",
    )
    privacy: Switch = Field(False, description="learn none of the tokens that the privacy filter finds")
    excluded: Annotated[tuple[str, ...], Flag(names=("--learn-except",), metavar="CLIENT")] = Field(
        (),
        description="client nothing is learnt from, as the log names it: key-..., or an address; repeatable",
    )
    keep: Annotated[Whole, Flag(hidden=True)] = Field(5, ge=2, description="versions that are kept")
    heldout: Annotated[float, Flag(hidden=True)] = Field(
        0.125, gt=0, lt=1, description="share of the conversations that candidates are measured on"
    )
    heldout_tokens: Annotated[Whole, Flag(hidden=True)] = Field(
        8192, ge=1, description="tokens that candidates are measured on, at most"
    )
    start_tokens: Annotated[Whole, Flag(hidden=True)] = Field(
        4096, ge=1, description="tokens of conversations before training starts"
    )
    measure_every: Annotated[Whole, Flag(hidden=True)] = Field(
        20, ge=1, description="steps between two measurements"
    )
    passes: Annotated[float, Flag(hidden=True)] = Field(
        8.0, gt=0, description="passes over each conversation at most, after which training waits for more"
    )
    least_gain: Annotated[float, Flag(hidden=True)] = Field(
        0.02, description="gain in tau that is certain enough before a candidate serves"
    )
    average: Annotated[float, Flag(hidden=True)] = Field(
        0.98,
        ge=0,
        lt=1,
        description="decay of the averaged weights that are the candidates, since learning has no last step",
    )
    train: Annotated[TrainOptions, Flag(hidden=True)] = Field(_TRAIN, description="training's own options")

    @property
    def memory(self) -> int:
        """Bytes of conversations; 0 while it isn't known, which depends on the target."""
        return int((self.memory_mb or 0) * 2**20)
