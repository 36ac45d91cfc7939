"""Print the size and the seams of the package: ``python tools/house_numbers.py [FOLDER]``.

The numbers are for whoever changes the design: what they were before, and what they are after.
They fail no test. ``FOLDER`` is another checkout of the project, this one by default.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

TYPE_OF_SOURCES = (".py", ".pyx", ".pxd", ".pyi")
# A method or function of a .pyx or .pxd: at most indented once, as those of classes are.
C_DEFINITION = re.compile(r"^ {0,4}cdef (?:inline )?[\w \[\]:,.*&]*?[ *](c_\w+)\(", re.MULTILINE)
METHOD = re.compile(r"^    (?:def|cdef|cpdef) (?:[\w \[\]:,.*&]*?[ *])?(\w+)\(", re.MULTILINE)
# Objects that a part may be asked for in place of a declared method.
PARTS = r"(?:sampler|layer|source|rows|starts|Where|Starts|StartsTogether|FrameStacks|Hindsight)"
PROBE = re.compile(
    rf"(?:getattr|hasattr)\((?:\w+\.)?{PARTS}\b"
    rf"|isinstance\(\w+, {PARTS}\)"
    rf'|cast\("Any", {PARTS}\b'
)


def sources(package: Path, *kinds: str) -> list[Path]:
    """The sources of the package with one of some suffixes, as ``.py``."""
    return sorted(path for path in package.rglob("*") if path.suffix in (kinds or TYPE_OF_SOURCES))


def bases_of_replay_buffer(package: Path) -> int:
    """How many classes of the package ``ReplayBuffer`` derives from, directly or not."""
    bases: dict[str, list[str]] = {}
    for path in sources(package, ".py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                names = [ast.unparse(base).partition("[")[0] for base in node.bases]
                bases.setdefault(node.name, names)
    compiled = "".join(path.read_text("utf-8") for path in sources(package, ".pyx"))
    for name, base in re.findall(r"^cdef class (\w+)(?:\((\w+)\))?:", compiled, re.MULTILINE):
        bases.setdefault(name, [base])
    found: set[str] = set()
    waiting = ["ReplayBuffer"]
    while waiting:
        new = set(bases.get(waiting.pop(), ())) & set(bases) - found
        found |= new
        waiting += new
    return len(found)


def methods_of_ring(package: Path) -> int:
    """How many methods the compiled ``Ring`` has."""
    text = (package / "_core.pyx").read_text("utf-8")
    body = re.search(r"^cdef class Ring\b.*?(?=^\S(?!#))", text, re.DOTALL | re.MULTILINE)
    return len(set(METHOD.findall(body[0]))) if body else 0


def repeated_c_names(package: Path) -> int:
    """How many names that begin with ``c_`` two modules or more define."""
    homes = defaultdict(set)
    for path in sources(package, ".pyx", ".pxd"):
        for name in C_DEFINITION.findall(path.read_text("utf-8")):
            homes[name].add(path.with_suffix(""))
    return sum(len(modules) > 1 for modules in homes.values())


def imports(package: Path) -> dict[str, set[str]]:
    """The modules of the package that each of its modules imports, wherever it does so."""
    names = {path.relative_to(package.parent).with_suffix("") for path in sources(package)}
    modules = {".".join(name.parts).removesuffix(".__init__") for name in names}
    graph: dict[str, set[str]] = {name: set() for name in modules}
    for path in sources(package, ".py"):
        name = ".".join(path.relative_to(package.parent).with_suffix("").parts)
        for target in imported(path):
            while target not in modules and "." in target:
                target = target.rpartition(".")[0]
            if target in modules and target != package.name:
                graph[name.removesuffix(".__init__")].add(target)
    return graph


def imported(path: Path) -> Iterator[str]:
    """The full names that the imports of a file bring, also those for types only."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{name.name}" for name in node.names)
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)


def circles(graph: dict[str, set[str]]) -> int:
    """How many groups of modules import each other, directly or through others."""

    def reached(start: str) -> set[str]:
        found: set[str] = set()
        waiting = [start]
        while waiting:
            for name in graph[waiting.pop()] - found:
                found.add(name)
                waiting.append(name)
        return found

    after = {name: reached(name) for name in graph}
    return len(
        {
            frozenset(other for other in after[name] if name in after[other])
            for name in graph
            if name in after[name]
        }
    )


def private_modules_of_processes(graph: dict[str, set[str]]) -> int:
    """How many private modules of other rooms the room ``processes`` imports.

    Arguments of calls and what is asked of the machine are for every room, and not counted.
    """
    room = "cpprb_like.processes"
    own = (room, "cpprb_like._arguments", "cpprb_like._machine")
    found = set().union(*(names for name, names in graph.items() if name.startswith(room)))
    return sum("._" in name and not name.startswith(own) for name in found)


def main() -> None:
    """Print one line for each number."""
    project = Path(sys.argv[1] if sys.argv[1:] else Path(__file__).parent.parent).resolve()
    package = project / "cpprb_like"
    graph = imports(package)
    text = "".join(path.read_text("utf-8") for path in sources(package, ".py", ".pyx"))
    tables = "".join(path.read_text("utf-8") for path in (project / "docs").glob("benchmarks*.md"))
    for name, number in {
        "lines of the package": sum(
            len(path.read_text("utf-8").splitlines()) for path in sources(package)
        ),
        "bases of ReplayBuffer": bases_of_replay_buffer(package),
        "methods of Ring": methods_of_ring(package),
        "names c_* of two modules or more": repeated_c_names(package),
        "probes of parts": len(PROBE.findall(text)),
        "import circles": circles(graph),
        "private modules that processes imports": private_modules_of_processes(graph),
        "rows of FAIL in the published tables": len(re.findall("^.*FAIL.*$", tables, re.MULTILINE)),
    }.items():
        print(f"{number:7,}  {name}")


if __name__ == "__main__":
    main()
