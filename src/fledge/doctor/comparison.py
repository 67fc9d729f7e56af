"""A served engine's prompts and acceptance beside our own engine's, with the same prompts and the same head."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from statistics import mean, stdev

from fledge.doctor.findings import Defect, Measured, Steps
from fledge.doctor.served import ServedAnswer, ServedEngine
from fledge.doctor.traps import llama_cpp_causes, llama_cpp_drafters
from fledge.engine import Completion, Engine, TreeShape
from fledge.engine.shapes import MAX_DEPTH
from fledge.heads import Head
from fledge.target import Target

_CHAIN = 3  # tokens drafted in a row, if neither the caller nor the server says
_USELESS_TAU = 1.05  # mean tau of a server below which it is useless
_SHORTFALL = 0.1  # of our own chain's tau, over ten prompts
_ERRORS = 2.0  # standard errors of a mean difference that may be chance


def compare_served(
    target: Target,
    head: Head,
    served: ServedEngine,
    prompts: Sequence[str | list[int]],
    answers: list[Completion],
    max_tokens: int,
    depth: int | None,
    measured: list[Measured],
    steps: Steps,
) -> list[Defect]:
    """The server's results for the prompts; `answers` are our own, empty if fledge can't run the target."""
    ids = [target.chat.prompt_ids(_question(p)) if isinstance(p, str) else p for p in prompts]
    findings = _prompt_findings(served, prompts, ids)
    replies = []
    for number, prompt_ids in enumerate(ids, 1):
        steps.next(f"the server answers {number} of {len(ids)}")
        replies.append(served.answer(prompt_ids, max_tokens))
    chain = depth or min(_longest(replies), MAX_DEPTH) or _CHAIN
    taus: list[float] = []
    if answers:
        steps.next(f"our own engine drafts chains of {chain}")
        taus = chain_tau(target, head, ids, max_tokens, chain)
        same = sum(_same(reply, answer) for reply, answer in zip(replies, answers, strict=True))
        measured.append(Measured("answers equal to our plain decode", f"{same} of {len(answers)}"))
    for number, reply in enumerate(replies, 1):
        name, ours = ("tau served / ours", f" / {taus[number - 1]:.2f}") if taus else ("tau served", "")
        measured.append(Measured(f"prompt {number}: {name}", f"{reply.tau:.2f}{ours}"))
    if served.kind == "llama.cpp":
        causes = partial(llama_cpp_causes, served.model, target.place, depth)
        return findings + _llama_cpp_findings(replies, taus, chain, causes, measured)
    return findings + _tau_findings([r.tau for r in replies if r.tau], [] if served.plans else taus, chain)


def chain_tau(
    target: Target, head: Head, prompts: Sequence[str | list[int]], max_tokens: int, depth: int
) -> list[float]:
    """Our own engine's tau per prompt with chains of `depth` drafted tokens."""
    # A recorded other target is a finding already, not an error here.
    bare = Head(head.config, head.weights)
    chain = Engine(target, bare, tree=TreeShape(depth, 1, depth + 1))
    return [c.stats.tau for c in chain.generate(list(prompts), max_tokens=max_tokens)]


def _prompt_findings(
    served: ServedEngine, prompts: Sequence[str | list[int]], ids: Sequence[list[int]]
) -> list[Defect]:
    """The first question that the server turns into other ids than the target's own template."""
    for prompt, expected in zip(prompts, ids, strict=True):
        theirs = served.prompt_ids(_question(prompt)) if isinstance(prompt, str) else None
        if theirs is None or theirs == expected:
            continue
        pairs = zip(theirs, expected, strict=False)
        at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(theirs), len(expected)))
        what = (
            f"for {prompt!r} the server makes {len(theirs)} tokens, the target's template {len(expected)}; "
            f"they part at token {at}"
        )
        remedy = "serve with the target's own chat template and tokenizer"
        return [Defect("served-prompt", what, remedy)]
    return []


def _tau_findings(served: Sequence[float], own: Sequence[float], depth: int) -> list[Defect]:
    """A defect if the server accepts too little. `own`: our chains' taus; empty if they aren't comparable."""
    if not served:
        what = "the server reports no drafts at all"
        remedy = "switch speculation on (EAGLE3 / eagle3); of vLLM they are counted on its /metrics page"
        return [Defect("served-tau", what, remedy)]
    least = (1 - _SHORTFALL) * mean(own) if own else _USELESS_TAU
    if mean(served) >= least:
        return []
    comparison = f", our engine's {mean(own):.2f} with chains of {depth}" if own else ": it accepts nothing"
    what = f"the server's mean tau is {mean(served):.2f}{comparison}"
    remedy = "compare the server's draft length, method (EAGLE3, not EAGLE) and head with the ones given here"
    return [Defect("served-tau", what, remedy)]


def _llama_cpp_findings(
    replies: Sequence[ServedAnswer],
    own: Sequence[float],
    chain: int,
    causes: Callable[[int, bool], str],
    measured: list[Measured],
) -> list[Defect]:
    """A defect if llama-server doesn't draft with the head alone, or accepts less than our chains.

    It computes in other types than we do, so answers part and taus differ by chance: by how much, the differences of
    the single prompts say. `causes` is told the most tokens drafted at once, and whether some drafts were shorter.
    """
    drafted = [reply for reply in replies if reply.drafts]
    if defect := llama_cpp_drafters(replies[0].drafters, drafts=bool(drafted)):
        return [defect]
    longest = _longest(drafted)
    fewer = [r.drafted < min(longest, r.room) for reply in drafted for r in reply.rounds]
    if longest:
        share = f", fewer in {mean(fewer):.0%} of its rounds" if any(fewer) else ""
        measured.append(Measured("tokens that the server drafts at once", f"{longest}{share}"))
    theirs = mean(reply.tau for reply in drafted)
    least, comparison = _USELESS_TAU, ": it accepts nothing"
    if own:
        pairs = [(reply.tau, tau) for reply, tau in zip(replies, own, strict=True) if reply.drafts]
        ours = mean(tau for _, tau in pairs)
        differences = [a - b for a, b in pairs]
        chance = _ERRORS * stdev(differences) / math.sqrt(len(pairs)) if len(pairs) > 1 else ours
        row = Measured("mean tau served / ours", f"{theirs:.2f} / {ours:.2f}, ± {chance:.2f} by chance")
        measured.append(row)
        least = ours - max(_SHORTFALL * ours, chance)
        comparison = f", our engine's {ours:.2f} with chains of {chain}"
    if theirs >= least:
        return []
    what = f"the server's mean tau is {theirs:.2f}{comparison}"
    return [Defect("served-tau", what, causes(longest, any(fewer)))]


def _longest(replies: Iterable[ServedAnswer]) -> int:
    """The most tokens that a server drafted at once; 0: unknown."""
    return max((r.drafted for reply in replies for r in reply.rounds), default=0)


def _same(reply: ServedAnswer, answer: Completion) -> bool:
    return reply.token_ids == answer.token_ids if reply.token_ids else reply.text == answer.text


def _question(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]
