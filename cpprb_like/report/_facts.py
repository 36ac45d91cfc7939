"""Facts: what is read of the rows of one buffer, before anything is judged.

Each field is read once, piece by piece. What is compared between rows, such as next values with the
values of the row after, is compared by 64-bit hashes of rows, which are computed for all rows read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpprb_like._fields.field import Field
from cpprb_like.checkpoint import reward_of

Array = NDArray[Any]
Rows = Any  # ``buffers._rows_to_report.RowsToReport``
BUDGET = 256 << 20  # bytes that are read of a field
PIECES = 8  # runs of rows that are read of a larger field
CHUNK = 4 << 20
MOST_ROWS = 1 << 16
SAMPLED = 1 << 20  # elements of a field that are read for quantiles and histograms
IMAGE_SIDE = 16
MOST_CHANNELS = 16
MOST_WIDTH = 1024  # elements of a row whose elements are judged one by one
LARGE = float(np.finfo(np.float64).max) / 4
NEXT = "next_"
LENGTH = "length of "
OBSERVATIONS = ("obs", "observation", "observations", "state", "image", "frame")
ACTIONS = ("act", "action", "actions")


@dataclass
class FieldFacts:
    """Values and statistics of a field, as far as they were read."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    is_number: bool
    axis: str = ""  # the named axis whose lengths these are
    # Places of the rows that were read, oldest first; those of absent rows are left out.
    rows: Array = field(default_factory=lambda: np.empty(0, np.int64))
    # A hash of each of these rows: rows with equal bytes have equal hashes.
    hashes: Array = field(default_factory=lambda: np.empty(0, np.uint64))
    # Values of some of these rows, evenly spaced; empty without numbers.
    sampled: Array = field(default_factory=lambda: np.empty(0))
    spacing: int = 1  # of the places of the sampled rows
    # The least and the greatest finite value of each element.
    least: Array = field(default_factory=lambda: np.empty(0))
    greatest: Array = field(default_factory=lambda: np.empty(0))
    nan: int = 0
    inf: int = 0
    first_odd: int = -1  # place of the first row with NaN or infinity

    @cached_property
    def finite(self) -> NDArray[np.float64]:
        """The sampled values that are finite, flat."""
        values = self.sampled.reshape(-1).astype(np.float64)
        return values[np.isfinite(values)]

    @property
    def is_constant(self) -> bool:
        return len(self.hashes) > 1 and bool((self.hashes == self.hashes[0]).all())

    @property
    def has_columns(self) -> bool:
        """Whether each row is a vector of numbers that is narrow enough to judge its columns."""
        return self.is_number and len(self.shape) == 1 and 1 < self.shape[0] <= MOST_WIDTH

    @property
    def channels(self) -> int | None:
        """The axis of the channels of an image; 2 if it has none; None for other values."""
        shape = self.shape
        if not self.is_number or self.dtype.kind not in "uf" or len(shape) not in (2, 3):
            return None
        sides = [k for k, n in enumerate(shape) if n >= IMAGE_SIDE]
        if len(shape) == 2:
            return 2 if len(sides) == 2 else None
        short = [axis for axis in (2, 0) if shape[axis] <= MOST_CHANNELS]
        return short[0] if short and len([k for k in sides if k != short[0]]) == 2 else None

    def numbers(self) -> dict[str, Any]:
        """Statistics as JSON values."""
        values = self.finite
        found: dict[str, Any] = {"rows_read": len(self.rows), "nan": self.nan, "inf": self.inf}
        if not len(values):
            return found | dict.fromkeys(("min", "max", "mean", "std"))
        least, greatest = float(self.least.min()), float(self.greatest.max())
        found |= {"min": least, "max": greatest}
        with np.errstate(all="ignore"):
            moments = {"mean": float(values.mean()), "std": float(values.std())}
        return found | {key: one if math.isfinite(one) else None for key, one in moments.items()}

    def histogram(self, most: int = 40) -> tuple[Array, Array] | None:
        """Counts and edges: a bar for each of a few whole numbers, or equal bins."""
        values = self.finite
        if not len(values):
            return None
        if self.dtype.kind in "biu" and np.ptp(values) < most:
            low, high = int(values.min()), int(values.max())
            return np.histogram(values, np.arange(low, high + 2) - 0.5)
        return histogram(values, most)


