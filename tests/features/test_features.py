from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from fledge.base.errors import DataError, FingerprintError, StorageError
from fledge.base.storage import Manifest
from fledge.data.conversations import Conversation, shard_bytes
from fledge.features import FeatureExtractor, FeatureOptions, FeatureStore, bytes_per_token, extract_features
from fledge.features import extract as extract_module
from fledge.target import Target
from fledge.target.batch import ForwardBatch
from tests.data.conversation import conversation

OPTIONS = FeatureOptions(batch_tokens=64, shard_mib=1)


def make_conversations(count: int, seed: int = 0) -> list[Conversation]:
    draw = random.Random(seed)
    made = []
    for number in range(count):
        prompt, answer = draw.randint(2, 12), draw.randint(1, 30)
        tokens = [draw.randrange(512) for _ in range(prompt + answer)]
        split, category = "train" if number % 5 else "heldout", "story" if number % 2 else "code"
        made.append(conversation(f"c{number}", tokens[:prompt], tokens[prompt:], split, category, 0.5))
    return made


def write_conversations(url: Path, conversations: list[Conversation]) -> str:
    half = len(conversations) // 2
    manifest = Manifest.load(str(url))
    for number, part in enumerate((conversations[:half], conversations[half:])):
        tokens = sum(len(c.token_ids) for c in part)
        manifest = manifest.write_shard(
            f"conversations-{number:05d}.parquet", shard_bytes(part), records=len(part), tokens=tokens
        )
    return str(url)


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards of about 200 tokens."""
    monkeypatch.setattr(extract_module, "bytes_per_token", lambda size, codec: 2**20 // 200)


def test_packed_extraction_equals_one_conversation_at_a_time(target: Target, tmp_path: Path):
    conversations = make_conversations(23)
    url = write_conversations(tmp_path / "conversations", conversations)
    summary = extract_features(target, url, OPTIONS, str(tmp_path / "features")).store
    store = FeatureStore(str(tmp_path / "features"))
    assert summary.records == len(store.samples) == 23
    assert len(store.split("heldout")) == 5
    for info, given in zip(store.samples, conversations, strict=True):
        sample = store.read(info)
        n = len(given.token_ids)
        assert (sample.conversation_id, sample.category) == (given.conversation_id, given.category)
        assert sample.token_ids.tolist() == given.token_ids
        assert sample.loss_mask.bool().tolist() == given.loss_mask
        assert (info.tokens, info.supervised) == (n, given.supervised_tokens)
        pages = -(-n // target.decoder.page_size)
        rows = ForwardBatch(
            token_ids=sample.token_ids,
            positions=torch.arange(n, dtype=torch.int32),
            row_start=torch.tensor([0, n], dtype=torch.int32),
            prefix_length=torch.zeros(1, dtype=torch.int32),
            window_offset=torch.zeros(1, dtype=torch.int32),
            page_table=torch.arange(pages, dtype=torch.int32)[None],
        )
        kv = target.decoder.allocate_kv(pages)
        alone = target.decoder.forward(rows, kv, logits="argmax", features=True, hidden=True)
        for got, wanted in ((sample.features, alone.features), (sample.hidden, alone.hidden)):
            torch.testing.assert_close(got.float(), wanted, rtol=2e-2, atol=2e-2)
        generated_next = [*given.loss_mask[1:], False]
        expected = [int(i) if g else -1 for i, g in zip(alone.argmax, generated_next, strict=True)]
        assert sample.argmax.tolist() == expected


@pytest.mark.usefixtures("small_shards")
def test_an_interrupted_extraction_goes_on_and_gives_the_same_files(
    target: Target, tmp_path: Path, monkeypatch
):
    url = write_conversations(tmp_path / "conversations", make_conversations(40))
    whole = extract_features(target, url, OPTIONS, str(tmp_path / "whole")).store
    assert len(whole.shards) > 3

    written = 0
    real = extract_module.write_shard

    def dies_after_two(manifest, samples, codec):
        nonlocal written
        if written == 2:
            raise KeyboardInterrupt
        written += 1
        return real(manifest, samples, codec)

    monkeypatch.setattr(extract_module, "write_shard", dies_after_two)
    with pytest.raises(KeyboardInterrupt):
        extract_features(target, url, OPTIONS, str(tmp_path / "resumed"))
    monkeypatch.setattr(extract_module, "write_shard", real)
    seen: list[float] = []
    resumed, _ = extract_features(
        target, url, OPTIONS, str(tmp_path / "resumed"), lambda d, t, n: seen.append(d)
    )
    assert seen[0] > 0
    assert resumed.shards == whole.shards
    for path in (tmp_path / "whole").iterdir():
        assert path.read_bytes() == (tmp_path / "resumed" / path.name).read_bytes(), path.name


def test_progress_ends_at_the_whole_also_where_held_out_features_alone_are_stored(
    target: Target, tmp_path: Path
):
    url = write_conversations(tmp_path / "conversations", make_conversations(20))
    online = OPTIONS.model_copy(update={"feed": "online"})
    seen: list[tuple[float, float]] = []
    made, _ = extract_features(
        target, url, online, str(tmp_path / "made"), lambda d, t, n: seen.append((d, t))
    )
    assert seen[-1] == (made.tokens, made.tokens)
    assert 0 < made.tokens < Manifest.load(url).tokens


def test_the_store_lives_on_any_filesystem(target: Target, tmp_path: Path):
    url = write_conversations(tmp_path / "conversations", make_conversations(9))
    extract_features(target, url, OPTIONS, "memory://features")
    extract_features(target, url, OPTIONS, str(tmp_path / "features"))
    remote, local = FeatureStore("memory://features"), FeatureStore(str(tmp_path / "features"))
    assert remote.samples == local.samples
    assert torch.equal(remote.read(remote.samples[4]).features, local.read(local.samples[4]).features)


def test_other_conversations_are_refused(target: Target, tmp_path: Path):
    url = write_conversations(tmp_path / "conversations", make_conversations(4))
    extract_features(target, url, OPTIONS, str(tmp_path / "features"))
    other = write_conversations(tmp_path / "other", make_conversations(4, seed=1))
    with pytest.raises(FingerprintError, match="conversations"):
        extract_features(target, other, OPTIONS, str(tmp_path / "features"))


def test_missing_input_and_too_long_conversations_are_explained(target: Target, tmp_path: Path):
    with pytest.raises(DataError, match="fledge respond"):
        extract_features(target, str(tmp_path / "nothing"), OPTIONS, str(tmp_path / "features"))
    with pytest.raises(StorageError, match="fledge features"):
        FeatureStore(str(tmp_path / "nothing"))
    long = make_conversations(2)
    long[1].token_ids.extend([1] * 2050)
    long[1].loss_mask.extend([True] * 2050)
    url = write_conversations(tmp_path / "long", long)
    with pytest.raises(DataError, match="1 to 2048"):
        extract_features(target, url, OPTIONS, str(tmp_path / "features"))


@pytest.mark.parametrize("backend", ["torch", "native"])
@pytest.mark.parametrize("token", [-1, 512, 2**30])
def test_conversations_of_another_target_are_refused_before_its_kernels_read_beyond_the_embedding(
    tiny_target_folder: Path, backend: str, token: int
):
    foreign = make_conversations(2)
    foreign[1].token_ids[3] = token
    extractor = FeatureExtractor(Target.load(str(tiny_target_folder), backend=backend), 256)
    with pytest.raises(DataError, match="c1 has tokens beyond the target's vocabulary of 512"):
        extractor.extract(foreign)


def test_bytes_per_token_matches_the_files(target: Target, tmp_path: Path):
    url = write_conversations(tmp_path / "conversations", make_conversations(60))
    summary = extract_features(target, url, OPTIONS, str(tmp_path / "features")).store
    assert summary.size == pytest.approx(
        summary.tokens * bytes_per_token(target.config.hidden_size, "bf16"), rel=0.08
    )
