"""Proportional prioritized experience replay (PER; Schaul et al., 2016).

The priority of a row is most often its absolute TD error. A sampler of this module keeps one for
each row, in its own memory. Not here: the sum trees (``_segment_tree``), how they follow the ring
(``_row_weights``), rank-based prioritization (``_rank_based``), and the buffer whose methods users
call (``buffers._prioritized``).
"""

from __future__ import annotations

import math
import numbers
import sys
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from cpprb_like._arguments.arrays import Floats
from cpprb_like._arguments.checks import as_int, as_ints, expect
from cpprb_like._arguments.foreign_arrays import read_array
from cpprb_like._core import Beside, Ring
from cpprb_like._fields.schema import ColumnSpec
from cpprb_like._files.arenas import allocate_floats
from cpprb_like._machine import machine_memory
from cpprb_like._segment_tree import MinTree, SumTree, min_tree_size, tree_size
from cpprb_like.samplers._base import Extra, FileMemory, Sampler, Slots, reject
from cpprb_like.samplers._priority_powers import (
    as_indexes,
    as_priorities,
    importance,
    least_of,
    weigh,
)
from cpprb_like.samplers._row_weights import RowWeights, notes_size
from cpprb_like.samplers._rows import Rows
from cpprb_like.samplers._tree_draws import TreeDraws
from cpprb_like.schedules import Schedule, check, value_at

__all__ = [
    "ByPriority",
    "Prioritized",
    "PrioritySampler",
    "new_sum_tree",
    "read_indexes",
    "read_priorities",
]

MOST_SLOTS = sys.maxsize // 16  # most slots of a tree: its bytes are an intp
TRIES = 64  # most tries for each start before the set of all starts is used
TRIES_PER_ROW = 1 / 8  # the same for each row, if that is more: making the set reads all rows
SPARE_TRIES = 256
FEW_STARTS = 4  # above so many tries for each start, draws leave out rows that were no starts


