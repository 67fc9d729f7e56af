"""The target's hidden states over the conversations, in a sharded store."""

from typing import TYPE_CHECKING

from fledge.base.lazy import on_first_use

if TYPE_CHECKING:
    from fledge.features.codec import bytes_per_token
    from fledge.features.extract import FeatureExtractor, extract_features, features_fingerprint
    from fledge.features.hooks import HookExtractor
    from fledge.features.online import OnlineFeatures, conversation_infos
    from fledge.features.options import FeatureOptions, FeatureServers
    from fledge.features.ray_extract import extract_features_on_ray
    from fledge.features.served import ServedExtractor, server_arguments
    from fledge.features.shard import FeatureSample, SampleInfo
    from fledge.features.store import FeatureStore, StoreCheck, verify_store, write_shard
else:
    __getattr__ = on_first_use(__name__)

__all__ = [
    "FeatureExtractor",
    "FeatureOptions",
    "FeatureSample",
    "FeatureServers",
    "FeatureStore",
    "HookExtractor",
    "OnlineFeatures",
    "SampleInfo",
    "ServedExtractor",
    "StoreCheck",
    "bytes_per_token",
    "conversation_infos",
    "extract_features",
    "extract_features_on_ray",
    "features_fingerprint",
    "server_arguments",
    "verify_store",
    "write_shard",
]
