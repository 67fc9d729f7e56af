"""speculators' own EAGLE-3 trainer, one step at a time; run by a Python that has speculators (0.9.0), not fledge.

    python benchmarks/training_speed/speculators_loop.py FILE    # FILE and the questions come from speculators_peer.py

Its Python needs a torchvision built for its torch, or none: transformers imports it where it finds it.

Prints "ready VERSION", then for every line "step I" on stdin "SECONDS LOSS" of a step on batch I. A step is the body of
speculators' `Trainer.train_epoch`, unchanged: autocast, forward, backward, clipping, its AdamW and its schedule. The
model is its `Eagle3DraftModel.from_training_args`, the batches are laid out by its `shift_batch` and `CollateFn`.

What its trainer can't do on a CPU, and what stands for it here:

    moves everything to device 0, autocasts for "cuda"      `OnCpu` says "cpu" for both
    flex attention (its default) has no backward on CPUs    its `--draft-attn-impl`: sdpa or eager, with dense masks
    fused losses (its default) are Triton kernels           its `--loss-implementation eager`
    logged steps synchronise an accelerator                 no step is logged (`log_freq`)
    torch.compile only with CUDA                            not compiled

Other than by default is what makes the head a plain EAGLE-3 one, as fledge's: full attention, and `norm_output`,
`norm_before_fc` and `norm_before_residual` off; and the TTT steps, their decay and the learning rate are fledge's.

Equal to the other two: head and its first weights, batches, supervised positions of step 0, teacher, KL, bf16 autocast
of float32 weights, AdamW. Not equal: its lm_head stays frozen, as it always does there (less to compute), and it also
counts proposals outside the draft vocabulary; a later step counts where its own token is generated, ours where all
before it are too; beside the loss it computes accuracies; clipping, weight decay and betas are its own.
"""

from __future__ import annotations

import importlib.metadata
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from speculators.models.eagle3 import Eagle3DraftModel
from speculators.models.eagle3.data import shift_batch
from speculators.train.cli import create_transformer_layer_config
from speculators.train.data import CollateFn
from speculators.train.trainer import Trainer, TrainerConfig

_BLOCK = 128  # positions its masks are made of; its own loader would pad every batch to the largest
_NEVER = 1 << 40
_FROM_VERIFIER = {"embed_tokens.weight", "verifier_norm.weight", "verifier_lm_head.weight", "d2t", "t2d"}


class OnCpu(Trainer):
    """The trainer, told its device."""

    def setup_trainer(self) -> None:
        """The first thing its constructor calls once it has chosen a GPU's number."""
        self.local_rank = self.device_type = "cpu"
        super().setup_trainer()
        self.global_step = 1  # the 0th would be logged


class Asked:
    """What the trainer takes for its data loader: the batches that stdin asks for; tells when each was handed out."""

    batch_sampler = None

    def __init__(self, batches: list[dict]) -> None:
        self._batches = batches
        self.start = 0.0

    def __len__(self) -> int:
        return _NEVER

    def __iter__(self) -> Iterator[dict]:
        for line in sys.stdin:
            batch = self._batches[int(line.split()[1])]
            self.start = time.perf_counter()
            yield dict(batch)


def main() -> None:
    replies, sys.stdout = sys.stdout, sys.stderr  # libraries may print
    path = Path(sys.argv[1])
    given = torch.load(path, weights_only=True)
    settings = given["settings"]
    torch.set_num_threads(settings["threads"])
    model = load_model(settings, given["head"])
    asked = Asked([collate(samples) for samples in given["batches"]])
    train_arguments, _ = Eagle3DraftModel.get_trainer_kwargs(
        loss_fn="kl_div",
        loss_implementation="eager",
        ttt_steps=settings["ttt_steps"],
        ttt_step_loss_decay=settings["step_decay"],
    )
    config = TrainerConfig(
        lr=settings["learning_rate"],
        num_epochs=1,
        save_path=str(path.parent / "checkpoints"),
        train_call_kwargs=train_arguments,
        scheduler_total_steps=1000,
        log_freq=_NEVER,
    )
    trainer = OnCpu(model, config, asked)
    losses: list[torch.Tensor] = []
    model.register_forward_hook(lambda module, inputs, output: losses.append(output[1].detach()))

    def answer() -> None:
        seconds = time.perf_counter() - asked.start
        print(seconds, losses.pop().item(), file=replies, flush=True)

    print("ready", importlib.metadata.version("speculators"), file=replies, flush=True)
    trainer.train_epoch(0, step_callback=answer)


def load_model(settings: dict, head: dict[str, torch.Tensor]) -> Eagle3DraftModel:
    """Its model with float32 weights, those of fledge's head; embedding and teacher from the target's folder."""
    folder = settings["target"]
    config = create_transformer_layer_config(
        folder,
        num_layers=1,
        draft_arch="llama",
        hidden_act=None,
        sliding_window=2048,
        full_attention_indices=[0],
    )
    model = Eagle3DraftModel.from_training_args(
        config,
        t2d=head.pop("t2d"),
        d2t=head.pop("d2t"),
        draft_vocab_size=len(head["lm_head.weight"]),
        norm_before_residual=False,
        norm_before_fc=False,
        norm_output=False,
        ttt_steps=settings["ttt_steps"],
        verifier_name_or_path=folder,
        draft_attn_impl=settings["attention"],
    )
    missing, unknown = model.load_state_dict(head, strict=False)
    if unknown or set(missing) - _FROM_VERIFIER:
        raise SystemExit(f"the heads differ: {unknown} are not in speculators', {missing} not in fledge's")
    return model


def collate(samples: list[dict[str, torch.Tensor]]) -> dict:
    """Conversations packed into one row by its own code, padded no further than to a whole block."""
    for sample in samples:
        n = len(sample["input_ids"])
        sample["lengths"], sample["position_ids"] = torch.tensor([n]), torch.arange(n)
    positions = sum(len(sample["input_ids"]) - 1 for sample in samples)
    rows = -(-positions // _BLOCK) * _BLOCK
    hidden_size = samples[0]["verifier_last_hidden_states"].shape[1]
    return CollateFn(rows, hidden_size, preprocess=shift_batch)(samples)


if __name__ == "__main__":
    main()
