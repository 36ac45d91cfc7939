"""``BudgetDraws``: batches with as many rows as a budget of items holds, for ``Source.batches``.

Rows are drawn by ``sample``, about as many as the last batches had. Rows that do not fit are kept
for the next batch; at the end, rules that count draws get them back. Not here: which values of a
batch belong to a row, and how pieces of batches become one (``views._items_of_batch``).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cpprb_like._arguments.checks import as_int
from cpprb_like._machine.at_once import at_once
from cpprb_like._machine.forks import EPOCH, watch
from cpprb_like._machine.prefetch_state import Draw, DrawCanceledError, PrefetchState, opened
from cpprb_like._machine.unreturned import Unreturned, batch_waits, waiting_batch
from cpprb_like.errors import NotEnoughDataError
from cpprb_like.views._items_of_batch import drawing_pieces

if TYPE_CHECKING:
    from cpprb_like._arguments.arrays import Batch
    from cpprb_like.buffers._source import Source
    from cpprb_like.views._items_of_batch import ItemPlan

NEW = 1 / 8  # share of a batch in the mean number of rows


class Piece(NamedTuple):
    """Rows that were drawn and not returned."""

    batch: Batch
    n: int  # how many there are
    counted: Unreturned  # those that rules counted


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
        keywords = options.keywords
        # Rows of a group. All numbers of rows below are numbers of groups.
        self._size = size = source._group_size()
        if most is not None and most % size:
            raise ValueError(f"batch_size: expected a multiple of {size}, the rows of a group")
        self._draw: Callable[[int], Batch] = lambda n: source.sample(n * size, **keywords)
        self._counts, self._fewer = source._counts_draws(), source._fewer
        self._asks_ahead = source._asks_ahead and not self._counts
        self._most = most // size if most else min(self._limits.values())
        self._pieces: list[Piece] = []
        self._mean: float | None = None  # rows of a batch
        self._is_starved = False  # whether the last draw had too few rows that are not used up
        self._is_ended = False
        self._room: dict[str, int] = {}  # places of a batch along each axis
        self._one = threading.RLock()  # one caller at a time
        watch(self._one, EPOCH - 1)  # taken before the turn
        watch(self.turn, EPOCH)

    def end(self) -> None:
        """Forget the rows, as the iterator has ended. Does not wait, as the collector may call."""
        self._is_ended = True
        if self._one.acquire(blocking=False):  # else the caller of ``next`` ends
            try:
                opened.pop(id(self), None)
                self.forget()
            finally:
                self._one.release()

    def void(self) -> None:
        """The source was restored or seeded: forget the rows that were drawn before."""
        super().void()
        self.forget()

    def forget(self, _: int = 0) -> None:
        """Forget the rows that were drawn and not returned; rules may have them drawn again."""
        pieces, self._pieces = self._pieces, []
        for piece in pieces:
            piece.counted.give_back()

    def next(self) -> Batch:
        """The next batch."""
        try:
            with self._one:
                opened[id(self)] = self
                batch = None
                while batch is None:
                    draw = Draw(self.generation, ahead=False)
                    with suppress(DrawCanceledError), self.turn, self.drawing(draw):
                        batch = self.next_ahead()
                return batch
        finally:
            if self._is_ended:
                self.end()

    def next_ahead(self) -> Batch:
        """The next batch, for a caller that is ``drawing`` itself."""
        with self._one, drawing_pieces(self._one, None):
            plan = self._plan
            n, is_full = self._fill()
            taken, kept, left = [], [], n
            changes: list[Callable[[], Any]] = []
            for piece in self._pieces:
                stop = min(left, piece.n)
                left -= stop
                if stop == piece.n:
                    taken.append(piece)
                elif stop == 0:
                    kept.append(piece)
                else:
                    first, rest = plan.split(piece.batch, stop * self._size)
                    *counted, changes = piece.counted.split(stop * self._size)
                    taken.append(Piece(first, stop, counted[0]))
                    kept.append(Piece(rest, piece.n - stop, counted[1]))
            # An error loses no rows but the only one of a batch, as none may have places for it.
            # The pieces are those of ``split``, as the batch is made in the memory of the others.
            at_once([*changes, partial(setattr, self, "_pieces", taken + kept)])
            try:
                # The largest one, which has room for the others, comes first.
                batch = plan.join_pieces([piece.batch for piece in reversed(taken)])
            except Exception:
                if n == 1:
                    self._take_out(taken, kept, None)
                raise
            self._take_out(taken, kept, waiting_batch())
            if is_full:
                self._mean = n if self._mean is None else self._mean + NEW * (n - self._mean)
            # A little more than the places of this batch, and not much less than before.
            for axis in plan.axes if plan.laid.is_packed else ():
                used = int(batch[f"{axis}_offsets"][-1])
                self._room[axis] = max(used + used // 16, self._room.get(axis, 0) * 15 // 16)
            return batch

    def _take_out(self, taken: list[Piece], kept: list[Piece], batch: Unreturned | None) -> None:
        """Take the rows of a batch out. If it waits, their parts go to it; else they count."""
        parts = [part for piece in taken for part in piece.counted.parts]
        changes: list[Callable[[], Any]] = [partial(setattr, self, "_pieces", kept)]
        if batch is not None:
            changes.append(partial(batch.parts.extend, parts))
        else:
            changes += [change for piece in taken for change in piece.counted.returned()]
        at_once(changes)

    def _fill(self) -> tuple[int, bool]:
        """Draw the rows of the next batch: see ``_fit``. There are fewer if the source has few."""
        n, is_full = self._fit()
        most = self._most  # groups that a draw may have
        while not is_full and most:
            more = min(self._rows_to_draw(n), most)
            try:
                self._pieces.append(self._draw_piece(more))
            except NotEnoughDataError:
                if not self._counts:
                    raise
                most = self._fewer(more)
                self._is_starved = not most
                if self._is_starved and not self._pieces:
                    raise
            n, is_full = self._fit(is_last=not most)
        if is_full:
            self._is_starved = False
        return n, is_full

    def _draw_piece(self, n: int) -> Piece:
        counted = Unreturned()
        try:
            with drawing_pieces(self._one, self._room), batch_waits(self._one, counted):
                return Piece(self._draw(n), n, counted)
        except BaseException:  # a mixture may have drawn a part of the rows
            counted.give_back()
            raise

    # ------------------------------------------------------------------ numbers of rows

    def _fit(self, *, is_last: bool = False) -> tuple[int, bool]:
        """How many of the rows are of the next batch, and whether no further one is.

        ``is_last``: no further rows are drawn.
        """
        laid, drawn = self._plan.laid, sum(piece.n for piece in self._pieces)
        is_few = self._mean is not None and 2 * drawn < self._mean
        if not drawn or (is_few and not is_last):
            return drawn, False  # few rows are full seldom: not worth the look
        n, is_full = min(drawn, self._most), drawn >= self._most
        for axis, limit in self._limits.items():
            counts = [laid.counts_in(axis, piece.batch) for piece in self._pieces]
            places = laid.places_of(axis, np.concatenate(counts).reshape(drawn, -1))
            n = min(n, int(places.searchsorted(limit, "right")))
            is_full |= bool(places[-1] >= limit)
        return max(n, 1), is_full

    def _rows_to_draw(self, n: int) -> int:
        """Number of rows to draw, beside n that are there."""
        if self._mean is None or self._is_starved:
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
