"""The results as pictures: how far apart all are, and how batches slow down as buffers grow."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import matplotlib as mpl
from budgets import FLOOR, OURS
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from .findings import Results, findings, loop
from .summary import peers_of, telling

# Colours that nearly all eyes tell apart (Okabe and Ito), and shapes for those that do not.
STYLES: tuple[dict[str, Any], ...] = (
    {"color": "#0072B2", "marker": "o"},
    {"color": "#D55E00", "marker": "s"},
    {"color": "#009E73", "marker": "^"},
    {"color": "#CC79A7", "marker": "D"},
    {"color": "#E69F00", "marker": "v"},
    {"color": "#56B4E9", "marker": "P"},
    {"color": "#8C6D1F", "marker": "X"},
    {"color": "#7F7F7F", "marker": "*"},
)
INK, FAINT = "#222222", "#D9D9D9"
SETTINGS: Any = {
    "svg.fonttype": "none",  # text is text
    "svg.hashsalt": "cpprb_like",  # the same picture has the same bytes
    "font.size": 10,
    "axes.edgecolor": FAINT,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.grid": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.7,
    "xtick.color": INK,
    "ytick.color": INK,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "axes.axisbelow": True,
    "legend.frameon": False,
}
METADATA = {"Date": None, "Creator": None, "Type": None, "Format": None}  # no words on the tool

Points = dict[str, list[tuple[float, float]]]  # of each contender


@dataclass(frozen=True)
class Plot:
    """A picture: the points and labels that it shows, how they are drawn, and how large."""

    shows: Callable[[Results], tuple[Points, list[str]]]
    draw: Callable[[Points, list[str], Axes], None]
    size: tuple[float, float]  # in inches

    def svg(self, results: Results) -> str:
        """The picture."""
        file = io.StringIO()
        with mpl.rc_context():
            mpl.rcdefaults()
            mpl.rcParams.update(SETTINGS)
            figure = Figure(self.size, layout="constrained")
            self.draw(*self.shows(results), figure.add_subplot())
            metadata = METADATA | {"Identifier": self._digest(results)}
            figure.savefig(file, format="svg", metadata=metadata)
        return "".join(f"{line.rstrip()}\n" for line in file.getvalue().splitlines())

    def is_of(self, results: Results, text: str) -> bool:
        """Whether a picture shows these results, by whichever release of Matplotlib."""
        return self._digest(results) in text

    def _digest(self, results: Results) -> str:
        return hashlib.sha256(json.dumps(self.shows(results)).encode()).hexdigest()


def _ratios(results: Results) -> tuple[Points, list[str]]:
    """The cases of the summary in lines, and how many times what ours takes all take."""
    found = findings(results)
    whole = loop(found)
    rows = [*telling(found), *([whole.step, whole.inside] if whole else [])]
    points = {
        name: [
            (ratio, float(row))
            for row, finding in enumerate(rows)
            if (ratio := finding.ratio(name)) is not None
        ]
        for name in (*peers_of(rows, results), FLOOR)
    }
    return points, [f"{one.case.name}: {one.shown(OURS)}" for one in rows]


def _growth(results: Results) -> tuple[Points, list[str]]:
    """Seconds of a batch against the rows that it is drawn from."""
    found = findings(results)
    sizes = [one for one in found if one.case.group == "Growth"]
    points = {
        name: [
            (float(one.case.parameters["rows"]), one.numbers[name])
            for one in sizes
            if name in one.numbers
        ]
        for name in (*peers_of(telling(found), results), OURS, FLOOR)
    }
    return points, []


def _lines(points: Points) -> Iterator[tuple[str, dict[str, Any], list[Any]]]:
    """Each contender that has points, how it looks, and its x and y."""
    for (name, line), style in zip(points.items(), cycle(STYLES), strict=False):
        if line:
            yield name, style, list(zip(*line, strict=True))


def _draw_ratios(points: Points, labels: list[str], axes: Axes) -> None:
    """A dot for each peer; ours is the line at 1, and the floor a stroke."""
    axes.axvline(1, color=INK, linewidth=1.5, label=OURS)
    for name, style, line in _lines(points):
        stroke = {"color": "0.55", "marker": "|", "markersize": 12, "markeredgewidth": 2}
        dot = style | {"markersize": 7.5, "markeredgecolor": "white", "markeredgewidth": 0.6}
        axes.plot(*line, **(stroke if name == FLOOR else dot), linewidth=0, label=name)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set_xlabel(
        "times slower, or larger, than cpprb_like; left of the line: faster, or smaller"
    )
    axes.figure.legend(loc="outside upper center", ncols=5)


def _draw_growth(points: Points, _: list[str], axes: Axes) -> None:
    """A line for each contender, named in the order in which they end."""
    special: dict[str, dict[str, Any]] = {
        OURS: {"color": INK, "marker": "o", "linewidth": 2.5},
        FLOOR: {"color": INK, "linestyle": "--"},
    }
    slowest_first = sorted(_lines(points), key=lambda named: -named[2][1][-1])
    for name, style, line in slowest_first:
        axes.plot(*line, **special.get(name, style), label=name)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(EngFormatter())
    axes.yaxis.set_major_formatter(EngFormatter("s"))
    axes.set_xlabel("rows of the buffer")
    axes.set_title("time of sample(256), small steps", loc="left")
    axes.figure.legend(loc="outside right upper")


PLOTS = {
    "ratios.svg": Plot(_ratios, _draw_ratios, (9.0, 6.0)),
    "growth.svg": Plot(_growth, _draw_growth, (8.0, 4.5)),
}
