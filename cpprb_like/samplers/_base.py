"""Which rows to draw: ``Sampler``, the base class of whatever answers that.

A sampler keeps no rows and does not read them. Randomness comes from the buffer's generator, which
is passed in. Not here: the samplers themselves, one module each; what the rows say
(``buffers._replay``); and the test that a sampler keeps its promises (``testing``).
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from cpprb_like._core import Moment, Ring
from cpprb_like.samplers._starts import Starts

__all__ = ["Extra", "Sampler", "Slots"]

Slots = NDArray[np.intp]
Extra = dict[str, NDArray[Any]]


class Sampler:
    """Which rows of a buffer are drawn: the base class of all samplers.

    A sampler of your own derives from it and has a method ``draw``; the other methods are hooks
    that do nothing unless they are overridden. ``testing.check_sampler`` tries each of the promises
    below on buffers of many kinds.

    Attributes
    ----------
    keeps_rows : bool
        Whether it keeps something for each row, such as a priority, that must go with the rows: a
        class attribute, False.

    Notes
    -----
    A sampler belongs to one buffer. It may keep state, such as a position; it is pickled and copied
    with its buffer. A draw that raises leaves the state as it was.

    Threads may add rows during a draw, and may draw at the same time. If a drawn row was
    overwritten before it was read, or if the draw raised ``ValueError`` or ``IndexError`` because
    rows went away, the buffer calls ``draw`` again, and a sampler with state counts that as another
    draw.

    ``repr`` of the sampler stands in the buffer's messages.

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

    def nbytes_for(self, capacity: int) -> int:  # noqa: ARG002 (for subclasses)
        """Bytes that it will allocate for a ring of so many rows, which count with the buffer's."""
        return 0

    def open(self, ring: Ring) -> None:
        """Serve the rows of a ring from now on.

        Called when the buffer is made, and again when a pickled one is loaded, so that the sampler
        need not pickle the ring. A refusal is a ``ValueError``.
        """

    def sync(self) -> None:
        """Take note of the rows there are; called before and after absent rows are added."""

    def forget(self, slots: Slots, moment: Moment) -> None:
        """Take note that the rows in these slots, as they were at ``moment``, are about to go."""

    def draw(
        self,
        ring: Ring,
        n: int,
        rng: np.random.Generator,
        *,
        replace: bool,
    ) -> tuple[Slots, Extra]:
        """Choose rows; every sampler has this method.

        Parameters
        ----------
        ring : Ring
            The rows, to be looked at only. ``ring.written`` of them were written since the last
            ``clear``, ``ring.clears`` counts the clears. The newest row is in slot
            ``(ring.written - 1) % ring.capacity``, the one before in the slot before, around the
            end. ``len(ring)`` rows can be drawn, at least 1; their slots are below ``ring.stored``,
            and all of these unless ``ring.absent`` is above 0: then they are
            ``ring.present_slots()``, and ``ring.absent_at(slots)`` says which are not.
        n : int
            How many, at least 0.
        rng : numpy.random.Generator
            The only source of randomness.
        replace : bool
            Whether a row may come more than once.

        Returns
        -------
        slots : ndarray of intp, shape (n,)
            C-contiguous and fresh: no later draw writes to it.
        extra : dict
            More columns of the batch, such as weights: fresh arrays of length n, under names that
            are no fields of the buffer.

        Raises
        ------
        NotEnoughDataError
            ``n`` distinct rows were asked for and there are fewer.
        ValueError
            The sampler cannot draw so without drawing a row twice.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method draw")

    def draw_starts(
        self,
        starts: Starts,  # noqa: ARG002 (these are for subclasses)
        n: int,  # noqa: ARG002
        rng: np.random.Generator,  # noqa: ARG002
    ) -> tuple[Slots, Extra]:
        """Choose rows at which sequences start, for ``sample_sequences``.

        Parameters
        ----------
        starts : Starts
            The rows at which a sequence can start: ``starts.draw(n, rng)`` gives n of them, each
            with the same probability; ``starts.tell(slots)`` is 1 for those that are starts;
            ``starts.slots()`` are all of them.
        n, rng
            As for ``draw``.

        Returns
        -------
        slots, extra
            As ``draw``, with replacement.

        Raises
        ------
        ValueError
            The sampler cannot draw sequences, as those that do not have this method of their own.
        """
        raise ValueError(
            f"sampler: {self!r} cannot draw sequences; those that can have a method draw_starts"
        )
