"""`fledge doctor`: files first, then forwards, then the served engine; every finding includes its remedy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fledge.base.errors import HeadError
from fledge.base.memory import system_memory
from fledge.doctor.comparison import compare_served
from fledge.doctor.files import file_findings, is_half
from fledge.doctor.findings import Defect, Measured, Progress, Steps
from fledge.doctor.hypotheses import NO_EMBEDDING, different_rows
from fledge.doctor.probe import Probe
from fledge.doctor.served import ServedEngine
from fledge.doctor.traps import engine_findings
from fledge.engine import Completion, Engine, SamplingParams
from fledge.heads import Head
from fledge.heads.checkpoint import local_url, read_files
from fledge.heads.fit import other_weights
from fledge.heads.foreign import canonically_named
from fledge.heads.forms import canonical_tensors
from fledge.target import Target

PROMPTS = (
    "Why is the sky blue?",
    "Write a Python function that returns the n-th Fibonacci number.",
    "Summarise in two sentences what a database index is for.",
    "A shop sells pens at 3 for 2 euros. What do 12 pens cost?",
    "Give me three tips for a good night's sleep.",
    "Translate into French: The train leaves at eight o'clock.",
    "Explain the difference between a list and a tuple in Python.",
    "Write a short email asking a colleague for last month's sales figures.",
    "What happens to water when it freezes, and why does ice float?",
    "Tell a short story about a lighthouse keeper.",
)
_COMPARE = "compare it with the original (--reference)"
_USELESS = 0.05  # share of correct first proposals below which speculation is useless
_SHORTFALL = 0.2  # share of a head's recorded acceptance; a larger shortfall is reported
# The released head (9.8 M weights, 5 M answer tokens, a target of 135 M) has 0.54 on PROMPTS. A head of half its size,
# and as much data or an unknown amount of it, promises that.
_PROMISED, _PROMISING_WEIGHTS, _PROMISING_TOKENS = 0.55, 5_000_000, 3_000_000


@dataclass(frozen=True)
class Diagnosis:
    """The result of an examination. No findings: no fault was detected."""

    findings: list[Defect]
    measured: list[Measured]


def diagnose(
    target: Target,
    url: str,
    *,
    engine: str | None = None,
    reference: str | None = None,
    prompts: Sequence[str | list[int]] = PROMPTS,
    max_tokens: int = 48,
    depth: int | None = None,
    progress: Progress = lambda done, total, note: None,
) -> Diagnosis:
    """Examine a head.

    Args:
        target: the head's target.
        url: the head's folder, URL or hub id.
        engine: `vllm` or `sglang` for that engine's traps, or a running server's URL to compare with.
        reference: the same head in another form; the first tensor that differs is reported.
        prompts: questions, or token ids used as they are.
        max_tokens: length of the answers.
        depth: tokens drafted in a row, which must be as many as the served engine drafts; None: what llama-server is
            seen to draft, 3 for others.
        progress: called with the steps done, their total, and the next step.
    """
    served = ServedEngine(engine) if engine is not None and "://" in engine else None
    steps = Steps(progress, 2 + Probe.STEPS + (0 if served is None else 1 + len(prompts)))
    steps.next("reads the head")
    url = local_url(url)
    raw, tensors = read_files(url)
    named = canonically_named(tensors, url)
    findings = list(file_findings(raw, named, target, url))
    measured = [Measured("the target's weights", target.quantization)] if target.quantization else []
    if engine is not None and served is None:
        findings += engine_findings(engine, raw, tensors, target)
    try:
        head = Head.load(url)
    except HeadError as error:
        if not findings:
            findings.append(Defect("unreadable", str(error), "get the head again"))
        return Diagnosis(findings, measured)
    if note := other_weights(head.metadata, target):
        measured.append(Measured("head", note))
    if not any(f.fault == "layers" for f in findings):
        target = head.target_it_reads(target)
    if reference is not None:
        findings += _against(head, Head.load(reference))
    if any(f.fault in ("target", "vocabulary-map") for f in findings):
        return Diagnosis(findings, measured)  # forwards would be meaningless
    answers: list[Completion] = []
    if reason := _not_runnable(target):
        measured.append(Measured("not looked at", f"answers: {reason}"))
        findings += _own_embedding(head, target)
    else:
        answers = _answers(target, prompts, max_tokens, steps)
        probe = Probe(target, answers, steps.next)
        proven = _forwards(head, probe, measured, half=is_half(raw), explained=bool(findings))
        faults = {finding.fault for finding in proven}
        findings = [f for f in findings if f.certain or f.fault not in faults] + proven
    if served is not None:
        findings += compare_served(target, head, served, prompts, answers, max_tokens, depth, measured, steps)
    return Diagnosis(findings, measured)


def _not_runnable(target: Target) -> str:
    """Why the target's answers can't be generated here; empty if they can."""
    if target.config.undecodable:
        return f"fledge's decoder can't run {target.name}"
    size = target.memory_bytes
    cuda = target.device.type == "cuda"
    free = torch.cuda.mem_get_info(target.device)[0] if cuda else system_memory("MemAvailable")
    if size <= free or "decoder" in target.__dict__:
        return ""
    return (
        f"{target.name} takes {size / 2**30:.0f} GiB, and {free / 2**30:.0f} GiB are free on {target.device}"
    )


def _own_embedding(head: Head, target: Target) -> list[Defect]:
    """For a target that can't be run: a defect if most rows of the head's own embedding differ from the target's."""
    own = head.weights.embedding
    different = 0 if own is None else different_rows(own, target)
    if 2 * different <= target.config.vocab_size:
        return []
    what = (
        f"{different:,} of {target.config.vocab_size:,} rows of the head's own embedding aren't the target's"
    )
    return [Defect("embedding", what, NO_EMBEDDING, certain=False)]


