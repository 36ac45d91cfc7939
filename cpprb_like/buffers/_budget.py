"""``BudgetDraws``: batches with as many rows as a budget of items holds, for ``Source.batches``.

Rows are drawn by ``sample``, about as many as the last batches had. Rows that do not fit are kept
for the next batch. Not here: which values of a batch belong to a row, and how pieces of batches
become one (``views._items_of_batch``).
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from cpprb_like._arguments.checks import as_int
from cpprb_like._machine.forks import EPOCH, watch
from cpprb_like._machine.prefetch_state import Draw, DrawCanceledError, PrefetchState, opened
from cpprb_like.views._items_of_batch import drawing_pieces

if TYPE_CHECKING:
    from cpprb_like._arguments.arrays import Batch
    from cpprb_like.buffers._source import Source
    from cpprb_like.views._items_of_batch import ItemPlan

NEW = 1 / 8  # share of a batch in the mean number of rows


class BudgetDraws(PrefetchState):
    """Batches of a source within ``items``, a dict of axis to most items, and of ``most`` rows."""

    def __init__(
        self, source: Source, options: Any, items: Mapping[str, int], most: int | None
    ) -> None:
        super().__init__(source._draw_states)
        plan = source._item_plan(options.fields)
        if plan is None:
            raise ValueError("items: expected fields with values of any length, got none")
        self._plan, self._limits = plan, _read_items(items, plan)
        if not options.replace:
            raise ValueError(
                "replace: expected True with items=, as a batch has rows of several draws"
            )
        if source._weighs_by_batch():
            raise ValueError(
                "items: importance-sampling weights of this source are relative to those of their "
                "draw, and a batch has rows of several draws; give batch_size alone, or draw "
                'without layers that leave rows out and with Prioritized(weights="all")'
            )
        if source._counts_draws():
            raise ValueError(
                "items: a rule of this source counts draws, as AtMost does; a batch has rows of "
                "several draws, so one may come twice, and rows that wait for the next batch would "
                "be counted and lost at the end; give batch_size alone"
            )
        keywords = options.keywords
        # Rows of a group. All numbers of rows below are numbers of groups.
        self._size = size = source._group_size()
        if most is not None and most % size:
            raise ValueError(f"batch_size: expected a multiple of {size}, the rows of a group")
        self._draw: Callable[[int], Batch] = lambda n: source.sample(n * size, **keywords)
        self._asks_ahead = source._asks_ahead
        self._most = most // size if most else min(self._limits.values())
        self._pieces: list[tuple[Batch, int]] = []  # drawn and not returned: values, and how many
        self._mean: float | None = None  # rows of a batch
        self._room: dict[str, int] = {}  # places of a batch along each axis
        self._one = threading.RLock()  # one caller at a time
        watch(self._one, EPOCH - 1)  # taken before the turn
        watch(self.turn, EPOCH)

    def end_with(self, batches: object) -> None:
        """Let this object leave the table of ``opened`` draws with the iterator."""
        weakref.finalize(batches, opened.pop, id(self), None)

    def void(self) -> None:
        """The source was restored or seeded: forget the rows that were drawn before."""
        super().void()
        self.forget()

    def forget(self, _: int = 0) -> None:
        """Forget the rows that were drawn and not returned."""
        self._pieces = []

    def next(self) -> Batch:
        """The next batch."""
        with self._one:
            opened[id(self)] = self
            batch = None
            while batch is None:
                draw = Draw(self.generation, ahead=False)
                with suppress(DrawCanceledError), self.turn, self.drawing(draw):
                    batch = self.next_ahead()
            return batch

    def next_ahead(self) -> Batch:
        """The next batch, for a caller that is ``drawing`` itself."""
        with self._one:
            pieces, plan = self._pieces, self._plan
            n, is_full = self._fit(pieces)
            while not is_full:
                more = self._rows_to_draw(n)
                with drawing_pieces(self._room):
                    pieces.append((self._draw(more), more))
                n, is_full = self._fit(pieces)
            taken, kept, left = [], [], n
            for piece, rows in pieces:
                stop = min(left, rows)
                left -= stop
                if stop == rows:
                    taken.append((piece, rows))
                elif stop == 0:
                    kept.append((piece, rows))
                else:
                    first, rest = plan.split(piece, stop * self._size)
                    taken.append((first, stop))
                    kept.append((rest, rows - stop))
            # An error loses no rows but the only one of a batch, as none may have places for it.
            # The pieces are those of ``split``, as the batch is made in the memory of the others.
            self._pieces = kept if n == 1 else taken + kept
            # The largest one, which has room for the others, comes first.
            batch = plan.join_pieces([piece for piece, _ in reversed(taken)])
            self._pieces = kept
            self._mean = n if self._mean is None else self._mean + NEW * (n - self._mean)
            # A little more than the places of this batch, and not much less than before.
            for axis in plan.axes if plan.laid.is_packed else ():
                used = int(batch[f"{axis}_offsets"][-1])
                self._room[axis] = max(used + used // 16, self._room.get(axis, 0) * 15 // 16)
            return batch

    # ------------------------------------------------------------------ numbers of rows

    def _fit(self, pieces: list[tuple[Batch, int]]) -> tuple[int, bool]:
        """How many of the rows are of the next batch, and whether no further one is."""
        laid, drawn = self._plan.laid, sum(rows for _, rows in pieces)
        if not drawn or (self._mean is not None and 2 * drawn < self._mean):
            return drawn, False  # few rows are full seldom: not worth the look
        n, is_full = min(drawn, self._most), drawn >= self._most
        for axis, limit in self._limits.items():
            counts = [laid.counts_in(axis, batch) for batch, _ in pieces]
            places = laid.places_of(axis, np.concatenate(counts).reshape(drawn, -1))
            n = min(n, int(places.searchsorted(limit, "right")))
            is_full |= bool(places[-1] >= limit)
        return max(n, 1), is_full

    def _rows_to_draw(self, n: int) -> int:
        """Number of rows to draw, beside n that are there."""
        if self._mean is None:
            return max(n, 1)  # twice as many each time
        if self._asks_ahead:
            return 1 << (max(int(self._mean / 2), 1).bit_length() - 1)
        spread = math.sqrt(self._mean)  # of the number of rows that fit
        return math.ceil(min(max(self._mean + spread - n, spread), self._most - n))


def _read_items(items: Any, plan: ItemPlan) -> dict[str, int]:
    """The checked budget. A number of places that the layout has for an axis is one as well."""
    axes = plan.axes
    if not isinstance(items, Mapping) or not items:
        raise TypeError(f"items: expected numbers by named axis, got {items!r}")
    for axis in items:
        if axis not in axes:
            raise ValueError(
                f"items: expected some of the axes {axes} of the fields that are read, where those "
                f"of texts do not count; got {axis!r}"
            )
    limits = {axis: as_int(f"items[{axis!r}]", most, 1) for axis, most in items.items()}
    for axis, total in plan.laid.totals.items():
        if axis in axes and limits.setdefault(axis, max(total, 1)) > max(total, 1):
            raise ValueError(
                f"items[{axis!r}]: expected at most {total}, the total of Packed, got {items[axis]}"
            )
    return limits
