"""The features stage on Ray Data: actors hold targets and write shards, this process the manifest, in order.

    conversations  | shard 0 ....... | shard 1 ..... | shard 2 ....... |     cut by tokens, as in a local run
    actor 0, 1, 0      writes            writes          writes              their files, atomically
    this process       adds 0,           then 1,         then 2              to the manifest

A file that isn't in the manifest yet is written again after a crash, with the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from fledge.base.console import plural
from fledge.base.storage import Manifest, ShardEntry
from fledge.data.options import Progress, silent
from fledge.data.ray_map import RayOptions, map_in_order
from fledge.features.extract import (
    FeatureExtractor,
    by_tokens,
    features_fingerprint,
    shard_tokens,
    tokens_of,
    wanted_conversations,
    wanted_sizes,
)
from fledge.features.options import FeatureOptions
from fledge.features.shard import FeatureSample
from fledge.features.store import put_shard
from fledge.target import Target, TargetOptions


class _Part(NamedTuple):
    """The conversations of one shard, by their index among the wanted ones."""

    shard: int
    first: int
    conversations: int


def extract_features_on_ray(
    target: Target,
    spec: TargetOptions,
    conversations_url: str,
    options: FeatureOptions,
    output_url: str,
    ray_options: RayOptions,
    progress: Progress = silent,
) -> Manifest:
    """`extract_features` with one target per actor. The files equal the local stage's, for any number of actors."""
    features_fingerprint(target, conversations_url, options).claim(output_url)
    _, total = wanted_sizes(conversations_url, options)
    manifest = Manifest.load(output_url)
    parts = list(_parts(conversations_url, options, target.config.hidden_size))[len(manifest.shards) :]
    if parts:
        arguments = (spec, conversations_url, options, output_url)
        for entry in map_in_order(parts, _FeatureActor, arguments, ray_options, gpus=ray_options.gpus):
            manifest = manifest.append(entry)
            progress(manifest.tokens, total, plural(ray_options.actors, "actor"))
    return manifest


def _parts(conversations_url: str, options: FeatureOptions, hidden_size: int) -> Iterator[_Part]:
    first = 0
    wanted = wanted_conversations(conversations_url, options)
    for shard, group in enumerate(by_tokens(wanted, shard_tokens(hidden_size, options), tokens_of)):
        yield _Part(shard, first, len(group))
        first += len(group)


class _FeatureActor:
    def __init__(
        self, spec: TargetOptions, conversations_url: str, options: FeatureOptions, output_url: str
    ) -> None:
        self._extractor = FeatureExtractor(spec.load(), options.batch_tokens)
        self._conversations_url, self._options, self._output_url = conversations_url, options, output_url

    def __call__(self, part: _Part) -> ShardEntry:
        wanted = wanted_conversations(self._conversations_url, self._options)
        samples: list[FeatureSample] = []
        part_conversations = islice(wanted, part.first, part.first + part.conversations)
        for group in by_tokens(part_conversations, self._options.batch_tokens, tokens_of):
            samples += self._extractor.extract(group)
        return put_shard(self._output_url, part.shard, samples, self._options.codec)
