"""The shape of the source tree: short files, and rooms that depend downwards only."""

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import fledge

SOURCE = Path(fledge.__file__).parent
INSTRUMENTS = SOURCE.parents[1] / "benchmarks"

# Lowest first. A room imports from the ones before it, never from one after it.
ORDER = [
    ("base",),
    ("native",),
    ("sources",),
    ("attention",),
    ("target",),
    ("draft",),
    ("heads",),
    ("engine",),
    ("doctor",),
    ("data",),
    ("features",),
    ("train",),
    ("bench",),
    ("released",),
    ("learn",),
    ("run", "server", "deploy"),
    ("commands",),
    ("__main__",),
]
LEVEL = {room: level for level, rooms in enumerate(ORDER) for room in rooms}
# What the layers share without being a room: the forward batch is the contract between attention and target.
SHARED = {"fledge.target.batch", "fledge.target.config"}

# Ways in which the engine asks where it runs: on which device, on the CPU kernels or in torch.
ASKS_WHERE = re.compile(
    r"isinstance\([^()]*Native\w+\)|device\.type"
    r"|\.(backend|is_cpu|is_cuda)\b(?! import)|\b(native|native_plain|drawn|sampler|rounds) is (not )?None"
)
MOST_ASKS = (
    8  # most about the device: streams, events and memory are CUDA's. The backend is chosen in build.py
)
# Modules that import each other; the list may only get shorter.
KNOWN_CIRCLES: set[frozenset[str]] = set()


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


@cache
def dependencies() -> dict[str, set[str]]:
    """By module, those that it imports, inside functions and for annotations too."""
    files = {".".join(p.relative_to(SOURCE.parent).with_suffix("").parts): p for p in SOURCE.rglob("*.py")}
    files = {name.removesuffix(".__init__"): path for name, path in files.items()}
    found: dict[str, set[str]] = {name: set() for name in files}
    for name, path in files.items():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                found[name] |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                inner = [f"{node.module}.{alias.name}" for alias in node.names]
                found[name] |= {module if module in files else node.module for module in inner}
        found[name] = found[name] & set(files) - {name}
    return found


def reached_from(module: str, imported: dict[str, set[str]]) -> set[str]:
    reached: set[str] = set()
    following = [module]
    while following:
        fresh = imported[following.pop()] - reached
        reached |= fresh
        following += fresh
    return reached


def test_modules_do_not_import_each_other():
    imported = dependencies()
    reached = {module: reached_from(module, imported) for module in imported}
    circles = {frozenset(m for m in reached[n] if n in reached[m]) for n in imported if n in reached[n]}
    assert circles == KNOWN_CIRCLES


def test_the_engine_rarely_asks_where_it_runs():
    asks = [
        f"{path.relative_to(SOURCE)}:{number}"
        for path in sorted((SOURCE / "engine").rglob("*.py"))
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        for _ in ASKS_WHERE.finditer(line)
        if path.name != "build.py"
    ]
    assert len(asks) <= MOST_ASKS, ", ".join(asks)


def test_every_source_file_is_shorter_than_400_lines():
    files = (p for folder in (SOURCE, INSTRUMENTS) for p in folder.rglob("*"))
    sources = [p for p in files if p.suffix in {".py", ".cpp", ".h", ".hpp"}]
    lengths = {str(p): len(p.read_text("utf-8").splitlines()) for p in sources}
    assert {name: length for name, length in lengths.items() if length >= 400} == {}


def test_the_package_imports_no_instrument():
    imports = re.compile(r"^\s*(from|import) benchmarks\b", re.MULTILINE)
    assert [path for path in SOURCE.rglob("*.py") if imports.search(path.read_text("utf-8"))] == []


def test_every_top_level_module_has_a_place_in_the_order():
    rooms = {room_of(p) for p in SOURCE.rglob("*.py")} - {"__init__"}
    assert rooms - set(LEVEL) == set()


def test_rooms_import_downwards_only():
    imported = dict(dependencies())
    del imported["fledge"]  # it offers what all rooms have
    level = {"fledge": 0} | {module: LEVEL[module.split(".")[1]] for module in imported}
    assert [
        f"{module} imports {other}"
        for module in imported
        for other in imported[module] - SHARED
        if level[other] > level[module]
    ] == []


def test_the_source_distribution_holds_what_the_tests_read():
    root = Path(__file__).parent.parent
    built = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]["targets"]
    names = set(built["sdist"]["include"])
    assert {
        "/src",
        "/benchmarks",
        "/tests",
        "/docs",
        "/deploy",
        "/notebooks",
        "/results",
        "/mkdocs.yml",
    } <= names
    assert [
        name for name in sorted(names) if not name.startswith("/") or not (root / name[1:]).exists()
    ] == []


def test_docstrings_name_their_subject_instead_of_asking_for_it():
    asking = [
        f"{path.relative_to(SOURCE)}:{node.body[0].lineno}"
        for path in sorted(SOURCE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        and re.match(r"(What|How|Which|Whether|Who)\b", ast.get_docstring(node) or "")
    ]
    assert asking == []


def test_what_a_newcomer_is_told_to_read_is_there_and_as_long_as_it_says():
    text = (SOURCE.parent.parent / "CONTRIBUTING.md").read_text("utf-8").split("## Reading it in a day")[1]
    rows = re.findall(r"^\| (`.*`) \| .* \| ([\d,]+) \|$", text.split("\n## ")[0], re.MULTILINE)
    assert len(rows) >= 10
    together = 0
    for names, stated in rows:
        paths = [SOURCE / name for name in re.findall(r"`([^`]+)`", names)]
        files = [file for path in paths for file in (sorted(path.rglob("*.py")) if path.is_dir() else [path])]
        count = sum(len(file.read_text("utf-8").splitlines()) for file in files)
        assert abs(count - _number(stated)) <= 0.05 * count, (names, count)
        together += count
    (stated,) = re.findall(r"In these ([\d,]+) lines", text)
    assert abs(together - _number(stated)) <= 0.05 * together, together


def _number(text: str) -> int:
    return int(text.replace(",", ""))
