"""The `prompts` stage with sources: gather each one's pool, then select from all of them.

prompts/pool/NAME/   each source's accepted rows, treated  prompts/selection.json   summary for the card
prompts/prompts-*    the chosen prompts                    prompts/rejects/         duplicates among the pools
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from fledge.base.errors import DataError
from fledge.base.storage import Manifest
from fledge.data.gathering import Batch, ExamineAll, Examiner, ExaminerSettings, examine_here, gather
from fledge.data.options import Progress, PromptOptions
from fledge.data.privacy import Audit, write_audit
from fledge.data.prompt_store import (
    SELF_LICENCE,
    by_reason,
    pool_url,
    read_prompts,
    read_selection,
    reject_counts,
    traffic_url,
    write_selection,
)
from fledge.data.reasons import reasons_line
from fledge.data.selection.matching import NgramCounts, features
from fledge.data.selection.quotas import share_out
from fledge.data.selection.select import Distinct, PoolSource, Selected, distinct_rows, select_prompts
from fledge.data.sources import Source, SourceOptions, open_source

logger = logging.getLogger("fledge")

# Writes that many of the target's own prompts into a pool folder.
WritePool = Callable[[int, str], None]


@dataclass(frozen=True)
class Sources:
    """The opened sources of a recipe."""

    prompts: tuple[Source, ...]  # except the target itself
    traffic: tuple[Source, ...]

    @classmethod
    def open(cls, options: PromptOptions) -> Sources:
        """Check all terms and find all files before any work begins."""
        chosen = tuple(open_source(source) for source in options.sources if source.kind != "self")
        return cls(chosen, tuple(map(open_source, options.traffic)))

    def digests(self) -> dict[str, str]:
        """Digests of everything besides the recipe that the stage's output depends on."""
        return {
            f"{kind}.{s.name}": s.digest() for kind in ("prompts", "traffic") for s in getattr(self, kind)
        }


def mix_prompts(
    sources: Sources,
    settings: ExaminerSettings,
    output_url: str,
    write_pool: WritePool,
    count_tokens: Callable[[Sequence[str]], int],
    progress: Progress,
    examine: ExamineAll | None = None,
) -> None:
    """Fill a folder of prompts from the recipe's sources, or resume an earlier call.

    Args:
        write_pool: writes the target's own pool; only called if the target is among the sources.
        examine: how batches of rows are examined; None: in this process.
    """
    options = settings.options
    if read_selection(output_url):
        return
    for source in (*sources.prompts, *sources.traffic):
        logger.info("source %s: shape %s, licence %s", source.name, source.shape, source.licence)
        for warning in source.terms.warnings:
            logger.warning("%s", warning)
    audit = Audit()
    traffic = read_traffic(sources.traffic, settings, audit)
    if audit.scanned:
        write_audit(traffic_url(output_url), 0, audit)
    by_name = {source.name: source for source in sources.prompts}
    given = gather_pools(sources, settings, output_url, progress, examine)
    pools = [PoolSource(s.label, pool_url(output_url, s.label), s.weight) for s in options.sources]
    if own := [source.label for source in options.sources if source.kind == "self"]:
        available = dict.fromkeys((pool.name for pool in pools), options.count)
        # The target comes last: it fills what the others lack.
        available |= {name: rows.prompts for name, rows in distinct_rows(given, options).items()}
        weights = {pool.name: pool.weight for pool in pools}
        shares = share_out(options.count, weights, available)
        for label in filter(shares.get, own):
            write_pool(shares[label], pool_url(output_url, label))
    if not sum(Manifest.load(pool.url).records for pool in pools):
        raise DataError(
            f"no row of the sources is usable: {_reasons(pools, options)}; correct the sources or the limits"
        )
    selected = select_prompts(
        pools,
        traffic,
        options,
        output_url,
        settings.salt,
        count_tokens,
        lambda note: progress(0, 0, note),
    )
    if (fit := sum(selected.chosen.values())) < options.count:
        logger.warning(
            "prompts.count is %s, but the sources have only %s fit prompts", f"{options.count:,}", f"{fit:,}"
        )
    write_selection(output_url, _summary(options.sources, by_name, pools, selected, output_url))


