"""``Windows``: for each row of a batch, the rows around it in its episode.

A batch is walked once, and all layers read these windows. Not here: the walk along the streams
(``_walker``), and which rows are drawn (``samplers``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cpprb_like._arguments.arrays import Array, Batch, Slots
from cpprb_like._core import FLAG_END, FLAG_TERMINATED
from cpprb_like.samplers._starts import EPISODE, FINAL, FUTURE, RANDOM
from cpprb_like.views._rows import read_fields
from cpprb_like.views._stacking import read_stacks
from cpprb_like.views._taken import Taken

Strategy = Literal["future", "final", "episode", "random"]
# Rows, rows before, counts and lengths: see ``Walker.take``.
WalkedRows = tuple[Slots, int, Slots, Slots]

STRATEGIES = {"future": FUTURE, "final": FINAL, "episode": EPISODE, "random": RANDOM}


class Attempt:
    """One attempt to read a batch, as the layers of a view see it."""

    ring: Any
    moment: Any  # the moment before the draw
    rng: np.random.Generator  # of the buffer
    draws: int  # batches drawn so far
    is_gone: bool  # whether rows were overwritten before a layer had read them

    def others(self, slots: Slots, strategy: int) -> Slots:
        """Draw rows of the same episodes: see ``choose_rows``."""
        raise NotImplementedError

    def steps(self, slots: Slots, names: frozenset[str]) -> Batch:
        """Columns of single steps: see ``Windows.take_steps``."""
        raise NotImplementedError

    def stored(self, slots: Slots, names: frozenset[str]) -> Batch:
        """Fields of any rows, as they were added."""
        return read_fields(self.ring, slots, names)

    def around(self, name: str, slots: Slots) -> Array:
        """A field of rows, shape ``(n, rows)``, of which negative ones are none."""
        ring = self.ring
        for column in ring.columns:
            if column.name == name:
                return read_stacks(ring, column, slots, 0)
        raise KeyError(f"{name!r} is none of the fields {[one.name for one in ring.columns]}")

    def lengths(self, axis: str, slots: Slots) -> NDArray[np.int64]:  # noqa: ARG002
        """Numbers of items of rows: see ``around``."""
        raise KeyError(f"axis {axis!r}: no field has values of any length")

    def read(self, slots: Slots, names: frozenset[str]) -> Batch:
        """Fields of any rows, as they were added; notes if a row was overwritten meanwhile."""
        was_gone, self.is_gone = self.is_gone, True  # holds if the next line raises
        values = self.stored(slots, names)
        self.is_gone = was_gone or not self.ring.holds(self.moment, slots)
        return values


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
    last_fields : frozenset of str
        Fields of the batch that are read from the last row of the n-step return.
    values : dict of ndarray
        Columns of the batch that were read already, by name. Fields that ``fields=`` leaves out are
        missing: ``take(slots, names)`` reads them as they are stored. So are fields with values of
        any length.
    stored : frozenset of str
        Names of ``values`` that are as the rows are stored: no sum, and made by no layer. Empty for
        layers without ``changes``.
    out : dict of ndarray
        Arrays of the caller for columns of the batch, by name. A layer may write its own columns to
        these arrays and return them.
    rng : numpy.random.Generator
        The generator of the buffer, from which all random numbers of layers come.
    draws : int
        Batches drawn so far: the time of a schedule.
    """

    __slots__ = (
        "_attempt", "_taken", "_walk", "after", "before", "draws", "last_fields", "out", "rng",
        "slots", "stored", "values",
    )  # fmt: skip

    def __init__(
        self,
        attempt: Attempt,
        slots: Slots,
        walk: WalkedRows | None,
        around: tuple[int, int],
        last_fields: frozenset[str],
        values: Mapping[str, Array],
        out: Batch,
        taken: Taken | None = None,
        stored: frozenset[str] = frozenset(),
    ) -> None:
        self._attempt = attempt
        self._taken = taken
        self.rng, self.draws = attempt.rng, attempt.draws
        self.slots = slots
        self.before, self.after = around
        self.last_fields = last_fields
        self.values = values
        self.stored = stored
        self.out = out
        self._walk = walk

    def __len__(self) -> int:
        return len(self.slots)

    def _walked(self) -> WalkedRows:
        """The walk of all layers, whose windows may be wider; None is a walk without other rows."""
        if self._walk is None:
            n = len(self.slots)
            counts, steps = np.zeros((n, 2), np.intp), np.ones(n, np.intp)
            self._walk = self.slots.reshape(n, 1), 0, counts, steps
        return self._walk

    @property
    def rows(self) -> Slots:
        """Slots of the rows, shape ``(n, before + 1 + after)``, oldest first.

        Column ``before`` is ``slots``. Places outside of the window repeat its first or last row.
        """
        rows, before, _, _ = self._walked()
        return rows[:, before - self.before : before + 1 + self.after]

    @property
    def counts(self) -> Slots:
        """Number of rows of each window before the row itself, and behind it: shape ``(n, 2)``."""
        rows, _, counts, _ = self._walked()
        if rows.shape[1] == self.before + 1 + self.after:
            return counts
        return np.minimum(counts, (self.before, self.after))

    @property
    def steps(self) -> Slots:
        """Number of rows of each n-step return, shape ``(n,)``; 1 without ``NStep``."""
        return self._walked()[3]

    @property
    def step_rows(self) -> Slots:
        """Slots of the rows of each n-step return, oldest first, of which ``steps`` count."""
        rows, before, _, _ = self._walked()
        return rows[:, before:]

    @property
    def items(self) -> Slots:
        """The number of the item of each row: rows of one sequence have the same number."""
        return np.arange(len(self)) if self._taken is None else self._taken.items

    @property
    def begins(self) -> NDArray[np.bool_] | None:
        """Whether each row begins an item, or an episode within an item; None if all rows do."""
        return None if self._taken is None else self._taken.begins

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
        found = self._attempt.ring.flags_at(np.ascontiguousarray(self.rows[:, -1]))
        has: NDArray[np.bool_] = (found & flags) == flags
        return has

    def read(self, name: str) -> Array:
        """A field of all rows, as it is stored: shape ``(n, before + 1 + after, *shape)``.

        Values outside of the windows are zero, or None for Python objects. Values of any length
        are padded by zeros to the longest: see ``lengths``.
        """
        return self._attempt.around(name, np.where(self.there, self.rows, -1))

    def lengths(self, axis: str) -> NDArray[np.int64]:
        """Lengths of an axis, such as ``"T"``, in all rows: shape ``(n, before + 1 + after)``.

        They are 0 outside of the windows.
        """
        return self._attempt.lengths(axis, np.where(self.there, self.rows, -1))

    def others(self, strategy: Strategy, slots: Slots | None = None) -> Slots:
        """Draw another row for each row, for example one whose goal the row gets.

        Parameters
        ----------
        strategy : {"future", "final", "episode", "random"}
            ``"future"`` draws from the row itself and later rows of its episode, ``"episode"`` from
            all rows of the episode, and ``"random"`` from all rows of the buffer, each with the
            same probability. ``"final"`` is the last row of the episode.
        slots : ndarray of intp, optional
            Rows of the batch, by default all.

        Returns
        -------
        ndarray of intp
            The slots of the other rows, for ``take``. The function that ``fill`` may return draws
            no rows.
        """
        return self._attempt.others(self.slots if slots is None else slots, STRATEGIES[strategy])

    def take(self, slots: Slots, names: Iterable[str]) -> Batch:
        """Fields of any rows, as they are stored, by name.

        Values of any length are padded by zeros, and there is a mask of each axis, such as
        ``T_mask``, as in a batch. If rows were overwritten since the batch was drawn, the view
        draws it again.
        """
        return self._attempt.read(slots, frozenset(names))

    def take_steps(self, slots: Slots, names: Iterable[str]) -> Batch:
        """Fields of any rows, each as a step of its own, as the layers without ``changes`` make it.

        The function that ``fill`` may return does not call this method.
        """
        return self._attempt.steps(slots, frozenset(names))

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
        rows, before, counts, steps = self._walk or self._walked()
        if last:
            places = (steps + (before - depth))[:, np.newaxis] + np.arange(depth)
            found: Slots = rows[np.arange(len(rows))[:, np.newaxis], places]
        else:
            places = np.arange(before + 1 - depth, before + 1)
            found = rows[:, before + 1 - depth : before + 1].copy()
        if not repeat:
            found[places < before - counts[:, :1]] = -1
        return found
