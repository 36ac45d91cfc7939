"""Which rows to draw.

A sampler derives from ``Sampler``; it keeps no rows and does not read them.
Randomness comes from the buffer's generator, which is passed in. Not here: what the rows say
(``buffers._replay``), draws by priority, and the test that a sampler keeps its promises
(``testing``).
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from cpprb_like._c.checks import as_int
from cpprb_like._core import Moment, Ring
from cpprb_like.errors import NotEnoughDataError
from cpprb_like.samplers._starts import Starts
from cpprb_like.samplers._uniform_draws import draw_uniform
from cpprb_like.schedules import Schedule, check, value_at

__all__ = [
    "Extra",
    "LegacyUniform",
    "Recency",
    "Reverse",
    "Sampler",
    "Slots",
    "Uniform",
]

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


class Uniform(Sampler):
    """Every row with the same probability, repeatedly or not. Cost proportional to ``n``."""

    def draw(
        self, ring: Ring, n: int, rng: np.random.Generator, *, replace: bool
    ) -> tuple[Slots, Extra]:
        """See ``Sampler.draw``."""
        return draw_uniform(ring, n, rng, replace), {}

    def draw_starts(self, starts: Starts, n: int, rng: np.random.Generator) -> tuple[Slots, Extra]:
        """Rows at which a sequence can start, each with the same probability."""
        return starts.draw(n, rng), {}

    def __repr__(self) -> str:
        return "Uniform()"


class Recency(Sampler):
    """Emphasizing Recent Experience: the more draws of a round are over, the newer the rows.

    In the k-th of ``updates`` draws each of the ``max(N * eta ** (1000 * k / updates), least)``
    newest rows has the same probability, where N is the number of rows that can be drawn. After the
    last of them the round starts over; ``begin`` starts one of another length.

    Parameters
    ----------
    eta : float or schedule
        How fast old rows fall out, above 0 and at most 1, where nothing falls out. The time of a
        schedule is the number of draws made so far, of all rounds.
    updates : int
        Draws of a round, at least 1.
    least : int
        Newest rows that are always drawn from, at least 1; all rows where there are fewer.

    Attributes
    ----------
    eta, updates, least
        As given, ``updates`` also by ``begin``.
    k : int
        Draws made in this round, below ``updates``.
    draws : int
        Draws made in all.

    Raises
    ------
    TypeError, ValueError
        A parameter is of a wrong type or value; the message names it. ``draw`` raises them if a
        schedule gives a number that is not in the range.

    Notes
    -----
    Cost of a draw: as of ``Uniform``; times the logarithm of the rows stored, if there are absent
    rows. Without replacement at least ``n`` newest rows are drawn from. Of threads that draw
    at the same time two may count as one.

    Source: Wang and Ross (2019), "Boosting Soft Actor-Critic: Emphasizing Recent Experience without
    Forgetting the Past". There a round is the updates after one episode, one for each of its steps.

    Examples
    --------
    >>> from cpprb_like import ReplayBuffer
    >>> from cpprb_like.samplers import Recency
    >>> rb = ReplayBuffer(100, {"x": {"shape": ()}}, sampler=Recency(0.996, least=5), seed=0)
    >>> rb.add(x=range(100))
    0
    >>> rb.sampler.begin(updates=2)
    >>> all(x >= 87 for x in rb.sample(1000)["x"])
    True
    >>> all(x >= 95 for x in rb.sample(1000)["x"])
    True
    """

    def __init__(
        self, eta: float | Schedule = 0.996, *, updates: int = 1000, least: int = 5000
    ) -> None:
        check("eta", eta, 0, 1, above=True)
        self.eta = eta
        self.updates = as_int("updates", updates, 1)
        self.least = as_int("least", least, 1)
        self.k = 0
        self.draws = 0

    def __setstate__(self, state: dict[str, Any]) -> None:
        check("eta", state["eta"], 0, 1, above=True)
        as_int("least", state["least"], 1)
        as_int("draws", state["draws"], 0)
        if not 0 <= as_int("k", state["k"], 0) < as_int("updates", state["updates"], 1):
            raise ValueError(f"k: expected less than {state['updates']}, got {state['k']}")
        self.__dict__.update(state)

    def begin(self, updates: int) -> None:
        """Start a round of ``updates`` draws: when an episode ended and so many updates follow.

        Raises ``TypeError`` or ``ValueError`` if it is no integer of at least 1.
        """
        self.updates = as_int("updates", updates, 1)
        self.k = 0

    def draw(
        self, ring: Ring, n: int, rng: np.random.Generator, *, replace: bool
    ) -> tuple[Slots, Extra]:
        """See ``Sampler.draw``."""
        eta = value_at(self.eta, self.draws, "eta", 0, 1, above=True)
        k = self.k + 1
        newest = int(max(len(ring) * eta ** (1000 * k / self.updates), self.least))
        slots = draw_uniform(ring, n, rng, replace, newest if replace else max(newest, n))
        self.k = k % self.updates
        self.draws += 1
        return slots, {}

    def __repr__(self) -> str:
        return f"Recency({self.eta!r}, updates={self.updates}, least={self.least})"


class Reverse(Sampler):
    """Reverse Experience Replay: from the newest row back in time, in steps of ``stride`` rows.

    A draw takes a row, the one ``stride`` rows before it, and so on, around from the oldest row to
    the newest. The next draw starts one row before the start of this one; at the newest row, if it
    would start ``2 * stride`` or more rows behind that, or at a row that is gone. There is nothing
    random in it.

    Parameters
    ----------
    stride : int
        Rows from one row of a batch to the next, at least 1.

    Attributes
    ----------
    stride : int

    Raises
    ------
    TypeError, ValueError
        ``stride`` is no integer of at least 1. ``draw`` raises ``ValueError`` if a row would come
        twice and ``replace`` is false.

    Notes
    -----
    Rows are counted in the order in which they were written: those of a vector environment take
    turns, and episode ends do not matter. In place of an absent row comes the next one before it
    that holds a step.

    Cost: proportional to ``n``; times the logarithm of the rows stored, if there are absent rows.

    Source: Rotinov (2019), "Reverse Experience Replay", with the rule for the start of a draw that
    cpprb's ``ReverseReplayBuffer`` has. That one counts slots and not rows: once its buffer has
    wrapped it starts from other rows than the newest.

    Examples
    --------
    >>> from cpprb_like import ReplayBuffer
    >>> from cpprb_like.samplers import Reverse
    >>> rb = ReplayBuffer(10, {"x": {"shape": (), "dtype": "i8"}}, sampler=Reverse(3))
    >>> rb.add(x=range(10))
    0
    >>> rb.sample(4)["x"].tolist(), rb.sample(4)["x"].tolist()
    ([9, 6, 3, 0], [8, 5, 2, 9])
    """

    def __init__(self, stride: int = 300) -> None:
        self.stride = as_int("stride", stride, 1)
        # Row id where the next draw starts, and the number of clears when that row was there.
        self._start = (-1, 0)

    def __setstate__(self, state: dict[str, Any]) -> None:
        as_int("stride", state["stride"], 1)
        row, clears = state["_start"]
        as_int("row where the next draw starts", row, -1)
        as_int("clears", clears, 0)
        self.__dict__.update(state)

    def draw(
        self,
        ring: Ring,
        n: int,
        rng: np.random.Generator,  # noqa: ARG002 (nothing is random here)
        *,
        replace: bool,
    ) -> tuple[Slots, Extra]:
        """See ``Sampler.draw``."""
        clears, newest = ring.clears, ring.stop - 1
        stored = newest + 1 - ring.first
        if stored <= 0 or len(ring) == 0:  # not the same while other threads clear and add
            raise NotEnoughDataError("cannot sample: the buffer is empty")
        start, seen = self._start
        behind = newest - start
        if seen != clears or not 0 <= behind < min(2 * self.stride, stored):
            start, behind = newest, 0
        ages = (behind + self.stride % stored * np.arange(n, dtype=np.intp)) % stored
        slots = (newest - ages) % ring.capacity
        if ring.absent:
            slots = ring.at_or_before(slots)
        if not replace and len(np.unique(slots)) < n:
            raise self._repeats(ring, n)
        self._start = (start - 1, clears)
        return slots, {}

    def _repeats(self, ring: Ring, n: int) -> ValueError:
        if n > len(ring):
            return NotEnoughDataError(
                f"cannot sample {n} distinct rows: the buffer holds {len(ring)}"
            )
        return ValueError(
            f"cannot sample {n} distinct rows of {len(ring)} in steps of {self.stride}: "
            "some would come twice"
        )

    def __repr__(self) -> str:
        return f"Reverse({self.stride})"


class LegacyUniform(Sampler):
    """Uniform draws by ``np.random.randint`` on NumPy's global state: the slots that cpprb draws.

    For programs that must reproduce old runs bit by bit; it takes no notice of the buffer's own
    generator.
    """

    def draw(
        self,
        ring: Ring,
        n: int,
        rng: np.random.Generator,  # noqa: ARG002
        *,
        replace: bool,
    ) -> tuple[Slots, Extra]:
        """See ``Sampler.draw``."""
        if not replace and n > len(ring):
            raise NotEnoughDataError(
                f"cannot sample {n} distinct rows: the buffer holds {len(ring)}"
            )
        if replace:
            places = np.random.randint(0, len(ring), n)
        else:
            places = np.random.permutation(len(ring))[:n]
        return ring.ordered_at(places), {}

    def __repr__(self) -> str:
        return "LegacyUniform()"
