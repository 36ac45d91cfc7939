"""Charts as SVG text, and images as PNG.

Colours are CSS variables of the page (``_page.STYLE``). Whatever a colour says, a label or a
hatching says too.
"""

from __future__ import annotations

import base64
import html
import math
import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cpprb_like.report._facts import NEXT, Array, Facts

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 340, 150, 46, 8, 24
STRIP = 8  # frames of a field
MOST_SIDE = 160  # pixels of a frame


class Picture(NamedTuple):
    """Frames of a field, each as PNG and with its slot."""

    name: str
    frames: list[tuple[int, bytes]]


def number(value: float | None) -> str:
    """A number as text of a few letters."""
    if value is None or not math.isfinite(value):
        return "-"
    text, size = f"{value:.3g}", abs(value)
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e5, "k")):
        if size >= unit:
            text = f"{value / (1e3 if letter == 'k' else unit):.3g}{letter}"
            break
    else:
        if size >= 999.5 or float(value).is_integer():
            text = f"{value:,.0f}"
    return text


def curve(title: str, points: Sequence[Sequence[float]]) -> str:
    """A line of means over episodes, oldest first, and a band from the least to the greatest."""
    values = np.array(points)
    n, low, high = len(values), float(values.min()), float(values.max())
    if low == high:
        low, high = low - max(1, abs(low)), high + max(1, abs(low))
    x = LEFT + (WIDTH - LEFT - 6) * (np.arange(n) / max(1, n - 1) if n > 1 else np.array([0.5]))
    y = TOP + (HEIGHT - TOP - BOTTOM) * (1 - (values - low) / (high - low))

    def path(xs: Array, ys: Array) -> str:
        return " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(xs, ys, strict=True))

    outline = path(np.concatenate([x, x[::-1]]), np.concatenate([y[:, 1], y[::-1, 2]]))
    parts = [f'<polygon class="band" points="{outline}"/>']
    parts += [f'<polyline class="line" points="{path(x, y[:, 0])}"/>']
    if n <= 60:
        dots = zip(x, y[:, 0], strict=True)
        parts += [f'<circle class="dot" cx="{a:.1f}" cy="{b:.1f}" r="2"/>' for a, b in dots]
    return _chart(title, parts, (low, high), ["oldest episode", "newest"])


def bars(title: str, found: dict[str, list[float]], *, unit: str = "rows") -> str:
    """A histogram."""
    counts, edges = np.array(found["counts"], float), np.array(found["edges"])
    most = counts.max(initial=1)
    parts = _bars(counts, edges, LEFT, TOP, WIDTH - LEFT - 6, HEIGHT - TOP - BOTTOM, unit)
    return _chart(title, parts, (0, most), [number(edges[0]), number(edges[-1])])


def spark(name: str, found: dict[str, list[float]]) -> str:
    """A small histogram, for a table."""
    counts, edges = np.array(found["counts"], float), np.array(found["edges"])
    inner = "".join(_bars(counts, edges, 1, 1, 138, 28, "values"))
    label = f"histogram of {html.escape(name)}, {number(edges[0])} to {number(edges[-1])}"
    return (
        f'<svg class="spark" viewBox="0 0 140 30" role="img" aria-label="{label}">{inner}'
        '<line class="axis" x1="0" x2="140" y1="29.5" y2="29.5"/></svg>'
    )


def _bars(
    counts: Array, edges: Array, left: float, top: float, width: float, height: float, unit: str
) -> list[str]:
    most, step = counts.max(initial=1), width / len(counts)
    parts = []
    for k, count in enumerate(counts):
        if count:
            tall = max(1.0, height * count / most)
            parts.append(
                f'<rect class="bar" x="{left + k * step:.1f}" y="{top + height - tall:.1f}" '
                f'width="{max(0.8, step - (1 if step > 3 else 0)):.1f}" height="{tall:.1f}">'
                f"<title>{number(edges[k])} to {number(edges[k + 1])}: {count:,.0f} {unit}</title>"
                "</rect>"
            )
    return parts


