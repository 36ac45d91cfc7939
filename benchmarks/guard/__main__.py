"""Count the instructions of the hot paths, and compare them with those that are recorded.

``make guard`` exits with 1 if a path costs over 5 % more than ``counts.json`` says, all in all or
in the compiled modules of the package, or if a draw from a learner costs over 1.5 times as much as
the same draw from a buffer. ``--record --because "why"`` writes into that file what it costs now.
How busy the machine is does not matter; where objects lie in memory does, so what is
dearer is counted again with them elsewhere, and the least counts.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import cpprb_like

from . import paths
from .callgrind import CallgrindError, Count, count
from .counts import TOLERANCE, NoReasonError, Record, Recorded, Verdict, change
from .toolchain import differences, numpy_folders, toolchain

FILE = Path(__file__).with_name("counts.json")
PLACEMENTS = 4
MOST_OF_A_LEARNER = 1.5  # times the instructions of the same draw from a buffer
PACKAGE = Path(cpprb_like.__file__).resolve().parent
HEADING = ("instructions of one call", "recorded", "counted", "", "compiled", "counted", "")
RECORD = "make guard ARGS='--record'"
RECORD_BECAUSE = """make guard ARGS='--record --because "..."'"""


def main(arguments: Sequence[str]) -> None:
    """Count, and compare or record what was counted."""
    options = _options(arguments)
    record, here = Record.read(FILE), toolchain()
    other = differences(record.toolchain, here)
    if options.toolchain:
        print(other or "compared with those recorded")
        return
    numpy = version("numpy") if other else record.numpy
    try:
        found = _count(record, numpy_folders(numpy))
        print(_table(record, found), *_ratios(found), sep="\n", flush=True)
        if options.record and other:
            _write(record.moved_to(here, numpy, found, options.because))
        elif options.record:
            _write(record.brought_up_to_date(found, options.because))
        elif other:
            print(f"\n{other}")
        else:
            _judge(record, record.compare(found), _beyond(found))
    except NoReasonError as error:
        sys.exit(f"\n{error}: {RECORD_BECAUSE}")
    except CallgrindError as error:
        sys.exit(str(error))


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help="write the counts into the file")
    parser.add_argument("--because", default="", metavar="WHY", help="why a path costs more")
    parser.add_argument("--toolchain", action="store_true", help="only say if counts are compared")
    return parser.parse_args(arguments)


def _count(record: Record, libraries: Sequence[Path]) -> dict[str, Count]:
    """What each path costs; a dearer one is counted with memory laid out in other ways too."""
    program = Path(paths.__file__)
    found = count(program, list(paths.PATHS), PACKAGE, libraries)
    for placement in range(1, PLACEMENTS):
        if not (dearer := record.compare(found).dearer):
            break
        again = count(program, dearer, PACKAGE, libraries, placement)
        found |= {name: found[name].least(again[name]) for name in dearer}
    return found


def _write(record: Record) -> None:
    replace(record, cython=version("Cython")).write(FILE)
    print(f"\nrecorded in {FILE}")


def _learners(found: Mapping[str, Count]) -> dict[str, float]:
    """Instructions of each draw from a learner, over those of the same draw from a buffer."""
    pairs = {learner: buffer for learner, buffer in paths.PAIRS.items() if learner in found}
    return {learner: found[learner].all / found[buffer].all for learner, buffer in pairs.items()}


def _ratios(found: Mapping[str, Count]) -> list[str]:
    return [
        f"{learner}: {ratio:.2f} times {paths.PAIRS[learner]}"
        for learner, ratio in _learners(found).items()
    ]


def _beyond(found: Mapping[str, Count]) -> list[str]:
    return [name for name, ratio in _learners(found).items() if ratio > MOST_OF_A_LEARNER]


def _judge(record: Record, verdict: Verdict, beyond: Sequence[str]) -> None:
    """Say what has to be done, and exit with whether something has."""
    limit, mend = f"{TOLERANCE:.0%}", "Make them cheaper, or say what it is good for"
    for names, what in (
        (verdict.dearer, f"cost over {limit} more than recorded. {mend} ({RECORD_BECAUSE})"),
        (verdict.unknown, f"are not recorded ({RECORD})"),
        (verdict.gone, f"are recorded, but nothing counts them ({RECORD})"),
        (beyond, f"cost over {MOST_OF_A_LEARNER} times as much as on a buffer. Make them cheaper"),
        (verdict.cheaper, f"cost over {limit} less. Record it, so that it stays so ({RECORD})"),
    ):
        if names:
            print(f"\nThese paths {what}:", *names, sep="\n  ")
    if verdict.dearer and version("Cython") != record.cython:
        print(f"\nCython was {record.cython} then, and is {version('Cython')} now.")
    sys.exit(verdict.failed or bool(beyond))


def _table(record: Record, found: Mapping[str, Count]) -> str:
    lines = [HEADING, *(_line(name, record.paths.get(name), found[name]) for name in found)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])])
        for line in lines
    )


def _line(name: str, recorded: Recorded | None, now: Count) -> tuple[str, ...]:
    if recorded is None:
        return name, "", f"{now.all:,}", "", "", f"{now.compiled:,}", ""
    then = recorded.count
    return name, *_cells(then.all, now.all), *_cells(then.compiled, now.compiled)


def _cells(then: int, now: int) -> tuple[str, str, str]:
    return f"{then:,}", f"{now:,}", f"{change(then, now):+.1%}"


if __name__ == "__main__":
    main(sys.argv[1:])
