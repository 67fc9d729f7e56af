"""The stages in order: finished ones are skipped, interrupted ones resume, ones made from other inputs are errors.

    prompts -> respond -> features -> train -> evaluate -> bench -> report

A stage's folder contains `fingerprint.json` (written first: the stage's inputs), the stage's files, and `done.json`
(written last). Fingerprints include the checksums of the stage's inputs, so stale data is never mixed in. A folder with
shards but no fingerprint was put there by the user: it is used as it is, and the run starts with the next stage.
"""

from __future__ import annotations

import os
from collections.abc import Collection

from fledge.base.console import StageProgress, clock, say
from fledge.base.errors import RecipeError, StorageError
from fledge.base.fingerprint import Fingerprint
from fledge.base.storage import exists
from fledge.bench import refuse_impossible
from fledge.data.options import silent
from fledge.data.responses import check_context
from fledge.data.served import key_headers
from fledge.features import FeatureStore, conversation_infos
from fledge.heads.engines import refusals
from fledge.run.asked import asked_prompts
from fledge.run.closing import print_closing
from fledge.run.estimate import Calibration, print_estimate
from fledge.run.folder import Record, Run, file_digest
from fledge.run.recipe import RECIPE_NAME
from fledge.run.stages import STAGES, Stage, finished_records
from fledge.train import refuse_one_sided, refuse_untrainable


def run_pipeline(run: Run, speeds: Calibration | None = None) -> None:
    """Run every unfinished stage, then print the results. `speeds`: of this machine, if they were measured before."""
    if _is_follower():
        raise StorageError(
            "`fledge run` works in one process; under torchrun use `fledge train` after the stages before it"
        )
    with run.locked():
        estimated = False
        user_stages = [stage for stage in STAGES if run.is_given(stage.folder)]
        for stage in user_stages:
            _take_given(run, stage)
        stages = STAGES[STAGES.index(user_stages[-1]) + 1 :] if user_stages else STAGES
        for number, stage in enumerate(stages):
            fingerprint = stage.fingerprint(run)
            record = finished(run, stage, fingerprint)
            if record is not None:
                _print_done(record)
                continue
            if not estimated and not stage.always:
                pending = [later.name for later in stages[number:]]
                _refuse_late_failures(run, pending)
                print_estimate(run, pending, speeds)
                estimated = True
            if stage.name in ("features", "train"):
                _refuse_one_sided(run, stage, [later.name for later in stages[number:]])
            _do(run, stage, fingerprint)
        if not exists(run.url(RECIPE_NAME)):
            run.recipe.save(run.url(RECIPE_NAME))
        print_closing(run, finished_records(run))


def run_stage(run: Run, name: str) -> None:
    """Run one stage; the stages it depends on must be finished, except for the benchmark of given heads."""
    stage = _named(name)
    if _is_follower():
        if name != "train":
            raise StorageError(f"{name} works in one process; only `fledge train` runs under torchrun")
        if finished(run, stage, stage.fingerprint(run)) is None:
            stage.work(run, silent)
        return
    if stage.always or (stage.needs and not run.given_heads):
        run.check_exists()
    with run.locked():
        if run.is_given(stage.folder):  # the user's folder is left alone
            _take_given(run, stage)
            return
        for before in map(_named, () if run.given_heads else stage.needs):
            if not run.is_given(before.folder) and finished(run, before, before.fingerprint(run)) is None:
                raise StorageError(
                    f"{run.folder} has no finished {before.name}, which {name} needs; "
                    f"run `fledge {before.name}` first, or `fledge run` for all"
                )
        fingerprint = stage.fingerprint(run)
        record = finished(run, stage, fingerprint)
        if record is not None:
            _print_done(record)
        else:
            if not stage.always:
                _refuse_late_failures(run, [name])
                print_estimate(run, [name])
            _do(run, stage, fingerprint)
        if stage.always:
            print_closing(run, finished_records(run))


def _is_follower() -> bool:
    """True if this is a torchrun process other than the first, which alone writes the folder's records."""
    return int(os.environ.get("RANK", "0")) > 0 and int(os.environ.get("WORLD_SIZE", "1")) > 1


def finished(run: Run, stage: Stage, fingerprint: Fingerprint) -> Record | None:
    """The stage's record if it is finished. Raises an error naming the field if its folder has other inputs."""
    folder = run.url(stage.folder)
    if stage.always or not exists(folder):
        return None
    record = Record.load(folder)
    if Fingerprint.load(folder) is not None and not (record is None and stage.restarts):
        fingerprint.claim(folder)
    if record is None or record.digest != fingerprint.digest:
        return None
    return record if record.is_whole(run.folder) else None


