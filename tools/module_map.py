"""Print the map of modules: ``python tools/module_map.py [ROOM ...]``, as ``make map`` does.

The map is made from the first sentence of each module's docstring, so no page lists modules.
Modules that stand at the top of the package are listed in the room that they belong to.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "cpprb_like"
# The rooms, from the bottom up; a room may import those before it.
INNER = (
    *("_c", "_arguments", "_machine", "_rows", "_fields", "_files", "samplers", "views"),
    *("checkpoint", "buffers", "limiters", "processes"),
)
LEAVES = ("ray", "device", "integrations", "compat", "datasets", "report", "cli")
ROOMS = (*INNER, *LEAVES)
# Modules at the top of the package -> the rooms that they belong to.
AT_THE_TOP = {
    "__main__": "cli",
    "errors": "_c",
    "schedules": "_arguments",
    "_core": "_rows",
    "_segment_tree": "samplers",
    "testing": "buffers",
    "typing": "buffers",
}


def room_of(path: Path) -> str:
    """The room that a file is in, or belongs to; '' for the names of the package."""
    first = path.relative_to(PACKAGE).parts[0].partition(".")[0]
    return "" if first == "__init__" else AT_THE_TOP.get(first, first)


def modules() -> list[Path]:
    """The files of the package that have a docstring of their own.

    A ``.pyi`` describes the module beside it, and so does a ``.pxd`` beside a ``.pyx``.
    """
    return sorted(
        path
        for path in PACKAGE.rglob("*.p*")
        if path.suffix in (".py", ".pyx")
        or (path.suffix == ".pxd" and not path.with_suffix(".pyx").exists())
    )


def first_sentence(path: Path) -> str:
    """The first sentence of the docstring of a file; '' if there is none."""
    found = re.match(r'(?:#.*\n|\s)*"""(.*?)(?:\n\s*\n|""")', path.read_text("utf-8"), re.DOTALL)
    text = " ".join(found[1].split()) if found else ""
    return re.split(r"(?<=[.?!])(?<!e\.g\.)\s", text)[0]


def lines(rooms: tuple[str, ...]) -> Iterator[str]:
    """The map of some rooms, one line for each module."""
    for room in rooms:
        yield f"{room}/  {first_sentence(PACKAGE / room / '__init__.py')}"
        for path in modules():
            name = path.relative_to(PACKAGE).as_posix().removeprefix(f"{room}/")
            if room_of(path) == room and name != "__init__.py":
                yield f"  {name:32} {first_sentence(path)}"


def main(arguments: list[str]) -> None:
    """Print the map of all rooms, or of those that are named."""
    unknown = sorted({*arguments} - {*ROOMS})
    if unknown:
        sys.exit(f"no room {', '.join(unknown)}; there are {', '.join(ROOMS)}")
    print(*lines(tuple(arguments) or ROOMS), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
