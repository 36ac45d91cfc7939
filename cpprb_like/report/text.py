"""Descriptions as text: aligned tables, numbers with their units, and findings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

__all__ = ["amount", "clean", "plural", "report", "table"]

APART = ("axes", "fields", "buffers", "findings", "series")  # not in the table of values


def amount(nbytes: int) -> str:
    """A number of bytes as text: ``"1.5 GiB"``."""
    value = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{nbytes} B" if unit == "B" else f"{value:.1f} {unit}"


def plural(n: int, what: str) -> str:
    """A number and its noun: ``"1 row"``, ``"2,000 rows"``."""
    return f"{n:,} {what}" + ("" if n == 1 else "s")


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def clean(text: str) -> str:
    """A text without control characters, which could change the state of a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def report(document: dict[str, Any]) -> str:
    """A description: a line for each JSON value that is neither null nor empty."""
    return "\n".join(map(clean, _section(document)))


def _section(document: dict[str, Any]) -> Iterator[str]:
    """Lines of a description: its values, its fields, what looks wrong, and its inner buffers."""
    yield from table(
        [pair for name in document if name not in APART for pair in _pairs(name, document[name])]
    )
    for entries in filter(None, (document.get("fields"), document.get("axes"))):
        longest = sorted(entries, key=len, reverse=True)
        names = list(dict.fromkeys(name for one in longest for name in one))
        yield ""
        yield from table(
            [
                names,
                *(
                    [_text(name, one[name]) if name in one else "" for name in names]
                    for one in entries
                ),
            ]
        )
    if "findings" in document:
        yield ""
        yield "findings: " + ("" if document["findings"] else "none of the known faults")
    for one in document.get("findings", ()):
        mark = "!" if one["severity"] == "alarm" else "-"
        yield f"{mark} {' '.join(filter(None, (one['name'], one['field'])))}: {one['message']}"
        yield f"  look at {one['look_at']}"
    for buffer in document.get("buffers", ()):
        yield ""
        yield from _section(buffer)


def _pairs(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """The lines of a value. A dict has one line for its numbers, and lines for each inner dict."""
    if isinstance(value, dict):
        numbers = {key: entry for key, entry in value.items() if not isinstance(entry, dict)}
        if numbers:
            yield name, ", ".join(f"{key} {_text(key, entry)}" for key, entry in numbers.items())
        for key in [key for key in value if key not in numbers]:
            yield from _pairs(f"{name}: {key}", value[key])
    elif value not in (None, "", []):
        yield name, _text(name, value)


def _text(name: str, value: Any) -> str:
    """A value as text. A ``name`` that begins with ``nbytes`` is of a number of bytes."""
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return "; ".join(map(str, value)) if name != "shape" else str(tuple(value))
    if isinstance(value, int):
        return amount(value) if name.startswith("nbytes") else f"{value:,}"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
