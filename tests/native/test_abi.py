"""The structures that Python mirrors are those of the C++ sources, field by field."""

from __future__ import annotations

import re
from ctypes import Structure, c_int, sizeof
from pathlib import Path

import pytest

from fledge.native import abi, build
from fledge.train import library

needs_kernels = pytest.mark.kernels
FOLDERS = (Path(abi.__file__).parent, Path(library.__file__).parent)
SOURCES = "\n".join(
    p.read_text("utf-8") for f in FOLDERS for p in sorted(f.iterdir()) if p.suffix in (".h", ".cpp")
)


def fields_in_cpp(structure: str) -> list[str]:
    body = re.search(rf"^struct {structure} \{{(.*?)^\}};", SOURCES, re.DOTALL | re.MULTILINE)
    assert body is not None, f"no C++ source has a struct {structure}"
    text = re.sub(r"//.*|\[.*?\]", "", body[1])
    text = re.sub(r".*\(.*", "", text)  # methods
    return [re.findall(r"\w+", name)[-1] for name in re.split("[,;]", text) if name.strip()]


@pytest.mark.parametrize("structure", [*abi.STRUCTURES, library.FledgeBlock], ids=lambda s: s.__name__)
def test_the_fields_stand_in_the_order_of_the_cpp_source(structure: type[Structure]) -> None:
    assert [field[0] for field in structure._fields_] == fields_in_cpp(structure.__name__)


@needs_kernels
def test_a_structure_of_another_size_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = type("Shape", (Structure,), {"_fields_": [*abi.Shape._fields_, ("added", c_int)]})
    monkeypatch.setattr(abi, "STRUCTURES", (shape, *abi.STRUCTURES[1:]))
    sizes = rf"sizeof\(Shape\) is {sizeof(abi.Shape) + 4} in Python and {sizeof(abi.Shape)} in the compiled kernels"
    with pytest.raises(RuntimeError, match=sizes):
        build.declare(build.library())


@needs_kernels
@pytest.mark.parametrize("name", abi.LIMITS)
def test_a_limit_of_another_value_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(abi.LIMITS, name, 48)
    with pytest.raises(RuntimeError, match=f"{name} is 48 in Python and"):
        build.declare(build.library())


@needs_kernels
def test_a_structure_that_python_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(abi, "STRUCTURES", abi.STRUCTURES[1:])
    with pytest.raises(RuntimeError, match=r"sizeof\(Shape\) is None in Python"):
        build.declare(build.library())
