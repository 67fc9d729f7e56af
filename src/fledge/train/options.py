"""Training and evaluation options of a recipe. The field descriptions are the documentation."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, create_model, field_validator, model_validator

from fledge.base.errors import EngineError, RecipeError
from fledge.base.options import RecipePart
from fledge.base.plugs import imported
from fledge.draft.description import SWITCHES
from fledge.draft.options import HeadOptions

if TYPE_CHECKING:
    from fledge.train.loss import LossFunction

_KL = "kl"
_VOCABULARY = 8192  # tokens that a head can propose, where nothing else is said


_FIELDS: dict[str, Any] = {
    name: (bool, Field(False, description=switch.says))
    for name, switch in SWITCHES.items()
    if switch.trainable
}
_HeadSwitches = create_model("_HeadSwitches", __base__=RecipePart, **_FIELDS)


class TrainOptions(_HeadSwitches):
    """Training of the draft head."""

    init_head: str | None = Field(
        None, description="folder of a head to continue training; null: a new head (see init)"
    )
    init: Literal["target", "lm_head", "random"] = Field(
        "lm_head",
        description="initial weights of a new head: target (the target's last layer, norm and lm_head), lm_head (its "
        "norm and lm_head), or random (nothing of the target)",
    )
    response_tokens: int | None = Field(
        None, ge=1, description="response tokens to train on at most, a random choice of them; null: all"
    )
    draft_vocab_size: int | None = Field(
        None,
        ge=1,
        description="tokens the head can propose, most frequent first; null: 8,192, or those of init_head",
    )
    window: int | None = Field(
        None,
        ge=0,
        description="sliding window: the last tokens of the context that the head attends to, besides the first four "
        "and what it has drafted; 0: all. null: all, or the window of init_head. Only fledge serves such heads",
    )
    window_keeps_first: bool = Field(
        True,
        description="false: with a window the first four tokens are out of sight, too, as in EAGLE-4's engines",
    )
    head: HeadOptions = Field(HeadOptions(), description="sizes of a new head's layer")
    candidates: int | None = Field(
        None,
        ge=0,
        description="tokens that a draft step scores exactly, the likeliest by low-rank estimates of all scores; 0: "
        "all; null: as init_head, or all",
    )
    candidate_rank: int | None = Field(
        None,
        ge=32,
        multiple_of=32,
        description="rank of these estimates; null: as init_head, or a quarter of the hidden size",
    )
    candidate_steps: int = Field(
        0,
        ge=0,
        description="steps that train these estimates when the head is finished; 0: their closed form alone",
    )
    ttt_steps: int = Field(
        5, ge=1, le=16, description="unrolled steps in which the head feeds on its own output"
    )
    loss: str = Field(
        _KL,
        description="kl, the target's whole distribution; or a function of your own, as module:name",
    )
    step_decay: float = Field(0.8, gt=0.0, le=1.0, description="weight of a step relative to the one before")
    epochs: float = Field(3.0, gt=0.0, description="passes over the training conversations")
    minutes: float | None = Field(
        None,
        gt=0.0,
        description="time budget: fewer passes than `epochs` where they would take longer on this machine; null: none",
    )
    batch_tokens: int = Field(2048, ge=16, description="tokens of a batch, prompts included")
    optimizer: Literal["muon", "adamw"] = Field(
        "muon", description="optimizer of the layer's matrices; lm_head and norms always use AdamW"
    )
    learning_rate: float = Field(1e-3, gt=0.0, description="peak of AdamW's schedule")
    muon_learning_rate: float = Field(0.01, gt=0.0, description="peak of Muon's schedule")
    lm_head_rate: float = Field(
        1.0, ge=0.0, description="learning rate of lm_head relative to the others'; 0: it stays the target's"
    )
    final_learning_rate: float = Field(0.05, ge=0.0, le=1.0, description="last rate, relative to the peak")
    warmup: float = Field(0.01, ge=0.0, lt=1.0, description="share of the steps in which the rate rises")
    weight_decay: float = Field(0.0, ge=0.0, description="of matrices, as in AdamW")
    beta1: float = Field(0.9, ge=0.0, lt=1.0, description="AdamW's first moment")
    beta2: float = Field(0.95, ge=0.0, lt=1.0, description="AdamW's second moment")
    clip: float = Field(0.5, gt=0.0, description="largest gradient norm")
    keep: Literal["last", "best"] = Field(
        "last",
        description="weights that become the head: the last ones, or those with the best held-out tau of all "
        "measurements (see evaluate_every)",
    )
    seed: int = Field(0, ge=0, lt=2**32, description="seed of the order of conversations")
    parallel: Literal["ddp", "fsdp"] = Field(
        "ddp",
        description="under torchrun: ddp keeps everything in each process, fsdp splits masters and optimiser state",
    )
    dtype: str = Field(
        "bfloat16",
        pattern="^(bfloat16|float32)$",
        description="type of products and activations; float32 on a CPU for which PyTorch has no fast bf16 (x86 "
        "without AVX-512)",
    )
    evaluate_every: int = Field(50, ge=1, description="steps between two measurements of tau")
    evaluate_tokens: int = Field(16384, ge=1, description="held-out tokens of such a measurement")
    log_every: int = Field(10, ge=1, description="steps between two lines of metrics.jsonl")
    wandb_project: str | None = Field(
        None, description="also log to this Weights & Biases project (needs the extra wandb); null: don't"
    )
    checkpoint_seconds: float | None = Field(
        None,
        gt=0.0,
        description="time between checkpoints, the most a kill loses; null: a minute, or ten if one takes over 2 GB",
    )

    @field_validator("loss")
    @classmethod
    def _kl_or_a_function(cls, loss: str) -> str:
        if loss != _KL and not re.fullmatch(r"[\w.]+:\w+", loss):
            raise ValueError(f"{loss!r} is neither kl nor a function; write a function as module:name")
        return loss

    @model_validator(mode="after")
    def _first_of_a_window(self) -> Self:
        if not self.window_keeps_first and not self.window:
            raise ValueError("window_keeps_first=false is of a window: set window, too, or leave it out")
        return self

    @property
    def new_vocab_size(self) -> int:
        """Tokens that a new head can propose."""
        return self.draft_vocab_size or _VOCABULARY

    @property
    def switches(self) -> tuple[str, ...]:
        """The switches of a new head that are on."""
        return tuple(name for name in _HeadSwitches.model_fields if getattr(self, name))

    @property
    def step_weights(self) -> list[float]:
        """The weight of each TTT step in the loss; they sum to 1."""
        weights = [self.step_decay**step for step in range(self.ttt_steps)]
        return [weight / sum(weights) for weight in weights]

    @property
    def own_loss(self) -> LossFunction | None:
        """The function named, or None for kl. Raises a RecipeError if it can't be imported."""
        if self.loss == _KL:
            return None
        function: LossFunction = imported(self.loss)
        if not callable(function):
            raise RecipeError(f"train.loss={self.loss} is not a function")
        return function


class EvaluateOptions(RecipePart):
    """Acceptance of the finished head on the held-out conversations, from the stored features."""

    depth: int = Field(6, ge=1, le=16, description="tokens drafted in a row")
    shapes: tuple[tuple[int, int, int], ...] = Field(
        ((4, 1, 5), (4, 4, 16)),
        description="draft trees whose tau in serving is predicted: (depth, topk, nodes); topk 1 is a chain",
    )
    shape_tokens: int = Field(
        20_000, ge=0, description="held-out tokens of greedy answers used for each of them at most; 0: none"
    )
    max_tokens: int = Field(200_000, ge=1, description="held-out tokens used at most")
    batch_tokens: int = Field(8192, ge=16, description="tokens of a batch")

    @field_validator("shapes")
    @classmethod
    def _trees(cls, shapes: tuple[tuple[int, int, int], ...]) -> tuple[tuple[int, int, int], ...]:
        from fledge.engine import TreeShape

        for shape in shapes:
            try:
                TreeShape(*shape)
            except EngineError as error:
                raise ValueError(str(error)) from error
        return shapes
