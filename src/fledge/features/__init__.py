"""The target's hidden states over the conversations, in a sharded store."""

from typing import TYPE_CHECKING

from fledge.base.lazy import on_first_use

if TYPE_CHECKING:
    from fledge.features.codec import bytes_per_token as bytes_per_token
    from fledge.features.extract import FeatureExtractor as FeatureExtractor
    from fledge.features.extract import extract_features as extract_features
    from fledge.features.extract import features_fingerprint as features_fingerprint
    from fledge.features.hooks import HookExtractor as HookExtractor
    from fledge.features.llama_cpp import LlamaCppExtractor as LlamaCppExtractor
    from fledge.features.online import OnlineFeatures as OnlineFeatures
    from fledge.features.online import conversation_infos as conversation_infos
    from fledge.features.options import FeatureOptions as FeatureOptions
    from fledge.features.options import FeatureServers as FeatureServers
    from fledge.features.ray_extract import extract_features_on_ray as extract_features_on_ray
    from fledge.features.served import ServedExtractor as ServedExtractor
    from fledge.features.served import server_arguments as server_arguments
    from fledge.features.shard import FeatureSample as FeatureSample
    from fledge.features.shard import SampleInfo as SampleInfo
    from fledge.features.store import FeatureStore as FeatureStore
    from fledge.features.store import verify_store as verify_store
    from fledge.features.store import write_shard as write_shard
else:
    __getattr__ = on_first_use(__name__)
