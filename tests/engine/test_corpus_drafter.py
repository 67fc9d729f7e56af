"""A drafter as a user writes it, in public names alone: n-grams of a corpus beside the head. No answer changes."""

from __future__ import annotations

import json
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from fledge import Engine, SamplingParams, Target
from fledge.engine import Proposer, RunningText, TreeShape
from tests.engine.conftest import noisy_head

ON_BOTH_BACKENDS = True
FORM = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
FORMS: dict[str, dict[str, Any]] = {
    "free": {},
    "penalties": {"presence_penalty": 0.8, "frequency_penalty": 0.3, "repetition_penalty": 1.1},
    "stops": {"stop": ["a", "er"]},
    "form": {"structured_outputs": {"json": FORM}},
    "penalised form": {"structured_outputs": {"regex": "[a-f]{3,12}-[0-9]{2,9}"}, "repetition_penalty": 1.2},
}


class NGrams(Proposer):
    """Proposes what most often followed the last tokens, the most of up to `order` that a file of token ids has."""

    def __init__(self, file: str, order: int = 3) -> None:
        self.file, self.order = file, order
        self.followers: dict[tuple[int, ...], Counter[int]] = {}

    def start(self, target: Target) -> None:
        """Count the corpus, a JSON list of ids in each line."""
        for line in Path(self.file).read_text().splitlines():
            ids = json.loads(line)
            if max(ids, default=0) >= len(target.tokenizer):
                raise ValueError(f"{self.file} was written with another tokenizer")
            for end in range(1, len(ids)):
                for begin in range(max(end - self.order, 0), end):
                    self.followers.setdefault(tuple(ids[begin:end]), Counter())[ids[end]] += 1

    def propose(self, text: RunningText, tokens: int) -> list[tuple[int, float]]:
        """The most frequent follower, again and again, with its share of them all."""
        known, chain = list(text.token_ids[-self.order :]), list[tuple[int, float]]()
        while len(chain) < tokens:
            runs = (self.followers.get(tuple(known[begin:])) for begin in range(len(known)))
            if (seen := next(filter(None, runs), None)) is None:
                break
            ((token, count),) = seen.most_common(1)
            chain.append((token, count / (seen.total() + 1)))
            known = [*known, token][-self.order :]
        return chain


@pytest.mark.parametrize("tree", [TreeShape(3, 2, 10, 6), None], ids=["always", "planned"])
def test_a_corpus_beside_the_head_changes_no_answer(
    target: Target, prompts: list[list[int]], tmp_path: Path, tree: TreeShape | None
) -> None:
    """20 prompts, each with penalties, stop strings or a form, greedily or by its seed."""
    ways = list(product(FORMS.values(), ({"temperature": 0.0}, {"temperature": 0.8})))
    params = [
        SamplingParams(**form, **draw, seed=n, max_tokens=32) for n, (form, draw) in enumerate(ways * 2)
    ]
    prompts = (2 * prompts)[: len(params)]
    plain = Engine(target, max_batch=4, max_context=256).generate(prompts, params)
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("\n".join(json.dumps([*one.prompt_token_ids, *one.token_ids]) for one in plain[::3]))
    named = f"{__name__}:NGrams(file={corpus}, order=4)"
    engine = Engine(target, noisy_head(target), drafter=named, tree=tree, max_batch=4, max_context=256)
    answers = engine.generate(prompts, params)
    assert [one.token_ids for one in answers] == [one.token_ids for one in plain]
    assert [(one.text, one.finish_reason, one.stop_reason) for one in answers] == [
        (one.text, one.finish_reason, one.stop_reason) for one in plain
    ]
    assert engine.stats().proposers["NGrams"].failed == 0
    if tree is not None:
        assert engine.stats().accepted_by_source["NGrams"] > 20
