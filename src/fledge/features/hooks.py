"""Features of any transformers causal language model, by hooks on its decoder layers.

    token ids -> [ layer 0 ... low ... middle ... high ... layer n-1 ] -> final norm -> lm_head
                               |        |          |                          |
                               '--- features ------'                       hidden

For targets that the lean decoder doesn't support: other mixtures of experts, other kinds of attention; of multimodal
models only the text tower runs. Weights may be spread over devices (`device_map`). Conversations of similar length are
padded on the right and run together; under a causal mask no real token sees the padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fledge.base.errors import TargetError, first_line
from fledge.data import Conversation
from fledge.features.extract import check_runnable, likeliest_next, sample_of
from fledge.features.options import FeatureOptions
from fledge.features.shard import FeatureSample
from fledge.target import Target
from fledge.target.config import default_feature_layers


class HookExtractor:
    """A transformers model as a feature extractor."""

    shards_ahead = 0

    def __init__(
        self, model: Any, batch_tokens: int = 4096, feature_layers: tuple[int, int, int] | None = None
    ) -> None:
        """`model` is a `...ForCausalLM` or `...ForConditionalGeneration`, loaded and in eval mode.

        `feature_layers` are counted by output; None: the default layers.
        """
        self._tower = text_tower(model)
        self._layers: nn.ModuleList = self._tower.layers
        self._lm_head = model.get_output_embeddings()
        if self._lm_head is None:
            raise TargetError(
                f"{type(model).__name__} has no output embeddings: load it as a causal language model, with "
                "AutoModelForCausalLM or AutoModelForImageTextToText"
            )
        self._batch_tokens = batch_tokens
        text = model.config.get_text_config()
        self._limit = int(getattr(text, "max_position_embeddings", 0) or 2**31)
        self.hidden_size, self._vocab_size = int(text.hidden_size), int(text.vocab_size)
        self.feature_layers = feature_layers or default_feature_layers(len(self._layers))
        model.eval()
        if getattr(model.config, "quantization_config", None) is not None:
            # compressed-tensors unpacks the weights on the first run of the complete model; later only the tower runs.
            with torch.no_grad():
                model(input_ids=torch.zeros(1, 1, dtype=torch.int64, device=model.device))

    @classmethod
    def load(
        cls,
        spec: str,
        *,
        dtype: str = "bfloat16",
        device_map: str | dict[str, Any] = "cpu",
        batch_tokens: int = 4096,
        feature_layers: tuple[int, int, int] | None = None,
    ) -> HookExtractor:
        """A local folder or hub id; `device_map` as in transformers ("auto" spreads a large one over all devices)."""
        from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

        try:
            config = AutoConfig.from_pretrained(spec, trust_remote_code=False)
            multimodal = any("ConditionalGeneration" in name for name in config.architectures or [])
            kind = AutoModelForImageTextToText if multimodal else AutoModelForCausalLM
            model, loading = kind.from_pretrained(
                spec,
                dtype=getattr(torch, dtype),
                device_map=device_map,
                output_loading_info=True,
                trust_remote_code=False,
            )
        # Of any type, depending on the model, missing packages or the device.
        except Exception as error:
            raise TargetError(
                f"transformers can't load {spec}: {first_line(error)}; install what it requires, or check the name or "
                "the folder"
            ) from error
        # It initialises missing weights randomly, and loads unknown quantised ones as they are.
        odd = [*loading["missing_keys"], *(name for name in loading["unexpected_keys"] if "scale" in name)]
        if odd:
            raise TargetError(
                f"transformers doesn't load {spec} as it was saved ({min(odd)} is missing, or it can't use it): "
                "download the model again, or use another format of it"
            )
        return cls(model, batch_tokens, feature_layers)

    @classmethod
    def for_target(cls, target: Target, options: FeatureOptions) -> HookExtractor:
        """The target run by transformers, on devices according to `options.device_map`.

        Raises a TargetError for a GGUF file: transformers drops what it doesn't know of one, such as scaled RoPE.
        """
        return cls.load(
            str(target.checkpoint),
            dtype=str(target.dtype).removeprefix("torch."),
            device_map=options.device_map or "cpu",
            batch_tokens=options.batch_tokens,
            feature_layers=target.config.chosen_layers,
        )

    @torch.no_grad()
    def extract(self, conversations: list[Conversation]) -> list[FeatureSample]:
        """The conversations' samples, in order."""
        check_runnable(conversations, self._limit, self._vocab_size)
        order = sorted(range(len(conversations)), key=lambda i: len(conversations[i].token_ids))
        samples: dict[int, FeatureSample] = {}
        for group in self._groups(conversations, order):
            samples |= dict(zip(group, self._run([conversations[i] for i in group]), strict=True))
        return [samples[i] for i in range(len(conversations))]

    def _groups(self, conversations: Sequence[Conversation], order: list[int]) -> Iterator[list[int]]:
        """Groups of similar length, at most `batch_tokens` including padding."""
        group: list[int] = []
        for i in order:
            if group and (len(group) + 1) * len(conversations[i].token_ids) > self._batch_tokens:
                yield group
                group = []
            group.append(i)
        if group:
            yield group

    def _run(self, conversations: list[Conversation]) -> list[FeatureSample]:
        """Samples from one forward."""
        device = next(self._tower.parameters()).device
        lengths = [len(c.token_ids) for c in conversations]
        ids = torch.zeros(len(conversations), max(lengths), dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, c in enumerate(conversations):
            ids[row, : lengths[row]] = torch.tensor(c.token_ids)
            mask[row, : lengths[row]] = 1
        with self._captured() as features:
            out = self._tower(input_ids=ids.to(device), attention_mask=mask.to(device), use_cache=False)
        hidden: Tensor = out.last_hidden_state
        low_middle_high = torch.cat([features[layer] for layer in self.feature_layers], dim=-1)
        weight = next(self._lm_head.parameters())

        def logits(rows: Tensor) -> Tensor:
            projected: Tensor = self._lm_head(rows.to(weight.device, weight.dtype))
            return projected

        return [
            sample_of(c, likeliest_next(torch.tensor(c.loss_mask), last[:n], logits), states[:n], last[:n])
            for c, n, states, last in zip(conversations, lengths, low_middle_high, hidden, strict=True)
        ]

    @contextmanager
    def _captured(self) -> Iterator[dict[int, Tensor]]:
        """The outputs of the three layers during a forward, [b, n, Ht] on the CPU, by layer."""
        outputs: dict[int, Tensor] = {}

        def keep(layer: int, output: Any) -> None:
            outputs[layer] = (output[0] if isinstance(output, tuple) else output).detach().cpu()

        handles = [
            self._layers[layer].register_forward_hook(lambda module, args, out, layer=layer: keep(layer, out))
            for layer in self.feature_layers
        ]
        try:
            yield outputs
        finally:
            for handle in handles:
                handle.remove()


def text_tower(model: Any) -> Any:
    """The module of a transformers model that contains the decoder layers and ends with the final norm."""
    module = model
    for _ in range(4):
        if isinstance(getattr(module, "layers", None), nn.ModuleList):
            return module
        inner = module.get_decoder() if hasattr(module, "get_decoder") else None
        if inner is None or inner is module:
            inner = getattr(module, "model", None)
        if inner is None:
            break
        module = inner
    raise TargetError(
        f"{type(model).__name__} has no list of decoder layers that could be found; only decoder-only models of "
        "transformers work, such as ...ForCausalLM"
    )
