"""Features that llama.cpp computes, beside those of fledge's decoder and of transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from fledge.base.errors import TargetError
from fledge.data import Conversation
from fledge.features import (
    FeatureExtractor,
    FeatureOptions,
    FeatureSample,
    LlamaCppExtractor,
    extract_features,
    features_fingerprint,
)
from fledge.target import Target
from tests.data.conversation import conversation
from tests.features.test_features import make_conversations, write_conversations
from tests.sources.tiny_gguf import write_gguf
from tests.tiny import TinyShape, save_tiny_target

LLAMA_CPP = FeatureOptions(engine="llama.cpp")
LONG = 700  # tokens of a conversation that takes two forwards


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama.cpp")
    return write_gguf(
        save_tiny_target(folder / "target", shape=TinyShape(positions=1024)), folder / "tiny.gguf"
    )


@pytest.fixture
def needs_llama_cpp() -> None:
    pytest.importorskip("llama_cpp", reason="pip install 'fledge[llama-cpp]'")


def load(place: Path) -> Target:
    return Target.load(str(place), dtype="float32", backend="torch")


def conversations() -> list[Conversation]:
    ids = torch.randint(0, 500, (LONG,), generator=torch.Generator().manual_seed(0)).tolist()
    return [*make_conversations(6), conversation("long", ids[:10], ids[10:])]


def same(ours: list[FeatureSample], theirs: list[FeatureSample]) -> None:
    """Equal but for the rounding to bf16: relative to all of them the difference is 4e-5 before it."""
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a.argmax, b.argmax)
        for one, other in ((a.features, b.features), (a.hidden, b.hidden)):
            assert (one == other).float().mean() > 0.95
            near = 2e-4 * float(other.abs().max())
            torch.testing.assert_close(one.float(), other.float(), rtol=2**-7, atol=near)


def test_features_equal_those_of_the_decoder(needs_llama_cpp: None, file: Path) -> None:
    target = load(file)
    extractor = LlamaCppExtractor.for_target(target, LLAMA_CPP)
    same(extractor.extract(conversations()), FeatureExtractor(target, 4096).extract(conversations()))
    short = make_conversations(9, seed=1)
    same(extractor.extract(short), FeatureExtractor(target, 4096).extract(short))


def test_other_layers_and_another_file_of_the_target(
    needs_llama_cpp: None, file: Path, tmp_path: Path
) -> None:
    target = load(file.parent / "target").with_feature_layers([1, 2, 3])
    options = FeatureOptions(engine="llama.cpp", gguf=str(file))
    extractor = LlamaCppExtractor.for_target(target, options)
    same(extractor.extract(conversations()), FeatureExtractor(target, 4096).extract(conversations()))


def test_eight_bits_differ_by_their_rounding(needs_llama_cpp: None, file: Path, tmp_path: Path) -> None:
    target = load(file)
    coarse = write_gguf(file.parent / "target", tmp_path / "coarse.gguf", quantised="Q8_0")
    options = FeatureOptions(engine="llama.cpp", gguf=str(coarse))
    ours = LlamaCppExtractor.for_target(target, options).extract(conversations())
    weights = FeatureExtractor(load(coarse), 4096).extract(conversations())
    exact = FeatureExtractor(target, 4096).extract(conversations())

    def error(a: list[FeatureSample], b: list[FeatureSample]) -> float:
        one, other = (torch.cat([sample.features.float() for sample in samples]) for samples in (a, b))
        return float((one - other).norm() / other.norm())

    # llama.cpp rounds the inputs of matrices to 8 bits, too, which costs about as much as rounding the weights.
    assert 1e-3 < error(ours, weights) < 2 * error(weights, exact)
    assert error(ours, exact) < 3 * error(weights, exact)


def test_a_store_is_filled_and_belongs_to_its_engine_and_file(
    needs_llama_cpp: None, file: Path, tmp_path: Path
) -> None:
    target = load(file)
    url = write_conversations(tmp_path / "conversations", make_conversations(10))
    extractor = LlamaCppExtractor.for_target(target, LLAMA_CPP)
    made = extract_features(target, url, LLAMA_CPP, str(tmp_path / "store"), extractor=extractor)
    assert (made.store.records, made.refused) == (10, 0)
    other = write_gguf(file.parent / "target", tmp_path / "other.gguf", quantised="Q8_0")
    ways = (FeatureOptions(), LLAMA_CPP, FeatureOptions(engine="llama.cpp", gguf=str(other)))
    assert len({features_fingerprint(target, url, way).digest for way in ways}) == 3


def test_a_file_of_another_model_is_refused(needs_llama_cpp: None, file: Path, tmp_path: Path) -> None:
    wider = save_tiny_target(tmp_path / "wider", shape=TinyShape(hidden=96, positions=1024))
    other = write_gguf(wider, tmp_path / "wider.gguf")
    with pytest.raises(TargetError, match="hidden states of 96, the target 512 and 64"):
        LlamaCppExtractor.for_target(load(file), FeatureOptions(engine="llama.cpp", gguf=str(other)))
    (tmp_path / "broken.gguf").write_bytes(file.read_bytes()[:5000])
    with pytest.raises(TargetError, match=r"llama\.cpp can't load"):
        LlamaCppExtractor(load(file), tmp_path / "broken.gguf")


def test_a_folder_of_safetensors_names_no_file_to_run(file: Path) -> None:
    with pytest.raises(TargetError, match=r"set features\.gguf to one of the target"):
        LlamaCppExtractor.for_target(load(file.parent / "target"), LLAMA_CPP)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "llama.cpp", "device_map": "auto"}, "device_map and engine=llama.cpp both extract"),
        ({"engine": "llama.cpp", "feed": "online"}, "engine=llama.cpp needs feed=offline"),
        ({"gguf": "model.gguf"}, "set engine=llama.cpp, too"),
    ],
)
def test_options_that_contradict_each_other(options: dict[str, str], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        FeatureOptions.model_validate(options)
