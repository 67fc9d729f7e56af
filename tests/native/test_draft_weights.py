"""The option `draft_weights`, from the engine and the benchmark down to the head's matrices."""

from __future__ import annotations

from pathlib import Path

import pytest

from fledge.base.errors import EngineError, HeadError
from fledge.engine import Engine, TreeShape
from fledge.heads import Head, head_runner
from fledge.run.recipe import load_recipe
from fledge.target import Target
from tests.heads.tiny_head import load_tiny_target, random_head


@pytest.fixture(scope="module")
def target(tiny_target_folder: Path) -> Target:
    return Target.load(str(tiny_target_folder), dtype="bfloat16", backend="auto")


@pytest.fixture(scope="module")
def head(target: Target) -> Head:
    return random_head(target)


@pytest.mark.kernels
def test_the_kernels_draft_with_8_bits_unless_told_otherwise(target: Target, head: Head) -> None:
    from fledge.draft.cpu import NativeHeadRunner

    kept = {}
    for wanted in (None, "int8", "int4", "bfloat16"):
        runner = head_runner(target, head, draft_weights=wanted)  # type: ignore[arg-type]
        assert isinstance(runner, NativeHeadRunner)
        kept[wanted] = runner.draft_weights, runner.weight_bytes
    assert kept[None] == kept["int8"]
    assert [kept[w][0] for w in ("int8", "int4", "bfloat16")] == ["int8", "int4", "bfloat16"]
    assert kept["int4"][1] < 0.6 * kept["int8"][1] < 0.36 * kept["bfloat16"][1]


@pytest.mark.kernels
@pytest.mark.parametrize("weights", ["int8", "int4", "bfloat16"])
def test_answers_equal_plain_decode_whatever_the_draft_weights(
    target: Target, head: Head, weights: str
) -> None:
    prompts = [[5, 6, 7], [40, 41, 42, 43]]
    plain = Engine(target).generate(prompts, max_tokens=24, ignore_eos=True)
    engine = Engine(target, head, tree=TreeShape(3, 4, 12), draft_weights=weights)  # type: ignore[arg-type]
    answers = engine.generate(prompts, max_tokens=24, ignore_eos=True)
    assert [a.token_ids for a in answers] == [p.token_ids for p in plain]


def test_what_torch_cannot_keep_is_refused(tiny_target_folder: Path, head: Head) -> None:
    for dtype, refused in (("bfloat16", ["int8", "int4"]), ("float32", ["int8", "bfloat16"])):
        slow = load_tiny_target(tiny_target_folder, dtype=dtype)
        for wanted in refused:
            with pytest.raises(HeadError, match="needs the native CPU kernels"):
                Engine(slow, head, draft_weights=wanted)  # type: ignore[arg-type]
    head_runner(load_tiny_target(tiny_target_folder, dtype="bfloat16"), head, draft_weights="bfloat16")


def test_a_value_that_does_not_exist_and_an_option_without_a_head_are_refused(
    target: Target, head: Head
) -> None:
    with pytest.raises(EngineError, match="draft_weights is 'int2'; use 'int8', 'int4' or 'bfloat16'"):
        Engine(target, head, draft_weights="int2")
    with pytest.raises(HeadError, match="int8, int4, bfloat16"):
        head_runner(target, head, draft_weights="int2")  # type: ignore[arg-type]
    with pytest.raises(EngineError, match="leave it out"):
        Engine(target, draft_weights="int8")


def test_the_recipe_has_it() -> None:
    assert load_recipe().bench.draft_weights is None
    assert load_recipe(overrides=["bench.draft_weights=bfloat16"]).bench.draft_weights == "bfloat16"
