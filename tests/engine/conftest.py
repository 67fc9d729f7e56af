"""A tiny target in float32, and helpers that serve prompts with it."""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from fledge.draft import DraftVocabulary
from fledge.engine import Candidates, Engine, SamplingParams, TreeShape, build
from fledge.engine.batch import RunningBatch
from fledge.engine.drafters.eagle import Eagle
from fledge.engine.planner.plan import RoundPlan, Terms
from fledge.engine.request import Completion, Request
from fledge.heads import Head
from fledge.target.target import Target
from tests.engine.context_head import ContextHead
from tests.engine.late_flight import LateFlight
from tests.engine.scripted import scripted_runner, scripts_are_followed
from tests.sources.tiny_gguf import write_gguf
from tests.tiny import TinyShape, save_tiny_target

VOCABULARY = 512
MakeHead = Callable[..., ContextHead]
Greedy = Callable[[int], list[Completion]]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Modules with ON_BOTH_BACKENDS serve by rounds in torch, and by rounds in one C++ call.

    On the kernels with quantised targets, too: a mixture of forms in modules with IN_EVERY_FORMAT, the others slow.
    """
    if getattr(metafunc.module, "ON_BOTH_BACKENDS", False) and "backend" in metafunc.fixturenames:
        often = {None, "mixed"} if getattr(metafunc.module, "IN_EVERY_FORMAT", False) else {None}
        backends = [pytest.param("torch", None, id="torch")]
        for kind in (None, "q8_0", "q4_0", "mixed"):
            marks = [pytest.mark.kernels, *([] if kind in often else [pytest.mark.slow])]
            backends.append(
                pytest.param("native", kind, marks=marks, id=f"native-{kind}" if kind else "native")
            )
        metafunc.parametrize(("backend", "quantised"), backends, indirect=True, scope="session")


@pytest.fixture(scope="session")
def backend(request: pytest.FixtureRequest) -> Any:
    """What the target and its heads run on."""
    return getattr(request, "param", "torch")


@pytest.fixture(scope="session")
def quantised(request: pytest.FixtureRequest) -> Any:
    """The form of the target's matrices: None for numbers, q8_0, q4_0, or "mixed" as in a Q4_K_M file."""
    return getattr(request, "param", None)


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory, backend: Any, quantised: Any) -> Target:
    """Three layers, hidden 64, vocabulary 512, 256 positions; float32 in torch, bf16 on the kernels."""
    shape = TinyShape(layers=3, heads=2, kv_heads=1, positions=256)
    place = save_tiny_target(tmp_path_factory.mktemp("engine") / "llama", shape=shape)
    dtype = "float32" if backend == "torch" else "bfloat16"
    if quantised == "mixed":
        place, quantised = write_gguf(place, place.with_suffix(".gguf"), quantised=_mixed), None
    return Target.load(str(place), dtype=dtype, backend=backend, quantization=quantised)


def _mixed(name: str) -> str:
    kinds = {"attn_v": "Q8_0", "attn_output": "Q5_1", "ffn_down": "Q5_0", "token_embd": "Q8_0"}
    return next((kind for part, kind in kinds.items() if part in name), "Q4_1")


@pytest.fixture(autouse=True, scope="session")
def scripts() -> Iterator[None]:
    """Scripted heads on the kernels propose what they are told to."""
    with scripts_are_followed():
        yield


@pytest.fixture(scope="session")
def plain(target: Target) -> Engine:
    """Plain decode."""
    return Engine(target)


@pytest.fixture(scope="session")
def prompts() -> list[list[int]]:
    """Random prompts of different lengths."""
    rng = random.Random(0)
    return [
        [rng.randrange(6, VOCABULARY) for _ in range(rng.choice([1, 3, 15, 16, 17, 40]))] for _ in range(14)
    ]


@pytest.fixture(scope="session")
def greedy(plain: Engine, prompts: list[list[int]]) -> Greedy:
    """Plain decode's answers of so many tokens to all prompts, made once. Read only."""
    return functools.cache(lambda tokens: plain.generate(prompts, max_tokens=tokens, ignore_eos=True))


