"""Killing `fledge run` in any stage and starting it again ends with the same files as never killing it."""

from __future__ import annotations

import hashlib
import shutil
import time
from pathlib import Path

import pytest

from tests.run.small_run import start_fledge

# Stage folder, and the file whose appearance means that the stage is at work.
STAGES = [
    ("prompts", "prompts/prompts-00000.parquet"),
    ("conversations", "conversations/conversations-00001.parquet"),
    ("features", "features/fingerprint.json"),
    ("train", "train/checkpoint.safetensors"),
    ("evaluate", "evaluate/fingerprint.json"),
    ("bench", "bench/fingerprint.json"),
]
# What a stage makes, without measured times: those differ from run to run.
RESULTS = (
    "prompts/**/*.parquet",
    "prompts/**/manifest.json",
    "conversations/*.parquet",
    "conversations/manifest.json",
    "features/*.safetensors",
    "features/manifest.json",
    "head/*",
    "evaluation.json",
    "*/fingerprint.json",
)


def checksums(folder: Path) -> dict[str, str]:
    files = sorted(path for pattern in RESULTS for path in folder.glob(pattern))
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def kill_in_stage(recipe: Path, folder: Path, stage: str, sign: str) -> None:
    """Start a run and SIGKILL it while the stage is at work. A stage that was too fast is undone and tried again."""
    output = folder.with_name("output")
    for _ in range(10):
        process = start_fledge("run", str(recipe), "--run-dir", str(folder), output=output)
        try:
            while process.is_alive() and not (folder / sign).exists():
                time.sleep(0.001)
        finally:
            process.kill()
            process.join()
        assert (folder / sign).exists(), output.read_text()
        if not (folder / stage / "done.json").exists():
            return
        shutil.rmtree(folder / stage)
    raise AssertionError(f"{stage} was always finished before it could be killed")


def run_to_the_end(recipe: Path, folder: Path) -> str:
    output = folder.with_name("output")
    process = start_fledge("run", str(recipe), "--run-dir", str(folder), output=output)
    process.join()
    assert process.exitcode == 0, output.read_text()
    return output.read_text()


@pytest.mark.slow
@pytest.mark.distributed
def test_killed_in_every_stage_and_started_again_ends_with_the_same_files(
    tmp_path: Path, small_recipe: Path
) -> None:
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    run_to_the_end(small_recipe, undisturbed)

    for stage, sign in STAGES:
        kill_in_stage(small_recipe, killed, stage, sign)
    output = run_to_the_end(small_recipe, killed)

    assert output.count("done before") == 5  # all but the benchmark, which was killed last
    assert checksums(killed) == checksums(undisturbed)
    assert {"head/model.safetensors", "evaluation.json"} <= set(checksums(killed))
    assert list(killed.rglob("*.partial")) == []
