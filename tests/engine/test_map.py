"""The maps at the top of the rooms name every file there is, and no other."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest

import fledge.draft
import fledge.engine


@pytest.mark.parametrize("room", [fledge.engine, fledge.draft])
def test_the_map_of_a_room_names_its_files(room: ModuleType) -> None:
    named = re.findall(r"\b\w+\.py\b", room.__doc__ or "")
    files = {path.name for path in Path(str(room.__file__)).parent.glob("*.py")} - {"__init__.py"}
    assert sorted(named) == sorted(files)