def scripted_head(target: Target, answers: list[Completion], rate: float, *, best_first: bool = False) -> Any:
    """A head that knows these answers, and proposes their tokens with probability `rate`."""
    head = ContextHead(target.decoder.page_size, VOCABULARY, rate, best_first=best_first)
    head.learn([*answer.prompt_token_ids, *answer.token_ids] for answer in answers)
    return head if target.decoder.backend == "torch" else scripted_runner(target, noisy_head(target), head)


def noisy_head(target: Target) -> Head:
    """A real head: the target's own last layer with random noise, over 300 of the 512 tokens."""
    generator = torch.Generator().manual_seed(0)
    vocabulary = DraftVocabulary.from_counts(torch.rand(VOCABULARY, generator=generator), 300)
    made = Head.from_target(target, vocabulary)
    for tensor in made.weights.trainable().values():
        tensor += torch.randn(tensor.shape, generator=generator) * 0.05 * tensor.std()
    return made


@pytest.fixture
def late_flights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines may overlap as on a GPU: results come one step late."""
    monkeypatch.setattr(build, "make_flight", lambda device, ahead: LateFlight(ahead))
    monkeypatch.setattr(build, "refuse_overlap", lambda device: None)


@pytest.fixture
def spoiled_first_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first level that a round has drafted from is overwritten: it mustn't be read before the next one is carried."""
    append, propose = Eagle.append, Eagle.propose

    def spoil(eagle: Eagle, rows: object) -> None:
        state = eagle._state
        state.first_token_ids[rows] = 0  # type: ignore[index]
        state.first_log_probs[rows] = state.hidden[rows] = torch.nan  # type: ignore[index]

    def appended(eagle: Eagle, row: int, request: Any, pages: Sequence[int], bonus: torch.Tensor) -> None:
        append(eagle, row, request, pages, bonus)
        if request.speculate:
            spoil(eagle, row)

    def proposed(eagle: Eagle, batch: RunningBatch, plan: RoundPlan) -> Candidates:
        rows = batch.speculating().rows or list(range(batch.size))
        assert not eagle._state.first_log_probs[rows].isnan().any(), "its first level isn't there yet"
        made = propose(eagle, batch, plan)
        spoil(eagle, rows)
        return made

    monkeypatch.setattr(Eagle, "append", appended)
    monkeypatch.setattr(Eagle, "propose", proposed)


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


class Uneven:
    """A planner in whose rounds each request gets a number of nodes of its own, some none: on the kernels."""

    def __init__(self, bound: TreeShape) -> None:
        self._rng, self._bound = random.Random(5), bound
        self.sizes = Counter[int]()

    def choose(self, requests: int, *, behind: object = None) -> RoundPlan:
        """Verifying costs about as much as a random share of the nodes is worth."""
        depths = max(self._bound.depth, self._bound.lookup) + 1
        calibration = [self._rng.choice([0.2, 0.6, 1.0]) for _ in range(depths)]
        price = self._rng.choice([0.01, 0.1, 0.3])
        terms = Terms(calibration, [0.9] * depths, (1, 64), [price, 64 * price], 1e-6)
        return RoundPlan(self._bound, terms=terms)


SHAPES = [
    TreeShape(1, 2, 3),
    TreeShape(3, 1, 4),
    TreeShape(3, 3, 8),
    TreeShape(5, 4, 16),
    TreeShape(6, 8, 48),
]


def eagle(engine: Engine) -> Eagle:
    """The engine's head, as a drafter."""
    drafter = engine._core._drafter
    assert isinstance(drafter, Eagle)
    return drafter


def come_and_go(
    rng: random.Random, batch: RunningBatch, join: Callable[[], Request], state: Callable[[int], object]
) -> Iterator[list[Request]]:
    """The batch's requests after each of 20 steps in which one joins or leaves; the others' state stays theirs."""
    requests: list[Request] = []
    for number in range(20):
        if len(requests) == batch.sizes.rows or (requests and rng.random() < 0.45):
            before = {request.id: state(row) for row, request in enumerate(requests)}
            row = rng.randrange(len(requests))
            batch.remove(row)
            requests[row] = requests[-1]
            requests.pop()
            assert [state(row) for row in range(batch.size)] == [before[one.id] for one in requests]
        else:
            requests.append(join())
            requests[-1].id = number
        yield requests