def shares(title: str, parts: Sequence[tuple[str, int]]) -> str:
    """One bar of parts that are hatched in turn, with a legend below."""
    total, x, drawn, legend = max(1, sum(n for _, n in parts)), 0.0, [], []
    for k, (label, n) in enumerate(parts):
        width = (WIDTH - 4) * n / total
        style = "part none" if label == "empty" else f"part part{min(k, 3)}"
        drawn.append(
            f'<rect class="{style}" x="{2 + x:.1f}" y="4" width="{width:.1f}" height="20"/>'
        )
        y = 44 + 18 * k
        legend.append(
            f'<rect class="{style}" x="2" y="{y - 10}" width="12" height="12"/>'
            f'<text x="20" y="{y}">{html.escape(label)}</text>'
            f'<text x="{WIDTH - 4}" y="{y}" text-anchor="end">{n:,} ({n / total:.1%})</text>'
        )
        x += width
    height = 44 + 18 * len(parts) - 8
    return _svg(title, [*drawn, *legend], height)


def _chart(title: str, parts: Sequence[str], span: tuple[float, float], ends: Sequence[str]) -> str:
    """The axes of a chart, with labels at the middle and the ends."""
    low, high = span
    lines = []
    for share in (0.0, 0.5, 1.0):
        y = TOP + (HEIGHT - TOP - BOTTOM) * (1 - share)
        lines.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - 6}" y1="{y}" y2="{y}"/>')
        label = number(low + share * (high - low))
        lines.append(f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{label}</text>')
    y = HEIGHT - 6
    lines.append(f'<text x="{LEFT}" y="{y}">{ends[0]}</text>')
    lines.append(f'<text x="{WIDTH - 6}" y="{y}" text-anchor="end">{ends[1]}</text>')
    return _svg(title, [*lines, *parts], HEIGHT)


def _svg(title: str, parts: Sequence[str], height: int) -> str:
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{html.escape(title)}">{"".join(parts)}</svg>'
    )


# ---------------------------------------------------------------------- images


def frames_of(facts: Facts) -> list[Picture]:
    """Frames of each field of images, from the oldest rows to the newest."""
    found = []
    for name, one in facts.fields.items():
        axis = one.channels
        if axis is None or not len(one.sampled) or name.startswith(NEXT):
            continue
        chosen = np.unique(np.linspace(0, len(one.sampled) - 1, STRIP).astype(int))
        # The rows of samples are known up to their spacing, so rows are named by their share.
        places = one.rows[(chosen * (len(one.rows) / len(one.sampled))).astype(int)]
        images = one.sampled[chosen].astype(np.float32)
        if one.dtype.kind == "f":
            low, high = float(one.least.min()), float(one.greatest.max())
            images = np.nan_to_num((images - low) * (255 / ((high - low) or 1)))
        frames = [_plain(image, axis) for image in np.clip(images, 0, 255).astype(np.uint8)]
        slots = facts.rows.slots[places].tolist()
        found.append(Picture(name, [(s, png(f)) for s, f in zip(slots, frames, strict=True)]))
    return found


def _plain(image: Array, axis: int) -> Array:
    """An image of one or three channels, of a few pixels; of a stack the newest frame."""
    if image.ndim == 3:
        image = np.moveaxis(image, axis, 2)
        image = image if image.shape[2] == 3 else image[:, :, -1]
    step = max(1, max(image.shape[:2]) // MOST_SIDE)
    return image[::step, ::step]


def png(image: Array) -> bytes:
    """An image of bytes, shape (height, width) or (height, width, 3), as PNG."""
    height, width = image.shape[:2]
    lines = np.zeros((height, 1 + image.size // height), np.uint8)  # a filter byte, 0, comes first
    lines[:, 1:] = image.reshape(height, -1)
    head = struct.pack(">IIBBBBB", width, height, 8, 2 if image.ndim == 3 else 0, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(lines.tobytes(), 6)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


def data_uri(data: bytes) -> str:
    """A PNG as the address of an image."""
    return "data:image/png;base64," + base64.b64encode(data).decode("ascii")
