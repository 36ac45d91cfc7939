"""Which lines of Cython were run: what gcov counted in the generated C, for coverage.py's reports.

Cython writes the place of each statement into the C that it makes of it, as a comment. A line has
run if the first C line behind one of its comments has. No tracer is needed, so threads, signals and
time go on as in a released build.

This module is a plugin of coverage.py too, which knows the lines that there are.
"""

from __future__ import annotations

import gzip
import json
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coverage import CoverageData, CoveragePlugin, FileReporter
from coverage.plugin_support import Plugins

__all__ = ["coverage_init", "store"]

PLACE = re.compile(r'\s*/\* "(cpprb_like/[\w/.]+)":(\d+)$')
END = "/* function exit code */"  # behind it is what all ways out share
COUNTS = Path("build/compiled_lines.json")
PLUGIN = "compiled_lines"

Lines = dict[str, dict[int, int]]  # by file, how often each of its lines was run


def places(source: Path) -> Iterator[tuple[int, str, int]]:
    """Lines of generated C, and the place in the Cython source that each belongs to."""
    where: tuple[str, int] | None = None
    with source.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            found = PLACE.match(line)
            if found:
                where = found[1], int(found[2])
            elif END in line:
                where = None
            elif where is not None:
                yield number, *where


def counts_of(data: Path, folder: Path) -> dict[str, dict[int, int]]:
    """What gcov says of one module: by file, how often each line was run."""
    command = ["gcov", "--json-format", "--stdout", str(data)]
    told = subprocess.run(command, cwd=folder, capture_output=True, check=True).stdout
    if told[:2] == b"\x1f\x8b":
        told = gzip.decompress(told)
    return {
        file["file"]: _most((line["line_number"], line["count"]) for line in file["lines"])
        for file in json.loads(told)["files"]
    }


def _most(lines: Iterator[tuple[int, int]]) -> dict[int, int]:
    """A line may be in several functions, or in copies of one."""
    found: dict[int, int] = {}
    for number, count in lines:
        found[number] = max(count, found.get(number, 0))
    return found


def lines_of(folder: Path) -> Lines:
    """How often each line of Cython was run, in the build in this folder."""
    runs: Lines = defaultdict(dict)
    for notes in sorted(folder.glob("build/objects/**/*.gcno")):
        data = notes.with_suffix(".gcda")
        for name, counted in counts_of(data if data.exists() else notes, folder).items():
            source = folder / name
            if source.suffix != ".c" or not source.is_file():
                continue
            seen: tuple[str, int] | None = None
            for number, path, line in places(source):
                if number in counted and (path, line) != seen:
                    seen = path, line  # the first C line that counts, of each time it is named
                    runs[path][line] = max(counted[number], runs[path].get(line, 0))
    return dict(runs)


def store(name: str) -> None:
    """Write what was run here into a data file of coverage.py, and which lines there are."""
    folder = Path.cwd()
    runs = lines_of(folder)
    COUNTS.write_text(json.dumps(runs), encoding="utf-8")
    data = CoverageData(basename=str(folder / name))
    ran = {
        str(folder / path): [line for line, count in lines.items() if count]
        for path, lines in runs.items()
    }
    data.add_lines(ran)
    data.add_file_tracers(dict.fromkeys(ran, f"{PLUGIN}.Plugin"))
    data.write()


class Reporter(FileReporter):
    """The lines of one file of Cython."""

    def lines(self) -> set[int]:
        """Those that C was made of."""
        known: dict[str, dict[str, int]] = json.loads(COUNTS.read_text(encoding="utf-8"))
        return {int(line) for line in known[self.relative_filename()]}


class Plugin(CoveragePlugin):
    """Tells coverage.py about files of Cython."""

    def file_reporter(self, filename: str) -> FileReporter:
        """For reports; nothing is traced."""
        return Reporter(filename)


def coverage_init(registry: Plugins, options: Any) -> None:
    """Called by coverage.py, as its settings name this module."""
    del options
    registry.add_file_tracer(Plugin())
