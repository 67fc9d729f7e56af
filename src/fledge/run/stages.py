"""The seven stages of a run: where each one's output is stored, what it depends on, and how it runs.

    stage      folder          beside it
    prompts    prompts/
    respond    conversations/
    features   features/
    train      train/          head/
    evaluate   evaluate/       evaluation.json
    bench      bench/
    report     report/         report.html, summary.json

The rooms do the work; a stage knows its inputs and its options.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from fledge.base.console import human_bytes, plural
from fledge.base.errors import DataError, EngineError, RecipeError
from fledge.base.fingerprint import Fingerprint, make_fingerprint
from fledge.base.storage import Manifest, exists, join
from fledge.bench import run_bench, summarise
from fledge.bench.report.formats import number, times
from fledge.bench.workloads import Workload
from fledge.data import (
    AnswerServer,
    Progress,
    make_prompts,
    prompts_fingerprint,
    respond,
    respond_fingerprint,
)
from fledge.data.ray_respond import AnswerActors
from fledge.data.reasons import loss_lines, reasons_line, rejected_line
from fledge.data.responses import fit_to_prompts
from fledge.engine import Engine
from fledge.features import (
    HookExtractor,
    LlamaCppExtractor,
    OnlineFeatures,
    ServedExtractor,
    extract_features,
    extract_features_on_ray,
    features_fingerprint,
)
from fledge.features.extract import Extractor
from fledge.heads import Head
from fledge.heads.checkpoint import CONFIG_NAME
from fledge.run.closing import REPORT_NAME, write_closing
from fledge.run.folder import Record, Run, StageResult, file_digest, head_digest
from fledge.run.heldout import heldout_workloads
from fledge.train import evaluate, train, train_fingerprint

_FORMAT = 1  # of fingerprints made here

logger = logging.getLogger("fledge")


@dataclass(frozen=True)
class Stage:
    """A step of the pipeline. `fingerprint` needs the stage's inputs to be complete."""

    name: str
    folder: str
    fingerprint: Callable[[Run], Fingerprint]
    work: Callable[[Run, Progress], StageResult]
    needs: tuple[str, ...] = ()
    products: tuple[str, ...] = ()  # files whose checksums are recorded, if the run has them
    always: bool = False  # repeated in every run, as it is cheap
    restarts: bool = False  # restarts after an interruption, so earlier inputs don't matter
    claims: bool = False  # the work itself writes fingerprint.json when it can start


def _prompts(run: Run, progress: Progress) -> StageResult:
    options = run.prompt_options
    engine = _engine(run, options.max_batch, options.longest_request) if options.writes else None
    data = make_prompts(
        run.target, engine, options, run.url("prompts"), progress, privacy=run.privacy, ray=run.ray
    )
    for line in loss_lines(data.losses):
        logger.warning("of %s prompts %s", f"{data.prompts:,}", line)
    more = f", {data.spare:,} fit but not needed" if data.spare else ""
    return StageResult(
        f"{plural(data.prompts, 'prompt')} kept, {rejected_line(data.rejected, options)}{more}"
    )


def _respond(run: Run, progress: Progress) -> StageResult:
    options = run.recipe.respond
    places = run.url("prompts"), options, run.url("conversations")
    data = respond(run.target, _answerer(run), *places, progress, privacy=run.privacy)
    stats = data.statistics
    line = (
        f"{plural(stats.conversations, 'conversation')}, {plural(stats.supervised_tokens, 'response token')}"
    )
    if data.rejected:
        line += f"; {plural(sum(data.rejected.values()), 'prompt')} without an answer to each turn: "
        line += reasons_line(data.rejected, options)
    return StageResult(f"{line}, {stats.heldout:,} held out", {"response_tokens": stats.supervised_tokens})


def _answerer(run: Run) -> Engine | AnswerServer | AnswerActors:
    if run.ray is not None:
        return AnswerActors(run.recipe.target, run.ray)
    options = fit_to_prompts(run.target, run.url("prompts"), run.recipe.respond)
    if options.server is not None:
        return AnswerServer(run.target, options.server)
    try:
        return _engine(run, options.max_batch, options.longest_request)
    except EngineError as error:
        if run.recipe.respond.max_prompt_tokens is not None:
            raise
        raise RecipeError(
            f"the longest prompts need {options.longest_request:,} tokens of context, and there isn't enough memory "
            f"for them ({error}): set respond.max_prompt_tokens; longer prompts are then counted and left out"
        ) from error


