"""The features stage on Ray Data: each actor holds a target and makes whole shards; this process writes them in order.

A shard's conversations and how they are packed don't depend on where it is made, so the store is that of a local run
on the same kind of machine, and a killed run goes on.
"""

from __future__ import annotations

import pickle
from itertools import islice
from typing import Any

from fledge.data import Conversation, Progress
from fledge.data.options import silent
from fledge.data.ray_map import RayOptions, map_in_order
from fledge.data.ray_respond import TargetSpec
from fledge.features.extract import (
    FeatureExtractor,
    FeatureSummary,
    extracted,
    features_fingerprint,
    waiting_shards,
)
from fledge.features.options import FeatureOptions
from fledge.features.store import write_shard
from fledge.storage import Manifest
from fledge.target import Target

_SHARDS_PER_ACTOR = (
    2  # in one execution: their conversations are in this process' memory, their features may be
)


def extract_features_on_ray(
    target: Target,
    spec: TargetSpec,
    conversations_url: str,
    options: FeatureOptions,
    output_url: str,
    ray_options: RayOptions,
    progress: Progress = silent,
) -> FeatureSummary:
    """`extract_features` with a target per actor."""
    features_fingerprint(target, conversations_url, options).claim(output_url)
    total = Manifest.load(conversations_url).tokens
    manifest = Manifest.load(output_url)
    shards = waiting_shards(target.config.hidden_size, conversations_url, options, manifest.records)
    progress(manifest.tokens, total, "")
    while window := list(islice(shards, _SHARDS_PER_ACTOR * ray_options.actors)):
        for samples in map_in_order(window, _FeatureActor, (spec, options), ray_options):
            manifest = write_shard(manifest, samples, options.codec)
            progress(manifest.tokens, total, f"{ray_options.actors} actors")
    return FeatureSummary(manifest.records, manifest.tokens, manifest.size, len(manifest.shards))


class _FeatureActor:
    def __init__(self, spec: TargetSpec, options: FeatureOptions) -> None:
        target = Target.load(spec.model, dtype=spec.dtype, device=spec.device, backend=spec.backend)  # type: ignore[arg-type]
        self._extractor, self._options = FeatureExtractor(target, options.batch_tokens), options

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        shard: list[Conversation] = pickle.loads(batch["item"][0])
        samples = [s for part in extracted(self._extractor, shard, self._options) for s in part]
        return {"result": [pickle.dumps(samples)]}