@dataclass
class Facts:
    """Values and statistics of the rows of a buffer, as far as they were read."""

    rows: Rows
    fields: dict[str, FieldFacts]  # fields that are no Python objects
    episodes: list[Any]  # episodes, with returns if there are rewards
    reward: str | None  # field of rewards
    ends: list[str]  # fields that end episodes
    structure: dict[str, Any]  # result of ``structure``
    statistics: dict[str, Any]  # result of ``statistics``
    weights: Array | None  # weight by which each row that can be drawn is drawn
    ranges: dict[str, tuple[float, float]]  # expected ranges of values
    # Rows with a start for the layers of the view, how many of them its rules leave, such as
    # ``Among``, and each rule by itself.
    rules: tuple[int, int, str] | None

    @property
    def pairs(self) -> Iterator[tuple[FieldFacts, FieldFacts]]:
        """Each field that has a field of next values, with that."""
        for name, one in self.fields.items():
            following = self.fields.get(NEXT + name)
            if following is not None and len(one.rows) == len(following.rows):
                yield one, following

    @property
    def observations(self) -> list[FieldFacts]:
        """Fields that have next values, or a name of observations."""
        paired = [one for one, _ in self.pairs]
        return paired + [
            one
            for name, one in self.fields.items()
            if one not in paired and _is_called(name, OBSERVATIONS)
        ]

    @property
    def actions(self) -> list[FieldFacts]:
        return [one for name, one in self.fields.items() if _is_called(name, ACTIONS)]

    def following(self, one: FieldFacts, stride: int | None = None) -> tuple[Array, Array]:
        """Places in ``one.rows`` of rows and of the rows after them, where both were read."""
        wanted = one.rows + (self.rows.n_envs if stride is None else stride)
        found = np.minimum(np.searchsorted(one.rows, wanted), len(one.rows) - 1)
        there = one.rows[found] == wanted if len(one.rows) else np.empty(0, np.bool_)
        return np.flatnonzero(there), found[there]

    @cached_property
    def by_stream(self) -> tuple[Array, Array]:
        """Places of rows that hold a step, environment by environment, and which begin an episode.

        The first row of an environment does not: its episode may have begun before.
        """
        order = np.flatnonzero(self.rows.present)
        order = order[np.argsort(order % self.rows.n_envs, kind="stable")]
        begins = np.zeros(len(order), np.bool_)
        is_next = (order[1:] - order[:-1]) % self.rows.n_envs == 0
        begins[1:] = self.rows.ends[order[:-1]] & is_next
        return order, begins

    @cached_property
    def episode_of(self) -> Array:
        """The number of the episode of each place, which no other environment has."""
        order, begins = self.by_stream
        streams = order % self.rows.n_envs
        found = np.zeros(len(self.rows), np.int64)
        found[order[1:]] = np.cumsum(begins[1:] | (streams[1:] != streams[:-1]))
        return found

    @cached_property
    def whole(self) -> list[FieldFacts]:
        """Fields of which every row was read."""
        n = int(self.rows.present.sum())
        return [one for one in self.fields.values() if len(one.rows) == n]

    @cached_property
    def row_hashes(self) -> NDArray[np.uint64]:
        """A hash of what each row says of its step, in the order of ``by_stream``.

        That is of observations, next ones, actions and rewards: another field may be a clock. Of
        all ``whole`` fields if some of these are not known.
        """
        known = [*self.observations, *(after for _, after in self.pairs), *self.actions]
        if self.observations and self.actions:
            known += [one for one in self.fields.values() if one.name == self.reward]
            return self.hashes_of([one for one in self.whole if one in known])
        return self.hashes_of(self.whole)

    def hashes_of(self, fields: list[FieldFacts]) -> NDArray[np.uint64]:
        """A hash of some ``whole`` fields of each row, in the order of ``by_stream``."""
        keys = np.random.default_rng(1).integers(2**64, size=len(fields), dtype=np.uint64) | 1
        by_row = np.zeros(len(self.rows), np.uint64)
        for key, one in zip(keys, fields, strict=True):
            by_row[one.rows] += one.hashes * key
        return by_row[self.by_stream[0]]

    @cached_property
    def rewards(self) -> NDArray[np.float64]:
        """Each sampled reward that is finite; empty without rewards."""
        return np.empty(0) if self.reward is None else self.fields[self.reward].finite


def read_facts(
    rows: Rows,
    structure: dict[str, Any],
    statistics: Callable[..., dict[str, Any]],
    reward: str | None,
    ranges: dict[str, tuple[float, float]],
    count: Callable[[int], None],
    view: Any,
) -> Facts:
    """Read the rows of a buffer. ``count`` is called with bytes. ``view`` has rules, or is None."""
    buffer = rows.buffer
    known = {one.name: one for one in buffer.schema.declared if not one.is_ragged}
    reward = reward_of({name: (one.dtype, one.shape) for name, one in known.items()}, reward)
    for name in ranges:
        if name not in known or not is_number(known[name].dtype):
            raise ValueError(f"ranges: expected fields of numbers, got {name!r}")
    fields = {
        name: _read_field(rows, one, count)
        for name, one in known.items()
        if not one.dtype.hasobject and one.nbytes
    }
    for axis in buffer.schema.axes:
        lengths = Field(LENGTH + axis.name, np.dtype(np.int64), (), axis.name, is_entry=True)
        fields[lengths.name] = _read_field(rows, lengths, count)
    episodes = buffer.episodes.list(reward)
    weights = rows.weights()
    found = statistics(buffer, reward, episodes)
    ends = structure["ends"]
    rules = rows.left_by_rules(view)
    return Facts(rows, fields, episodes, reward, ends, structure, found, weights, ranges, rules)


