"""The exact distribution of short answers, worked out token by token in plain Python, and a chi-square against it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from fledge.engine import SamplingParams
from fledge.target.batch import one_sequence
from fledge.target.target import Target

Path = tuple[int, ...]


def raw_logits(target: Target, context: list[int]) -> list[float]:
    """The target's logits after a context, from one forward over all of it."""
    decoder = target.decoder
    batch = one_sequence(context, decoder.page_size, decoder.device)
    batch = batch._replace(logit_rows=torch.tensor([len(context) - 1], dtype=torch.int32))
    logits = decoder.forward(batch, decoder.allocate_kv(batch.page_table.numel()), logits="logits").logits
    assert logits is not None
    return logits[0].double().tolist()


def next_tokens(target: Target, prompt: list[int], answer: Path, params: SamplingParams) -> dict[int, float]:
    """Token -> probability after prompt and answer so far, under all of `params`."""
    logits = raw_logits(target, [*prompt, *answer])
    counts = Counter(answer)
    for token, bias in params.logit_bias.items():
        logits[token] += bias
    for token in {*prompt, *answer}:
        factor = params.repetition_penalty
        logits[token] = logits[token] / factor if logits[token] > 0 else logits[token] * factor
    for token, count in counts.items():
        logits[token] -= params.frequency_penalty * count + params.presence_penalty
    return filtered(logits, params)


def filtered(logits: list[float], params: SamplingParams) -> dict[int, float]:
    """Temperature, top-k, top-p and min-p."""
    top = max(logits)
    weights = [math.exp((value - top) / params.temperature) for value in logits]
    order = sorted(range(len(weights)), key=lambda token: -weights[token])
    if params.top_k:
        order = order[: params.top_k]
    total = sum(weights[token] for token in order)
    kept, mass = [], 0.0
    for token in order:
        if mass >= params.top_p * total:
            break
        kept.append(token)
        mass += weights[token]
    kept = [token for token in kept if weights[token] >= params.min_p]
    mass = sum(weights[token] for token in kept)
    return {token: weights[token] / mass for token in kept}


@dataclass(frozen=True)
class AnswerCells:
    """All answers of `depth` tokens as cells: the likeliest paths, and "some other token" after each of them."""

    depth: int
    probability: dict[Path, float]  # a path that ends in -1 stands for all others with its beginning
    likely: dict[int, dict[int, float]]  # last token of a path -> distribution after it
    first: dict[Path, tuple[int, float]]  # a path -> the likeliest token after it, and its probability

    def cell(self, answer: Path) -> Path:
        for length in range(1, self.depth + 1):
            if answer[:length] not in self._beginnings:
                return (*answer[: length - 1], -1)
        return answer

    @property
    def _beginnings(self) -> frozenset[Path]:
        found = self.__dict__.get("_known")
        if found is None:
            found = frozenset(path[:n] for path in self.probability for n in range(1, len(path) + 1))
            object.__setattr__(self, "_known", found)
        return found

    def p_value(self, answers: Counter[Path]) -> float:
        """The smaller one, twice, of two p-values: Pearson's chi-square over all cells, and `_likeliest_p_value`.

        The first finds a fault anywhere if it is large, the second a small bias to what is likely.
        """
        observed: Counter[Path] = Counter()
        for answer, count in answers.items():
            observed[self.cell(answer)] += count
        assert set(observed) <= set(self.probability), "an answer of probability zero came up"
        return min(1.0, 2 * min(chi_square(observed, self.probability), self._likeliest_p_value(observed)))

    def _likeliest_p_value(self, observed: Counter[Path]) -> float:
        """Of how often a token is the likeliest one in its place: what a bias to drafts makes more of.

        Each place has its own probability, given what came before, so the differences add up like independent ones.
        """
        surplus = variance = 0.0
        for cell, count in observed.items():
            for n, token in enumerate(cell):
                likeliest, share = self.first[cell[:n]]
                surplus += count * ((token == likeliest) - share)
                variance += count * share * (1 - share)
        return math.erfc(abs(surplus) / math.sqrt(2 * variance)) if variance else 1.0


def chi_square(observed: Counter[Path], probability: Mapping[Path, float]) -> float:
    """Pearson's, as a p-value; cells that expect fewer than 10 answers are taken together."""
    draws = observed.total()
    small_observed = small_expected = statistic = 0.0
    cells = 0
    for cell, share in probability.items():
        expected = share * draws
        if expected < 10:
            small_observed += observed[cell]
            small_expected += expected
            continue
        statistic += (observed[cell] - expected) ** 2 / expected
        cells += 1
    if small_expected > 0.5:
        statistic += (small_observed - small_expected) ** 2 / small_expected
        cells += 1
    freedom = torch.tensor((cells - 1) / 2, dtype=torch.float64)
    return torch.special.gammaincc(freedom, torch.tensor(statistic / 2, dtype=torch.float64)).item()


def answer_cells(
    target: Target, prompt: list[int], params: SamplingParams, *, depth: int, width: int
) -> AnswerCells:
    """Cells around the `width` likeliest tokens at each of `depth` places."""
    cells: dict[Path, float] = {}
    likely: dict[int, dict[int, float]] = {}
    first: dict[Path, tuple[int, float]] = {}
    paths: dict[Path, float] = {(): 1.0}
    for _ in range(depth):
        longer: dict[Path, float] = {}
        for path, probability in paths.items():
            following = next_tokens(target, prompt, path, params)
            likely.setdefault(path[-1] if path else prompt[-1], following)
            best = sorted(following.items(), key=lambda item: -item[1])[:width]
            first[path] = best[0]
            longer.update({(*path, token): probability * share for token, share in best})
            rest = 1 - sum(share for _, share in best)
            if rest > 1e-9:
                cells[(*path, -1)] = probability * rest
        paths = longer
    return AnswerCells(depth, {**cells, **paths}, likely, first)
