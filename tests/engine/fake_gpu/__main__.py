"""Prints what serving would do on a GPU: by scenario, the launches and waits of each kind of work."""

from __future__ import annotations

import argparse
import json
import traceback
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from fledge.draft import HeadConfig, HeadWeights, TorchHeadRunner
from fledge.draft.description import weight_shapes
from fledge.engine import PLAIN, SamplingParams, TreeShape
from fledge.engine.build import EngineParts, build_parts
from fledge.engine.core import EngineCore
from fledge.engine.drafters.eagle import Eagle
from fledge.engine.options import EngineOptions
from fledge.engine.planner import RoundPlan
from fledge.engine.request import Request
from fledge.engine.rounds import graphs
from fledge.native.build import find_compiler
from fledge.target.batch import ForwardBatch, one_sequence
from fledge.target.config import DecoderConfig
from fledge.target.decoder import TorchDecoder
from fledge.target.weights import DecoderWeights, LayerWeights
from tests.engine.fake_gpu.audit import own_places
from tests.engine.fake_gpu.device import FakeGpu, load_guard

# Llama 3.1 8B
_SIZE, _HEADS, _KV_HEADS, _INNER, _VOCABULARY, _DRAFT = 4096, 32, 8, 14336, 128256, 32000
_TREE = TreeShape(2, 4, 16, 15)
_SAMPLED: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 1.0},
    "filtered": {"temperature": 0.7, "top_p": 0.9, "top_k": 50},
    "log probabilities": {"logprobs": 2},
    "penalties": {"repetition_penalty": 1.1},
}


def models(device: torch.device, layers: int) -> tuple[TorchDecoder, TorchHeadRunner]:
    """Without weights, for FakeTensors have none."""
    config = DecoderConfig.from_hf(
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": _SIZE,
            "intermediate_size": _INNER,
            "num_hidden_layers": layers,
            "num_attention_heads": _HEADS,
            "num_key_value_heads": _KV_HEADS,
            "vocab_size": _VOCABULARY,
            "max_position_embeddings": 8192,
            "rms_norm_eps": 1e-5,
            "rope_theta": 5e5,
        }
    )

    def empty(*shape: int) -> Tensor:
        return torch.empty(*shape, dtype=torch.bfloat16, device=device)

    made = [
        LayerWeights(
            empty(_SIZE), empty(config.qkv_size, _SIZE), None, None, None, empty(_SIZE, _SIZE), empty(_SIZE),
            empty(2 * _INNER, _SIZE), empty(_SIZE, _INNER),
        )
        for _ in range(layers)
    ]  # fmt: skip
    weights = DecoderWeights(empty(_VOCABULARY, _SIZE), empty(_SIZE), empty(_VOCABULARY, _SIZE), made)
    head = HeadConfig.for_target(config, _DRAFT)
    drawn = {name: torch.empty(shape) for name, shape in weight_shapes(head).items()}
    d2t = torch.zeros(_DRAFT, dtype=torch.int64)
    runner = TorchHeadRunner(head, HeadWeights(**drawn, d2t=d2t), weights.embedding, page_size=16)
    return TorchDecoder(config, weights), runner


def engine(
    gpu: FakeGpu,
    device: torch.device,
    requests: int,
    tree: TreeShape | None,
    cuda_graphs: bool | None = False,
) -> tuple[EngineCore, EngineParts]:
    """The real one, all but how results come to the host."""
    options = EngineOptions(
        max_batch=requests,
        max_context=2048,
        kv_tokens=64 * 2048,
        tree=tree,
        overlap=True,
        cuda_graphs=cuda_graphs,
    )
    parts = build_parts(*models(device, gpu.layers), options)
    gpu.audit.restart()
    return EngineCore(parts, lambda request: ""), parts


def submit(core: EngineCore, number: int, options: dict[str, Any]) -> int:
    """A request of 15 tokens."""
    params = SamplingParams(max_tokens=100, ignore_eos=True, seed=number, **options)
    request = Request(
        list(range(10 + number, 25 + number)),
        params,
        seed=number,
        stop_ids=frozenset(),
        speculate=True,
        sink=None,
    )
    return core.submit(request)


def serve(
    gpu: FakeGpu, device: torch.device, requests: int, options: list[dict[str, Any]], tree: TreeShape = _TREE
) -> None:
    """Requests of these options in turn, for some rounds; one leaves and one joins in between."""
    core, _ = engine(gpu, device, requests, tree)
    ids = [submit(core, number, options[number % len(options)]) for number in range(requests)]
    for _ in range(2):
        core.step()
    core.cancel(ids[0])
    submit(core, requests, options[0])
    for _ in range(2):
        core.step()


def serve_recorded(gpu: FakeGpu, device: torch.device, options: list[dict[str, Any]]) -> None:
    """Three requests in rounds that are recorded for four, as graphs are by default; two, then three again."""
    with mock.patch.object(graphs, "_BATCHES", ()):
        core, parts = engine(gpu, device, 4, _TREE, None)
    ids = [submit(core, number, options[number % len(options)]) for number in range(3)]
    for _ in range(3):
        core.step()
    core.cancel(ids[0])
    core.step()
    submit(core, 3, options[0])
    for _ in range(2):
        core.step()
    assert isinstance(parts.rounds.round, graphs.GraphRound)
    assert parts.rounds.round.replayed == 6


