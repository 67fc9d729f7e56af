"""A draft head: its weights and config, initialisation from a target, checks against a target, and its files."""

from __future__ import annotations

import math
import posixpath
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from fledge.base.errors import HeadError
from fledge.draft.description import SINKS, HeadConfig, HeadWeights, check_weights, initial_vectors
from fledge.draft.provenance import HeadMetadata
from fledge.draft.vocabulary import DraftVocabulary
from fledge.heads.checkpoint import read_parts, write_checksums, write_head
from fledge.heads.fit import TargetShape, origin_misfits, shape_misfits
from fledge.target.batch import one_sequence
from fledge.target.config import are_three_layers

if TYPE_CHECKING:
    from fledge.target.target import Target


_VALUE_STD = 0.7  # of the values computed from a normed embedding
_SENTENCE = (
    "The quick brown fox jumps over the lazy dog, and then it asks itself why it should ever have done that."
)


class Head:
    """A draft head for one target."""

    def __init__(
        self,
        config: HeadConfig,
        weights: HeadWeights,
        metadata: HeadMetadata | None = None,
        *,
        name: str = "",
    ) -> None:
        """`name`: what people call it, of a head that was loaded its folder's."""
        self.config, self.name = config, name
        self.weights = weights
        self.metadata = metadata or HeadMetadata()
        check_weights(config, weights)

    @property
    def vocabulary(self) -> DraftVocabulary:
        """The tokens this head can propose."""
        return DraftVocabulary.from_offsets(self.weights.d2t, self.config.vocab_size)

    @classmethod
    def load(cls, url: str) -> Head:
        """Read a head from a folder or hub id, in any known checkpoint form."""
        return cls(*read_parts(str(url)), name=posixpath.basename(str(url).rstrip("/")))

    def save(self, url: str) -> None:
        """Write config.json and model.safetensors (bf16) in the form SGLang and vLLM load, and their checksums."""
        write_head(self, str(url))
        write_checksums(str(url))

    @classmethod
    def from_target(
        cls,
        target: Target,
        vocabulary: DraftVocabulary,
        *,
        switches: Collection[str] = (),
    ) -> Head:
        """A head initialised from the end of the target: its last layer, final norm and lm_head rows.

        fc passes the high feature on, scaled so that the residual stream has RMS 1, and the layer's outputs are scaled
        alike. The norms keep the function the same, and training needn't grow weights to matter beside the massive
        values of a deep residual stream. The embedding half of the attention's input starts in the values only, small
        and random, under a flat norm with the hidden half's magnitude; the target's own first norm nearly mutes it.
        """
        config = HeadConfig.for_target(target.config, len(vocabulary), switches=switches)
        source = target.weights
        last, size = source.layers[-1], config.hidden_size
        gate_up, down = last.dense_mlp
        config = replace(config, intermediate_size=down.shape[1])  # that of a dense layer between experts
        scale = 1.0 if config.fc_norm else 1.0 / _high_feature_rms(target)
        fc = torch.zeros(size, 3 * config.target_hidden_size)
        fc[:, 2 * config.target_hidden_size :] = torch.eye(size) * scale
        from_embedding = torch.zeros(last.qkv.shape)
        values = from_embedding[-config.num_kv_heads * config.head_dim :]
        values.normal_(std=_VALUE_STD / math.sqrt(size), generator=torch.Generator().manual_seed(0))
        copied = {
            "fc": fc,
            "hidden_norm": last.input_norm,
            "input_norm": torch.full_like(last.input_norm, float(last.input_norm.float().abs().mean())),
            "qkv": torch.cat((from_embedding, last.qkv.float().cpu()), dim=1),
            "o": last.o.float() * scale,
            "post_norm": last.post_norm,
            "gate_up": gate_up,
            "down": down.float() * scale,
            "norm": source.norm,
            "lm_head": source.lm_head[vocabulary.token_ids.to(source.lm_head.device)],
        }
        weights = HeadWeights(**initial_vectors(config) | copied, d2t=vocabulary.d2t)
        owned = {name: t.detach().float().cpu().clone() for name, t in weights.trainable().items()}
        return cls(config, replace(weights, **owned), HeadMetadata.of(target))

    def scoring_all(self) -> Head:
        """This head without low-rank estimates: it scores all tokens exactly, as in training and in other engines."""
        config = replace(self.config, candidates=0, candidate_rank=0)
        weights = replace(self.weights, candidate_up=None, candidate_down=None)
        return Head(config, weights, self.metadata, name=self.name)

    def with_window(self, window: int | None, *, keeps_first: bool = True) -> Head:
        """This head with another sliding window; 0: with none, None: with its own.

        `keeps_first`: it sees the first four tokens besides.
        """
        if window is None:
            return self
        config = replace(self.config, window=window, sinks=SINKS if window and keeps_first else 0)
        return Head(config, self.weights, self.metadata, name=self.name)

    def fitted_to(self, target: Target) -> Head:
        """This head with the target's number of positions: EAGLE's configs say 2,048 for any target.

        Raises a HeadError like `check_target`.
        """
        self.check_target(target)
        return self._reaching(max(self.config.max_position_embeddings, target.config.own_positions))

    def running_with(self, target: Target) -> Head:
        """`fitted_to`, but limited to the decoder's positions: tables for all positions can take gigabytes."""
        return self.fitted_to(target)._reaching(target.config.max_position_embeddings)

    def _reaching(self, positions: int) -> Head:
        return Head(
            replace(self.config, max_position_embeddings=positions),
            self.weights,
            self.metadata,
            name=self.name,
        )

    def target_it_reads(self, target: Target) -> Target:
        """The target with features of the layers this head names, if any and if the target has them."""
        layers = self.metadata.feature_layers
        if not are_three_layers(layers, target.config.num_layers):
            return target  # if they are another target's, check_target raises
        return target.with_feature_layers(layers)

    def check_target(self, target: Target) -> None:
        """Raise a HeadError unless this head fits `target`; other weights of the same model do (`heads/fit.py`)."""
        self.check_shape(target.config)
        _refuse(origin_misfits(self.metadata, target))

    def check_shape(self, shape: TargetShape) -> None:
        """Raise a HeadError unless this head fits a target of these sizes, as far as sizes tell."""
        own = self.weights.embedding is not None
        _refuse(shape_misfits(self.config, shape, own_embedding=own))


def _refuse(misfits: list[str]) -> None:
    if misfits:
        raise HeadError(
            f"this head was made for another target: it has {'; '.join(misfits)}. Use the head's own target, or train "
            "a head for this one with `fledge run`"
        )


def _high_feature_rms(target: Target) -> float:
    """The median RMS of the high feature over a sentence, without the first tokens (often attention sinks)."""
    decoder = target.decoder
    ids = target.tokenizer.encode(_SENTENCE, add_special_tokens=False)
    batch = one_sequence(ids, decoder.page_size, decoder.device)
    kv = decoder.allocate_kv(batch.page_table.numel())
    features = decoder.forward(batch, kv, logits="none", features=True).features
    if features is None:
        raise HeadError("the decoder returned no features; use a decoder of fledge.target")
    high = features[len(ids) // 4 :, -target.config.hidden_size :].float()
    return max(float(high.pow(2).mean(dim=-1).sqrt().median()), 1e-6)
