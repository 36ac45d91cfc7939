"""The shape of the house: who may import whom, what is in the tree, how long a file may be."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "cpprb_like"
LEAVES = ("integrations", "compat")
SUFFIXES = (".py", ".pyi", ".pyx", ".pxd")
GENERATED = re.compile(r".*\.(c|cpp|so|pyd|o|html|pyc|whl|tar\.gz)|.*\.egg-info/.*|(build|dist)/.*")


def rooms() -> list[str]:
    """The modules and subpackages in the order in which docs/design.md lists them."""
    design = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    listing = design.partition("\ncpprb_like/\n")[2].partition("\ntests/")[0]
    return [found[1] for found in re.finditer(r"^  (\w+)[./]", listing, re.MULTILINE)]


def room_of(path: Path) -> str:
    """The module or subpackage that a file belongs to."""
    return path.relative_to(PACKAGE).parts[0].partition(".")[0]


def python_imports(path: Path) -> Iterator[tuple[str, str]]:
    """Each absolute import of a Python file: the module, and the name taken from it or ''."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            here = path.parent.relative_to(ROOT).parts
            base = here[: len(here) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((module, alias.name) for alias in node.names)


def cython_imports(path: Path) -> Iterator[tuple[str, str]]:
    """Each import and cimport of a Cython file: the module, and the first name taken or ''."""
    pattern = r"^\s*(?:from\s+([\w.]+)\s+c?import\s+(\w*)|c?import\s+([\w.]+))"
    for found in re.finditer(pattern, path.read_text(encoding="utf-8"), re.MULTILINE):
        yield found[1] or found[3], found[2] or ""


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """Each import of a source file."""
    return python_imports(path) if path.suffix in (".py", ".pyi") else cython_imports(path)


def imported_rooms(path: Path) -> set[str]:
    """The rooms that a file imports, but for its own; '' is the package's public names."""
    found = set()
    for module, name in imports(path):
        package, _, rest = module.partition(".")
        if package == "cpprb_like":
            is_room = (PACKAGE / name).is_dir() or any(PACKAGE.glob(f"{name}.py*"))
            found.add(rest.partition(".")[0] or (name if name and is_room else ""))
    return found - {room_of(path)}


SOURCES = sorted(path for path in PACKAGE.rglob("*.p*") if path.suffix in SUFFIXES)
in_every_source = pytest.mark.parametrize(
    "path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix()
)


def test_design_lists_every_room_once() -> None:
    """Each module of the package stands in the list of docs/design.md, and nothing else does."""
    there = {room_of(path) for path in SOURCES}
    listed = rooms()

    assert sorted(listed) == sorted(set(listed))
    assert set(listed) == there


@in_every_source
def test_imports_point_upwards_in_the_list_of_rooms(path: Path) -> None:
    """A module imports only what stands above it, and a leaf only what is public."""
    here = room_of(path)
    if here == "__init__":
        pytest.skip("has the names of all rooms")
    listed = rooms()
    above = set(listed[: listed.index(here)]) - set(LEAVES)
    public = {name for name in above if not name.startswith("_")} | {""}

    assert imported_rooms(path) <= (public if here in LEAVES else above)


@in_every_source
def test_optional_packages_are_imported_in_the_leaves_only(path: Path) -> None:
    """The core needs NumPy and the standard library; everything else is for the leaves."""
    if room_of(path) in LEAVES:
        pytest.skip("a leaf")
    for_compilers = {"cython", "cpython", "libc"} if path.suffix in (".pyx", ".pxd") else set()
    for_type_checkers = {"typing_extensions"} if path.suffix == ".pyi" else set()

    packages = {module.partition(".")[0] for module, _ in imports(path)}

    at_run_time = set(sys.stdlib_module_names) | {"numpy", "cpprb_like"}
    assert packages <= at_run_time | for_compilers | for_type_checkers


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
def test_every_compiled_module_has_its_declarations_and_its_stub(path: Path) -> None:
    """Beside each .pyx stand the .pxd for other compiled modules and the .pyi for Python."""
    assert path.with_suffix(".pxd").exists()
    assert path.with_suffix(".pyi").exists()


def test_nothing_generated_is_tracked() -> None:
    """Git tracks what people write: no C, no binaries, no build folders."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]

    files = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout

    assert [name for name in files.splitlines() if GENERATED.fullmatch(name)] == []
