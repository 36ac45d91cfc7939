"""``Sampler``, the base class of samplers: they decide which rows are drawn.

A sampler holds no rows and does not read their values. Random numbers come from the buffer's
generator, which is passed in. Not here: the samplers themselves, one module each; reading the drawn
rows (``buffers._replay``); and the test of the contract of samplers (``testing``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from cpprb_like._arguments.arrays import Floats, Slots
from cpprb_like._arguments.checks import as_int
from cpprb_like._core import Ring
from cpprb_like._fields.schema import ColumnSpec
from cpprb_like._rows.row_handles import handles
from cpprb_like.samplers._rows import Rows

__all__ = ["Extra", "FileMemory", "Sampler", "Slots", "reject", "with_handles"]

Extra = dict[str, NDArray[Any]]
FileMemory = Callable[[str, Mapping[str, int]], tuple[dict[str, Floats], bool]]

TRIES = 256  # most tries for each start
SPARE_TRIES = 4096


class Sampler:
    """Base class of samplers, which decide which rows of a buffer are drawn.

    A user-defined sampler is a subclass with a method ``draw``. The other methods are hooks that do
    nothing by default. ``testing.check_sampler`` tests the contract below on buffers of many kinds.

    Attributes
    ----------
    keeps_rows : bool
        Whether the sampler has state for each row, such as a priority, that must be saved with the
        rows. A class attribute. Default False.
    maps_rows : bool
        Whether ``open_in_file`` keeps this state in the file. A class attribute. Default False.
    has_priorities : bool
        Whether rows have priorities. Such samplers derive from ``PrioritySampler`` and have its
        methods. A class attribute. Default False.

    Notes
    -----
    A sampler belongs to one buffer. It may have state, such as a position; it is pickled and copied
    with its buffer. A draw that raises leaves the state unchanged.

    Threads may add rows during a draw, and may draw at the same time. If a drawn row was
    overwritten before it was read, or if the draw raised ``ValueError`` or ``IndexError`` because
    rows were cleared or overwritten, the buffer calls ``draw`` again. For a sampler with state this
    is another draw.

    Error messages of the buffer contain ``repr(sampler)``.

    Examples
    --------
    >>> from cpprb_like import NotEnoughDataError, ReplayBuffer
    >>> from cpprb_like.samplers import Sampler
    >>> class Newest(Sampler):
    ...     def draw(self, ring, n, rng, *, replace):
    ...         among = ring.newest_slots(2 if replace else max(2, n))
    ...         if not replace and n > len(among):
    ...             raise NotEnoughDataError(f"there are only {len(among)} rows")
    ...         slots = rng.choice(among, n, replace=replace)
    ...         return slots, {"age": (ring.written - 1 - slots) % ring.capacity}
    >>> rb = ReplayBuffer(5, {"x": {"shape": (), "dtype": "i8"}}, sampler=Newest(), seed=0)
    >>> rb.add(x=[0, 1, 2, 3, 4, 5])
    0
    >>> batch = rb.sample(100)
    >>> set(batch["x"].tolist()), set(batch["age"].tolist())
    ({4, 5}, {0, 1})
    """

    keeps_rows: ClassVar[bool] = False
    maps_rows: ClassVar[bool] = False
    _is_uniform: ClassVar[bool] = False  # of the class itself: each draw is uniform over all rows
    has_priorities: ClassVar[bool] = False
    _weighs_by_batch = False  # whether ``weights`` are relative to the others of their draw

    @property
    def columns(self) -> Mapping[str, ColumnSpec]:
        """Further columns of draws by name: dtype, and shape of the entry of a row.

        Dtypes have the byte order of the machine, as in batches. Buffers, views and learners
        include these columns in ``columns`` and refuse fields with their names. A mixture compares
        the columns of its sources before it draws. By default there are none. A draw may return
        undeclared columns; they are unknown until the draw returns.
        """
        return {}

    def _check_fields(self, names: Iterable[str]) -> None:
        """Raise ``ValueError`` if fields have names of further columns of this sampler.

        With priorities the name ``priorities``, a keyword of ``add``, is taken too.
        """
        columns: object = self.columns
        if not isinstance(columns, Mapping):
            raise TypeError(f"{self!r}: expected columns by name, got {columns!r}")
        own = {*columns, "priorities"} if self.has_priorities else columns
        taken = [name for name in names if name in own]
        if taken:
            raise ValueError(f"env_dict: {taken} are names of columns that {self!r} has for itself")

    def nbytes_for(self, capacity: int) -> int:  # noqa: ARG002 (for subclasses)
        """Bytes to allocate for a ring of this capacity: part of ``rb.nbytes``."""
        return 0

    def open(self, ring: Ring) -> None:
        """Attach a ring, from which all further draws come.

        Called when the buffer is created, and again when a pickled buffer is loaded, so a sampler
        need not pickle the ring. To refuse the ring, raise ``ValueError``.
        """

    def _leave(self) -> None:
        """Drop the ring until the next ``open``, when an empty buffer gets a new ring."""

    def open_in_file(
        self,
        ring: Ring,
        memory: FileMemory,  # noqa: ARG002 (for subclasses)
    ) -> None:
        """As ``open``, for a buffer in a file, which can also hold the state of the sampler by row.

        ``memory(what, sizes)`` returns arrays of float64, by their names in ``sizes``, and whether
        they hold the previous values. They do if ``what`` is unchanged. By default ``memory`` is
        not used.

        A forked child calls it again, with copies of these arrays, if the parent writes to the
        file. If it raises there, each draw of the child raises a ``RuntimeError`` with its error.
        """
        self.open(ring)

    def move(self, slots: Slots, ring: Ring) -> None:
        """Move the state by row, as the rows of a saved buffer get other slots in a new ring.

        Called before ``open`` if a buffer was loaded with another capacity, or without some of its
        rows. ``slots[k]`` is the old slot of the row that is now in slot k, -1 if it is absent.
        """

    def draw(
        self,
        ring: Ring,
        n: int,
        rng: np.random.Generator,
        *,
        replace: bool,
    ) -> tuple[Slots, Extra]:
        """Draw rows; every sampler has this method.

        Parameters
        ----------
        ring : Ring
            The ring buffer, read-only. ``ring.written`` rows were written since the last ``clear``;
            ``ring.clears`` counts the clears. The newest row is in slot
            ``(ring.written - 1) % ring.capacity``, the row before it in the slot before, modulo the
            capacity. ``len(ring)`` rows can be drawn, at least 1. They are in the slots below
            ``ring.stored``: in all of these if ``ring.absent`` is 0. If not, they are in
            ``ring.present_slots()``, and ``ring.absent_at(slots)`` is true for the other slots.
        n : int
            Rows to draw, at least 0.
        rng : numpy.random.Generator
            The only source of randomness.
        replace : bool
            Whether a row may be drawn more than once.

        Returns
        -------
        slots : ndarray of intp, shape (n,)
            C-contiguous and fresh: no later draw writes to it.
        extra : dict
            Further columns of the batch, such as importance-sampling weights: fresh arrays of
            length n. Their names differ from the fields of the buffer.

        Raises
        ------
        NotEnoughDataError
            ``replace`` is false and fewer than ``n`` rows can be drawn.
        ValueError
            ``replace`` is false and this sampler would draw a row twice.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method draw")

    def check_draw(self, n: int, *, replace: bool) -> None:
        """Raise the errors of ``draw`` without a draw: no random number is used.

        A mixture checks all sources before it draws from the first one. So a batch that cannot be
        drawn leaves all generators unchanged. By default nothing is raised, and the mixture calls
        ``draw``.
        """

    def draw_state(self) -> dict[str, Any]:
        """A fresh dict of the attributes that a draw changes, such as a position, by name.

        If batches drawn ahead wait during a save, as with ``batches(prefetch=2)``, the save has
        the attributes from before the draw of the first of these batches. The default is an empty
        dict.
        """
        return {}

    def draw_starts(
        self, starts: Rows, n: int, rng: np.random.Generator, *, replace: bool
    ) -> tuple[Slots, Extra]:
        """Draw rows for a view that can begin only at some rows (starts), such as one of sequences.

        By default ``draw`` is called for twice as many rows each time, until one draw has ``n``
        starts. The distribution is that of ``draw``, conditional on starts. All starts come from
        one draw, so further columns have one scale for any normalisation in ``draw``.

        Parameters
        ----------
        starts : Rows
            The rows that may be drawn. ``starts.tell(slots)`` is 1 for starts. ``starts.slots()``
            returns all starts. ``starts.draw(n, rng)`` draws n, each with the same probability or
            in proportion to the masses of the view, and ``starts.draw_distinct(n, rng)`` n
            different ones.
        n, rng, replace
            As for ``draw``.

        Returns
        -------
        slots, extra
            As ``draw``.

        Raises
        ------
        NotEnoughDataError
            There are no starts or too few, or ``draw`` does not return one.
        ValueError
            As ``draw``.
        """
        return reject(self, starts, n, rng, replace)

    def row_weights(self, slots: Slots) -> Floats | None:  # noqa: ARG002 (for subclasses)
        """Weights of rows: each row is drawn in proportion to its weight. By default None.

        ``slots`` are in use, intp of shape (n,); the weights are float64 of shape (n,).
        """
        return None

    def row_priorities(self, slots: Slots) -> Floats | None:  # noqa: ARG002 (for subclasses)
        """The priorities of rows, as ``row_weights``; None if unknown.

        Priorities are the given values, up to rounding.
        """
        return None

    def _stats(self) -> dict[str, float]:
        """Further entries of ``stats`` of the source: numbers by name, by default none."""
        return {}

    def check_rows(self, ring: Ring, slots: Slots) -> None:
        """Raise ``AssertionError`` unless the state by row is sound: part of ``rb.check()``.

        ``slots`` has the slots of all rows that hold a step, also of rows that cannot be drawn yet.
        No other thread writes during the call.
        """


