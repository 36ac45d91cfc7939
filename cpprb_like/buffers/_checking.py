"""``rb.check()``: compares all state of a buffer that can be derived in two ways.

NumPy puts the rows into order of time, by the header and the flags alone. The results of the
compiled core are compared with that order. The checks serve tests and the search for defects;
``sample`` does not run them. Not here: whether a file fits a layout (``_files.file_maps``), the
state of a sampler by row (``Sampler.check_rows``), and its contract (``testing``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from cpprb_like._arguments.arrays import Array
from cpprb_like._arguments.checks import expect
from cpprb_like._core import (
    FLAG_ABSENT,
    FLAG_END,
    FLAG_TERMINATED,
    FLAG_TRUNCATED,
    WORD_ABSENT_ROWS,
    WORD_CLEARED,
    WORD_CLEARS,
    WORD_EDITS,
    WORD_EPISODES,
    WORD_HANDLE_BASE,
    WORD_RESERVED,
    WORD_WRITTEN,
    Ring,
)
from cpprb_like._fields.field import Field
from cpprb_like._fields.item_places import (
    LEFT,
    Places,
    all_places_of,
    laps_of,
    living_rows,
    places_of,
)
from cpprb_like._fields.layout import Items, Layout
from cpprb_like._files.json_codec import MOST
from cpprb_like._files.recovery import open_steps
from cpprb_like._rows.chained import Chain, FrameStack, NextOf
from cpprb_like.samplers._base import Sampler

__all__ = ["check_memory", "check_rows"]

FLAGS = 1 << 13  # rows whose flags are compared at a time: their records stay in the cache
ITEMS = 1 << 20  # items that are read at a time, but for those of one row


def check_rows(
    layout: Layout,
    arena: NDArray[np.uint8],
    ring: Ring,
    sampler: Sampler,
) -> None:
    """Raise ``AssertionError`` unless a buffer is sound, while no thread writes to it."""
    _check_arena(layout, arena, ring.chains)
    _check_item_values(layout, arena)
    timeline = _Timeline(layout, arena, ring.lookahead)
    _check_sizes(timeline, ring)
    sampler.check_rows(ring, timeline.slots)


def check_memory(
    layout: Layout,
    arena: NDArray[np.uint8],
    ring: Ring | None = None,
    *,
    values: bool = False,
) -> None:
    """Raise ``ValueError`` unless an arena that another program may have written is sound.

    The words of the header are compared with each other and with the rows, and so are the places of
    items, and the overflows of the chained fields of ``ring``. With ``values``, texts and numbers
    that count items are read too. Cost: proportional to the rows; with ``values``, to the items.
    """
    try:
        _check_arena(layout, arena, () if ring is None else ring.chains)
        if values:
            _check_item_values(layout, arena)
    except AssertionError as error:
        raise ValueError(f"the header contradicts the rows; it was damaged: {error}") from None


def _check_arena(layout: Layout, arena: NDArray[np.uint8], chains: Iterable[Chain]) -> None:
    """Raise ``AssertionError`` unless header, flags, end fields and chained fields agree."""
    _check_words(layout, arena)
    extent = _Extent(layout, arena)
    stored, ends = extent.written - extent.oldest, layout.schema.end_fields()
    counted = 0
    for first in range(0, stored, FLAGS):
        counted += _check_flags(layout, arena, slice(first, min(first + FLAGS, stored)), ends)
    absent = int(layout.state(arena)[WORD_ABSENT_ROWS])
    expect(absent == counted, "absent rows", counted, absent)
    for stream in range(layout.n_envs):
        _check_length(layout, arena, stream)
    for chain in chains:
        _check_chain(chain, extent, layout, arena)
    for items in layout.item_rings:
        _check_items(items, extent, layout, arena)


class _Extent:
    """Range of the row ids in the ring."""

    def __init__(self, layout: Layout, arena: NDArray[np.uint8]) -> None:
        self.capacity, self.n_envs = layout.capacity, layout.n_envs
        self.written = int(layout.state(arena)[WORD_WRITTEN])
        self.oldest = max(0, self.written - self.capacity)


class _Timeline(_Extent):
    """The rows in the ring that hold a step: stream by stream, oldest first."""

    def __init__(self, layout: Layout, arena: NDArray[np.uint8], lookahead: int) -> None:
        super().__init__(layout, arena)
        ids = np.arange(self.oldest, self.written)
        flags = layout.flags(arena)[ids % self.capacity]
        present = flags & FLAG_ABSENT == 0
        ids, flags = ids[present], flags[present]
        order = np.argsort(ids % self.n_envs, kind="stable")
        ids, ended = ids[order], flags[order] & FLAG_END != 0
        self.slots = np.ascontiguousarray(ids % self.capacity, np.intp)
        n, streams = len(ids), ids % self.n_envs
        begins = np.ones(n, np.bool_)  # first rows of episodes, as far as rows are left
        begins[1:] = (streams[1:] != streams[:-1]) | ended[:-1]
        stops = np.append(np.flatnonzero(begins)[1:], n)
        last = stops[np.cumsum(begins) - 1] - 1 if n else np.empty(0, np.intp)
        finished = (last - np.arange(n) >= lookahead) | ended[last]
        incomplete = ids[~finished]
        while True:  # rows older than the newest ``size`` complete rows are left out
            first = self.written - layout.size - len(incomplete)
            if len(incomplete) == 0 or incomplete.min() >= first:
                break
            incomplete = incomplete[incomplete >= first]
        self.drawable = finished & (ids >= first)


# ---------------------------------------------------------------------- memory


def _check_words(layout: Layout, arena: NDArray[np.uint8]) -> None:
    """Raise unless the words of the header are consistent with each other."""
    words = layout.state(arena).tolist()
    written, reserved = words[WORD_WRITTEN], words[WORD_RESERVED]
    clears, base, edits = words[WORD_CLEARS], words[WORD_HANDLE_BASE], words[WORD_EDITS]
    several = f" that is a multiple of {layout.n_envs}" if layout.n_envs > 1 else ""
    sound = 0 <= written < MOST and written % layout.n_envs == 0
    expect(sound, "rows written", f"a number{several}", written)
    sound = 0 <= base < MOST and base % layout.span == 0
    expect(sound, "what handles count from", f"a multiple of {layout.span}", base)
    cleared = words[WORD_CLEARED]
    sound = 0 <= cleared <= base and cleared % layout.n_envs == 0
    expect(sound, "rows before the last clear", f"a number up to {base}{several}", cleared)
    sound = 0 <= clears < MOST and 0 <= edits < MOST
    expect(sound, "clears and edits", "numbers", (clears, edits))
    expect(reserved == written, "rows begun", written, reserved)
    most, episodes = written + layout.capacity, words[WORD_EPISODES]  # a killed ``add`` counts too
    expect(0 <= episodes <= most, "ended episodes", f"0 to {most}", episodes)


def _check_flags(
    layout: Layout, arena: NDArray[np.uint8], slots: slice, ends: list[tuple[int, int, int, int]]
) -> int:
    """Check the flags of some slots, and return the number of absent rows among them.

    Flags follow from the end fields, or mark a truncated episode. An absent row of a deleted
    episode keeps its end flags.
    """
    flags = np.ascontiguousarray(layout.flags(arena)[slots])
    expected = _flags_by_fields(layout, arena, slots, ends)
    if np.array_equal(flags, expected):
        return 0
    is_absent = flags & FLAG_ABSENT != 0
    cut_off = (expected & FLAG_END == 0) & (flags == FLAG_TRUNCATED)
    wrong = np.flatnonzero(~is_absent & (flags != expected) & ~cut_off)
    if wrong.size:
        k = int(wrong[0])
        row = f"the row in slot {slots.start + k}"
        expect(False, f"flags of {row}", int(expected[k]), int(flags[k]))
    known = [0, FLAG_END, FLAG_TERMINATED, FLAG_TRUNCATED, FLAG_TERMINATED | FLAG_TRUNCATED]
    wrong = np.flatnonzero(is_absent & ~np.isin(flags & ~np.uint8(FLAG_ABSENT), known))
    if wrong.size:
        k = int(wrong[0])
        row = f"the absent row in slot {slots.start + k}"
        expect(False, f"flags of {row}", [FLAG_ABSENT | bits for bits in known], int(flags[k]))
    return int(np.count_nonzero(is_absent))


def _flags_by_fields(
    layout: Layout, arena: NDArray[np.uint8], slots: slice, ends: list[tuple[int, int, int, int]]
) -> NDArray[np.uint8]:
    """Flags of rows that hold a step, computed from the end fields."""
    expected = np.zeros(slots.stop - slots.start, np.uint8)
    for number, _, sets, clears in ends:
        stored = layout.rows(arena, number)[slots]
        kind = layout.schema.fields[number].dtype
        kind = np.dtype(np.uint8) if kind.kind == "b" else kind  # any byte but 0 is true
        numbers = np.ascontiguousarray(stored.view(kind)[:, 0])  # each value is one number
        is_set = (numbers != 0).view(np.uint8)
        if clears:
            expected &= ~(is_set * np.uint8(clears))
        expected |= is_set * np.uint8(sets)
    return expected


def _check_length(layout: Layout, arena: NDArray[np.uint8], stream: int) -> None:
    """Raise unless the length of an open episode is within the bounds of ``open_steps``."""
    length = int(layout.state(arena)[-layout.n_envs + stream])
    known, most = open_steps(layout, arena, stream)
    expected = f"{known} to {most}"
    expect(known <= length <= most, f"episode of environment {stream}: steps", expected, length)


def _check_sizes(timeline: _Timeline, ring: Ring) -> None:
    slots = np.sort(timeline.slots[timeline.drawable])
    expect(len(ring) == len(slots), "rows that can be drawn", len(slots), len(ring))
    found = ring.present_slots()
    expect(np.array_equal(found, slots), "slots of these rows", slots, found)


def _check_chain(chain: Chain, timeline: _Extent, layout: Layout, arena: NDArray[np.uint8]) -> None:
    """Raise unless the overflow of a chained field is sound, before values are read."""
    ids = np.arange(timeline.oldest, timeline.written)
    what = f"field {chain.name!r}"
    _, found, overflows = chain.save()
    queues = [rows for rows, _ in overflows]
    for apart in queues:
        expect(
            bool((np.diff(apart) > 0).all()), f"{what}: rows in the overflow", "ascending", apart
        )
        sound = apart.size == 0 or bool(0 <= apart[0] <= apart[-1] < timeline.written)
        expect(sound, f"{what}: rows in the overflow", f"0 to {timeline.written - 1}", apart)
    # Rows without a step are not read: a damaged file may have lost their values.
    present = layout.flags(arena)[ids % timeline.capacity] & FLAG_ABSENT == 0
    seen = found != 0
    expected = np.full(layout.n_envs, timeline.written > 0)
    if timeline.written > 0:
        expected &= seen | present[len(ids) - layout.n_envs :]
    expect(bool((seen == expected).all()), f"{what}: newest", "of all", seen)
    if isinstance(chain, NextOf):
        marks = layout.block(arena, f"marks of {chain.name}")[ids % timeline.capacity]
        expected = np.zeros(len(ids), np.intp)
        for mark, apart in enumerate(queues, 1):
            expected[np.isin(ids, apart)] = mark
        sound = (marks == expected) | ~present
        _require_rows(sound, ids, timeline, f"{what}: mark", expected, marks)
    elif isinstance(chain, FrameStack):
        (apart,) = queues
        runs = layout.block(arena, f"runs of {chain.name}")[ids % timeline.capacity].astype(int)
        deepest = chain.depth - 1
        is_stored = np.isin(ids - runs * timeline.n_envs, apart) | (runs == deepest)
        expected = np.where(np.isin(ids, apart), 0, deepest)
        later = slice(timeline.n_envs, None)
        follows = np.minimum(runs[: -timeline.n_envs] + 1, deepest)
        expected[later] = np.where(np.isin(ids[later], apart), 0, follows)
        sound = is_stored & (runs <= deepest)
        sound[later] &= (runs[later] == expected[later]) | ~present[: -timeline.n_envs]
        sound |= ~present & (runs <= deepest)
        _require_rows(sound, ids, timeline, f"{what}: rows that its stack goes on", expected, runs)


# ---------------------------------------------------------------------- items


def _check_items(items: Items, timeline: _Extent, layout: Layout, arena: NDArray[np.uint8]) -> None:
    """Raise unless the items of each row lie in the memory, and on those of no other row."""
    words, what = layout.item_words(arena, items), f"items of axis {items.axis!r}"
    laps = laps_of(words)
    expect(laps.are_sound(items), f"{what}: laps", "ascending places", laps)
    left = int(words[LEFT])
    sound = 0 <= left <= timeline.written
    expect(sound, f"{what}: rows that left", f"0 to {timeline.written}", left)
    living = living_rows(layout, arena)
    ids, found = all_places_of(layout, arena, items, living, laps)
    hold = found.counts <= items.room
    _require_rows(hold, ids, timeline, f"{what}: number", f"at most {items.room}", found.counts)
    some = found.counts > 0
    ids = ids[some]
    found = Places(
        found.numbers[some], found.places[some], found.counts[some], found.is_moved[some]
    )
    ends = np.where(found.numbers < laps.base, laps.base, laps.head)  # of the lap of each row
    hold = (found.numbers >= max(laps.head - items.room, laps.previous)) & (
        found.numbers <= ends - found.counts
    )
    hold &= found.places + found.counts <= items.units
    expected = f"within the last {items.room} up to {laps.head}"
    _require_rows(hold, ids, timeline, f"{what}: place", expected, found.places)
    order = np.argsort(found.numbers, kind="stable")
    following = order[1:]
    hold = np.ones(len(ids), np.bool_)
    hold[following] = np.diff(found.numbers[order]) >= found.counts[order[:-1]]
    expected = "behind those of another row"
    _require_rows(hold, ids, timeline, f"{what}: place", expected, found.places)
    _check_order(items, living, timeline, layout, arena)


def _check_order(
    items: Items,
    ids: NDArray[np.int64],
    timeline: _Extent,
    layout: Layout,
    arena: NDArray[np.uint8],
) -> None:
    """Raise unless the oldest item of each row lies behind that of the rows before.

    With next values these are the rows before by a time step, whose next items a row may have.
    """
    laps, following = laps_of(layout.item_words(arena, items)), layout.following(items)
    lag = 1 if following is None else layout.n_envs
    oldest = np.full(len(ids), MOST)
    for own in (items, following) if following else (items,):
        found = places_of(layout, arena, own, ids, laps)
        some = (found.counts > 0) & ~found.is_moved  # the others were moved by an update
        oldest[some] = np.minimum(oldest[some], found.numbers[some])
    ids, oldest = ids[oldest < MOST], oldest[oldest < MOST]
    newest = np.append(-1, np.maximum.accumulate(oldest))
    hold = oldest >= newest[np.searchsorted(ids, ids - lag, "right")]
    expected = "behind those of the rows before"
    _require_rows(hold, ids, timeline, f"items of axis {items.axis!r}: place", expected, oldest)


def _check_item_values(layout: Layout, arena: NDArray[np.uint8]) -> None:
    """Raise unless texts are texts, and values that count items are below the number of items.

    The places of all items are sound.
    """
    extent, ids = _Extent(layout, arena), living_rows(layout, arena)
    counts, found = {}, {}
    for items in layout.item_rings:
        laps, following = laps_of(layout.item_words(arena, items)), layout.following(items)
        for own in (items, following) if following else (items,):
            found[own.axis] = own, places_of(layout, arena, own, ids, laps)
            counts[own.axis] = found[own.axis][1].counts
    for number, field in enumerate(layout.schema.declared):
        what = f"field {field.name!r}"
        if field.counts is None and not field.is_text:
            continue
        for some, values, each in _values(layout, arena, number, field, ids, found):
            rows, sound = ids[some], np.ones(some.stop - some.start, np.bool_)
            places = np.repeat(np.arange(len(rows)), each)
            if field.counts is not None:
                limits = counts[field.counts][some]
                out = (values < 0) | (values >= np.repeat(limits, each))
                sound[places[out]] = False
                expected = f"numbers of items of axis {field.counts!r}"
                first = values[np.argmax(out)] if out.any() else 0
                _require_rows(sound, rows, extent, what, expected, np.full(len(rows), first))
                continue
            stops = np.cumsum(each)
            begins = values[(stops - each)[each > 0]]
            if _is_text(values) and not (begins & 0xC0 == 0x80).any():  # none goes on from another
                continue
            sound = np.array([_is_text(text) for text in np.split(values, stops[:-1])], np.bool_)
            _require_rows(sound, rows, extent, what, "a text in UTF-8", each)


def _values(
    layout: Layout,
    arena: NDArray[np.uint8],
    number: int,
    field: Field,
    ids: NDArray[np.int64],
    found: dict[str, tuple[Items, Places]],
) -> Iterator[tuple[slice, Array, NDArray[np.int64]]]:
    """Values of a field, some rows at a time: the rows, their values, the number of each row's."""
    if field.axis is None:
        size = field.nbytes // field.dtype.itemsize
        for start in range(0, len(ids), FLAGS):
            some = slice(start, min(start + FLAGS, len(ids)))
            stored = np.ascontiguousarray(layout.rows(arena, number)[ids[some] % layout.capacity])
            values = stored.reshape(-1).view(field.dtype)
            yield some, values, np.full(some.stop - start, size)
        return
    items, places = found[field.axis]
    ((_, nbytes, begin),) = [column for column in items.columns if column[0] == field.name]
    memory = arena[begin : begin + nbytes * items.units].reshape(items.units, nbytes)
    before, start = np.append(0, np.cumsum(places.counts)), 0
    while start < len(ids):
        stop = max(start + 1, int(np.searchsorted(before, before[start] + ITEMS, "right")) - 1)
        some, each = slice(start, stop), places.counts[start:stop]
        within = np.arange(before[stop] - before[start]) - np.repeat(
            before[start:stop] - before[start], each
        )
        stored = memory[np.repeat(places.places[some], each) + within]
        yield some, stored.reshape(-1).view(field.dtype), each * (nbytes // field.dtype.itemsize)
        start = stop


def _is_text(values: Array) -> bool:
    try:
        values.tobytes().decode()
    except UnicodeDecodeError:
        return False
    return True


def _require_rows(
    sound: Array, ids: Array, timeline: _Extent, what: str, expected: Array | str, got: Array
) -> None:
    """Raise an ``AssertionError`` that names the first row that is not sound."""
    if not sound.all():
        k = int(np.flatnonzero(~sound)[0])
        place = f"slot {ids[k] % timeline.capacity}, environment {ids[k] % timeline.n_envs}"
        said = expected if isinstance(expected, str) else expected[k]
        expect(False, f"row {ids[k]} ({place}): {what}", said, got[k])
