"""Chi-square of whole answers against exact probabilities, through the real engine with trees of 16 nodes.

Answers have four tokens: the first comes from the prompt's forward, the others from trees. The head knows what is
likely, so that most answers hold accepted drafts. The same test has to notice a fault planted in the engine.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fledge.draft import DraftVocabulary
from fledge.draft.tree import DraftTree
from fledge.engine import Engine, SamplingParams, TreeShape
from fledge.engine import forwards as engine_forwards
from fledge.engine.batch import Carried
from fledge.engine.penalties import LogitEdits
from fledge.engine.rounds.tree import Verified
from fledge.engine.rounds.verifier import Verifier
from fledge.heads import Head
from fledge.native import ops, unavailable_reason
from fledge.target.target import Target
from tests.engine.conftest import VOCABULARY
from tests.engine.exact import AnswerCells, Path, answer_cells
from tests.engine.table_head import TableHead
from tests.tiny import TinyShape, save_tiny_target

PROMPT = [406, 80, 443, 363, 118, 29]  # the target is fairly sure what follows, but not too sure
DEPTH, TREE = 4, TreeShape(3, 4, 16)
SETTINGS: dict[str, dict[str, object]] = {
    "temperature 1": {"temperature": 1.0},
    "temperature 0.7": {"temperature": 0.7},
    "top-p 0.9": {"temperature": 1.0, "top_p": 0.9},
    "top-k and min-p": {"temperature": 1.3, "top_k": 12, "min_p": 0.05},
    "penalties and bias": {
        "temperature": 1.2,
        # These four are likely everywhere, and so come up several times in an answer.
        "logit_bias": {29: 9.0, 363: 8.0, 130: 8.5, 131: 8.0},
        "repetition_penalty": 1.1,
        "presence_penalty": 0.7,
        "frequency_penalty": 1.1,
    },
}
IN_SHORT = ("penalties and bias",)  # the others are slow: test_sampling.py has their probabilities
FEW, MANY, CHUNK = 2_500, 200_000, 4_096
HALF = [token for token in range(VOCABULARY) if token % 4 > 1]  # the likeliest next token, but not the second


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    """As small as a target with three feature layers gets: hundreds of thousands of answers take minutes."""
    shape = TinyShape(layers=3, hidden=32, intermediate=32, heads=1, kv_heads=1, head_dim=32, positions=64)
    folder = save_tiny_target(tmp_path_factory.mktemp("small") / "llama", shape=shape)
    return Target.load(str(folder), dtype="float32", backend="torch")


@pytest.fixture
def fast_target(target: Target, monkeypatch: pytest.MonkeyPatch) -> Target:
    """The same with the native sampler, where there is one: it has to keep to the distribution, too."""
    if not unavailable_reason():
        monkeypatch.setattr(target.decoder, "sample", ops.sample, raising=False)
    return target


def settings_of(name: str) -> SamplingParams:
    return SamplingParams(max_tokens=DEPTH, ignore_eos=True, **SETTINGS[name])  # type: ignore[arg-type]


def cells_of(target: Target, params: SamplingParams) -> AnswerCells:
    return answer_cells(target, PROMPT, params, depth=DEPTH, width=3)


def table_engine(target: Target, cells: AnswerCells, *, only: list[int] | None = None) -> Engine:
    """An engine whose head proposes the likeliest tokens; `only`: of these alone, a reduced vocabulary."""
    likely = cells.likely
    if only is not None:
        allowed = set(only)
        likely = {t: {n: p for n, p in f.items() if n in allowed} for t, f in likely.items()}
    head = TableHead(target.decoder.page_size, VOCABULARY, TREE.topk, likely)
    return Engine(target, head, max_batch=256, tree=TREE, prefill_rows=256 * len(PROMPT), max_context=32)  # type: ignore[arg-type]


def draw(engine: Engine, params: SamplingParams, draws: int) -> tuple[Counter[Path], float]:
    """Answers with seeds 0, 1, ..., and how many drafted tokens an answer holds on average."""
    answers: Counter[Path] = Counter()
    drafted = 0
    for start in range(0, draws, CHUNK):
        for seed in range(start, min(start + CHUNK, draws)):
            engine.submit(PROMPT, replace(params, seed=seed))
        while engine.busy:
            for result in engine.step():
                if result.completion is not None:
                    answers[tuple(result.completion.token_ids)] += 1
                    drafted += sum(origin > 0 for origin in result.completion.stats.token_origins)
    assert answers.total() == draws
    return answers, drafted / draws


def check(
    engine: Engine, cells: AnswerCells, params: SamplingParams, draws: int, least: float = 0.01
) -> None:
    """The answers follow the exact distribution, and many of them were drafted."""
    answers, drafted = draw(engine, params, draws)
    p_value = cells.p_value(answers)
    print(f"{draws} answers, {drafted:.2f} drafted tokens each, p = {p_value:.3g}")
    assert drafted > 0.3
    assert p_value > least


def plant_a_bias(monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    """Raise the probability that the root takes its first draft by `share`, whatever its coin says."""
    honest, generator = Verifier.verify, torch.Generator().manual_seed(1)

    def verify(this: Verifier, now: Carried, tree: DraftTree, *, chain: bool, features: bool) -> Verified:
        rows = honest(this, now, tree, chain=chain, features=features)
        chosen = rows.chosen.view_as(tree.token_ids)
        otherwise = 1 - tree.log_probs[:, 1].exp()  # as the head has it, which knows the target's
        cheats = torch.rand(chosen.shape[0], generator=generator) * otherwise < share
        chosen[:, 0] = torch.where(cheats, tree.token_ids[:, 1], chosen[:, 0])
        return rows

    monkeypatch.setattr(Verifier, "verify", verify)


def share_the_penalties(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all nodes of a tree have the penalties of its root."""
    honest = engine_forwards.edited

    def edited(
        logits: Tensor,
        position: Tensor,
        edits: LogitEdits,
        tree: DraftTree | None,
        picked: Tensor | None,
        *,
        keep: bool,
    ) -> Tensor:
        shared = tree and tree._replace(window_mask=torch.zeros_like(tree.window_mask))
        return honest(logits, position, edits, shared, picked, keep=keep)

    monkeypatch.setattr(engine_forwards, "edited", edited)


