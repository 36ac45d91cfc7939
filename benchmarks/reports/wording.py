"""Numbers, machines and tables as people read them."""

from __future__ import annotations

import re
from typing import Any

UNITS = {
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")),
    "B": ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")),
}


def digits(number: float) -> str:
    """Three digits that count, or all digits before the point where there are more."""
    rounded = float(f"{number:.3g}")
    if abs(rounded) >= 1000:
        return f"{number:,.0f}"
    return f"{rounded:#.3g}".rstrip(".")


def quantity(number: float, unit: str) -> str:
    """A number in the unit that suits its size."""
    rounded = float(f"{number:.3g}")
    scales = UNITS[unit]
    scale, name = next((pair for pair in scales if abs(rounded) >= pair[0]), scales[-1])
    return f"{digits(number / scale)} {name}"


def grid(rows: list[list[str]]) -> str:
    """A table in Markdown; the first row is its head."""
    widths = [max(3, *map(len, column)) for column in zip(*rows, strict=True)]
    head, *body = ("| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in rows)
    line = "| " + " | ".join("-" * width for width in widths) + " |"
    return "\n".join([head, line, *body])


def called(name: str, entrants: dict[str, Any]) -> str:
    """A contender and the release of the package that it is named after."""
    packages = entrants.get(name, {}).get("packages", {})
    releases = {_plain(package): release for package, release in packages.items()}
    return f"{name} {releases.get(_plain(name), '')}".rstrip()


def where(about: dict[str, Any]) -> str:
    """The machine of a measurement."""
    return f"{about['processor']}, {about['cores']} cores, {about['system']}"


def machine(results: dict[str, Any], ours: str) -> str:
    """On what was measured, and when."""
    about, entrant = results["machine"], results["entrants"].get(ours, {})
    numpy = entrant.get("packages", {}).get("numpy", "?")
    return f"{where(about)}, Python {entrant.get('python', '?')}, NumPy {numpy}; {about['date']}"


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
