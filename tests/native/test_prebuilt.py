"""The kernels that a wheel brings along: built into it, checked when they are loaded, used without a compiler."""

from __future__ import annotations

import ctypes
import importlib.util
import platform
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fledge.native import build
from fledge.train import library
from tests.native.test_build import COMPILER, FLAGS, write_sources
from tests.test_makefile import program

ROOT = Path(__file__).parents[2]


@pytest.fixture
def without_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without a compiler, whose wheel has the libraries in the folder."""
    monkeypatch.setattr(build, "PREBUILT", tmp_path)
    monkeypatch.setattr(library, "find_compiler", lambda: None)
    monkeypatch.setattr(build, "find_compiler", lambda: None)
    return tmp_path


def add(folder: Path, built: Path, name: str) -> Path:
    return shutil.copy(built, folder / f"{name}-{built.stem.rpartition('-')[2]}.so")


@pytest.mark.kernels
def test_without_a_compiler_the_wheels_libraries_are_loaded(without_compiler: Path) -> None:
    isa = build.available_isas()[-1]
    assert build._load.__wrapped__(isa)[1].startswith("no C++ compiler was found (install g++, or pip")
    assert library.load_library.__wrapped__() is None
    add(without_compiler, build.compile_kernels(COMPILER, isa), f"fledge-{isa}")
    try:
        trains = build.compile_library(COMPILER, "train", Path(library.__file__).parent, library.TRAIN_FLAGS)
    except RuntimeError as error:
        pytest.skip(f"no OpenMP: {error}")
    add(without_compiler, trains, f"train-{isa}")
    loaded, reason = build._load.__wrapped__(isa)
    assert reason == ""
    assert loaded._name.startswith(str(without_compiler))
    assert library.load_library.__wrapped__()._name.startswith(str(without_compiler))


@pytest.mark.skipif(not COMPILER, reason="kernels: no C++ compiler was found")
def test_a_damaged_one_is_not_loaded(
    without_compiler: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("FLEDGE_CACHE", str(without_compiler / "cache"))
    write_sources(without_compiler, "7")
    sound = add(
        without_compiler, build.compile_library(COMPILER, "asked", without_compiler, FLAGS), "fledge-isa"
    )
    found = build.prebuilt("fledge-isa")
    assert found == sound
    assert ctypes.CDLL(str(found)).asked() == 7
    sound.write_bytes(sound.read_bytes()[:-1])
    assert build.prebuilt("fledge-isa") is None
    assert "is damaged; install fledge again" in caplog.text


class TestHook:
    """hatch_build.py, which builds them."""

    @pytest.fixture
    def hook(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
        pytest.importorskip("hatchling", reason="hatchling isn't installed: pip install 'fledge[dev]'")
        # Compiles to what it was asked for; can't do AMX, as compilers of some years ago.
        program(
            tmp_path / "g++", 'case "$*" in *amx*) exit 1;; esac; for last; do :; done; echo "$@" > "$last"'
        )
        monkeypatch.setenv("CXX", str(tmp_path / "g++"))
        spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        warned: list[str] = []
        app = SimpleNamespace(display_warning=warned.append)
        hook = module.PrebuiltKernels(str(ROOT), {}, None, None, str(tmp_path), "wheel", app)
        hook.warned = warned
        return hook

    @pytest.mark.skipif(platform.system() != "Linux", reason="wheels with kernels are for Linux")
    def test_a_wheel_has_a_library_for_each_instruction_set_the_compiler_knows(
        self, hook: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(platform, "machine", lambda: "x86_64")
        data: dict[str, Any] = {"force_include": {}}
        hook.initialize("standard", data)
        places = {Path(path).name: place for path, place in data["force_include"].items()}
        names = {name.rpartition("-")[0] for name in places}
        isas = ("avx512bf16", "avx512", "avxvnni", "avx2")
        assert names == {f"{library}-{isa}" for library in ("fledge", "train") for isa in isas}
        assert all(place == f"fledge/native/prebuilt/{name}" for name, place in places.items())
        assert (data["pure_python"], data["tag"]) == (False, "py3-none-linux_x86_64")
        assert len(hook.warned) == 2
        folder = Path(next(iter(data["force_include"]))).parent
        monkeypatch.setattr(build, "PREBUILT", folder)
        found = build.prebuilt("train-avx2")
        assert found is not None
        assert "-mavx2 -mfma" in found.read_text()
        hook.finalize("standard", data, "")
        assert not folder.exists()

    def test_an_editable_installation_and_a_machine_without_compiler_have_none(
        self, hook: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        data: dict[str, Any] = {"force_include": {}}
        hook.initialize("editable", data)
        monkeypatch.delenv("CXX")
        monkeypatch.setenv("PATH", "/nowhere")
        monkeypatch.setitem(sys.modules, "ziglang", None)
        hook.initialize("standard", data)
        assert data == {"force_include": {}}
