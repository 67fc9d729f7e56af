"""The scripted target and head, with which predictions are checked: acceptance is what the script says."""

from __future__ import annotations

from pathlib import Path

import pytest

from fledge.engine import Engine, TreeShape
from fledge.heads import Head
from fledge.target import Target
from tests.bench.scripted import write_scripted


@pytest.mark.parametrize("rate", [1.0, 0.7])
def test_chains_are_accepted_at_the_scripted_rate(tmp_path: Path, rate: float) -> None:
    write_scripted(tmp_path, rate=rate)
    target = Target.load(str(tmp_path / "target"), dtype="float32")
    head = Head.load(str(tmp_path / "head"))
    prompts = [[number] for number in range(10, 500, 30)]
    engine = Engine(target, head, max_batch=4, max_context=128, tree=TreeShape(2, 1, 3))
    drafted = engine.generate(prompts, max_tokens=61, ignore_eos=True)
    plain = Engine(target, max_batch=4, max_context=128).generate(prompts, max_tokens=61, ignore_eos=True)
    assert [answer.token_ids for answer in drafted] == [answer.token_ids for answer in plain]
    assert len({answer.token_ids[5] for answer in plain}) == len(prompts)  # a walk, not a loop
    rounds = sum(answer.stats.drafted_rounds for answer in drafted)
    accepted = sum(sum(answer.stats.accepted_by_depth) for answer in drafted)
    assert accepted / rounds == pytest.approx(rate + rate**2, abs=0.06)
