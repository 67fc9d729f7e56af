"""The feature store: codecs, bounded reading, and an error that names every kind of damage."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fledge.base.errors import FledgeError, StorageError
from fledge.base.storage import Manifest, write_sealed
from fledge.features import FeatureSample, FeatureStore, verify_store, write_shard
from fledge.features.codec import bytes_per_token, decode, encode
from tests.train.samples import make_sample

SIZE = 64


def samples(count: int, seed: int = 0) -> list[FeatureSample]:
    return [make_sample([(3 + i % 4, 5 + i % 7), (2, 3)], seed=seed + i, size=SIZE) for i in range(count)]


def write_store(
    folder: Path, codec: str = "bf16", *, shards: int = 3, per_shard: int = 4, seed: int = 0
) -> Path:
    manifest = Manifest.load(str(folder))
    for number in range(shards):
        manifest = write_shard(manifest, samples(per_shard, seed + 100 * number), codec)  # type: ignore[arg-type]
    return folder


def read_all(folder: Path) -> list[FeatureSample]:
    store = FeatureStore(str(folder))
    return [store.read(info) for info in store.samples]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_store(tmp_path_factory.mktemp("store") / "features")


@pytest.fixture
def damaged(sound: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(sound, tmp_path / "features"))


def test_bf16_comes_back_as_it_was(sound: Path):
    for number, got in enumerate(read_all(sound)):
        wanted = samples(4, 100 * (number // 4))[number % 4]
        for name in ("token_ids", "loss_mask", "argmax", "features", "hidden"):
            assert torch.equal(getattr(got, name), getattr(wanted, name)), name
        assert (got.conversation_id, got.split, got.category) == (
            wanted.conversation_id,
            "train",
            "test",
        )


def test_fp8_takes_half_the_bytes_and_keeps_three_percent_of_every_value(tmp_path: Path):
    # Ids and JSON weigh more in a tiny target's store, so this is the worst case.
    half = write_store(tmp_path / "fp8", "fp8", shards=1, per_shard=40)
    full = write_store(tmp_path / "bf16", shards=1, per_shard=40)
    sizes = [Manifest.load(str(folder)).size for folder in (half, full)]
    states = [size - 40 * 170 for size in sizes]  # the header's JSON, which doesn't grow with the hidden size
    assert states[0] < 0.55 * states[1]
    assert bytes_per_token(SIZE, "fp8") < 0.55 * bytes_per_token(SIZE, "bf16")
    for got, wanted in zip(read_all(half), read_all(full), strict=True):
        assert got.features.dtype == torch.bfloat16
        torch.testing.assert_close(got.features.float(), wanted.features.float(), rtol=0.07, atol=1e-4)
        assert torch.equal(got.token_ids, wanted.token_ids)


@given(
    exponent=st.integers(-100, 100),
    outlier=st.floats(1.0, 2000.0),
    seed=st.integers(0, 9),
    width=st.integers(1, 40),
)
def test_small_values_survive_beside_large_ones(exponent: int, outlier: float, seed: int, width: int):
    x = torch.randn(3, 2 * width, generator=torch.Generator().manual_seed(seed))
    x[:, 0] *= outlier
    x = torch.ldexp(x, torch.tensor(exponent)).bfloat16()
    again = decode(*encode(x, width))
    assert again.dtype == torch.bfloat16
    error = (again.float() - x.float()).abs()
    # Half a step of three mantissa bits; below 2^-15 of the row's largest value codes are evenly spaced.
    floor = x.float().abs().amax(1, keepdim=True) * 2.0**-17
    assert (error <= torch.maximum(x.float().abs() / 16, floor) * 1.01).all()
    assert torch.equal(decode(*encode(again, width)), again)


@pytest.mark.parametrize("power", [-3, 0, 5])
def test_a_row_has_the_smallest_exponent_that_its_largest_value_fits(power: int) -> None:
    just = torch.tensor([[448.0, -1.0], [449.0, 1.0]]).mul(2.0**power)
    above = torch.tensor([[450.0, 1.0], [224.0, 1.0]]).mul(2.0**power)
    assert encode(just[:1].bfloat16(), 2)[1].tolist() == [[power]]
    assert encode(above.bfloat16(), 2)[1].tolist() == [[power + 1], [power - 1]]


def test_rows_of_zeros_and_the_largest_numbers(tmp_path: Path):
    x = torch.stack(
        (torch.zeros(8), torch.full((8,), 2e38), torch.full((8,), -448.0), torch.full((8,), 1e-38))
    )
    again = decode(*encode(x.bfloat16(), 8)).float()
    assert torch.isfinite(again).all()
    assert again[0].abs().max() == 0
    torch.testing.assert_close(again[1:3], x[1:3], rtol=0.05, atol=0)


@settings(max_examples=60)
@given(data=st.data())
@pytest.mark.parametrize("codec", ["bf16", "fp8"])
def test_any_flipped_bit_is_an_error_that_names_the_file(tmp_path_factory, codec: str, data: st.DataObject):
    folder = write_store(tmp_path_factory.mktemp("flip") / "features", codec, shards=2, per_shard=2)
    path = folder / "features-00001.safetensors"
    content = bytearray(path.read_bytes())
    # Half of the flips hit the header and the ids, which are a small part of the file.
    place = data.draw(st.one_of(st.integers(0, 2000), st.integers(0, len(content) - 1)))
    content[place] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    with pytest.raises(StorageError, match=r"features-00001\.safetensors"):
        read_all(folder)
    faults = verify_store(str(folder)).faults
    assert faults
    assert all("features-00001" in fault for fault in faults)


@pytest.mark.parametrize(
    ("written", "found"),
    [(b'"data_offsets":[0,', b'"data_offsets":[0.'), (b'"shape":[', b'"shapd":['), (b'"I32"', b'"I33"')],
)
def test_a_header_that_is_json_but_says_something_else_is_damaged(
    damaged: Path, written: bytes, found: bytes
) -> None:
    """A comma that became a point leaves one number of two: a flipped bit that random flips meet once in a while."""
    path = damaged / "features-00002.safetensors"
    content = path.read_bytes()
    assert written in content
    path.write_bytes(content.replace(written, found, 1))
    with pytest.raises(
        StorageError, match=r"features-00002\.safetensors is damaged: its header can't be read"
    ):
        read_all(damaged)


def test_a_missing_and_a_truncated_shard_are_named(damaged: Path):
    path = damaged / "features-00002.safetensors"
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(
        StorageError, match=r"features-00002\.safetensors is damaged: it is truncated: .* bytes"
    ):
        FeatureStore(str(damaged))
    path.unlink()
    with pytest.raises(StorageError, match=r"features-00002\.safetensors is missing"):
        FeatureStore(str(damaged))


@pytest.mark.parametrize("other", [{"per_shard": 3}, {"seed": 5}, {"shards": 1}])
def test_a_foreign_manifest_is_found(damaged: Path, tmp_path: Path, other: dict[str, int]):
    foreign = write_store(tmp_path / "other", **other)
    shutil.copy(foreign / "manifest.json", damaged / "manifest.json")
    faults = verify_store(str(damaged)).faults
    assert faults
    assert "manifest" in " ".join(faults) or "checksum" in " ".join(faults)
    if "shards" not in other:  # a manifest that names less is what a killed extraction leaves
        with pytest.raises(StorageError, match=r"features-00000\.safetensors is damaged"):
            FeatureStore(str(damaged))


def test_a_foreign_manifest_of_files_as_long_is_named_too(damaged: Path):
    """As of the same conversations' features from another revision of the target."""
    path = damaged / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["shards"][1] |= {"sha256": "0" * 64, "header": "0" * 64}
    write_sealed(str(path), {"shards": manifest["shards"]})
    with pytest.raises(StorageError, match=r"features-00001\.safetensors is damaged.*different stores"):
        FeatureStore(str(damaged))
    (fault,) = verify_store(str(damaged)).faults
    assert "features-00001" in fault


