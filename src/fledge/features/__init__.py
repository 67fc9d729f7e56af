"""The target's hidden states over the conversations, kept in a sharded store."""

from fledge.features.extract import (
    FeatureExtractor,
    FeatureSummary,
    bytes_per_token,
    extract_features,
    features_fingerprint,
)
from fledge.features.options import FeatureOptions
from fledge.features.store import FeatureSample, FeatureStore, SampleInfo, write_shard

__all__ = [
    "FeatureExtractor",
    "FeatureOptions",
    "FeatureSample",
    "FeatureStore",
    "FeatureSummary",
    "SampleInfo",
    "bytes_per_token",
    "extract_features",
    "features_fingerprint",
    "write_shard",
]
