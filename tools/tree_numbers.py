"""How much there is to know, in numbers: ``python tools/tree_numbers.py [FOLDER]``.

Counted in the sources of FOLDER, by default this tree: lines by room, compiled modules, mechanisms
that exist more than once, import circles, and the words of pages. Nothing is imported or run.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCES = (".py", ".pyx", ".pxd", ".pyi")
DIALECT = r"(?i)\b(?:somebody|nobody|whoever|told|kept)\b"
# Readers of the rows of other processes, where they stood outside the room of processes.
READERS = ("_store/follower*.p*", "samplers/_together.p*", "samplers/_starts_together.p*")
RENAMES = r"\w\.(?:rename|replace)\([\w.]*(?:path|target|new|gone|folder|LAYOUT)[\w.]*\)"
WAITS = r"^(?:\w*(?:PAUSE|NAP|WAIT|BACKOFF|SLEEP|PATIENCE)\w*) ="


class Tree:
    """The source files of the package.

    Parameters
    ----------
    root : Path
        The folder that holds ``cpprb_like`` and ``docs``.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.package = root / "cpprb_like"
        self.texts = {
            path.relative_to(self.package).as_posix(): path.read_text(encoding="utf-8")
            for path in sorted(self.package.rglob("*.p*"))
            if path.suffix in SOURCES
        }

    def lines(self, *patterns: str) -> int:
        """Lines of the files under the package whose paths match a pattern."""
        found = {path for pattern in patterns for path in self.package.glob(pattern)}
        names = {path.relative_to(self.package).as_posix() for path in found}
        return sum(text.count("\n") for name, text in self.texts.items() if name in names)

    def matches(self, pattern: str, room: str = "") -> dict[str, int]:
        """How often a pattern is found in each file of a room, without the files that lack it."""
        counts = {
            name: len(re.findall(pattern, text, re.MULTILINE))
            for name, text in self.texts.items()
            if name.startswith(room)
        }
        return {name: count for name, count in counts.items() if count}

    def circles(self) -> list[list[str]]:
        """Groups of Python modules that import one another, at any time or for type checkers."""
        modules = {
            ("cpprb_like." + name[:-3].replace("/", ".")).removesuffix(".__init__"): text
            for name, text in self.texts.items()
            if name.endswith(".py")
        }
        arrows = {name: {*_imported(text, modules)} - {name} for name, text in modules.items()}
        reached = {name: _reachable(name, arrows) for name in arrows}
        groups = {
            tuple(sorted(other for other in reached[name] if name in reached[other]))
            for name in arrows
        }
        return [list(group) for group in sorted(groups) if len(group) > 1]


def _imported(text: str, modules: dict[str, str]) -> Iterator[str]:
    """The modules of the package that a file imports."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found = inner if inner in modules else node.module
                if found in modules:
                    yield found
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)


def _reachable(start: str, arrows: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    pending = [start]
    while pending:
        for name in arrows[pending.pop()] - found:
            found.add(name)
            pending.append(name)
    return found


def mean_sentence(text: str) -> float:
    """Words of a sentence of a page, on average; code, tables and headings are left out."""
    prose = re.sub(r"^```.*?^```|^\|.*?$|^#.*?$", "", text, flags=re.MULTILINE | re.DOTALL)
    lengths = [len(one.split()) for one in re.split(r"(?<=[.?!])\s+|\n\s*\n", prose)]
    lengths = [length for length in lengths if length > 2]
    return sum(lengths) / max(1, len(lengths))


def pages_for_maintainers(root: Path) -> list[str]:
    """Design, decisions, promises, and the words that only the source uses; older trees lack some.

    The rest of the glossary is for users.
    """
    names = ("design.md", "design-storage.md", "decisions.md", "promises.md")
    paths = [root / "docs" / name for name in names]
    texts = [path.read_text(encoding="utf-8") for path in paths if path.exists()]
    glossary = (root / "docs" / "glossary.md").read_text(encoding="utf-8")
    return [*texts, glossary.partition("\n## Inside the package\n")[2]]


def rows(tree: Tree) -> Iterator[tuple[str, object]]:
    """Each number, with its name."""

    def count(pattern: str, room: str = "") -> int:
        return sum(tree.matches(pattern, room).values())

    def files(pattern: str, room: str = "") -> int:
        return len(tree.matches(pattern, room))

    yield "lines of the package", tree.lines("**/*")
    for room in sorted(path.name for path in tree.package.iterdir() if path.is_dir()):
        if tree.lines(f"{room}/**/*"):
            yield f"  lines of {room}", tree.lines(f"{room}/**/*")
    yield "  readers of other processes' rows, elsewhere", tree.lines(*READERS)
    yield "compiled modules", sum(name.endswith(".pyx") for name in tree.texts)
    yield "isinstance on layers in the view", count(r"isinstance\(layer,", "buffers/_view")
    yield "bodies of draws in processes", count(r"^    def _?draw\(", "processes/")
    yield "import circles", len(tree.circles())
    yield "files that subscript the manifest", files(r"\w\[\"[a-z_]+\"\]", "checkpoint/")
    yield "files with flock", files(r"fcntl\.flock")
    yield "files that rename paths", files(RENAMES)
    yield "files with constants of waits", files(WAITS)
    yield "uses of getrefcount", count(r"getrefcount\(")
    texts = pages_for_maintainers(tree.root)
    yield "words of the pages for maintainers", sum(len(text.split()) for text in texts)
    yield "  words of a sentence there", round(mean_sentence("\n\n".join(texts)), 1)
    yield "somebody, nobody, whoever, told, kept", count(DIALECT)


def main(arguments: list[str]) -> None:
    """Print the table."""
    tree = Tree(Path(arguments[0]) if arguments else Path(__file__).resolve().parents[1])
    for name, value in rows(tree):
        print(f"{name:45} {value:>8}")


if __name__ == "__main__":
    main(sys.argv[1:])