def _features(run: Run, progress: Progress) -> StageResult:
    options = run.recipe.features
    places = run.url("conversations"), options, run.url("features")
    if run.ray is not None and not options.uses_decoder:
        raise RecipeError(
            "--ray gives every actor a target in fledge's decoder, and features.device_map, engine or server names "
            "something else that extracts: leave one of them out"
        )
    refused = 0
    if run.ray is not None:
        data = extract_features_on_ray(run.target, run.recipe.target, *places, run.ray, progress)
    else:
        extractor: Extractor | None = _served(run)
        if options.device_map:
            extractor = HookExtractor.for_target(run.target, options)
        elif options.engine == "llama.cpp":
            extractor = LlamaCppExtractor.for_target(run.target, options)
        data, refused = extract_features(run.target, *places, progress, extractor)
    outcome = StageResult(
        f"{plural(data.tokens, 'token')}, {human_bytes(data.size)}",
        {"tokens": data.tokens, "bytes": data.size},
    )
    return _with_refused(outcome, refused)


def _served(run: Run) -> ServedExtractor | None:
    servers = run.recipe.features.server
    return None if servers is None else ServedExtractor(run.target, servers)


def _with_refused(outcome: StageResult, count: int) -> StageResult:
    """The outcome with the number of conversations that a server refused, if any."""
    if not count:
        return outcome
    line = f"{outcome.line}, {plural(count, 'conversation')} refused by the server"
    return replace(outcome, line=line, figures={**outcome.figures, "refused": count})


def _train(run: Run, progress: Progress) -> StageResult:
    places = run.url("head"), run.url("train")
    served = None if run.recipe.features.feed == "offline" else _served(run)
    fit = train(run.target, run.url("features"), run.train_options, *places, progress, _online(run, served))
    tau = f"held-out chain tau {fit.tau:.2f}, " if fit.tau is not None else ""
    vocabulary = f"draft vocabulary {fit.draft_vocab_size:,} covers {fit.coverage:.1%}"
    figures = {"coverage": fit.coverage, "tokens": fit.tokens, "supervised_tokens": fit.supervised_tokens}
    outcome = StageResult(f"{plural(fit.steps, 'step')}, {tau}{vocabulary}", figures, fit.seconds)
    return _with_refused(outcome, len(served.refused) if served else 0)


def _train_fingerprint(run: Run) -> Fingerprint:
    online = run.recipe.features.feed != "offline"
    conversations = run.url("conversations") if online else None
    fingerprint = train_fingerprint(run.target, run.url("features"), run.train_options, conversations)
    before = Fingerprint.load(run.url("train"))
    if before is not None and not exists(run.url("features")):
        # The features were deleted to free the disk once the head was trained.
        return make_fingerprint({**fingerprint.parts, "features": before.parts.get("features")})
    return fingerprint


def _online(run: Run, served: ServedExtractor | None) -> OnlineFeatures | None:
    """Computes features while training requests them; None: training reads them from the store."""
    options = run.recipe.features
    if options.feed == "offline":
        return None
    if options.feed == "hybrid" and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise DataError(
            "features.feed=hybrid keeps features in one process: under torchrun set it to online or offline"
        )
    keep = run.url("train", "features") if options.feed == "hybrid" else None
    return OnlineFeatures(run.target, run.url("conversations"), options, keep, served)


def _evaluate_fingerprint(run: Run) -> Fingerprint:
    features = Manifest.load(run.url("features")).shards
    return make_fingerprint(
        {
            "stage": "evaluate",
            "format": _FORMAT,
            "target": run.target_parts(),
            "evaluate": run.recipe.evaluate.model_dump(mode="json"),
            "head": head_digest(run.url("head")),
            "features": [shard.sha256 for shard in features],
        }
    )


def _evaluate(run: Run, progress: Progress) -> StageResult:
    head = Head.load(run.url("head"))
    evaluation = evaluate(run.target, head, run.url("features"), run.recipe.evaluate, run.folder, progress)
    overall = evaluation.overall
    depths = " ".join(f"{share:.2f}" for share in overall.by_depth)
    trees = "".join(f", tree {name} {part.tau:.2f}" for name, part in evaluation.serving.items())
    return StageResult(
        f"held-out chain tau {overall.tau:.2f}, accepted by depth {depths}{trees}", {"tau": overall.tau}
    )