def falling_behind(gpu: FakeGpu, device: torch.device, requests: int, more: int) -> None:
    """Rounds without the head, then with it again: it catches up. It is `more` positions behind than it passed."""
    core, parts = engine(gpu, device, requests, None)
    plans = [RoundPlan(PLAIN)] * 3 + [RoundPlan(_TREE, parts.planner.match_rates)] * 2
    parts.planner.choose = lambda requests, *, behind: plans.pop(0)  # type: ignore[method-assign]
    parts.planner.learn = lambda done: None  # type: ignore[method-assign]
    for number in range(requests):
        submit(core, number, {})
    while plans:
        if len(plans) == 2 and isinstance(parts.drafter, Eagle):
            parts.drafter.pending[0] += more
        core.step()


def forwards(gpu: FakeGpu, device: torch.device) -> None:
    """Of both models, as features and measurements run them, on whatever device is the present one."""
    decoder, runner = models(device, gpu.layers)
    host = one_sequence([1, 2, 3], decoder.page_size, torch.device("cpu"))
    rows = ForwardBatch(*(None if part is None else part.to(device) for part in host))
    out = decoder.forward(rows, decoder.allocate_kv(4), logits="argmax", features=True)
    runner.forward(rows, runner.allocate_kv(4), features=out.features, hidden=None, k=4)


def reading(gpu: FakeGpu, device: torch.device, serving: Callable[..., None], *arguments: Any) -> None:
    """A planted mistake: a round looks at a value."""
    propose = Eagle.propose

    def looks(eagle: Eagle, batch: Any, plan: Any) -> Any:
        torch.ops.aten._local_scalar_dense(batch.view().bonus[:1].sum())
        return propose(eagle, batch, plan)

    Eagle.propose = looks  # type: ignore[method-assign]
    try:
        serving(gpu, device, *arguments)
    finally:
        Eagle.propose = propose  # type: ignore[method-assign]


def mixing_devices(gpu: FakeGpu, device: torch.device, requests: int, options: list[dict[str, Any]]) -> None:
    """A planted mistake: a tensor that was left on the host."""
    follow = Eagle.follow

    def mixes(eagle: Eagle, batch: Any, accepted: Any, features: Any) -> None:
        batch.view().length.add_(torch.ones(batch.size, dtype=torch.int32))
        follow(eagle, batch, accepted, features)

    Eagle.follow = mixes  # type: ignore[method-assign]
    try:
        serve(gpu, device, requests, options)
    finally:
        Eagle.follow = follow  # type: ignore[method-assign]


def scenarios() -> dict[str, tuple[Callable[..., None], tuple[Any, ...], int]]:
    """By name: what serves, its arguments, and the number of the device."""
    found: dict[str, tuple[Callable[..., None], tuple[Any, ...], int]] = {}
    for name in ("greedy", "sampled", "filtered", "log probabilities"):
        found[f"{name}, 1"] = serve, (1, [_SAMPLED[name]]), 0
    found["greedy, 64"] = serve, (64, [{}]), 0
    found["all kinds, 64"] = serve, (64, list(_SAMPLED.values())), 0
    found["plain, 64"] = serve, (64, [{}], PLAIN), 0
    found["lookup alone, 4"] = serve, (4, [{}], TreeShape(0, 1, 8, 7)), 0
    found["catching up, 4"] = falling_behind, (4, 0), 0
    found["starting anew, 4"] = falling_behind, (4, 150), 0
    found["second device, 4"] = serve, (4, [{}, _SAMPLED["filtered"]]), 1
    found["second device, forwards alone"] = forwards, (), 1
    found["recorded, greedy, 3"] = serve_recorded, ([{}],), 0
    found["recorded, filtered, 3"] = serve_recorded, ([_SAMPLED["filtered"], {}],), 0
    found["second device, recorded, 3"] = serve_recorded, ([_SAMPLED["sampled"], {}],), 1
    found["planted: a value is read"] = reading, (serve, 2, [{}]), 0
    found["planted: a value is read while a round is recorded"] = reading, (serve_recorded, [{}]), 0
    found["planted: another device"] = mixing_devices, (2, [{}]), 0
    return found


def described(failure: Exception) -> str:
    """What failed, and where in fledge; torch's own frames are dozens."""
    places = reversed(own_places(traceback.extract_tb(failure.__traceback__)))
    return f"{type(failure).__name__}: {failure} in {' < '.join(places)}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.engine.fake_gpu", description=__doc__)
    parser.add_argument("--layers", type=int, default=4, help="of the target; Llama 3.1 8B has 32, all alike")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="these scenarios")
    given = parser.parse_args()
    load_guard(find_compiler() or "c++")
    torch.set_num_threads(1)
    report: dict[str, Any] = {}
    for name, (work, arguments, index) in scenarios().items():
        if given.only and name not in given.only:
            continue
        gpu, error = FakeGpu(given.layers), ""
        with gpu.on():
            try:
                work(gpu, torch.device("cuda", index), *arguments)
            except Exception as failure:
                error = described(failure)
        waits = {
            kind: sorted({one for _, waits in found for one in waits}) for kind, found in gpu.kinds.items()
        }
        launches = {kind: [count for count, _ in found] for kind, found in gpu.kinds.items()}
        report[name] = {
            "launches": launches,
            "waits": waits,
            "astray": sorted(set(gpu.astray)),
            "error": error,
        }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
