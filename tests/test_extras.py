"""fledge generates and serves with its mandatory packages alone; what needs an extra names it in one line."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

from fledge.commands.extras import EXTRAS
from tests.tiny import save_tiny_target

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]

# Runs the commands of its input without the packages it is given; from the line "pyarrow" on, with that one.
WITHOUT_PACKAGES = """
import sys

sys.modules.update(dict.fromkeys(sys.argv[1].split(",")))  # importing one of them raises ModuleNotFoundError
from fledge.commands.main import main
import fledge, fledge.server
fledge.Engine, fledge.Target, fledge.Head, fledge.released_head
for line in sys.stdin:
    if line == "pyarrow\\n":
        del sys.modules["pyarrow"]
        continue
    sys.argv = ["fledge", *line.split()]
    try:
        main()
    except SystemExit as ended:
        print("ended with", ended.code or 0, flush=True)
"""


def packages(requirements: list[str]) -> set[str]:
    """Module names of the packages; they're called as their modules, but for dashes."""
    names = {requirement.split(">")[0].split("<")[0] for requirement in requirements}
    return {name.replace("-", "_") for name in names if not name.startswith("fledge[")}


def test_each_package_is_named_with_an_extra_that_brings_it() -> None:
    extras = PROJECT["optional-dependencies"]
    listed = {name: packages(requirements) for name, requirements in extras.items()}
    listed["train"] |= listed["data"]
    listed["serve"].add("starlette")  # of fastapi
    assert {module: extra for module, extra in EXTRAS.items() if module not in listed[extra]} == {}
    needed = listed["data"] | listed["bench"] | listed["serve"]
    assert needed <= EXTRAS.keys()
    assert not EXTRAS.keys() & packages(PROJECT["dependencies"])


def test_without_the_extras_packages_text_is_generated_and_the_rest_names_them(tmp_path: Path) -> None:
    target = save_tiny_target(tmp_path / "tiny")
    absent = {module for module, extra in EXTRAS.items() if extra != "serve"} | {"tensorboardX"}
    absent -= {"httpx2"}  # some versions of huggingface-hub need it, too
    commands = [
        f"generate Why? --target {target} --plain --max-tokens 4",
        f"run --run-dir {tmp_path / 'run'} target.model={target}",
        "pyarrow",
        f"report --run-dir {tmp_path / 'none'}",
        "bench server --server one=http://localhost:1",
    ]
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT_PACKAGES, ",".join(absent)],
        input="\n".join(commands),
        capture_output=True,
        text=True,
        check=False,
    )
    codes = [line for line in ended.stdout.splitlines() if line.startswith("ended")]
    assert codes == ["ended with 0", *["ended with 2"] * 3], ended.stderr
    assert "4 tokens, plain decode" in ended.stdout
    errors = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
    assert errors[0] == "error: this needs the package pyarrow: run pip install 'fledge[train]'"
    assert errors[1].startswith("error: there is no run in")
    assert errors[2] == "error: this needs the package aiohttp: run pip install 'fledge[bench]'"