def _bench_fingerprint(run: Run) -> Fingerprint:
    options = run.recipe.bench
    # The run's own head was checked against what training wrote.
    heldout = [shard.sha256 for shard in Manifest.load(run.url("conversations")).shards]
    heldout = heldout if options.heldout_prompts else []
    configs = {name: file_digest(join(run.head_urls[name], CONFIG_NAME)) for name in run.given_heads}
    return make_fingerprint(
        {
            "stage": "bench",
            "format": _FORMAT,
            "target": run.target_parts() | {"backend": run.recipe.target.backend},
            "bench": options.model_dump(mode="json", exclude=set() if heldout else {"heldout_prompts"}),
            "files": [file_digest(url) for url in options.prompts],
            "heads": {name: head_digest(url) for name, url in run.head_urls.items()},
        }
        | ({"configs": configs} if configs else {})
        | ({"heldout": heldout} if heldout else {})
    )


def _bench(run: Run, progress: Progress) -> StageResult:
    options = run.recipe.bench
    heldout: list[Workload] = []
    if options.heldout_prompts:
        heldout = heldout_workloads(run.url("prompts"), run.url("conversations"), options.heldout_prompts)
    result = run_bench(run.target, run.heads(), options, heldout=heldout, progress=progress)
    result.save(run.url("bench"))
    workloads = summarise(result).workloads
    parts = [f"{name} {times(each.speedup)}, tau {number(each.tau, 2)}" for name, each in workloads.items()]
    return StageResult("; ".join(parts))


def _report_fingerprint(run: Run) -> Fingerprint:
    return make_fingerprint({"stage": "report", "format": _FORMAT})


def _report(run: Run, progress: Progress) -> StageResult:
    write_closing(run, finished_records(run, [stage for stage in STAGES if not stage.always]))
    return StageResult(run.url(REPORT_NAME))


def finished_records(run: Run, stages: Sequence[Stage] | None = None) -> list[Record]:
    """The records of the finished stages, in order, without those of an earlier head.

    Raises:
        StorageError: a file differs from what its stage wrote.
    """
    places = [run.url(stage.folder) for stage in stages or STAGES if not run.of_earlier_head(stage.folder)]
    records = [record for record in map(Record.load, places) if record is not None]
    for record in records:
        record.is_whole(run.folder)
    return records


def _engine(run: Run, max_batch: int, longest_request: int) -> Engine:
    limit = run.target.config.max_position_embeddings
    return Engine(run.target, max_batch=max_batch, max_context=min(longest_request, limit))


STAGES = (
    Stage(
        "prompts",
        "prompts",
        lambda run: prompts_fingerprint(run.target, run.prompt_options, run.privacy),
        _prompts,
        products=("prompts/manifest.json", "prompts/selection.json"),
    ),
    Stage(
        "respond",
        "conversations",
        lambda run: respond_fingerprint(run.target, run.url("prompts"), run.recipe.respond, run.privacy),
        _respond,
        needs=("prompts",),
        products=("conversations/manifest.json",),
    ),
    Stage(
        "features",
        "features",
        lambda run: features_fingerprint(run.target, run.url("conversations"), run.recipe.features),
        _features,
        needs=("respond",),
        products=("features/manifest.json",),
    ),
    Stage(
        "train",
        "train",
        _train_fingerprint,
        _train,
        needs=("features",),
        products=("head/config.json", "head/model.safetensors", "head/checksums.json", "train/metrics.jsonl"),
        claims=True,
    ),
    Stage(
        "evaluate",
        "evaluate",
        _evaluate_fingerprint,
        _evaluate,
        needs=("features", "train"),
        products=("evaluation.json",),
        restarts=True,
    ),
    Stage(
        "bench",
        "bench",
        _bench_fingerprint,
        _bench,
        needs=("train",),
        products=("bench/answers.jsonl", "bench/concurrency.jsonl", "bench/bench.json"),
        restarts=True,
    ),
    Stage("report", "report", _report_fingerprint, _report, always=True),
)