class PrioritySampler(Sampler):
    """Base class of prioritized samplers, for ``PrioritizedReplayBuffer(sampler=...)``.

    Attributes
    ----------
    check_for_update : bool
        Whether ``indexes`` are handles of rows and not slots, so that ``update_priorities`` skips
        rows that were overwritten after their draw.
    weights_dtype : dtype
        Dtype of the column ``weights``.
    """

    keeps_rows = True
    has_priorities = True
    check_for_update: bool = False
    weights_dtype: np.dtype[Any] = np.dtype(np.float32)

    @property
    def columns(self) -> Mapping[str, ColumnSpec]:
        """See ``Sampler.columns``: ``weights``, of ``weights_dtype``, and ``indexes``, int64."""
        return {
            "weights": ColumnSpec(self.weights_dtype, ()),
            "indexes": ColumnSpec(np.dtype(np.int64), ()),
        }

    def draw(
        self,
        ring: Ring,
        n: int,
        rng: np.random.Generator,
        *,
        replace: bool,
        beta: float | Schedule | None = None,
    ) -> tuple[Slots, Extra]:
        """See ``Sampler.draw``. The extra columns include ``weights`` and ``indexes``."""
        raise NotImplementedError(f"{type(self).__name__} has no method draw")

    def check_draw(self, n: int, *, replace: bool, beta: float | Schedule | None = None) -> None:
        """See ``Sampler.check_draw``; ``beta`` as for ``draw``."""

    def draw_starts(
        self,
        starts: Rows,
        n: int,
        rng: np.random.Generator,
        *,
        replace: bool,
        beta: float | Schedule | None = None,
    ) -> tuple[Slots, Extra]:
        """See ``Sampler.draw_starts``. The extra columns are as for ``draw``.

        The weights are divided by the greatest weight of the batch.
        """
        slots, extra = reject(self, starts, n, rng, replace, beta=beta)
        weights = extra.get("weights")
        if weights is not None and len(weights) and weights.max() > 0:
            extra["weights"] = weights / weights.max()
        return slots, extra

    def read_priorities(self, priorities: ArrayLike) -> Floats:
        """Priorities as a dense 1-d array; ``TypeError`` or ``ValueError`` if they are invalid."""
        return read_priorities(priorities)

    def prepare(self, priorities: ArrayLike) -> Beside:
        """Convert the priorities of new rows for ``add``, before it writes a row.

        Parameters
        ----------
        priorities : array_like
            The argument of ``add``.

        Returns
        -------
        Beside
            Object that takes over the priorities after the write of the rows. By default it calls
            ``set_new`` then.

        Raises
        ------
        TypeError, ValueError
            As ``read_priorities``.
        """
        values: Any = self.read_priorities(priorities)
        if not isinstance(values, np.ndarray):
            raise TypeError(f"{self!r}.read_priorities: expected an array, got {values!r}")

        def publish(first: int, clears: int) -> None:
            self.set_new(first, clears, values)

        return Beside(len(values), publish)

    def set_new(self, first: int, clears: int, priorities: Floats) -> None:
        """Set the priorities of rows that were just written, from row id ``first`` on.

        The method must not fail: ``read_priorities`` has checked the values. If ``ring.clears`` is
        no longer ``clears``, the rows were cleared. If a signal handler raised during the call,
        such as for Ctrl-C, the same rows get a second call. So no row lacks its priority.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method set_new")

    def update_priorities(self, indexes: ArrayLike, priorities: ArrayLike) -> None:
        """Set the priorities of rows; ``indexes`` is the column ``indexes`` of a batch."""
        raise NotImplementedError(f"{type(self).__name__} has no method update_priorities")

    def get_max_priority(self) -> float:
        """The priority that new rows get."""
        raise NotImplementedError(f"{type(self).__name__} has no method get_max_priority")


def read_priorities(priorities: ArrayLike) -> Floats:
    """Priorities as a fresh dense 1-d array: numbers of shape (), (n,) or (n, 1).

    Raises ``TypeError`` if they are not real numbers, ``ValueError`` if they have another shape, or
    one of them is negative, infinite or NaN.
    """
    common = as_priorities(priorities)
    if common is not None:
        return common
    given = _column("priorities", priorities, "fiu", "numbers")
    with np.errstate(over="ignore"):
        values = np.array(given.reshape(-1), np.float64)
    if values.size and not (values.min() >= 0.0 and values.max() < math.inf):  # also false for NaN
        wrong = np.flatnonzero(~((values >= 0.0) & (values < math.inf)))[0]
        raise ValueError(
            f"priorities[{wrong}]: expected a finite number of at least 0, got {values[wrong]}"
        )
    return values


def read_indexes(indexes: ArrayLike, n: int | None = None) -> NDArray[np.int64]:
    """Indexes of rows as a dense 1-d array: integers, or whole floats, of shape (), (n,) or (n, 1).

    Raises ``TypeError`` if they are not integers, ``ValueError`` if their shape is another or their
    number is not ``n``, ``IndexError`` if one is negative or exceeds int64.
    """
    common = None if n is None else as_indexes(indexes, n)
    if common is not None:
        return common
    given = _column("indexes", indexes, "iu", "integers")
    if n is not None and given.size != n:
        raise ValueError(f"expected one priority for each index, got {n} for {given.size}")
    found = np.require(given.reshape(-1), np.int64, ["C", "A"])
    if found.size and found.min() < 0:  # unsigned numbers that no int64 holds are negative, too
        wrong = np.flatnonzero(found < 0)[0]
        expected = "at least 0" if given.dtype.kind == "i" else f"at most {np.iinfo(np.int64).max}"
        raise IndexError(f"indexes[{wrong}]: expected {expected}, got {given.reshape(-1)[wrong]}")
    return found


class ByPriority(PrioritySampler):
    """Base class of ``Prioritized`` and ``RankBased``: all but the step from priority to weight.

    A row is drawn with probability ``P(i) = weight(i) / sum of weights``. The subclasses document
    the parameters; ``alpha`` and ``beta`` are checked here. A subclass makes the ``RowWeights`` of
    a ring in ``_keep(ring, mapped)``, and converts priorities for them in ``_weigh(priorities)``.
    """

    maps_rows = True
    as_masses = False  # whether ``probabilities`` are weights, not divided by their sum

    def __init_subclass__(cls, **options: Any) -> None:
        """Use the Python ``prepare`` if a subclass has hooks for new priorities.

        The compiled ``prepare`` calls no hooks.
        """
        super().__init_subclass__(**options)
        maker: Any = next(one for one in cls.__mro__ if "prepare" in vars(one))
        if (cls.set_new, cls.read_priorities) != (maker.set_new, maker.read_priorities):
            cls.prepare = PrioritySampler.prepare  # type: ignore[method-assign]

    def __init__(
        self,
        alpha: float,
        beta: float | Schedule,
        *,
        check_for_update: bool,
        stratified: bool,
        probabilities: bool,
        weights_dtype: DTypeLike,
    ) -> None:
        self.alpha = _number("alpha", alpha)
        check("beta", beta, 0)
        self.beta = beta
        self.check_for_update = bool(check_for_update)
        self.stratified = bool(stratified)
        self.probabilities = bool(probabilities)
        self.weights_dtype = read_weights_dtype(weights_dtype)
        self.draws = 0
        self._rows: RowWeights | None = None
        self._saved: dict[str, Any] | None = None

    @property
    def columns(self) -> Mapping[str, ColumnSpec]:
        """See ``PrioritySampler.columns``; and ``probabilities``, float64, if requested."""
        if not self.probabilities:
            return super().columns
        return {**super().columns, "probabilities": ColumnSpec(np.dtype(np.float64), ())}

    # ------------------------------------------------------------------ memory

    def _keep(self, ring: Ring, mapped: Mapping[str, Floats]) -> RowWeights:
        """The weights of the rows of a ring, in ``mapped`` memory or on the heap."""
        raise NotImplementedError

    def _mapped(self, capacity: int) -> tuple[str, dict[str, int]]:
        """Description of the weights, which a file must match, and sizes of the arrays by name."""
        return f"{type(self).__name__}", {"weights": tree_size(capacity)}

    def _weighs_all(self) -> bool:
        """Whether each row that can be drawn weighs more than 0, even with priority 0."""
        return False

    def _weigh(self, priorities: Floats) -> Floats:
        """Arguments of ``RowWeights`` for these priorities; ``ValueError`` if too large."""
        raise NotImplementedError

    def open(self, ring: Ring) -> None:
        """Attach a ring, and allocate a weight for each of its slots.

        A pickled or copied sampler keeps its priorities with the copy of its buffer, and starts
        without priorities with an empty buffer.

        Raises ``ValueError`` if the sampler has another ring or priorities for the rows of another
        ring, or if its parameters do not fit a ring of this capacity.
        """
        self._open(ring, {})

    def _leave(self) -> None:
        """See ``Sampler._leave``: the memory of the weights is freed."""
        self._rows = None

    def open_together(self, rows: Any) -> None:
        """Attach several rings. ``rows`` has the methods of ``RowWeights`` for all of them.

        ``rows`` calls ``weights_of(ring)`` for each ring. ``indexes`` become handles.
        """
        self._expect_none()
        self.check_for_update = True
        self._saved = None
        self._rows = rows

    def weights_of(self, ring: Ring) -> RowWeights:
        """Fresh memory for the weights of the rows of a ring; ``ValueError`` if they do not fit."""
        return self._keep(ring, {})

    def open_in_file(self, ring: Ring, memory: FileMemory) -> None:
        """See ``Sampler.open_in_file``: priorities and their maximum are in the file."""
        self._expect_none()
        what, sizes = self._mapped(ring.capacity)
        mapped, there = memory(what, sizes | {"notes": notes_size(ring)})
        self._open(ring, mapped, there)

    def _open(self, ring: Ring, mapped: Mapping[str, Floats], there: bool = False) -> None:
        self._expect_none()
        rows = self._keep(ring, mapped)
        if self._saved is not None and not there:
            rows.restore(self._saved)
        if mapped:
            rows.keep_in(mapped["notes"], there, self._weighs_all())
        self._saved = None
        self._rows = rows

    def _expect_none(self) -> None:
        """Raise ``ValueError`` if the sampler has a ring."""
        if self._rows is not None:
            raise ValueError(f"{self!r} belongs to another buffer; make one for each")

    def move(self, slots: Slots, ring: Ring) -> None:  # noqa: ARG002 (weights go by row id)
        """See ``Sampler.move``: weights go by row id."""
        if self._saved is not None:
            self._saved = self._saved | {"capacity": None}

    def __getstate__(self) -> dict[str, Any]:
        saved = self._saved if self._rows is None else self.rows.save()
        return self.__dict__ | {"_rows": None, "_saved": saved}

    def __setstate__(self, state: dict[str, Any]) -> None:
        _number("alpha", state["alpha"])
        check("beta", state["beta"], 0)
        as_int("draws", state["draws"], 0)
        for name in ("check_for_update", "stratified", "probabilities"):
            if type(state[name]) is not bool:
                raise TypeError(f"{name}: expected True or False, got {state[name]!r}")
        self.__dict__.update(state, weights_dtype=read_weights_dtype(state["weights_dtype"]))

    @property
    def rows(self) -> RowWeights:
        """The weights of the rows; with several rings the argument of ``open_together``."""
        if self._rows is None:
            raise RuntimeError(f"{self!r} belongs to no buffer yet")
        return self._rows

    # ------------------------------------------------------------------ drawing

    def draw(
        self,
        ring: Ring,
        n: int,
        rng: np.random.Generator,
        *,
        replace: bool,
        beta: float | Schedule | None = None,
    ) -> tuple[Slots, Extra]:
        """See ``Sampler.draw``. ``beta`` replaces the value of the sampler."""
        exponent = self._exponent(beta)
        rows = self.rows
        if rows.ring is not ring:
            self._expect_none()
        slots, indexes, weights, least, total = rows.draw(
            n, rng, replace, self.stratified, self.check_for_update
        )
        unit = self._unit(weights, least)
        return slots, self._extra(indexes, weights, unit, exponent, weights, total)

    def _extra(
        self,
        indexes: NDArray[np.int64],
        weights: Floats,
        unit: float,
        exponent: float,
        masses: Floats,
        total: float | Floats,
    ) -> Extra:
        """The further columns of a draw, which it counts; drawn in proportion to ``masses``."""
        single = self.weights_dtype.itemsize == 4
        extra: Extra = {
            "weights": importance(weights, unit, exponent, single),
            "indexes": indexes,
        }
        if self.probabilities:
            extra["probabilities"] = masses if self.as_masses else masses / total
        self.draws += 1
        return extra

    def draw_state(self) -> dict[str, Any]:
        """See ``Sampler.draw_state``: the time of a schedule."""
        return {"draws": self.draws}

    def check_draw(self, n: int, *, replace: bool, beta: float | Schedule | None = None) -> None:
        """Raise the errors of ``draw`` without a draw: no random number is used."""
        self._exponent(beta)
        self.rows.check_draw(n, replace)

    def _exponent(self, beta: float | Schedule | None) -> float:
        """The exponent of importance-sampling weights of a draw; ``beta`` is that of the call."""
        exponent = self.beta if beta is None else beta
        if type(exponent) is float and 0.0 <= exponent < math.inf:  # saves 4 us
            return exponent
        return value_at(exponent, self.draws, "beta", 0)

    def draw_starts(
        self,
        starts: Rows,
        n: int,
        rng: np.random.Generator,
        *,
        replace: bool,
        beta: float | Schedule | None = None,
    ) -> tuple[Slots, Extra]:
        """See ``Sampler.draw_starts``: starts in proportion to their weights.

        Rows are drawn by weight until enough of them are starts. If that takes too many draws, the
        rest is drawn from a list of all starts. Both have the same distribution, and neither
        changes a weight. If starts are few, further draws leave out rows that were not starts.
        Without replacement they leave out all drawn rows: starts come one after another, each in
        proportion to its weight among the remaining starts. The extra columns are ``weights``, 1.0
        for the rarest row of the batch, ``indexes``, and on request ``probabilities`` among the
        starts.
        """
        exponent = self._exponent(beta)
        total: float | Floats
        if not replace and n > len(self.rows.ring):
            starts.refuse(n)
        rows = starts.over(self.rows)
        if starts.is_exact(rows):
            if not replace and rows.count(n) < n:
                starts.refuse(n)
            slots, indexes, masses, _, total = rows.draw(
                n, rng, replace, self.stratified, self.check_for_update
            )
            weights = starts.corrected(rows, slots, masses)
        elif replace and (drawn := starts.draw_parts(rows, n, rng, self.stratified)) is not None:
            slots, masses, total = drawn
            weights = starts.corrected(rows, slots, masses)
            indexes = rows.indexes(slots, self.check_for_update)
        else:
            parts, drawn_parts = starts.parts(rows, n, rng), []
            for part, by, count, _ in parts:
                slots, masses = self._draw_starts(part, by, count, rng, replace)
                drawn_parts.append((slots, masses, part.corrected(by, slots, masses)))
            slots, masses, weights = map(np.concatenate, zip(*drawn_parts, strict=True))
            indexes = rows.indexes(slots, self.check_for_update)
            total = 1.0
            if self.probabilities and not self.as_masses:
                totals = [part.weigh(by) / share for part, by, _, share in parts]
                total = np.repeat(totals, [count for *_, count, _ in parts])
        return slots, self._extra(indexes, weights, least_of(weights), exponent, masses, total)

    def _draw_starts(
        self, starts: Rows, rows: TreeDraws, n: int, rng: np.random.Generator, replace: bool
    ) -> tuple[Slots, Floats]:
        """The starts of ``draw_starts``, of what ``rows`` draws, and their weights there."""
        if starts.is_exact(rows) and (replace or rows.count(n) == n):
            slots, _, weights, _, _ = rows.draw(n, rng, replace, self.stratified, False)
            return slots, weights
        if rows is not self.rows and not rows.total:
            starts.refuse(None if replace else n)
        slots, weights = np.empty(0, np.intp), np.empty(0)
        passed: Slots | None = None  # rows that further draws leave out
        tried = 0
        tries = n
        pay = max(TRIES, int(TRIES_PER_ROW * rows.ring.stored / max(n, 1)))
        while len(slots) < n and tries > 0:
            if passed is not None:
                tries = min(tries, rows.count(len(passed) + tries) - len(passed))
            elif not replace:
                tries = rows.count(tries)
            if tries <= 0:  # below 0: a threshold that rose took the mass of passed rows
                break
            # No strata if only a part of the draw is used: that part has another distribution.
            stratified = self.stratified and replace and not tried
            drawn, _, weight, _, _ = rows.draw(tries, rng, replace, stratified, False, passed)
            is_start = starts.tell(drawn) == 1
            slots = np.concatenate([slots, drawn[is_start]])[:n]
            weights = np.concatenate([weights, weight[is_start]])[:n]
            tried += tries
            if not replace:
                passed = drawn if passed is None else np.concatenate([passed, drawn])
            elif FEW_STARTS * len(slots) < tried:  # else rows of great weight repeat
                others = drawn[~is_start]
                passed = np.unique(others if passed is None else np.concatenate([passed, others]))
            missing = n - len(slots)
            left = SPARE_TRIES + TRIES + pay * len(slots) - tried
            tries = min(left, SPARE_TRIES // 8 + 2 * missing * tried // (len(slots) + 1))
        if len(slots) < n:
            without = None if replace else slots
            more, weight = self._choose(starts, rows, n - len(slots), rng, without)
            slots, weights = np.concatenate([slots, more]), np.concatenate([weights, weight])
        return slots, weights

    def _choose(
        self,
        starts: Rows,
        rows: TreeDraws,
        n: int,
        rng: np.random.Generator,
        without: Slots | None,
    ) -> tuple[Slots, Floats]:
        """Draw n starts out of all; if ``without`` is given, distinct starts that are not in it."""
        among = starts.slots()
        if without is not None:
            among = among[~np.isin(among, without)]
        weights = rows.get(among)
        if without is not None:
            places = np.flatnonzero(weights > 0.0)
            if len(places) < n:
                starts.refuse(n + len(without))
            # The n least of exponential times with the weights as rates: distinct draws.
            times = rng.exponential(size=len(places)) / weights[places]
            first = np.argpartition(times, n - 1)[:n]
            places = places[first[np.argsort(times[first])]]
            return among[places], weights[places]
        sums = weights.cumsum()
        if len(among) == 0 or sums[-1] == 0.0:
            starts.refuse()
        places = np.searchsorted(sums, rng.random(n) * sums[-1], side="right")
        places = np.minimum(places, np.searchsorted(sums, sums[-1]))  # the product may round up
        return among[places], weights[places]

    def row_weights(self, slots: Slots) -> Floats:
        """See ``Sampler.row_weights``."""
        return self.rows.get(slots)

    def _stats(self) -> dict[str, float]:
        """See ``Sampler._stats``: counts of set priorities, and of priorities of lost rows."""
        return {"updates": self.rows.given, "late_updates": self.rows.late}

    def check_rows(self, ring: Ring, slots: Slots) -> None:
        """See ``Sampler.check_rows``: checks weights and their sums."""
        check_weights(self.rows, ring.capacity, slots)
        if self._weighs_all():
            drawn = ring.present_slots()
            wrong = drawn[self.rows.get(drawn) == 0.0]
            expect(not wrong.size, f"weight of slots {wrong[:3].tolist()}", "more than 0", 0.0)

    def _unit(self, weights: Floats, least: float) -> float:  # noqa: ARG002 (for subclasses)
        """Normalizer of the weights: the smallest weight of the buffer, or of the batch."""
        return least

    # ------------------------------------------------------------------ priorities

    def read_priorities(self, priorities: ArrayLike) -> Floats:
        """See ``read_priorities``; also refuses priorities that are too large for this sampler."""
        values = read_priorities(priorities)
        self._weigh(values)
        return values

    def prepare(self, priorities: ArrayLike) -> Beside:
        """See ``PrioritySampler.prepare``: compiled ``add`` writes rows and weights in one step."""
        values = read_priorities(priorities)
        return self.rows.beside(values, self._weigh(values))

    def set_new(self, first: int, clears: int, priorities: Floats) -> None:
        """See ``PrioritySampler.set_new``."""
        self.rows.set_new(first, clears, priorities, self._weigh(priorities))

    def update_priorities(self, indexes: ArrayLike, priorities: ArrayLike) -> None:
        """Set the priorities of rows; see ``PrioritizedReplayBuffer.update_priorities``."""
        values = read_priorities(priorities)
        weights = self._weigh(values)
        self.rows.update(read_indexes(indexes, len(values)), values, weights, self.check_for_update)

    def get_max_priority(self) -> float:
        """The priority that new rows get: the greatest since ``clear``, at least 1.0."""
        return self.rows.largest_priority

    def __repr__(self) -> str:
        return f"{type(self).__name__}(alpha={self.alpha:g}, beta={self.beta})"


class Prioritized(ByPriority):
    """Proportional prioritized experience replay (PER; Schaul et al., 2016).

    Parameters
    ----------
    alpha : float
        Prioritization exponent, at least 0: P(i) is proportional to ``(p_i + eps) ** alpha``, where
        p_i is the priority. 0 is uniform.
    beta : float or schedule
        Importance-sampling exponent, at least 0: 1 corrects fully, 0 not at all. A number above 1
        corrects more than fully, as in cpprb. The time of a schedule is the number of batches drawn
        so far.
    eps : float
        Added to each priority, at least 0, so that rows of TD error 0 are still drawn. With 0, a
        row of priority 0 is never drawn.
    check_for_update : bool
        Whether ``indexes`` are permanent handles, so that ``update_priorities`` skips rows that
        were overwritten after their draw. Handles modulo ``ring.span`` are slots. If false,
        ``indexes`` are slots, as in cpprb, and a priority goes to the row that is now in the slot.
    stratified : bool
        Stratified sampling, which has a lower variance: one row from each of n equal parts of the
        sum of all ``(p_i + eps) ** alpha``. If false, n independent draws.
    weights : {"all", "batch"}
        Normalise importance-sampling weights by their maximum over the buffer (``"all"``) or over
        the batch.
    probabilities : bool
        Add the column ``probabilities``: P(i), float64.
    weights_dtype : {float32, float64}
        Dtype of the column ``weights``. Weights are computed in float64 and rounded once.

    Raises
    ------
    TypeError, ValueError
        A parameter has a wrong type or value; the message names it.

    Notes
    -----
    A batch gets two columns: the importance-sampling ``weights``, shape ``(n,)``, which are
    ``(P(i) / min P) ** -beta``; and ``indexes``, shape ``(n,)`` and int64, for
    ``update_priorities``.

    Without replacement, rows are drawn one after another, each in proportion to its weight among
    the remaining rows. These draws are not stratified.

    Cost: n times the logarithm of the capacity for a draw or an update of n rows, amortised. If
    many rows had the least priority and the last of these got a greater one, the next draw reads
    all rows, a millisecond for a million. ``probabilities`` in a view take up to 1 ns more for each
    stored row; beside ``Among`` less. New rows cost nothing until the next
    draw. Memory: 10 bytes a row. Each float64 sum is recomputed from its parts, so rounding errors
    do not grow.

    Source: Schaul, Quan, Antonoglou and Silver (2016), "Prioritized Experience Replay", sections
    3.3 and 3.4.

    Examples
    --------
    >>> from cpprb_like import PrioritizedReplayBuffer
    >>> from cpprb_like.samplers import Prioritized
    >>> sampler = Prioritized(alpha=1.0, eps=0.0, probabilities=True)
    >>> rb = PrioritizedReplayBuffer(10, {"x": {"shape": ()}}, sampler=sampler, seed=0)
    >>> rb.add(x=[0, 1], priorities=[1.0, 3.0])
    0
    >>> batch = rb.sample(4)
    >>> batch["x"].tolist(), batch["probabilities"].tolist()
    ([0.0, 1.0, 1.0, 1.0], [0.25, 0.75, 0.75, 0.75])
    """

    def __init__(
        self,
        alpha: float = 0.6,
        *,
        beta: float | Schedule = 0.4,
        eps: float = 1e-4,
        check_for_update: bool = True,
        stratified: bool = True,
        weights: Literal["all", "batch"] = "all",
        probabilities: bool = False,
        weights_dtype: DTypeLike = np.float32,
    ) -> None:
        super().__init__(
            alpha,
            beta,
            check_for_update=check_for_update,
            stratified=stratified,
            probabilities=probabilities,
            weights_dtype=weights_dtype,
        )
        self.eps = _number("eps", eps)
        _read_normalizer(weights)
        self.weights = weights

    @property
    def _weighs_by_batch(self) -> bool:  # type: ignore[override]
        return self.weights == "batch"

    def __setstate__(self, state: dict[str, Any]) -> None:
        _number("eps", state["eps"])
        _read_normalizer(state["weights"])
        super().__setstate__(state)

    # ------------------------------------------------------------------ memory

    def nbytes_for(self, capacity: int) -> int:
        """Bytes to allocate for a ring of this capacity."""
        return 8 * (tree_size(capacity) + min_tree_size(capacity))

    def _keep(self, ring: Ring, mapped: Mapping[str, Floats]) -> RowWeights:
        capacity = ring.capacity
        tree = SumTree(memory_of(mapped, "weights", tree_size(capacity)), capacity)
        minima = MinTree(allocate_floats(min_tree_size(capacity)), tree)
        try:
            first = (1.0 + self.eps) ** self.alpha
        except OverflowError:
            first = math.inf
        if not first <= tree.largest:
            raise ValueError(
                f"alpha={self.alpha}, eps={self.eps}: the weight of a new row, "
                f"(1 + eps) ** alpha, must be at most {tree.largest}"
            )
        return RowWeights(ring, tree, minima, first)

    def _mapped(self, capacity: int) -> tuple[str, dict[str, int]]:
        what, sizes = super()._mapped(capacity)
        return f"{what}, alpha={self.alpha!r}, eps={self.eps!r}", sizes

    # ------------------------------------------------------------------ drawing

    def _unit(self, weights: Floats, least: float) -> float:
        return least if self.weights == "all" else least_of(weights)

    def row_priorities(self, slots: Slots) -> Floats | None:
        """See ``Sampler.row_priorities``: computed from the weights; None if ``alpha`` is 0."""
        if self.alpha == 0:
            return None
        with np.errstate(over="ignore", under="ignore"):
            powers = self.rows.get(slots) ** (1 / self.alpha)
        return np.maximum(powers - self.eps, 0.0)

    def probabilities_of(self, slots: Slots) -> Floats:
        """P(i) of the rows in these slots: the probability that one draw returns the row.

        Parameters
        ----------
        slots : ndarray of intp, shape (n,)
            Slots in use.

        Returns
        -------
        ndarray of float64, shape (n,)
        """
        return self.rows.get(slots) / self.rows.total

    # ------------------------------------------------------------------ priorities

    def _weighs_all(self) -> bool:
        return bool(self.eps**self.alpha > 0)

    def _weigh(self, priorities: Floats) -> Floats:
        weights, heaviest = weigh(priorities, self.eps, self.alpha)
        if heaviest > self.rows.largest:
            wrong = int(weights.argmax())
            raise ValueError(
                f"priorities[{wrong}]: {priorities[wrong]} is too large: to the power of "
                f"alpha={self.alpha} it must be at most {self.rows.largest}"
            )
        return weights

    def __repr__(self) -> str:
        return f"{type(self).__name__}(alpha={self.alpha:g}, beta={self.beta}, eps={self.eps:g})"


def new_sum_tree(capacity: int) -> SumTree:
    """A sum tree of weights for the slots 0 to ``capacity - 1``, all zero.

    Parameters
    ----------
    capacity : int
        Number of slots, at least 1. The tree takes 8/7 times 8 bytes for each.

    Returns
    -------
    SumTree

    Raises
    ------
    TypeError, ValueError
        ``capacity`` is not an integer of at least 1, or the bytes of the tree exceed an intp.
    MemoryError
        The machine lacks free memory.

    Examples
    --------
    >>> import numpy as np
    >>> from cpprb_like.samplers import new_sum_tree
    >>> tree = new_sum_tree(4)
    >>> tree.set(np.array([1, 3]), np.array([0.5, 1.5]))
    >>> tree.total, tree.find(np.array([0.4, 0.6])).tolist()
    (2.0, [1, 3])
    """
    capacity = as_int("capacity", capacity, 1, MOST_SLOTS)
    nodes = tree_size(capacity)
    machine_memory.require(8 * nodes, f"a tree of {capacity} weights")
    return SumTree(allocate_floats(nodes), capacity)


def memory_of(mapped: Mapping[str, Floats], name: str, n: int) -> Floats:
    """``n`` numbers: mapped memory of this name, or zeros on the heap."""
    return mapped[name] if mapped else allocate_floats(n)


def read_weights_dtype(dtype: Any) -> np.dtype[Any]:
    """The dtype of weights: float32 or float64, and ``ValueError`` otherwise."""
    try:
        # np.dtype(None) is float64.
        found: np.dtype[Any] = np.dtype(object if dtype is None else dtype)
    except TypeError:
        found = np.dtype(object)
    if found in (np.dtype(np.float32), np.dtype(np.float64)):
        return found
    raise ValueError(f"weights_dtype: expected float32 or float64, got {dtype!r}")


def _read_normalizer(value: object) -> None:
    if not isinstance(value, str) or value not in ("all", "batch"):
        raise ValueError(f"weights: expected 'all' or 'batch', got {value!r}")


def _column(name: str, values: ArrayLike, kinds: str, what: str) -> NDArray[Any]:
    """The values as an array of shape (), (n,) or (n, 1), of a dtype of these kinds."""
    try:
        given = read_array(values)
    except ValueError as error:  # rows of several lengths
        raise ValueError(f"{name}: {error}") from None
    except (BufferError, RuntimeError, TypeError) as error:  # a tensor that NumPy cannot read
        raise TypeError(f"{name}: expected {what}, got {type(values).__name__}: {error}") from error
    if given.size == 0:
        given = given.astype(np.int64)
    if given.dtype.kind == "f" and "f" not in kinds:
        given = as_ints(name, given)
    if given.dtype.kind not in kinds or isinstance(values, np.ma.MaskedArray):
        found = "a masked array" if isinstance(values, np.ma.MaskedArray) else repr(values)
        raise TypeError(f"{name}: expected {what}, got {found}")
    if given.ndim > 2 or (given.ndim == 2 and given.shape[1] != 1):
        raise ValueError(f"{name}: expected shape (n,) or (n, 1), got {given.shape}")
    return given


def _number(name: str, value: Any) -> float:
    """A number of at least 0 as a float; ``TypeError`` for a schedule."""
    is_number = isinstance(value, numbers.Real)
    if not is_number:
        raise TypeError(f"{name}: expected a number, got {value!r}")
    check(name, value, 0)
    return float(value)


def check_weights(rows: RowWeights, capacity: int, slots: Slots) -> None:
    """Raise ``AssertionError`` unless only ``slots``, which hold a step, have weights.

    A fresh tree must have the same sums and find the same slots. Other threads may set priorities
    during the checks, so the state is copied first.
    """
    rows.sync()
    tree, bounds = rows.tree.copy()
    total, least = tree.total, bounds.min
    weights = tree.get(np.arange(capacity, dtype=np.intp))
    holds_step = np.zeros(capacity, np.bool_)
    holds_step[slots] = True
    sound = (weights >= 0.0) & (weights < np.inf) & (holds_step | (weights == 0.0))
    if not sound.all():
        slot = int(np.flatnonzero(~sound)[0])
        right = "a finite number of at least 0" if holds_step[slot] else "0: it holds no step"
        expect(False, f"weight of slot {slot}", right, weights[slot])
    waiting, awaited = rows.waiting()
    ids = f"ids of rows whose weights wait, up to {rows.ring.written - 1}"
    newest = int(waiting.max(initial=0))
    is_known = bool(np.isin(awaited, waiting).all()) and newest <= rows.ring.written
    expect(is_known, ids, awaited, waiting)
    fresh = SumTree(allocate_floats(tree_size(capacity)), capacity)
    minima = MinTree(allocate_floats(min_tree_size(capacity)), fresh)
    fresh.set_range(0, weights)
    expect(total == fresh.total, "sum of all weights", fresh.total, total)
    expect(least == minima.min, "least weight", minima.min, least)
    if total > 0.0:
        targets = np.minimum(np.cumsum(weights) - weights / 2, np.nextafter(total, 0.0))
        expected, found = fresh.find(targets), tree.find(targets)
        wrong = np.flatnonzero(expected != found)
        if wrong.size:
            k = int(wrong[0])
            expect(False, f"slot with {targets[k]} before it", int(expected[k]), int(found[k]))