def _refuse_late_failures(run: Run, pending: Collection[str]) -> None:
    """Raise errors that are certain to occur in a pending stage now, not after hours of earlier stages."""
    recipe = run.recipe
    _refuse_undecodable(run, pending)
    run.refuse_wrong_heads()
    if {"prompts", "respond", "train"} & set(pending):
        for sentence in refusals(run.target.config.architecture):
            say(f"warning: {sentence}")
    if {"respond", "evaluate"} <= set(pending) and recipe.respond.heldout in (0, 1):
        raise RecipeError(
            f"respond.heldout is {recipe.respond.heldout:g}, but a run needs some answers to train on and some to "
            "evaluate on; set it between 0 and 1, or run the stages you want one by one"
        )
    if {"respond", "evaluate"} <= set(pending) and asked_prompts(run).prompts < 2:
        raise RecipeError(
            "one prompt can't give both an answer to train on and one to evaluate on; raise prompts.count, or run the "
            "stages you want one by one"
        )
    if "respond" in pending and recipe.respond.server is not None:
        key_headers(recipe.respond.server.api_key_env)
    elif "respond" in pending:
        check_context(run.target.config.max_position_embeddings, recipe.respond)
    if "train" in pending:
        refuse_untrainable(run.target, run.train_options)
    if "bench" in pending:
        refuse_impossible(run.target, recipe.bench)


def _refuse_one_sided(run: Run, stage: Stage, pending: Collection[str]) -> None:
    """Raise a DataError if there are no conversations to train on, or none to evaluate on."""
    stored = stage.name == "train" and run.recipe.features.feed == "offline"
    url = run.url("features" if stored else "conversations")
    infos = FeatureStore(url).samples if stored else conversation_infos(url)
    trains, evaluates = "train" in pending, "evaluate" in pending
    refuse_one_sided(infos, run.recipe.train, url, trains=trains, evaluates=evaluates)


def _refuse_undecodable(run: Run, pending: Collection[str]) -> None:
    """Raise a RecipeError if a pending stage needs fledge's decoder, and it doesn't support the target."""
    recipe = run.recipe
    decoding = {
        "prompts": recipe.prompts.writes,
        "respond": recipe.respond.server is None,
        "features": recipe.features.uses_decoder,
        "train": (recipe.features.feed != "offline" and recipe.features.uses_decoder)
        or recipe.train.init == "target",
        "evaluate": bool(recipe.evaluate.shapes),
        "bench": True,
    }
    stages = [name for name in pending if decoding.get(name)]
    if stages and run.target.config.undecodable:
        raise RecipeError(
            f"fledge's decoder can't run {run.target.name}, as {', '.join(stages)} would: "
            f"{run.target.config.undecodable}. Take prompts from sources, answers from a server (respond.server) and "
            "features by features.device_map or features.server, set evaluate.shapes=[], and run these stages one by "
            "one, without bench"
        )


def _do(run: Run, stage: Stage, fingerprint: Fingerprint) -> None:
    folder = run.url(stage.folder)
    if stage.always or stage.restarts:
        fingerprint.save(folder)
    elif not stage.claims:
        fingerprint.claim(folder)
    if not stage.always:
        run.recipe.save(run.url(RECIPE_NAME))
    with StageProgress(stage.name) as progress:
        outcome = stage.work(run, progress.update)
    seconds = progress.seconds if outcome.seconds is None else outcome.seconds
    files = {name: file_digest(run.url(name)) for name in stage.products if exists(run.url(name))}
    record = Record(stage.name, fingerprint.digest, seconds, outcome.line, outcome.figures, files)
    record.save(folder)
    say(f"{stage.name:<9} {outcome.line} [{clock(seconds)}]")


def _print_done(record: Record) -> None:
    say(f"{record.stage:<9} done before: {record.line}")


def _take_given(run: Run, stage: Stage) -> None:
    """Report that a stage's folder is the user's. A StorageError if it may also be an incomplete one of this run."""
    folder = run.url(stage.folder)
    for before in map(_named, stage.needs):
        if Record.load(run.url(before.folder)) is not None:
            raise StorageError(
                f"{folder} has no fingerprint.json, as data that you put there, but this run has a finished "
                f"{before.name} of its own; delete {folder} to make it again, or {run.url(before.folder)} if the data "
                "is yours"
            )
    say(f"{stage.name:<9} {folder} taken as it is")


def _named(name: str) -> Stage:
    return next(stage for stage in STAGES if stage.name == name)
