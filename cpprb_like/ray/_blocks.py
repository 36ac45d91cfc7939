"""``Block``: steps on their way to a host, and pairs of frame stacks on their way from one.

Values that two rows share travel once: a next value that equals the value of the next step, and
frames of a stack that are also in the previous stack. ``pack`` compares these values byte for byte,
so unpacked blocks equal the original ones. Not here: how a ring stores such fields
(``_rows.chained``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpprb_like._arguments.arrays import Array, Batch
from cpprb_like._fields.entries import Entries
from cpprb_like._fields.schema import Schema, Stack

Steps = dict[str, Array | Entries]  # values of time steps by field


@dataclass(frozen=True)
class Chained:
    """A column in which only the rows ``whole`` have values; others follow from other values."""

    whole: NDArray[np.intp]
    values: Array  # values of the rows ``whole``
    newest: Array | None = None  # for a stack, the newest frame of each row
    source: str = ""  # for a next value, the field that has this value at the next step


@dataclass(frozen=True)
class Block:
    """Steps of one writer, one after another."""

    first: int  # number of the block: how many rows were ever written to the shard before it
    steps: int  # number of time steps
    n_envs: int
    # Values of each field, shape ``(steps * n_envs, *shape)``, or ``Chained``, or of any length.
    # Further columns are ``priorities`` of ``add`` and ``present`` of ``add_where``.
    columns: Mapping[str, Array | Chained | Entries]
    # Calls of ``on_episode_end``: the number of steps before the call, and the environment.
    ends: tuple[tuple[int, int | None], ...]
    stacks: tuple[Stack, ...]  # fields that are stacks

    @property
    def rows(self) -> int:
        """Number of rows of the block."""
        return self.steps * self.n_envs

    def parts(self) -> Iterator[tuple[int, int, list[int | None]]]:
        """Steps between two ends: the first, the one after the last, and the episodes that end."""
        start = 0
        for stop in sorted({stop for stop, _ in self.ends} | {self.steps}):
            yield start, stop, [env for at, env in self.ends if at == stop]
            start = stop


def _frames(values: Array, stack: Stack) -> Array:
    """A view of stacks with the axis of frames directly after the axis of rows."""
    return np.moveaxis(values, 1 + stack.axis, 1)


def _equal(some: Array, others: Array) -> NDArray[np.bool_]:
    """A flag for each row: whether both arrays have the same bytes."""
    some, others = np.ascontiguousarray(some), np.ascontiguousarray(others)
    n = len(some)
    if n == 0 or some[0].nbytes == 0:
        return np.ones(n, np.bool_)
    found: NDArray[np.bool_] = (
        some.reshape(n, -1).view(np.uint8) == others.reshape(n, -1).view(np.uint8)
    ).all(axis=1)
    return found


def rows_of(values: Array | Entries) -> int:
    """Number of rows of the values of steps."""
    return len(values.counts if isinstance(values, Entries) else values)


def join_steps(parts: list[Steps], schema: Schema) -> Steps:
    """The values of several calls of ``add``; fields of one axis share the numbers of items."""
    ragged = {name: axis.fields[0] for axis in schema.axes for name in axis.fields}
    found: dict[str, Any] = {}
    for name in parts[0]:
        values: list[Any] = [part[name] for part in parts]
        if name not in ragged:
            found[name] = np.concatenate(values)
            continue
        first = found.get(ragged[name])
        counts = np.concatenate([one.counts for one in values]) if first is None else first.counts
        found[name] = Entries(np.concatenate([one.values for one in values]), counts)
    return found


def pack(
    first: int,
    n_envs: int,
    columns: Steps,
    ends: tuple[tuple[int, int | None], ...],
    schema: Schema,
) -> Block:
    """A block of whole columns, each of shape ``(steps * n_envs, *shape)`` or of any length."""
    rows = rows_of(next(iter(columns.values())))
    packed: dict[str, Array | Chained | Entries] = dict(columns)
    fixed = {name: one for name, one in columns.items() if not isinstance(one, Entries)}
    later = np.arange(n_envs, rows)  # the same environments, one step later
    for name, source in schema.chained_next:
        values, following = fixed[name], np.zeros(rows, np.bool_)
        following[: rows - n_envs] = _equal(values[: rows - n_envs], fixed[source][later])
        whole = np.flatnonzero(~following)
        packed[name] = Chained(whole, values[whole], source=source)
    for stack in schema.stacks:
        frames = _frames(fixed[stack.name], stack)
        shifted = np.zeros(rows, np.bool_)
        shifted[n_envs:] = _equal(frames[later, :-1], frames[: rows - n_envs, 1:])
        whole = np.flatnonzero(~shifted)
        if isinstance(packed[stack.name], Chained) or 2 * len(whole) > rows:
            continue
        packed[stack.name] = Chained(
            whole, frames[whole], newest=np.ascontiguousarray(frames[:, -1])
        )
    return Block(first, rows // n_envs, n_envs, packed, ends, schema.stacks)


def unpack(block: Block) -> Steps:
    """The columns of a block as ``add`` takes them, the axis of environments second."""
    found: Batch = {}
    entries = {name: one for name, one in block.columns.items() if isinstance(one, Entries)}
    stacks = {stack.name: stack for stack in block.stacks}
    chained = {name: one for name, one in block.columns.items() if isinstance(one, Chained)}
    for name, one in chained.items():
        if one.newest is not None:
            found[name] = _unstacked(one, stacks[name], block)
    found.update({name: one for name, one in block.columns.items() if isinstance(one, np.ndarray)})
    for name, one in chained.items():
        if one.source:
            source = found[one.source]
            values = np.empty_like(source)
            values[: len(source) - block.n_envs] = source[block.n_envs :]
            values[one.whole] = one.values
            found[name] = values
    if block.n_envs > 1:
        lead = block.steps, block.n_envs
        found = {name: values.reshape(*lead, *values.shape[1:]) for name, values in found.items()}
    return {**found, **entries}


def _unstacked(one: Chained, stack: Stack, block: Block) -> Array:
    """Whole stacks from their newest frames."""
    assert one.newest is not None
    shape = (block.rows, stack.depth, *one.newest.shape[1:])
    frames = np.empty(shape, one.newest.dtype)
    given = np.zeros(block.rows, np.bool_)
    given[one.whole] = True
    frames[:, -1] = one.newest
    frames[one.whole] = one.values
    # The older frames of a row are the newer ones of the step before: one pass for each depth.
    age = np.zeros(block.rows, np.intp)  # steps since a stack was given
    for row in range(block.n_envs, block.rows):
        age[row] = 0 if given[row] else age[row - block.n_envs] + 1
    for back in range(1, stack.depth):
        # Frame ``depth - 1 - back`` is the newest of ``back`` steps before, or of the given stack.
        place = stack.depth - 1 - back
        rows = np.flatnonzero(age > 0)
        steps = np.minimum(age[rows], back)
        frames[rows, place] = frames[rows - steps * block.n_envs, place + steps]
    return np.ascontiguousarray(np.moveaxis(frames, 1, 1 + stack.axis))


@dataclass(frozen=True)
class Pair:
    """Two fields of a batch: stacks, and the stacks of the steps after them."""

    name: str
    following: Stack


def pairs_of(fields: Mapping[str, tuple[int, ...]], stacks: Mapping[str, Stack]) -> list[Pair]:
    """The pairs among the fields of a batch; ``stacks`` are the fields that are stacks."""
    return [
        Pair(name, Stack(f"next_{name}", stack.axis, stack.depth))
        for name, stack in stacks.items()
        if fields.get(f"next_{name}") == fields.get(name)
    ]


def part(columns: Batch, pairs: list[Pair]) -> dict[str, Array | Chained]:
    """A batch to send, with only the newest frame of stacks that follow others by one frame."""
    packed: dict[str, Array | Chained] = dict(columns)
    for pair in pairs:
        name = pair.following.name
        if pair.name in columns and name in columns:
            frames = _frames(columns[pair.name], pair.following)
            following = _frames(columns[name], pair.following)
            whole = np.flatnonzero(~_equal(following[:, :-1], frames[:, 1:]))
            if 2 * len(whole) <= len(following):
                newest = np.ascontiguousarray(following[:, -1])
                packed[name] = Chained(whole, following[whole], newest, pair.name)
    return packed


def join(
    columns: Mapping[str, Array | Chained],
    name: str,
    items: slice,
    pairs: list[Pair],
    out: Array,
    places: NDArray[np.intp] | slice,
) -> None:
    """Write some items of a column that ``part`` made to these places of an array."""
    one = columns[name]
    if not isinstance(one, Chained):
        out[places] = one[items]
        return
    (stack,) = (pair.following for pair in pairs if pair.following.name == name)
    source = columns[one.source]
    assert one.newest is not None
    assert not isinstance(source, Chained)
    to = _frames(out, stack)
    to[places, :-1] = _frames(source, stack)[items, 1:]
    to[places, -1] = one.newest[items]
    first, last = np.searchsorted(one.whole, [items.start, items.stop])
    rows = np.arange(len(out))[places]
    to[rows[one.whole[first:last] - items.start]] = one.values[first:last]