def gather_pools(
    sources: Sources,
    settings: ExaminerSettings,
    output_url: str,
    progress: Progress,
    examine: ExamineAll | None = None,
) -> list[PoolSource]:
    """Fill the pool of each source but the target itself, or resume an earlier call."""
    pools = []
    weights = {source.label: source.weight for source in settings.options.sources}
    for source in sources.prompts:
        pool = PoolSource(source.name, pool_url(output_url, source.name), weights[source.name])
        gather(
            source,
            pool.url,
            examine or examine_here(settings),
            settings.options.shard_size,
            lambda rows, name=source.name: progress(0, 0, f"{name}: {rows:,} rows"),  # type: ignore[misc]
        )
        pools.append(pool)
    return pools


@dataclass(frozen=True)
class Gathered:
    """The rows of a source that are usable, before the draw."""

    path: str
    distinct: Distinct
    rejected: Mapping[str, int]  # reason -> rows, duplicates included


def gathered(pools: Sequence[PoolSource], options: PromptOptions) -> list[Gathered]:
    """The usable rows of each pool, in the pools' order."""
    paths = {source.label: source.path for source in options.sources}
    distinct = distinct_rows(pools, options)
    rejected = [by_reason(reject_counts(pool.url)) + distinct[pool.name].duplicates for pool in pools]
    return [
        Gathered(paths[pool.name], distinct[pool.name], reasons)
        for pool, reasons in zip(pools, rejected, strict=True)
    ]


def read_traffic(
    traffic: Sequence[Source], settings: ExaminerSettings, audit: Audit
) -> dict[str, NgramCounts]:
    """N-gram counts of the traffic samples per category, private data treated first. No text is stored.

    `audit` receives the privacy filter's counts.
    """
    if not traffic:
        return {}
    relaxed = settings.options.model_copy(
        update={"min_words": 1, "max_words": None, "languages": (), "evaluation_files": ()}
    )
    examiner = Examiner(replace(settings, options=relaxed, drops_uncovered=False))
    counts: dict[str, NgramCounts] = {}
    for source in traffic:
        for row in source.records():
            examined = examiner.examine(Batch([row], source.name, source.licence))
            if examined.audit is not None:
                audit.merge(examined.audit)
            for prompt in examined.prompts:
                counts.setdefault(prompt.category, NgramCounts()).add(features(prompt.turns))
    if not counts:
        raise DataError("the traffic sample has no usable prompt; correct prompts.traffic or remove it")
    return dict(sorted(counts.items()))


def _summary(
    chosen: Sequence[SourceOptions],
    opened: Mapping[str, Source],
    pools: Sequence[PoolSource],
    selected: Selected,
    output_url: str,
) -> dict[str, Any]:
    """The summary for the data card, as JSON."""
    sources = []
    contaminated: Counter[str] = Counter()
    losses: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for prompt in read_prompts(output_url):
        losses[prompt.source].update(prompt.losses)
    all_rejects = reject_counts(output_url)
    for options, pool in zip(chosen, pools, strict=True):
        source = opened.get(pool.name)
        rejects = reject_counts(pool.url)
        all_rejects.update(rejects)
        fit = Manifest.load(pool.url).records
        contaminated.update(
            {file: n for (reason, file), n in rejects.items() if reason == "evaluation" and file}
        )
        sources.append(
            {
                "name": pool.name,
                "kind": options.kind,
                "path": options.path,
                "shape": source.shape if source else "self",
                "licence": source.licence if source else SELF_LICENCE,
                "terms_declared_by": source.terms.declared_by if source else "recipe",
                "warnings": list(source.terms.warnings) if source else [],
                "weight": options.weight,
                "rows": fit + rejects.total(),
                "rejected": dict(by_reason(rejects)),
                "losses": dict(sorted(losses[pool.name].items())),
                "fit": fit,
                "wanted": selected.wanted[pool.name],
                "chosen": selected.chosen[pool.name],
            }
        )
    fields = asdict(selected)
    rejected = by_reason(all_rejects)
    fields["duplicates"] = {name: rejected[name] for name in selected.duplicates}
    return {
        "rows": sum(source["rows"] for source in sources),
        "rejected": dict(rejected),
        "kept": sum(selected.chosen.values()),
        "losses": dict(sorted(sum(losses.values(), Counter()).items())),
        "sources": sources,
        "contamination": dict(sorted(contaminated.items())),
        **{key: fields[key] for key in ("pool", "duplicates", "surplus", "distances")},
    }


def _reasons(pools: Sequence[PoolSource], options: PromptOptions) -> str:
    reasons = by_reason(reject_counts(*(pool.url for pool in pools)))
    return reasons_line(reasons, options) or "they are empty"
