"""The shape of the house: which rooms there are, who may import whom, what is in the tree."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from module_map import AT_THE_TOP, LEAVES, PACKAGE, ROOMS, first_sentence, modules, room_of

ROOT = Path(__file__).resolve().parents[2]
# Of what is private, the outer rooms may take what reads arguments, as they read the same ones,
# what asks for memory, what writes files, and what stacks frames.
FOR_ALL = (
    "cpprb_like._machine.byte_order.",
    "cpprb_like._arguments.arrays.",
    "cpprb_like._arguments.checks.",
    "cpprb_like._arguments.foreign_arrays.read_argument",
    "cpprb_like._machine.crc32.crc32c",
    "cpprb_like._machine.file_systems.",
    "cpprb_like._machine.generators.",
    "cpprb_like._machine.machine_memory.",
    "cpprb_like._machine.opening.",
    "cpprb_like._fields.casting.as_array",
    "cpprb_like._fields.entries.",
    "cpprb_like.buffers._rows_to_report.RowsToReport",
    "cpprb_like._files.peek.",
    "cpprb_like.checkpoint._disk.Disk",
    "cpprb_like.checkpoint._npz.",
    "cpprb_like.checkpoint._progress.",
    "cpprb_like.checkpoint._restricted_pickle.",
    "cpprb_like._fields.field.Field",
    "cpprb_like.views._stacking.",
)
# cpprb's own classes are made of parts of the engine, as the buffers are.
OF_THE_ENGINE = {("compat", "cpprb"), ("compat", "_replay_memory.py"), ("ray",), ("device",)}
# Calls and names that hand on to a room above, which is imported on their first use.
DOORS = {
    "buffers/__init__.pyi": {"compat"},
    "buffers/_replay.py": {"datasets"},
    "buffers/_reported.py": {"report"},
    "ray/_cluster.py": {"report"},
    "samplers/__init__.pyi": {"compat"},
}
SUFFIXES = (".py", ".pyi", ".pyx", ".pxd")
GENERATED = re.compile(r".*\.(c|cpp|so|pyd|o|html|pyc|whl|tar\.gz)|.*\.egg-info/.*|(build|dist)/.*")


def python_imports(path: Path) -> Iterator[str]:
    """Each absolute import of a Python file, with the name that is taken from a module."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            here = path.parent.relative_to(ROOT).parts
            base = here[: len(here) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def cython_imports(path: Path) -> Iterator[str]:
    """Each import and cimport of a Cython file, with the first name that is taken."""
    pattern = r"^\s*(?:from\s+([\w.]+)\s+c?import\s+(\w*)|c?import\s+([\w.]+))"
    for found in re.finditer(pattern, path.read_text(encoding="utf-8"), re.MULTILINE):
        yield found[3] or f"{found[1]}.{found[2]}"


def for_type_checkers_only(path: Path) -> set[str]:
    """Packages that a Python file imports under ``if TYPE_CHECKING``."""
    if path.suffix != ".py":
        return set()
    return {
        package.name.partition(".")[0] if isinstance(found, ast.Import) else str(found.module)
        for block in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for found in block.body
        if isinstance(found, (ast.Import, ast.ImportFrom))
        for package in found.names
    }


@cache
def imports(path: Path) -> tuple[str, ...]:
    """Each import of a source file."""
    return tuple(python_imports(path) if path.suffix in (".py", ".pyi") else cython_imports(path))


def own_imports(path: Path) -> Iterator[tuple[str, str]]:
    """The rooms that a file imports ('' for the package's names), and what it takes there."""
    for name in imports(path):
        package, _, rest = name.partition(".")
        if package == "cpprb_like":
            first = rest.partition(".")[0]
            room = AT_THE_TOP.get(first, first)
            yield (room if room in ROOMS else ""), name


SOURCES = sorted(path for path in PACKAGE.rglob("*.p*") if path.suffix in SUFFIXES)
in_every_source = pytest.mark.parametrize(
    "path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix()
)


def test_every_file_is_in_a_room() -> None:
    """The top of the package holds its names, and the few modules that belong there."""
    assert {room_of(path) for path in SOURCES} == {"", *ROOMS}


@pytest.mark.parametrize("path", modules(), ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_every_module_begins_with_a_sentence(path: Path) -> None:
    """The map of modules, ``make map``, is made of these sentences."""
    assert first_sentence(path).endswith(".")


def test_the_page_of_the_design_lists_the_rooms_in_order() -> None:
    """The first column of the table of rooms in docs/design.md names each room once."""
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    table = page.partition("\n| room | question |\n")[2].partition("\n\n")[0]
    columns = [line.split("|")[1] for line in table.splitlines()]
    assert re.findall(r"`(\w+)`", "".join(columns)) == list(ROOMS)


@in_every_source
def test_imports_point_down(path: Path) -> None:
    """A file imports from its own room and from those below."""
    here = room_of(path)
    allowed = {*(ROOMS if here == "" else ROOMS[: ROOMS.index(here) + 1])}
    allowed |= DOORS.get(path.relative_to(PACKAGE).as_posix(), set())
    assert [name for room, name in own_imports(path) if room and room not in allowed] == []


@in_every_source
def test_outer_rooms_stand_on_public_names(path: Path) -> None:
    """What bridges to other packages is built as users could build it."""
    here = room_of(path)
    parts = path.relative_to(PACKAGE).parts
    if here not in LEAVES or OF_THE_ENGINE & {parts[:1], parts[:2]}:
        pytest.skip("made of the engine's parts")
    private = [
        name
        for room, name in own_imports(path)
        if room != here and re.search(r"\._(?!_)", name) and not name.startswith(FOR_ALL)
    ]
    assert private == []


@in_every_source
def test_optional_packages_are_imported_in_the_leaves_only(path: Path) -> None:
    """The core needs NumPy and the standard library; everything else is for the leaves."""
    if room_of(path) in LEAVES:
        pytest.skip("a leaf")
    for_compilers = {"cython", "cpython", "libc"} if path.suffix in (".pyx", ".pxd") else set()
    is_for_checkers = path.suffix == ".pyi" or "typing_extensions" in for_type_checkers_only(path)
    for_type_checkers = {"typing_extensions"} if is_for_checkers else set()

    packages = {name.partition(".")[0] for name in imports(path)}

    at_run_time = set(sys.stdlib_module_names) | {"numpy", "cpprb_like"}
    assert packages <= at_run_time | for_compilers | for_type_checkers


@pytest.mark.parametrize("room", ROOMS)
def test_each_room_says_what_it_is(room: str) -> None:
    """The docstring of a room's ``__init__`` is what a newcomer reads first."""
    text = ast.get_docstring(ast.parse((PACKAGE / room / "__init__.py").read_text("utf-8")))
    assert text is not None
    assert "May import" in text


def test_importing_the_package_imports_nothing_optional() -> None:
    """``import cpprb_like`` loads no package besides NumPy and itself, and none of the leaves."""
    program = (
        "import sys, numpy; before = set(sys.modules); import cpprb_like\n"
        "print(*set(sys.modules) - before)"
    )
    command = [sys.executable, "-c", program]

    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()

    # Compiled modules register runtime modules of Cython's, which come from no package.
    packages = {name.partition(".")[0] for name in loaded if not re.match(r"_?cython_", name)}
    assert packages <= set(sys.stdlib_module_names) | {"numpy", "cpprb_like"}
    assert not [name for name in loaded for leaf in LEAVES if f"cpprb_like.{leaf}" in name]


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.pyx")), ids=lambda path: path.name)
def test_every_compiled_module_has_its_stub(path: Path) -> None:
    """Beside each .pyx stands the .pyi for Python; a .pxd only where another module cimports it."""
    assert path.with_suffix(".pyi").exists()


def test_nothing_generated_is_tracked() -> None:
    """Git tracks what people write: no C, no binaries, no build folders."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]

    files = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout

    assert [name for name in files.splitlines() if GENERATED.fullmatch(name)] == []