def _answers(
    target: Target, prompts: Sequence[str | list[int]], max_tokens: int, steps: Steps
) -> list[Completion]:
    """The target's own greedy answers, generated in one batch."""
    steps.next("the target answers")
    engine = Engine(target, None)
    params, written, done = SamplingParams(max_tokens=max_tokens), 0, dict[int, Completion]()
    requests = [engine.submit(engine.prompt_ids(prompt), params) for prompt in prompts]
    while len(done) < len(requests):
        for result in engine.step():
            written += len(result.token_ids)
            if result.completion is not None:
                done[result.request_id] = result.completion
        steps.part(written / (len(requests) * max_tokens), "the target answers")
    return [done[request] for request in requests]


def _forwards(
    head: Head,
    probe: Probe,
    measured: list[Measured],
    *,
    half: bool,
    explained: bool,
) -> list[Defect]:
    if not all(bool(t.isfinite().all()) for t in head.weights.trainable().values()):
        return []  # a finding already
    if not probe.answers:
        measured.append(Measured("first proposals", "none: no answer of the target is longer than a token"))
        return []
    score = probe.score(head)
    measured.append(Measured("first proposals that are the target's token", f"{score.hits:.1%}"))
    measured.append(Measured("largest activation", f"{score.largest:.3g}"))
    expected = (1 - _SHORTFALL) * _promised(head)
    findings = list(probe.findings(head, score, expected=expected))
    if half and score.largest > torch.finfo(torch.float16).max:
        findings.append(
            Defect(
                "float16",
                f"activations reach {score.largest:.3g}; the config says float16, which ends at 65504",
                'write "torch_dtype": "bfloat16" into config.json and serve in bfloat16',
            )
        )
    if findings or explained or score.hits >= max(_USELESS, expected):
        return findings
    if head.metadata.target_revision and not head.metadata.training:  # written by fledge, without training
        measured.append(Measured("training", "none by the head's own record, so it accepts nothing yet"))
        return findings
    if score.hits >= _USELESS:
        what = (
            f"{score.hits:.1%} of first proposals are right; its size and data promise {expected:.0%} or more"
        )
        remedy = f"if its training promised more, a tensor or number of it is wrong: {_COMPARE}; else train it longer"
        return [Defect("low", what, remedy, certain=False)]
    what = f"{score.hits:.1%} of first proposals are right: the head is trained too little, or for another target"
    remedy = "name the head and target that belong together, or train a head for this one with `fledge run`"
    return [Defect("accepts-nothing", what, remedy, certain=False)]


def _promised(head: Head) -> float:
    """The share of first proposals that should be right, by the head's record of its training and its size; 0 if
    neither says."""
    training = head.metadata.training
    recorded = training.get("acceptance") or [0.0]
    tokens = training.get("supervised_tokens", _PROMISING_TOKENS if not training else 0)
    weights = sum(tensor.numel() for tensor in head.weights.trainable().values())
    full = weights >= _PROMISING_WEIGHTS and tokens >= _PROMISING_TOKENS
    return max(float(recorded[0]), _PROMISED if full else 0.0)


def _against(head: Head, other: Head) -> list[Defect]:
    mine, theirs = canonical_tensors(head), canonical_tensors(other)
    if not torch.equal(head.weights.d2t, other.weights.d2t):
        return [Defect("vocabulary-map", "d2t differs from the reference's", "export the reference again")]
    for name, tensor in mine.items():
        reference = theirs.get(name)
        if reference is None or reference.shape != tensor.shape:
            what = f"{name} differs first: the reference has none of this shape"
        elif torch.equal(tensor.float(), reference.float()):
            continue
        else:
            largest = float((tensor.float() - reference.float()).abs().max())
            what = f"{name} differs first, by up to {largest:.3g}"
        fault = "missing-norm" if "norm" in name else "values"
        return [Defect(fault, what, "export the reference again")]  # type: ignore[arg-type]
    return []
