"""``describe``: the description of everything that has rows, and of what is saved."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import cpprb_like
from cpprb_like import checkpoint
from cpprb_like._arguments.checks import as_path
from cpprb_like._machine.file_systems import replacing
from cpprb_like.buffers._rows_to_report import RowsToReport
from cpprb_like.report import text
from cpprb_like.report._charts import Picture, frames_of
from cpprb_like.report._facts import LENGTH, Facts, histogram, nbytes_read, read_facts
from cpprb_like.report._findings import Finding, findings
from cpprb_like.report._page import page

PROGRAM = "program"
POINTS = 200  # most points of a curve over the episodes
LARGE = 1e290  # greatest return that is shown: means of many are finite
Progress = Callable[[int, int], None]


class Description:
    """What rows are like, and what looks wrong with them: ``ReplayBuffer.describe``.

    ``print`` shows it as text, and a notebook as the page of ``save``.

    Attributes
    ----------
    findings : list of Finding
        What looks wrong, in all buffers; empty if nothing does. Each has a ``severity``: an
        ``"alarm"``, or a ``"note"``, which says what is meant in many programs.

    Examples
    --------
    >>> from cpprb_like import ReplayBuffer
    >>> rb = ReplayBuffer(10, {"rew": {"shape": ()}})
    >>> rb.add(rew=[1, float("nan"), 3])
    0
    >>> description = rb.describe()
    >>> description.findings[0].message
    '1 NaN and 0 infinite values; the first in slot 1'
    >>> description.to_dict()["buffers"][0]["rows"]
    3
    """

    def __init__(self, document: dict[str, Any], pictures: Mapping[str, list[Picture]]) -> None:
        made = {"described_at": _now(), "version": f"cpprb_like {cpprb_like.__version__}"}
        self._document = {**document, **made, "buffers": document["buffers"]}
        self._pictures = pictures
        self.findings = [
            Finding(**one) for buffer in document["buffers"] for one in buffer["findings"]
        ]

    def to_dict(self) -> dict[str, Any]:
        """All that the page shows but for pictures, as values that JSON has: a new dict."""
        return dict(self._document)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one HTML page that loads nothing else. A file of this name is replaced.

        Raises ``OSError`` if it cannot be written; then the old file is there.
        """
        place = as_path("path", path)
        with replacing(place) as unfinished:
            unfinished.write_text(page(self._document, self._pictures), encoding="utf-8")

    def _repr_html_(self) -> str:
        return page(self._document, self._pictures, whole=False)

    def __str__(self) -> str:
        return text.report(self._document)

    def __repr__(self) -> str:
        n = len(self.findings)
        return f"Description({self._document.get('class') or self._document['kind']}, findings={n})"


def describe(
    source: Any,
    *,
    about: Mapping[str, Any] | None = None,
    reward: str | None = None,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    draws: Any = None,
    progress: Progress | None = None,
) -> Description:
    """What the rows of a source, or of a replay, are like: see ``ReplayBuffer.describe``.

    ``about`` are further values of the description, such as the path of the data set that was read.
    """
    parts = source._to_report()
    document: dict[str, Any] = {"kind": "buffer", "class": type(source).__name__, **(about or {})}
    if "path" not in document:  # counters of a buffer that was made to read files say nothing
        document[PROGRAM] = _program()
        with suppress(Exception):  # of a rule whose counts are asked for, which a finding tells
            document["stats"] = source.stats()
    pictures: dict[str, list[Picture]] = {}
    buffers = []
    with _shown(progress) as shown:
        for path, buffer, view in parts:

            def look(buffer: Any = buffer, path: str = path, view: Any = view) -> dict[str, Any]:
                rows = RowsToReport(buffer)
                found, pictures[path] = _described(rows, reward, ranges, draws, shown, view)
                layers = [] if view is None else [repr(layer) for layer in view.layers]
                head = {"path": path, "class": type(buffer).__name__, "layers": layers}
                return head | rows.structure() | found

            buffers.append(buffer._hold(True, look))
    return Description({**document, "buffers": buffers}, pictures)


def joined(parts: Mapping[str, Description], about: Mapping[str, Any]) -> Description:
    """One description of the buffers of several; paths begin with the name of their description.

    ``about`` are the further values of the new description.
    """
    buffers: list[dict[str, Any]] = []
    pictures: dict[str, list[Picture]] = {}
    for name, part in parts.items():
        for buffer in part._document["buffers"]:
            path = f"{name}/{buffer['path']}"
            buffers.append({**buffer, "path": path})
            pictures[path] = part._pictures[buffer["path"]]
    document = {"kind": "buffer", PROGRAM: _program(), **about, "buffers": buffers}
    return Description(document, pictures)


