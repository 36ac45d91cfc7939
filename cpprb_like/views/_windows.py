"""``Windows``: for each row of a batch, the rows around it in its episode.

A batch is walked once, and all layers read these windows. Not here: the walk along the streams
(``_walker``), and which rows are drawn (``samplers``).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cpprb_like._arguments.arrays import Array, Slots
from cpprb_like._core import FLAG_END, FLAG_TERMINATED, Ring
from cpprb_like.views._stacking import read_stacks

__all__ = ["Windows"]

Walk = tuple[Slots, int, Slots, Slots]  # rows, rows before, counts and lengths: ``Walker.take``


class Windows:
    """The rows around each of n rows of a batch, in its episode.

    A window has at most ``before`` rows before the row itself, and at most ``after`` rows behind
    it. It ends at the ends of the episode, and at the oldest and newest row of the buffer.

    Attributes
    ----------
    slots : ndarray of intp, shape (n,)
        Slots of the rows themselves.
    before, after : int
        Maximum number of rows on each side.
    rows : ndarray of intp, shape (n, before + 1 + after)
        Slots of the rows, oldest first; column ``before`` is ``slots``. Places outside of the
        window repeat its first or last row.
    counts : ndarray of intp, shape (n, 2)
        Number of rows of each window before the row itself, and behind it.
    steps : ndarray of intp, shape (n,)
        Number of rows of each n-step return; 1 without ``NStep``.
    last_fields : frozenset of str
        Fields of the batch that are read from the last row of the n-step return.
    values : dict of ndarray
        Columns of the batch that were read already, by name.
    out : dict of ndarray
        Arrays of the caller for columns of the batch, by name. A layer may write its own columns to
        these arrays and return them.
    """

    __slots__ = (
        "_before", "_ring", "_rows", "after", "before", "counts", "last_fields", "out", "rows",
        "slots", "steps", "values",
    )  # fmt: skip

    def __init__(
        self,
        ring: Ring,
        slots: Slots,
        walk: Walk,
        around: tuple[int, int],
        last_fields: frozenset[str],
        values: dict[str, Array],
        out: dict[str, Array],
    ) -> None:
        rows, before, counts, self.steps = walk
        self._ring = ring
        self._rows, self._before = rows, before  # windows of the walk, which may be wider
        self.slots = slots
        self.before, self.after = around
        self.rows, self.counts = rows, counts
        if rows.shape[1] != self.before + 1 + self.after:
            self.rows = rows[:, before - self.before : before + 1 + self.after]
            self.counts = np.minimum(counts, around)
        self.last_fields = last_fields
        self.values = values
        self.out = out

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def there(self) -> NDArray[np.bool_]:
        """Whether each place of ``rows`` is a row of the window and not a repetition."""
        places = np.arange(-self.before, self.after + 1)
        there: NDArray[np.bool_] = places <= self.counts[:, 1:]
        there &= places >= -self.counts[:, :1]
        return there

    @property
    def ended(self) -> NDArray[np.bool_]:
        """Whether the episode ends at the last row of each window."""
        return self._has_flags(FLAG_END)

    @property
    def terminated(self) -> NDArray[np.bool_]:
        """Whether the episode was terminated at the last row of each window."""
        return self._has_flags(FLAG_TERMINATED)

    def _has_flags(self, flags: int) -> NDArray[np.bool_]:
        found = self._ring.flags_at(np.ascontiguousarray(self.rows[:, -1]))
        has: NDArray[np.bool_] = (found & flags) == flags
        return has

    def read(self, name: str) -> Array:
        """A field of all rows, as it is stored: shape ``(n, before + 1 + after, *shape)``.

        Values outside of the windows are zero, or None for Python objects.
        """
        for column in self._ring.columns:
            if column.name == name:
                return read_stacks(self._ring, column, np.where(self.there, self.rows, -1), 0)
        raise KeyError(f"{name!r} is none of the fields {[one.name for one in self._ring.columns]}")

    def up_to(self, depth: int, *, last: bool, repeat: bool) -> Slots:
        """The slots of the newest rows up to each row, or up to the last one of its n-step return.

        Parameters
        ----------
        depth : int
            Number of rows, at most ``before + 1``.
        last : bool
            Whether the last row of the n-step return is the newest one, in place of the row itself.
        repeat : bool
            Whether slots before the window repeat its first row; otherwise they are -1.

        Returns
        -------
        ndarray of intp, shape (n, depth)
            A fresh dense array, oldest first.
        """
        before, rows = self._before, self._rows
        if last:
            places = (self.steps + (before - depth))[:, np.newaxis] + np.arange(depth)
            found: Slots = rows[np.arange(len(rows))[:, np.newaxis], places]
        else:
            places = np.arange(before + 1 - depth, before + 1)
            found = rows[:, before + 1 - depth : before + 1].copy()
        if not repeat:
            found[places < before - self.counts[:, :1]] = -1
        return found
