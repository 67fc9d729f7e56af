"""`fledge features --estimate` and `fledge features verify`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import yaml

from fledge.base.storage import Manifest
from tests.commands.command import Fledge


def test_verify_names_a_fault_or_says_that_the_store_is_sound(
    fledge: Fledge, small_recipe: Path, finished_run: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(finished_run, tmp_path / "run"))
    assert "is sound: 1 shard," in fledge("features", "verify", small_recipe, "--run-dir", folder)
    shard = next((folder / "features").glob("*.safetensors"))
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(bytes(data))
    output = fledge("features", "verify", small_recipe, "--run-dir", folder, expect=2)
    assert f"fault: {shard}" in output
    assert "has 1 fault" in output
    shutil.copytree(finished_run / "features", folder / "features", dirs_exist_ok=True)
    kept = Path(shutil.copytree(finished_run / "features", folder / "train" / "features"))
    assert f"{kept} is sound" in fledge("features", "verify", small_recipe, "--run-dir", folder)
    (kept / shard.name).write_bytes(bytes(data))
    output = fledge("features", "verify", small_recipe, "--run-dir", folder, expect=2)
    assert f"{folder / 'features'} is sound" in output
    assert f"{kept} has 1 fault" in output
    assert "no features in" in fledge.error(
        "features", "verify", small_recipe, "--run-dir", tmp_path / "none"
    )


def test_the_estimate_shows_bytes_time_and_money_and_starts_nothing(
    fledge: Fledge, small_recipe: Path, finished_run: Path, tmp_path: Path
) -> None:
    arguments = ("features", small_recipe, "--estimate", "features.price_per_gb=1e6")
    output = fledge(*arguments, "--run-dir", tmp_path / "run")
    assert "expected from the recipe" in output
    assert not (tmp_path / "run").exists()
    tokens = sum(len(path.read_bytes()) for path in (finished_run / "features").glob("*.safetensors"))
    output = fledge(*arguments, "--run-dir", finished_run)
    assert "of the conversations on disk" in output
    money = [
        float(line.split("│")[-2 if line.rstrip().endswith("│") else -1].split()[-1].replace(",", ""))
        for line in output.splitlines()
        if "stored, " in line
    ]
    assert 0.85 * tokens / 1e3 < money[0] < tokens / 1e3  # a million per GB, without the headers
    assert 0.45 < money[1] / money[0] < 0.55


def test_the_estimate_knows_conversations_that_were_put_there(
    fledge: Fledge, small_recipe: Path, finished_run: Path, tmp_path: Path
) -> None:
    given = Path(shutil.copytree(finished_run / "conversations", tmp_path / "conversations"))
    for name in ("fingerprint.json", "done.json"):
        (given / name).unlink()
    output = fledge("features", small_recipe, "--estimate", "prompts.count=5000", "--run-dir", tmp_path)
    assert f"{Manifest.load(str(given)).tokens:,} tokens of the conversations on disk" in output


def test_the_estimate_needs_no_decoder_where_transformers_makes_the_features(
    fledge: Fledge, small_recipe: Path, finished_run: Path, tmp_path: Path
) -> None:
    target = Path(yaml.safe_load(small_recipe.read_text())["target"]["model"])
    other = Path(shutil.copytree(target, tmp_path / "target"))
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"architectures": ["OlmoeForCausalLM"]}))
    arguments = ("features", small_recipe, "--estimate", f"target.model={other}", "--run-dir", finished_run)
    assert "decoder can't run" in fledge.error(*arguments)
    output = fledge(*arguments, "features.device_map=auto")
    assert "stored, fp8" in output
    assert "made in training" not in output
    assert "time: not known" in output
