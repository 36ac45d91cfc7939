"""Write what the files in ``benchmarks/results`` say into the pages of the project.

``make bench-report`` runs it: the tables of the README and of pages under docs, and pictures. With
``--check`` it writes nothing, and exits with 1 if one of them is of other results.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from reports.device import device_tables
from reports.examples import examples_table
from reports.findings import Results
from reports.plots import PLOTS
from reports.processes import processes_tables
from reports.summary import brief, summary
from reports.tables import page, table
from reports.waits import waits_table
from reports.whole_run import rules_table, whole_run_table

ROOT = Path(__file__).resolve().parent.parent
FOLDER = "benchmarks/results"
FULL = "full.json"
PAGES = {
    "README.md": (FULL, brief),
    "docs/performance.md": (FULL, summary),
    "docs/benchmarks.md": (FULL, page),
    "docs/any-length.md": ("any-length.json", table),
    "docs/benchmarks-tensors.md": ("waiting-full.json", waits_table),
    "docs/benchmarks-processes.md": ("processes.json", processes_tables),
    "docs/benchmarks-device.md": ("device.json", device_tables),
    "docs/examples.md": ("examples.json", examples_table),
    "docs/benchmarks-rules.md": ("rules.json", rules_table),
    "docs/benchmarks-whole-run.md": ("whole-run.json", whole_run_table),
}
BEGIN, END = "<!-- benchmarks: begin -->", "<!-- benchmarks: end -->"


def main() -> None:
    """Write, or only look."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, see if all is written")
    if parser.parse_args().check:
        names = ", ".join(outdated(ROOT))
        sys.exit(f"{FOLDER} says other than {names}: make bench-report" if names else 0)
    update(ROOT)


def update(root: Path) -> None:
    """Write the tables and the pictures of a tree."""
    results = _results(root, FULL)
    for name in PAGES:
        update_page(root, name)
    for name, plot in PLOTS.items():
        (root / FOLDER / name).write_text(plot.svg(results), encoding="utf-8")


def update_page(root: Path, name: str) -> None:
    """Write the tables of one page of a tree."""
    (root / name).write_text(_page(root, name), encoding="utf-8")


def outdated(root: Path) -> list[str]:
    """The pages and the pictures of a tree that are not of its results."""
    results = _results(root, FULL)
    pages = [name for name in PAGES if _read(root / name) != _page(root, name)]
    pictures = {f"{FOLDER}/{name}": plot for name, plot in PLOTS.items()}
    return pages + [
        name
        for name, plot in pictures.items()
        if not ((root / name).exists() and plot.is_of(results, _read(root / name)))
    ]


def _results(root: Path, file: str) -> Results:
    results: Results = json.loads(_read(root / FOLDER / file))
    return results


def _page(root: Path, name: str) -> str:
    """A page with the table that it should have. Raises ValueError without a place for it."""
    before, begin, rest = _read(root / name).partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{name} has no lines '{BEGIN}' and '{END}', between which the table goes")
    file, told = PAGES[name]
    return f"{before}{BEGIN}\n\n{told(_results(root, file))}\n\n{END}{after}"


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


if __name__ == "__main__":
    main()