def nbytes_read(rows: Rows) -> int:
    """Bytes that ``read_facts`` reads."""
    fields = rows.buffer.schema.fields
    return sum(min(BUDGET, len(rows) * one.nbytes) for one in fields if not one.dtype.hasobject)


def histogram(values: NDArray[np.float64], most: int = 40) -> tuple[Array, Array]:
    """Counts and edges of up to ``most`` equal bins.

    There are fewer bins where few float64 lie between the least and the greatest value.
    """
    if np.abs(values).max() > LARGE:  # the difference of two values may be infinite
        counts, edges = histogram(values / 4, most)
        with np.errstate(over="ignore"):
            return counts, np.nan_to_num(edges * 4)
    low, high = float(values.min()), float(values.max())
    step = 2.0 * float(np.spacing(max(abs(low), abs(high))))
    if low == high:
        low, high = low - max(0.5, step), high + max(0.5, step)
    bins = min(most, max(1, int(min((high - low) / step, most))))
    return np.histogram(values, bins, (low, high))


def is_number(dtype: np.dtype[Any]) -> bool:
    """Whether values are bools or real numbers, those of other packages included."""
    is_foreign = dtype.kind == "V" and dtype.names is None and dtype.type is not np.void
    return dtype.kind in "biuf" or is_foreign


def _pieces(rows: int, nbytes: int) -> Iterator[slice]:
    """Runs of rows that are read of a field, in chunks."""
    most = max(2, BUDGET // nbytes)
    starts, length = [0], rows
    if rows > most:
        length = max(2, most // PIECES)
        starts = np.linspace(0, rows - length, PIECES).astype(int).tolist()
    step = max(1, min(MOST_ROWS, CHUNK // nbytes))
    for start in starts:
        for first in range(start, start + length, step):
            yield slice(first, min(first + step, start + length))


def _read_field(rows: Rows, declared: Any, count: Callable[[int], None]) -> FieldFacts:
    name, dtype, shape = declared.name, declared.dtype, declared.shape
    found = FieldFacts(name, dtype, shape, is_number(dtype), declared.axis or "")
    pieces = list(_pieces(len(rows), declared.nbytes))
    n = sum(piece.stop - piece.start for piece in pieces)
    # Image fields keep enough frames to judge and to show.
    spacing = max(1, n // max(64, SAMPLED // max(1, math.prod(shape))))
    while math.gcd(spacing, rows.n_envs) > 1:  # rows of all environments
        spacing += 1
    found.spacing = spacing
    places, hashes, sampled, extremes = [], [], [], []
    for piece in pieces:
        values = rows.lengths(piece, found.axis) if found.axis else rows.read(piece, (name,))[name]
        at = np.arange(piece.start, piece.stop)[rows.present[piece]]
        values = values[rows.present[piece]]
        count(values.nbytes)
        if not len(at):
            continue
        places.append(at)
        hashes.append(hash_rows(values))
        if not found.is_number:
            continue
        if dtype.kind not in "biuf":
            values = values.astype(np.float32)
        chosen = at % spacing == 0 if spacing > 1 else slice(None)
        sampled.append(values[chosen].copy())
        extremes.append(_extremes(found, values, at))
    if places:
        found.rows, found.hashes = np.concatenate(places), np.concatenate(hashes)
    if extremes:
        found.sampled = np.concatenate(sampled)
        found.least = np.min([low for low, _ in extremes], axis=0)
        found.greatest = np.max([high for _, high in extremes], axis=0)
    return found


def _extremes(found: FieldFacts, values: Array, places: Array) -> tuple[Array, Array]:
    """The least and the greatest finite value of each element; counts what is not finite."""
    if values.dtype.kind == "f":
        is_odd = ~np.isfinite(values)
        if is_odd.any():
            found.nan += int(np.isnan(values).sum())
            found.inf += int(np.isinf(values).sum())
            if found.first_odd < 0:
                found.first_odd = int(places[is_odd.reshape(len(values), -1).any(axis=1)][0])
            low = np.where(is_odd, np.inf, values).min(axis=0)
            return low, np.where(is_odd, -np.inf, values).max(axis=0)
    return values.min(axis=0), values.max(axis=0)


def hash_rows(values: Array) -> NDArray[np.uint64]:
    """A hash of the bytes of each row."""
    n = len(values)
    raw = np.frombuffer(np.ascontiguousarray(values).tobytes(), np.uint8).reshape(n, -1)
    odd = -raw.shape[1] % 8
    if odd:
        raw = np.pad(raw, ((0, 0), (0, odd)))
    words = raw.view(np.uint64)
    keys = np.random.default_rng(0).integers(2**64, size=words.shape[1], dtype=np.uint64) | 1
    hashes: NDArray[np.uint64] = words @ keys
    return hashes ^ (hashes >> np.uint64(31))


def _is_called(name: str, names: tuple[str, ...]) -> bool:
    """Whether a field has one of these names, or is a part such as ``obs.position``."""
    return any(name == root or name.startswith((f"{root}.", f"{root}/")) for root in names)
