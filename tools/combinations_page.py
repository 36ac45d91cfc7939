"""Write docs/combinations.md: what goes with what, of samplers, layers and options.

The page is made from tests/support/combinations.py, each of whose cells is tried by
tests/views/test_combinations.py: ``make pages``.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))

from combinations import OPTIONS, SAMPLERS, VIEWS, Cell, reason  # noqa: E402

PAGE = ROOT / "docs" / "combinations.md"
HEAD = """\
# What goes with what

Every sampler goes with every set of [layers](views.md), and with every option. A number names the
reason why some samplers do not, below the table. A learner of
[several processes](processes.md) has all options of `sample` and `batches` that a buffer has. It
is saved with its replay, and not pickled. Replays [on a device](on-device.md) take fewer.

A test tries each cell. It compares the draws with a slow twin that keeps whole episodes, in a
buffer that has wrapped around. `make pages` makes this page from the list of the test.

The samplers are {samplers}.
"""


def cell_of(view: str, option: str, reasons: dict[str, list[str]]) -> str:
    """What stands in the table: yes, or the number of a reason."""
    why: dict[str, list[str]] = {}
    for sampler in SAMPLERS:
        found = reason(Cell(sampler, view, option))
        if found is not None:
            why.setdefault(found, []).append(sampler)
    numbers = []
    for text, samplers in why.items():
        if text not in reasons:
            reasons[text] = samplers
        if reasons[text] != samplers:
            raise ValueError(f"{view}, {option}: {samplers} for a reason of {reasons[text]}")
        numbers.append(f"[{list(reasons).index(text) + 1}]")
    return "yes" + "".join(f" {number}" for number in numbers)


def render() -> str:
    """The page."""
    reasons: dict[str, list[str]] = {}
    lines = [HEAD.format(samplers=", ".join(f"`{name}`" for name in SAMPLERS))]
    lines.append("| | " + " | ".join(OPTIONS.values()) + " |")
    lines.append("| --- |" + " --- |" * len(OPTIONS))
    for view in VIEWS:
        cells = [cell_of(view, option, reasons) for option in OPTIONS]
        lines.append(f"| {view} | " + " | ".join(cells) + " |")
    lines.append("")
    for number, (text, samplers) in enumerate(reasons.items(), 1):
        names = ", ".join(f"`{name}`" for name in samplers)
        lines.append(f"[{number}] Not {names}: {text}.\n")
    lines.append(
        "`Mixture` has no `epoch`, as an epoch would ignore the shares. A learner has none,"
    )
    lines.append("as actors replace its rows.\n")
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