def test_verify_finds_every_planted_fault_and_nothing_else(damaged: Path):
    assert verify_store(str(damaged)).faults == ()
    first = bytearray((damaged / "features-00000.safetensors").read_bytes())
    first[-30] ^= 4
    (damaged / "features-00000.safetensors").write_bytes(first)
    (damaged / "features-00001.safetensors").unlink()
    third = (damaged / "features-00002.safetensors").read_bytes()
    (damaged / "features-00002.safetensors").write_bytes(third + b"more")
    faults = verify_store(str(damaged)).faults
    assert len(faults) == 3
    for fault, words in zip(faults, ("checksum", "missing", "too long"), strict=True):
        assert words in fault


def test_a_shard_that_was_being_written_when_the_process_died_is_no_fault(damaged: Path):
    (damaged / "features-00003.safetensors").write_bytes(b"half")
    assert verify_store(str(damaged)).faults == ()


def test_a_damaged_conversation_does_not_keep_the_others_from_being_read(damaged: Path):
    path = damaged / "features-00000.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1  # the last conversation's mask
    path.write_bytes(content)
    store = FeatureStore(str(damaged))
    for info in store.samples[:3]:
        store.read(info)
    with pytest.raises(StorageError, match=r"checksum of the .* of conversation 3 \(c3\)"):
        store.read(store.samples[3])


def test_shards_of_two_targets_are_refused(tmp_path: Path):
    manifest = write_shard(Manifest.load(str(tmp_path)), samples(2))
    write_shard(manifest, [make_sample([(3, 4)], seed=0, size=2 * SIZE)])
    with pytest.raises(FledgeError, match="different targets"):
        FeatureStore(str(tmp_path))


def test_a_store_of_the_format_before_is_named(damaged: Path):
    path = damaged / "features-00000.safetensors"
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    header["__metadata__"]["conversations"] = json.dumps([{"id": "c0"}])
    changed = json.dumps(header).encode().ljust(size)
    path.write_bytes(content[:8] + changed + content[8 + size :])
    with pytest.raises(StorageError, match="header can't be read"):
        FeatureStore(str(damaged))
