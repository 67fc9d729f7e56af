"""`fledge doctor` without a head: what is fine, what is too little, and what to do about it."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest
from huggingface_hub import constants

from fledge.doctor import installation
from fledge.doctor.installation import Check, examine_installation
from fledge.native import build


@pytest.fixture(autouse=True)
def _without_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def found() -> dict[str, Check]:
    return {check.name: check for check in installation.checks()}


def test_all_is_looked_at_and_what_is_too_little_has_a_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    checks = found()
    assert {"fledge", "packages", "extras", "cache", "PyTorch", "CPU kernels", "targets"} <= checks.keys()
    assert all(check.remedy for check in checks.values() if check.state != "ok")
    assert "HF_HUB_OFFLINE is set" in checks["targets"].found
    assert examine_installation() == 0
    assert "nothing is broken" in capsys.readouterr().out


def test_a_cache_that_cannot_be_written_is_broken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FLEDGE_CACHE", str(tmp_path / "file" / "cache"))
    monkeypatch.setenv("FLEDGE_NATIVE", "0")
    assert examine_installation() == 1
    told = capsys.readouterr().out
    assert "✗ cache: " in told
    assert "set FLEDGE_CACHE" in told
    assert "! CPU kernels: FLEDGE_NATIVE=0 turns them off" in told


@pytest.mark.kernels
def test_the_kernels_instruction_set_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    name = build.available_isas()[-1]
    monkeypatch.setenv("FLEDGE_ISA", name)
    assert found()["CPU kernels"].found.startswith(f"{build.INSTRUCTION_SETS[name].title}, ")
    monkeypatch.setenv("FLEDGE_ISA", "sse4")
    assert found()["CPU kernels"].state == "broken"
    assert f"this machine has {', '.join(build.available_isas())}" in found()["CPU kernels"].found


def test_packages_of_other_versions_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    version = metadata.version
    held = {"transformers": "4.50.0"}
    monkeypatch.setattr(
        metadata, "requires", lambda _: ["transformers>=5,<6", "numpy>=1", "absent; extra == 'x'"]
    )
    monkeypatch.setattr(metadata, "version", lambda name: held.get(name) or version(name))
    checked = installation.packages()
    assert (checked.state, checked.found) == ("broken", "transformers 4.50.0, not <6,>=5")


def test_what_raises_is_broken_and_the_others_are_still_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> str:
        raise RuntimeError("the driver is too old\nand more")

    monkeypatch.setattr(build, "unavailable_reason", broken)
    checks = found()
    assert (checks["CPU kernels"].state, checks["CPU kernels"].found) == ("broken", "the driver is too old")
    assert checks["targets"].found