@pytest.mark.parametrize(
    "name", [n if n in IN_SHORT else pytest.param(n, marks=pytest.mark.slow) for n in SETTINGS]
)
def test_answers_follow_the_exact_distribution(target: Target, name: str) -> None:
    params = settings_of(name)
    cells = cells_of(target, params)
    check(table_engine(target, cells), cells, params, FEW, least=0.001)


@pytest.mark.slow
def test_a_planted_bias_and_shared_penalties_are_noticed(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bias is larger than in the long test, because there are fewer answers."""
    params = settings_of("penalties and bias")
    cells = cells_of(target, params)
    with monkeypatch.context() as patch:
        share_the_penalties(patch)
        assert cells.p_value(draw(table_engine(target, cells), params, FEW)[0]) < 1e-3
    plant_a_bias(monkeypatch, 0.1)
    assert cells.p_value(draw(table_engine(target, cells), params, FEW)[0]) < 1e-3


def test_a_real_head_with_a_reduced_vocabulary_follows_the_exact_distribution(target: Target) -> None:
    params = settings_of("penalties and bias")
    cells = cells_of(target, params)
    counts = torch.zeros(VOCABULARY)
    counts[HALF] = 1
    head = Head.from_target(target, DraftVocabulary.from_counts(counts, len(HALF)))
    engine = Engine(target, head, max_batch=256, tree=TREE, max_context=32)
    answers, drafted = draw(engine, params, FEW // 2)
    assert drafted > 0.02
    assert cells.p_value(answers) > 0.001


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_two_hundred_thousand_answers_follow_the_exact_distribution(fast_target: Target, name: str) -> None:
    params = settings_of(name)
    cells = cells_of(fast_target, params)
    check(table_engine(fast_target, cells), cells, params, MANY)


@pytest.mark.slow
def test_two_hundred_thousand_answers_with_a_reduced_draft_vocabulary(fast_target: Target) -> None:
    """Half of the tokens can't be drafted."""
    params = settings_of("temperature 1")
    cells = cells_of(fast_target, params)
    check(table_engine(fast_target, cells, only=HALF), cells, params, MANY)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["temperature 1", "penalties and bias"])
def test_a_bias_of_one_percent_is_noticed_in_two_hundred_thousand_answers(
    fast_target: Target, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    params = settings_of(name)
    cells = cells_of(fast_target, params)
    plant_a_bias(monkeypatch, 0.01)
    assert cells.p_value(draw(table_engine(fast_target, cells), params, MANY)[0]) < 0.01
