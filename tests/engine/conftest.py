"""A tiny target in float32, and helpers that serve prompts with it."""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

import pytest
import torch

from fledge.draft import DraftVocabulary
from fledge.engine import Engine, SamplingParams, TreeShape, build, native_tree
from fledge.engine import round as round_module
from fledge.engine.carried import RunningBatch
from fledge.engine.forwards import Models
from fledge.engine.outcome import Drafts
from fledge.engine.planner.plan import RoundPlan
from fledge.engine.request import Completion, Request
from fledge.heads import Head
from fledge.target.target import Target
from tests.engine.context_head import ContextHead
from tests.engine.lazy_lane import LazyLane
from tests.tiny import TinyShape, save_tiny_target

VOCABULARY = 512
MakeHead = Callable[..., ContextHead]
Greedy = Callable[[int], list[Completion]]


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    """Three layers, hidden 64, vocabulary 512, 256 positions, float32."""
    shape = TinyShape(layers=3, heads=2, kv_heads=1, positions=256)
    folder = save_tiny_target(tmp_path_factory.mktemp("engine") / "llama", shape=shape)
    return Target.load(str(folder), dtype="float32", backend="torch")


@pytest.fixture(scope="session")
def plain(target: Target) -> Engine:
    """Plain decode."""
    return Engine(target)


@pytest.fixture(scope="session")
def prompts() -> list[list[int]]:
    """Random prompts of different lengths."""
    rng = random.Random(0)
    return [
        [rng.randrange(6, VOCABULARY) for _ in range(rng.choice([1, 3, 15, 16, 17, 40]))] for _ in range(24)
    ]


@pytest.fixture(scope="session")
def greedy(plain: Engine, prompts: list[list[int]]) -> Greedy:
    """Plain decode's answers of so many tokens to all prompts, made once. Read only."""
    return functools.cache(lambda tokens: plain.generate(prompts, max_tokens=tokens, ignore_eos=True))


def scripted_head(
    target: Target, answers: list[Completion], rate: float, *, best_first: bool = False
) -> ContextHead:
    """A head that knows these answers, and proposes their tokens with probability `rate`."""
    head = ContextHead(target.decoder.page_size, VOCABULARY, rate, best_first=best_first)
    head.learn([*answer.prompt_token_ids, *answer.token_ids] for answer in answers)
    return head


def noisy_head(target: Target) -> Head:
    """A real head: the target's own last layer with random noise, over 300 of the 512 tokens."""
    generator = torch.Generator().manual_seed(0)
    vocabulary = DraftVocabulary.from_counts(torch.rand(VOCABULARY, generator=generator), 300)
    made = Head.from_target(target, vocabulary)
    for tensor in made.weights.trainable().values():
        tensor += torch.randn(tensor.shape, generator=generator) * 0.05 * tensor.std()
    return made


@pytest.fixture
def lazy_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines may overlap as on a GPU: nothing runs before the host waits for it."""
    monkeypatch.setattr(build, "make_lane", lambda device: LazyLane())
    monkeypatch.setattr(build, "refuse_overlap", lambda device: None)


@pytest.fixture
def spoiled_first_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first level that a round has drafted from is overwritten: it mustn't be read before the next one is carried.

    Of rounds in Python, not of those that are one call.
    """
    append, draft = RunningBatch.append, round_module.draft

    def spoil(batch: RunningBatch, rows: object) -> None:
        now = batch.view()
        now.first_token_ids[rows] = 0  # type: ignore[index]
        now.first_log_probs[rows] = now.hidden[rows] = torch.nan  # type: ignore[index]

    def appended(batch: RunningBatch, request: Request, pages: Sequence[int], bonus: torch.Tensor) -> None:
        append(batch, request, pages, bonus)
        if request.speculate:
            spoil(batch, batch.size - 1)

    def drafted(models: Models, batch: RunningBatch, plan: RoundPlan) -> Drafts:
        mask = batch.speculating().mask
        rows = slice(None) if mask is None else mask
        assert not batch.view().first_log_probs[rows].isnan().any(), "its first level isn't there yet"
        made = draft(models, batch, plan)
        spoil(batch, rows)
        return made

    monkeypatch.setattr(RunningBatch, "append", appended)
    monkeypatch.setattr(round_module, "draft", drafted)


@contextmanager
def plainly() -> Iterator[None]:
    """What has a kernel is done in torch alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native_tree, "runs_here", lambda tensor: False)
        yield


@pytest.fixture(scope="module", params=["kernels", "torch"])
def both_ways(request: pytest.FixtureRequest) -> Iterator[None]:
    """What has a kernel is done with it, and then without."""
    with plainly() if request.param == "torch" else nullcontext():
        yield


@contextmanager
def default_type(dtype: torch.dtype) -> Iterator[None]:
    """As a user's script may have set it."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def serve(engine: Engine, prompts: list[list[int]], wanted: list[SamplingParams]) -> list[Completion]:
    """The requests' answers, in order; they share the engine's batch."""
    requests = [engine.submit(prompt, params) for prompt, params in zip(prompts, wanted, strict=True)]
    done: dict[int, Completion] = {}
    while engine.busy:
        done.update({r.request_id: r.completion for r in engine.step() if r.completion})
    return [done[request] for request in requests]


class Uneven(RoundPlan):
    """Every request gets a number of nodes of its own, some none."""

    def __init__(self, bound: TreeShape) -> None:
        super().__init__(bound)
        self.rng, self.sizes = random.Random(5), Counter[int]()

    def nodes(self, scores: torch.Tensor, depths: torch.Tensor | None) -> tuple[int, torch.Tensor | None]:
        counts = [self.rng.choice([0, 1, 3, self.bound.nodes - 1]) for _ in scores]
        self.sizes.update(counts)
        return 1 + max(counts), torch.tensor(counts)


SHAPES = [
    TreeShape(1, 2, 3),
    TreeShape(3, 1, 4),
    TreeShape(3, 3, 8),
    TreeShape(5, 4, 16),
    TreeShape(6, 8, 48),
]