def as_drawn(sampler: Sampler, hook: str, drawn: Any) -> tuple[Slots, Extra]:
    """What ``draw`` or ``draw_starts`` returned; ``TypeError`` unless slots and columns."""
    try:
        slots, extra = drawn
        found = f"{slots.dtype} of shape {slots.shape}, {type(extra).__name__}"
    except (TypeError, ValueError, AttributeError):
        slots, extra, found = None, None, type(drawn).__name__
    if (
        not isinstance(slots, np.ndarray)
        or (slots.dtype, slots.ndim) != (np.intp, 1)
        or not isinstance(extra, Mapping)
    ):
        raise TypeError(
            f"{sampler!r}.{hook}: expected slots, intp of shape (n,), and a dict of arrays, "
            f"got {found}"
        )
    for name, values in extra.items():
        if not isinstance(values, np.ndarray) or values.ndim == 0:
            raise TypeError(
                f"{sampler!r}.{hook}: column {name!r}: expected an array of shape (n, ...), "
                f"got {type(values).__name__}"
            )
    return np.ascontiguousarray(slots), dict(extra)


def nbytes_of(sampler: Sampler, capacity: int) -> int:
    """The checked result of ``nbytes_for``."""
    return as_int(f"{sampler!r}.nbytes_for", sampler.nbytes_for(capacity), 0)