def describe_saved(
    folder: str | Path,
    *,
    state: int | None = None,
    reward: str | None = None,
    progress: Progress | None = None,
) -> Description:
    """What the rows of a checkpoint are like. No class or function of the caller is needed.

    Parameters
    ----------
    folder : str or path
        The folder that ``save`` was given.
    state : int, optional
        Its number; by default the newest.
    reward, progress
        As for ``ReplayBuffer.describe``.

    Returns
    -------
    Description
        Of each buffer that is saved there.

    Raises
    ------
    FileNotFoundError, ValueError
        There is no checkpoint, or it is damaged; as ``checkpoint.describe``.

    Notes
    -----
    Cost: that of loading one buffer after the other, and of ``ReplayBuffer.describe``.

    Examples
    --------
    >>> import tempfile
    >>> from cpprb_like import ReplayBuffer
    >>> from cpprb_like.report import describe_saved
    >>> rb = ReplayBuffer(10, {"rew": {"shape": ()}})
    >>> rb.add(rew=[1, float("nan"), 3])
    0
    >>> folder = tempfile.mkdtemp()
    >>> rb.save(folder)
    >>> [finding.name for finding in describe_saved(folder).findings]
    ['not-finite']
    """
    pictures: list[list[Picture]] = []

    def look(buffer: Any, reward: str | None) -> dict[str, Any]:
        found, made = _described(RowsToReport(buffer), reward, None, None, shown, None)
        pictures.append(made)
        return found

    with _shown(progress) as shown:
        found = checkpoint.describe(folder, state=state, reward=reward, look=look)
    paths = [buffer["path"] for buffer in found["buffers"]]
    return Description(found, dict(zip(paths, pictures, strict=True)))


def _program() -> str:
    """The name of the program that has the rows, and its process."""
    name = Path(sys.argv[0]).name if sys.argv and sys.argv[0] not in ("", "-c") else "Python"
    return f"{name}, process {os.getpid()}"


def _now() -> str:
    """The time of the machine's zone, as ISO 8601 writes it."""
    return datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")


@contextmanager
def _shown(progress: Progress | None) -> Iterator[Progress]:
    """The caller's function of progress, a progress bar, or a function that does nothing."""
    if progress is not None and not callable(progress):
        raise TypeError(f"progress: expected a function or None, got {progress!r}")
    if progress is not None or not (sys.stderr.isatty() and find_spec("tqdm")):
        yield progress or (lambda done, total: None)  # noqa: ARG005 (what is called has both)
        return
    with import_module("tqdm").tqdm(unit="B", unit_scale=True, leave=False, delay=0.5) as bar:

        def show(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield show


@np.errstate(all="ignore")  # infinite values, and sums beyond the greatest float
def _described(
    rows: RowsToReport,
    reward: str | None,
    ranges: Mapping[str, tuple[float, float]] | None,
    draws: Any,
    progress: Progress,
    view: Any,
) -> tuple[dict[str, Any], list[Picture]]:
    """The description of the rows of a buffer, and pictures of its images."""
    done, total = 0, nbytes_read(rows)

    def count(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        progress(done, total)

    structure = rows.structure()
    known = dict(ranges or {})
    facts = read_facts(rows, structure, checkpoint.statistics, reward, known, count, view)
    numbers = {name: one.numbers() for name, one in facts.fields.items() if one.is_number}
    found = facts.statistics | {
        "fields": [
            one | numbers.get(one["name"], {}) for one in structure["fields"] + _lengths(rows)
        ],
        "not_drawn": rows.not_drawn(view),
        "findings": [one._asdict() for one in findings(facts)],
        "series": _series(facts),
    }
    if draws is not None:
        indexes = np.ascontiguousarray(draws, np.int64).reshape(-1)
        times = rows.draws(indexes)[rows.present]
        found["draws"] = {"never": int((times == 0).sum()), **(checkpoint.spread(times) or {})}
        found["series"]["draws"] = _bars(np.histogram(times, np.arange(min(times.max(), 60) + 2)))
    return found, frames_of(facts)


def _lengths(rows: RowsToReport) -> list[dict[str, Any]]:
    """The descriptions of the lengths of named axes, beside those of fields."""
    found = []
    for axis in rows.buffer.schema.axes:
        nbytes = 2 * axis.entry_dtype.itemsize
        total = {"nbytes_per_step": nbytes, "nbytes": nbytes * rows.buffer.ring.capacity}
        found.append({"name": LENGTH + axis.name, "dtype": "int64", "shape": [], **total})
    return found


def _series(facts: Facts) -> dict[str, Any]:
    """What the charts show: curves over the episodes, oldest first, and histograms."""
    found: dict[str, Any] = {"histograms": {}}
    complete = [one for one in facts.episodes if one.complete]
    if complete:
        found["lengths"] = _curve([one.length for one in complete])
        if facts.reward is not None:
            found["returns"] = _curve([one.return_ for one in complete])
    for name, one in facts.fields.items():
        if (bars := one.histogram() if one.is_number else None) is not None:
            found["histograms"][name] = _bars(bars)
    if facts.weights is not None and (facts.weights > 0).any():
        found["weights"] = _bars(histogram(np.log10(facts.weights[facts.weights > 0])))
    return found


def _curve(values: list[float]) -> list[list[float]]:
    """For each of a few stretches of episodes the mean, the least and the greatest value."""
    shown = np.clip(np.nan_to_num(np.array(values, np.float64)), -LARGE, LARGE)
    parts = np.array_split(shown, min(POINTS, len(values)))
    return [[float(part.mean()), float(part.min()), float(part.max())] for part in parts]


def _bars(found: tuple[Any, Any]) -> dict[str, list[float]]:
    return {"counts": found[0].tolist(), "edges": found[1].tolist()}
