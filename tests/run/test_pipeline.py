"""The stages of a run: skipped, refused, made again, and what they leave."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch

from fledge.base.errors import DataError, FingerprintError, FledgeError, HeadError, RecipeError, StorageError
from fledge.base.storage import exists, read_json
from fledge.bench import BenchResult, Summary
from fledge.heads import Head
from fledge.run.closing import close_load
from fledge.run.estimate import Calibration, Expected, estimate
from fledge.run.folder import Run, head_digest
from fledge.run.pipeline import run_pipeline, run_stage
from fledge.run.recipe import Recipe, load_recipe
from fledge.run.stages import STAGES, finished_records
from fledge.train.checkpoint import Checkpoint
from tests.bench.synthetic import load_result
from tests.sources.tiny_gguf import write_gguf


@pytest.fixture
def recipe(small_recipe: Path) -> Recipe:
    return load_recipe(str(small_recipe))


def changed(recipe: Recipe, **parts: dict[str, object]) -> Recipe:
    """The recipe with other fields in some of its parts."""
    update = {part: getattr(recipe, part).model_copy(update=fields) for part, fields in parts.items()}
    return recipe.model_copy(update=update)


@pytest.fixture
def run_copy(finished_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished_run, tmp_path / "run"))


def test_a_run_leaves_head_evaluation_report_and_summary(finished_run: Path, recipe: Recipe) -> None:
    summary = Summary.load(str(finished_run / "summary.json"))
    assert set(summary.stages) == {"prompts", "respond", "features", "train", "evaluate", "bench"}
    assert summary.workloads["mixed"].prompts == 2
    assert json.loads((finished_run / "evaluation.json").read_text())["overall"]["tau"] >= 1.0
    assert (finished_run / "head" / "model.safetensors").exists()
    page = (finished_run / "report.html").read_text()
    assert "fledge run recipe.yaml" in page
    assert load_recipe(str(finished_run / "recipe.yaml")) == recipe


def test_finished_stages_are_skipped(
    run_copy: Path, recipe: Recipe, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {p: p.stat().st_mtime_ns for p in run_copy.rglob("*.safetensors")}
    run_pipeline(Run(recipe, str(run_copy)))
    output = capsys.readouterr().out
    assert output.count("done before") == len(STAGES) - 1  # the report is always made
    assert "Estimate" not in output
    assert {p: p.stat().st_mtime_ns for p in run_copy.rglob("*.safetensors")} == before


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("respond.heldout=0", "needs some answers to train on"),
        ("prompts.count=1", r"raise prompts\.count"),
        ("respond.max_prompt_tokens=100000", r"lower respond\.max_prompt_tokens"),
        ("respond={second_turn: 1, user_max_tokens: 4000}", r"or respond\.user_max_tokens"),
        ("respond.server={url: x, api_key_env: NO_SUCH_KEY}", "names NO_SUCH_KEY, which isn't set"),
        ("train.wandb_project=mine", "needs a package"),
        ("bench.max_tokens=100000", "is too long for 100000 new tokens"),
        ("bench.sweep_tokens=100000", "is too long for 150000 new tokens"),
        ("bench.cuda_graphs=true", "needs a target on a CUDA device"),
        ("bench.overlap=true", "overlap needs a GPU"),
    ],
)
def test_what_a_late_stage_is_bound_to_refuse_is_refused_before_the_first(
    small_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str, message: str
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(FledgeError, match=message):
        run_pipeline(Run(load_recipe(str(small_recipe), [setting]), str(tmp_path / "run")))
    assert not (tmp_path / "run" / "prompts").exists()


def test_few_prompts_are_enough_for_both_sides(tmp_path: Path, small_recipe: Path) -> None:
    settings = ["prompts.count=2", "respond.heldout=0.001", "bench.concurrency=[]", "evaluate.shapes=[]"]
    run_pipeline(Run(load_recipe(str(small_recipe), settings), str(tmp_path / "run")))
    assert read_json(str(tmp_path / "run" / "evaluation.json"))["conversations"] == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["respond.heldout=0"], "no held-out conversations in .*conversations, which evaluating needs"),
        (["respond.heldout=1"], "no training conversations in .*conversations; set respond.heldout between"),
        (["train.response_tokens=3"], r"train\.response_tokens=3 leaves no conversation of .*conversations"),
    ],
)
def test_conversations_that_a_later_stage_cannot_use_are_refused_before_features_are_made(
    finished_run: Path, tmp_path: Path, small_recipe: Path, settings: list[str], message: str
) -> None:
    shutil.copytree(finished_run / "prompts", tmp_path / "run" / "prompts")
    run = Run(load_recipe(str(small_recipe), settings), str(tmp_path / "run"))
    run_stage(run, "respond")
    with pytest.raises(DataError, match=message):
        run_pipeline(run)
    assert not (tmp_path / "run" / "features").exists()


def test_the_advice_for_conversations_on_one_side_ends_well(
    finished_run: Path, tmp_path: Path, small_recipe: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished_run / "prompts", folder / "prompts")
    settings = ["bench.concurrency=[]", "evaluate.shapes=[]"]
    for stage in ("respond", "features", "train"):
        run_stage(Run(load_recipe(str(small_recipe), [*settings, "respond.heldout=0"]), str(folder)), stage)
    run = Run(load_recipe(str(small_recipe), [*settings, "respond.heldout=0.25"]), str(folder))
    with pytest.raises(DataError, match="delete the run's conversations, and its features if it has any"):
        run_stage(
            Run(load_recipe(str(small_recipe), [*settings, "respond.heldout=0"]), str(folder)), "evaluate"
        )
    for part in ("conversations", "features"):
        shutil.rmtree(folder / part)
    with pytest.raises(FingerprintError, match=r"train was made from other inputs.*or delete this one"):
        run_pipeline(run)
    shutil.rmtree(folder / "train")
    run_pipeline(run)
    assert (folder / "evaluation.json").exists()


def test_a_benchmark_that_was_stopped_begins_again_with_other_options(run_copy: Path, recipe: Recipe) -> None:
    (run_copy / "bench" / "done.json").unlink()
    run_stage(Run(changed(recipe, bench={"own_prompts": 1}), str(run_copy)), "bench")
    assert len(BenchResult.load(str(run_copy / "bench")).answers) == 1


def test_a_damaged_benchmark_is_measured_again_as_its_error_says(run_copy: Path, recipe: Recipe) -> None:
    result = run_copy / "bench" / "bench.json"
    result.write_text("{}")
    with pytest.raises(StorageError, match=r"bench\.json is damaged.*delete it and run again"):
        run_pipeline(Run(recipe, str(run_copy)))
    result.unlink()
    run_stage(Run(recipe, str(run_copy)), "bench")
    assert BenchResult.load(str(run_copy / "bench")).answers


def test_a_deleted_benchmark_is_not_summarised(
    run_copy: Path, recipe: Recipe, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(run_copy / "bench")
    run_stage(Run(recipe, str(run_copy)), "report")
    assert not (run_copy / "summary.json").exists()
    assert "plain decode:" not in capsys.readouterr().out


def test_a_target_the_decoder_cannot_run_is_refused_before_the_first_stage_that_would(
    recipe: Recipe, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(recipe.target.model, tmp_path / "target"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"hidden_act": "gelu"}))
    run = Run(changed(recipe, target={"model": str(folder)}), str(tmp_path / "run"))
    with pytest.raises(
        RecipeError, match="as prompts, respond, features, evaluate, bench would: it uses hidden_act='gelu'"
    ):
        run_pipeline(run)


def test_figures_of_an_earlier_head_are_not_told_of_a_new_one(
    run_copy: Path, recipe: Recipe, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in ("train", "head"):
        shutil.rmtree(run_copy / folder)
    run = Run(changed(recipe, train={"epochs": 1.0}), str(run_copy))
    run_stage(run, "train")
    run_stage(run, "report")
    note = f"{run_copy}/bench is of an earlier head and left out"
    output = capsys.readouterr().out
    assert note in output
    assert "plain decode:" not in output
    assert note in (run_copy / "report.html").read_text()
    assert not (run_copy / "summary.json").exists()
    assert not {"evaluate", "bench"} & {record.stage for record in finished_records(run)}


def test_a_report_needs_no_target(run_copy: Path, recipe: Recipe, tiny_target_folder: Path) -> None:
    other = changed(recipe, target={"model": str(run_copy / "elsewhere")}, train={"init_head": "released"})
    before = (run_copy / "summary.json").read_bytes()
    run_stage(Run(other, str(run_copy)), "report")
    assert (run_copy / "summary.json").read_bytes() == before
    assert tiny_target_folder.name in (run_copy / "report.html").read_text()


def test_a_report_tells_the_recipe_the_run_was_made_with(run_copy: Path, recipe: Recipe) -> None:
    run_stage(Run(changed(recipe, train={"epochs": 9.0}), str(run_copy)), "report")
    page = (run_copy / "report.html").read_text()
    assert f"epochs: {recipe.train.epochs}" in page
    assert "epochs: 9.0" not in page


def test_a_changed_option_is_refused_by_name(run_copy: Path, recipe: Recipe) -> None:
    with pytest.raises(FingerprintError, match=r"train\.ttt_steps: 3 -> 2"):
        run_pipeline(Run(changed(recipe, train={"ttt_steps": 2}), str(run_copy)))
    assert load_recipe(str(run_copy / "recipe.yaml")) == recipe


def test_every_stage_depends_on_the_form_of_the_targets_weights(
    run_copy: Path, recipe: Recipe, tiny_target_folder: Path, tmp_path: Path
) -> None:
    files = [
        write_gguf(tiny_target_folder, tmp_path / f"{form}.gguf", quantised=form) for form in ("Q8_0", "Q4_1")
    ]
    targets: list[dict[str, object]] = [{"model": str(file)} for file in files]
    targets += [{}, {"quantization": "q8_0"}, {"quantization": "q4_0"}]
    runs = [Run(changed(recipe, target=fields), str(run_copy)) for fields in targets]
    for stage in STAGES:
        digests = {stage.fingerprint(run).digest for run in runs}
        assert stage.always or len(digests) == len(runs), stage.name
    with pytest.raises(FingerprintError, match=r'target\.quantization: \(absent\) -> "q8_0"'):
        run_pipeline(runs[3])


def test_training_that_could_not_begin_leaves_its_folder_to_other_options(
    run_copy: Path, recipe: Recipe
) -> None:
    for folder in ("train", "head"):
        shutil.rmtree(run_copy / folder)
    with pytest.raises(DataError, match=r"train\.response_tokens=3 leaves no conversation"):
        run_stage(Run(changed(recipe, train={"response_tokens": 3}), str(run_copy)), "train")
    run_stage(Run(recipe, str(run_copy)), "train")
    assert (run_copy / "head" / "config.json").exists()


def test_data_that_changed_under_a_stage_is_refused(run_copy: Path, recipe: Recipe) -> None:
    shutil.rmtree(run_copy / "conversations")
    with pytest.raises(FingerprintError, match=r"features was made from other inputs.*conversations"):
        run_pipeline(Run(changed(recipe, respond={"seed": 1}), str(run_copy)))


@pytest.mark.parametrize(
    "product",
    [
        "head/model.safetensors",
        "bench/answers.jsonl",
        pytest.param("head/config.json", marks=pytest.mark.slow),
        pytest.param("bench/concurrency.jsonl", marks=pytest.mark.slow),
    ],
)
def test_a_deleted_product_is_made_again_and_nothing_else(
    run_copy: Path, recipe: Recipe, capsys: pytest.CaptureFixture[str], product: str
) -> None:
    weights = (run_copy / "head" / "model.safetensors").read_bytes()
    (run_copy / product).unlink()
    run_pipeline(Run(recipe, str(run_copy)))
    assert capsys.readouterr().out.count("done before") == len(STAGES) - 2
    assert (run_copy / "head" / "model.safetensors").read_bytes() == weights
    assert (run_copy / product).exists()


def test_the_time_of_training_counts_all_attempts(run_copy: Path, recipe: Recipe) -> None:
    shutil.rmtree(run_copy / "head")
    checkpoint = Checkpoint.load(str(run_copy / "train"))
    assert checkpoint is not None
    replace(checkpoint, seconds=5000.0).save(str(run_copy / "train"))
    run_stage(Run(recipe, str(run_copy)), "train")
    assert read_json(str(run_copy / "train" / "done.json"))["seconds"] >= 5000


def test_a_run_without_its_features_is_measured(run_copy: Path, recipe: Recipe) -> None:
    """They are the large part, and no longer needed once the head is trained."""
    for folder in ("features", "bench"):
        shutil.rmtree(run_copy / folder)
    with pytest.raises(
        FingerprintError, match=r"train was made from other inputs \(train\.epochs: 2\.0 -> 9\.0\)"
    ):
        run_stage(Run(changed(recipe, train={"epochs": 9.0}), str(run_copy)), "bench")
    run_stage(Run(recipe, str(run_copy)), "bench")
    assert (run_copy / "bench" / "done.json").exists()
    assert not (run_copy / "features").exists()


def test_a_stage_alone_needs_the_stages_it_builds_on(tmp_path: Path, recipe: Recipe) -> None:
    run = Run(recipe, str(tmp_path / "run"))
    run_stage(run, "prompts")
    with pytest.raises(
        StorageError, match=r"no finished respond, which features needs; run `fledge respond`"
    ):
        run_stage(run, "features")
    run_stage(run, "respond")
    run_stage(run, "features")
    assert [record.stage for record in finished_records(run)] == ["prompts", "respond", "features"]


def test_rows_that_were_not_needed_are_not_told_as_rejected(tmp_path: Path, small_recipe: Path) -> None:
    birds = ("heron", "robin", "falcon", "stork", "plover")
    rows = [*({"prompt": f"Where does the {bird} spend its winters?"} for bird in birds), {"prompt": "Hi"}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = f"{{path: {tmp_path / 'a.jsonl'}, licence: own}}"
    settings = [f"prompts.sources=[{source}]", "prompts.count=3", "privacy.enabled=false"]
    run = Run(load_recipe(str(small_recipe), settings), str(tmp_path / "run"))
    run_stage(run, "prompts")
    (record,) = finished_records(run)
    assert (
        record.line
        == "3 prompts kept, 1 attempt rejected: 1 too_short (prompts.min_words is 4), 2 fit but not needed"
    )


def test_a_name_masked_in_a_source_is_noticed_wherever_it_stands(tmp_path: Path, small_recipe: Path) -> None:
    filler = [{"prompt": " ".join(["word"] * 2**18)}] * 2  # more than a MiB before the name, and after it
    rows = [*filler, {"prompt": "What did Martha Klein write about?"}, *filler]
    source = tmp_path / "a.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = [f"prompts.sources=[{{path: {source}, licence: own}}]", "privacy.enabled=false"]
    run = Run(load_recipe(str(small_recipe), settings), str(tmp_path / "run"))
    run_stage(run, "prompts")
    source.write_text(source.read_text().replace("Martha Klein", "XXXXXX XXXXX"))
    with pytest.raises(FingerprintError, match=r"prompts was made from other inputs \(prompts\.digests"):
        run_stage(run, "respond")


def test_a_given_heads_config_counts_as_its_weights_do(
    finished_run: Path, tmp_path: Path, recipe: Recipe
) -> None:
    head = Path(shutil.copytree(finished_run / "head", tmp_path / "head"))
    run = Run(recipe, str(tmp_path / "run"), given_heads=[str(head)])
    run_stage(run, "bench")
    (head / "checksums.json").unlink()  # as of a head trained elsewhere
    config = (head / "config.json").read_text()
    (head / "config.json").write_text(config.replace('"rope_theta": 10000.0', '"rope_theta": 10001.0'))
    with pytest.raises(FingerprintError, match="configs"):
        run_stage(run, "bench")


def test_conversations_that_were_put_there_are_taken_as_they_are(
    finished_run: Path, tmp_path: Path, recipe: Recipe, capsys: pytest.CaptureFixture[str]
) -> None:
    given = tmp_path / "run" / "conversations"
    own = shutil.ignore_patterns("fingerprint.json", "done.json")
    shutil.copytree(finished_run / "conversations", given, ignore=own)
    before = sorted(path.name for path in given.iterdir())
    run = Run(recipe, str(tmp_path / "run"))
    run_stage(run, "respond")
    assert sorted(path.name for path in given.iterdir()) == before
    run_stage(run, "features")
    run_pipeline(run)
    output = capsys.readouterr().out
    assert f"respond   {given} taken as it is" in output.replace("\n", "")
    assert not (tmp_path / "run" / "prompts").exists()
    assert sorted(path.name for path in given.iterdir()) == before
    assert (tmp_path / "run" / "report.html").exists()


def test_half_of_the_conversations_without_their_fingerprint_are_not_taken_for_all(
    run_copy: Path, recipe: Recipe
) -> None:
    conversations = run_copy / "conversations"
    for name in ("fingerprint.json", "done.json"):
        (conversations / name).unlink()
    with pytest.raises(StorageError, match=rf"a finished prompts of its own; delete {conversations} to make"):
        run_pipeline(Run(recipe, str(run_copy)))
    before = (conversations / "conversations-00002.parquet").read_bytes()
    shutil.rmtree(conversations)
    run_pipeline(Run(recipe, str(run_copy)))
    assert (conversations / "conversations-00002.parquet").read_bytes() == before


def test_a_damaged_load_test_is_named_in_the_report(run_copy: Path, recipe: Recipe) -> None:
    close_load(load_result(), str(run_copy), "fledge bench server")
    run_stage(Run(recipe, str(run_copy)), "report")
    rows = run_copy / "load" / "load.jsonl"
    rows.write_bytes(rows.read_bytes()[: rows.stat().st_size // 2])
    with pytest.raises(StorageError, match=r"load\.jsonl is damaged.*`fledge bench server` left"):
        run_stage(Run(recipe, str(run_copy)), "report")


def test_a_damaged_shard_is_named(run_copy: Path, recipe: Recipe) -> None:
    shard = run_copy / "conversations" / "conversations-00001.parquet"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(bytes(data))
    shutil.rmtree(run_copy / "features")
    with pytest.raises(StorageError, match=r"conversations-00001\.parquet is damaged"):
        run_pipeline(Run(recipe, str(run_copy)))


def test_a_whole_run_fits_an_object_store(recipe: Recipe) -> None:
    folder = "memory://a-run"
    run_pipeline(Run(recipe, folder))
    assert exists(f"{folder}/report.html")
    assert read_json(f"{folder}/summary.json")["version"] == 1


def test_the_estimate_covers_what_is_pending(finished_run: Path, recipe: Recipe) -> None:
    run = Run(recipe, str(finished_run))
    rows = estimate(run, ["features", "train", "bench", "report"])
    assert [row.stage for row in rows] == ["features", "train", "bench"]
    features = rows[0]
    on_disk = sum(p.stat().st_size for p in (finished_run / "features").glob("*.safetensors"))
    assert features.bytes == pytest.approx(on_disk, rel=0.05)
    assert all(row.seconds > 0 for row in rows)


def test_the_estimate_knows_how_many_heads_are_measured(
    finished_run: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []
    monkeypatch.setattr(
        "fledge.run.estimate.estimate_seconds", lambda options, heads, ms: told.append(heads) or 1.0
    )
    folders = [str(finished_run / name) for name in ("head", "train", "bench")]
    for given in ([], folders[:1], folders):
        estimate(Run(recipe, str(finished_run), given_heads=given), ["bench"])
    assert told == [1, 1, 3]


def test_the_estimate_knows_what_is_stored_and_drawn(finished_run: Path, recipe: Recipe) -> None:
    def expected(**changes: dict[str, object]) -> dict[str, Expected]:
        rows = estimate(Run(changed(recipe, **changes), str(finished_run)), ["features", "train"])
        return {row.stage: row for row in rows}

    whole, online = expected(), expected(features={"feed": "online"})
    few = expected(train={"response_tokens": 10})
    assert online["features"].bytes == pytest.approx(whole["features"].bytes * recipe.respond.heldout)
    assert online["train"].tokens == whole["train"].tokens
    hybrid = expected(features={"feed": "hybrid"})
    stored = (hybrid[stage].bytes - online[stage].bytes for stage in hybrid)
    assert sum(stored) == pytest.approx(whole["features"].bytes - online["features"].bytes)
    assert few["train"].tokens < whole["train"].tokens / 10
    assert whole["features"].seconds is not None
    # Timing it would load a target that may not fit.
    assert expected(features={"device_map": "auto"})["features"].seconds is None


@pytest.mark.parametrize("second_turn", [0.0, 1.0])
def test_the_estimate_counts_second_turns_among_the_answers_drawn(
    tmp_path: Path, recipe: Recipe, second_turn: float
) -> None:
    respond = {"second_turn": second_turn, "heldout": 0.0}

    def expected(response_tokens: int | None) -> list[float]:
        other = changed(recipe, respond=respond, train={"response_tokens": response_tokens})
        return [row.tokens for row in estimate(Run(other, str(tmp_path)), ["respond", "train"])]

    answers, trained = expected(None)
    assert expected(round(answers / 2))[1] == pytest.approx(trained / 2, rel=0.01)


def test_the_estimate_knows_what_sources_give(tmp_path: Path, small_recipe: Path) -> None:
    """Fewer prompts than wanted, and longer ones; and that the target writes only its share of them."""
    file, folder = tmp_path / "own.jsonl", str(tmp_path / "run")
    words = [" ".join(f"bird{number}nest{place}" for place in range(80)) for number in range(5)]
    file.write_text("".join(json.dumps({"prompt": f"Tell me of {text}"}) + "\n" for text in words))
    own = f"{{path: {file}, licence: own, weight: 3}}"

    def expected(stage: str, sources: str) -> Expected:
        settings = [f"prompts.sources={sources}", "privacy.enabled=false"]
        run = Run(load_recipe(str(small_recipe), settings), folder)
        if stage == "respond":
            run_stage(run, "prompts")
        return estimate(run, [stage])[0]

    alone = expected("prompts", "[]")
    assert expected("prompts", f"[{own}, {{kind: self}}]").tokens == pytest.approx(alone.tokens / 4)
    wanted = estimate(Run(load_recipe(str(small_recipe)), str(tmp_path / "other")), ["respond"])[0]
    found = expected("respond", f"[{own}]")
    assert found.tokens == pytest.approx(wanted.tokens * 5 / 20)
    assert found.bytes > wanted.bytes * 5 / 20


@pytest.mark.parametrize("batch", [1, 3, 64])
def test_the_estimate_of_writing_needs_no_run(tmp_path: Path, recipe: Recipe, batch: int) -> None:
    run = Run(changed(recipe, respond={"max_batch": batch}), str(tmp_path))
    rows = estimate(run, ["prompts", "respond"])
    assert [row.stage for row in rows] == ["prompts", "respond"]
    assert all(row.seconds > 0 and row.tokens > recipe.prompts.count for row in rows)


def test_a_head_in_several_files_is_gone_on_from(tmp_path: Path, finished_run: Path, recipe: Recipe) -> None:
    for part in ("prompts", "conversations", "features"):
        shutil.copytree(finished_run / part, tmp_path / "run" / part)
    folder = sharded(finished_run / "head", tmp_path / "sharded")
    run = Run(changed(recipe, train={"init_head": str(folder), "epochs": 1.0}), str(tmp_path / "run"))
    run_stage(run, "train")
    first = json.loads((tmp_path / "run" / "train" / "metrics.jsonl").read_text().splitlines()[0])
    assert first["step"] == 0
    assert (tmp_path / "run" / "head" / "config.json").exists()
    before = head_digest(str(folder))
    safetensors.torch.save_file({"fc.weight": torch.zeros(2, 2)}, folder / "model-1.safetensors")
    assert head_digest(str(folder)) != before


def test_a_wrong_head_is_noticed_before_anything_takes_time(tmp_path: Path, recipe: Recipe) -> None:
    (tmp_path / "none").mkdir()
    run = Run(changed(recipe, train={"init_head": str(tmp_path / "none")}), str(tmp_path / "run"))
    with pytest.raises(HeadError, match="isn't a draft head"):
        run_pipeline(run)
    assert not (tmp_path / "run" / "prompts").exists()


def test_a_run_does_not_replace_the_head_it_goes_on_from(run_copy: Path, recipe: Recipe) -> None:
    shutil.rmtree(run_copy / "train")
    before = head_digest(str(run_copy / "head"))
    own = changed(recipe, train={"init_head": f"{run_copy}/../{run_copy.name}/head/"})
    with pytest.raises(RecipeError, match="is where this run puts its own head"):
        run_stage(Run(own, str(run_copy)), "train")
    assert head_digest(str(run_copy / "head")) == before
    aside = (run_copy / "head").rename(run_copy / "first")  # as the error says
    other = changed(recipe, train={"init_head": str(aside), "epochs": 1.0})
    run_stage(Run(other, str(run_copy)), "train")
    assert head_digest(str(aside)) == before != head_digest(str(run_copy / "head"))


def sharded(head: Path, folder: Path) -> Path:
    """The head's weights in two files."""
    folder.mkdir()
    shutil.copy(head / "config.json", folder)
    tensors = safetensors.torch.load_file(head / "model.safetensors")
    places = {name: f"model-{number % 2}.safetensors" for number, name in enumerate(sorted(tensors))}
    for file in set(places.values()):
        part = {name: tensor for name, tensor in tensors.items() if places[name] == file}
        safetensors.torch.save_file(part, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return folder


def test_what_the_benchmark_measures_on_is_kept_out_of_training(tmp_path: Path, recipe: Recipe) -> None:
    files = changed(recipe, bench={"prompts": ("mine.jsonl",)})
    names = [Path(url).name for url in Run(files, str(tmp_path)).prompt_options.evaluation_files]
    assert "mine.jsonl" in names
    assert "code.jsonl" in names  # one of the own set's files


def test_the_shipped_head_of_this_target_stands_beside_the_runs_own(
    run_copy: Path, finished_run: Path, tmp_path: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = tmp_path / "released" / "tiny"
    shutil.copytree(finished_run / "head", shipped)
    monkeypatch.setattr("fledge.released.FOLDER", tmp_path / "released")
    shutil.rmtree(run_copy / "bench")
    going_on = Run(changed(recipe, train={"init_head": "released"}), str(tmp_path / "run"))
    assert Calibration(going_on).head_config == Head.load(str(shipped)).config  # as the estimate shows it

    run_pipeline(Run(recipe, str(run_copy)))

    summary = Summary.load(str(run_copy / "summary.json"))
    assert summary.released is not None
    assert summary.released.workloads["mixed"].tau == summary.workloads["mixed"].tau
    assert "released head" in (run_copy / "report.html").read_text()