def weights_of(sampler: Sampler, slots: Slots) -> Floats | None:
    """The checked result of ``row_weights``."""
    return _by_row(sampler, "row_weights", sampler.row_weights(slots), len(slots))


def priorities_of(sampler: Sampler, slots: Slots) -> Floats | None:
    """The checked result of ``row_priorities``."""
    return _by_row(sampler, "row_priorities", sampler.row_priorities(slots), len(slots))


def _by_row(sampler: Sampler, hook: str, values: Any, n: int) -> Floats | None:
    if values is None or (isinstance(values, np.ndarray) and values.shape == (n,)):
        return values
    found = f"shape {values.shape}" if isinstance(values, np.ndarray) else repr(values)
    raise TypeError(f"{sampler!r}.{hook}: expected float64 of shape ({n},) or None, got {found}")


def expect_cuts(sampler: Sampler, starts: Rows) -> None:
    """Raise ``ValueError`` if starts have masses, for a sampler that draws them all alike."""
    if not starts.cuts_only:
        raise ValueError(
            f"view: expected masses of 0 and 1, as of Among, and no Share, with {sampler!r}, which "
            "draws rows in no proportion; Uniform and prioritized samplers do"
        )


def reject(
    sampler: Sampler,
    starts: Rows,
    n: int,
    rng: np.random.Generator,
    replace: bool,
    **options: Any,
) -> tuple[Slots, Extra]:
    """Draw n starts with ``draw`` by rejection sampling: see ``Sampler.draw_starts``."""
    ring = starts.ring
    expect_cuts(sampler, starts)
    if not replace and n > len(ring):
        starts.refuse(n)
    tries, spare = n, TRIES * n + SPARE_TRIES
    while True:
        among = tries if replace else min(tries, len(ring))
        drawn = sampler.draw(ring, among, rng, replace=replace, **options)
        slots, extra = as_drawn(sampler, "draw", drawn)
        if {len(slots), *map(len, extra.values())} != {among}:
            raise ValueError(
                f"{sampler!r} drew {len(slots)} slots, expected {among}, and as many "
                "values of each column"
            )
        if len(slots) and not 0 <= slots.min() <= slots.max() < ring.stored:
            raise IndexError(
                f"{sampler!r}.draw: slots: expected 0 to {ring.stored - 1}, "
                f"got {slots.min()} to {slots.max()}"
            )
        places = np.flatnonzero(starts.tell(slots) == 1)
        if len(places) >= n:
            break
        spare -= tries
        if not replace and tries >= len(ring):
            starts.refuse(n)
        if replace and spare < 0:
            starts.refuse()
        tries = max(2 * tries, SPARE_TRIES // 8) if replace else 2 * tries
    if replace and len(places) > n:  # random ones, as a stratified draw has an order
        places = np.sort(rng.choice(places, n, replace=False))
    places = places[:n]
    return slots[places], {name: values[places] for name, values in extra.items()}


def with_handles(sampler: Sampler, ring: Any, slots: Slots, extra: Extra) -> Extra:
    """The further columns of a draw, and handles of the drawn rows as ``indexes``."""
    if "indexes" in extra:
        raise ValueError(f"indexes: {sampler!r} gives indexes of its own")
    return {**extra, "indexes": handles(ring, slots)}
