"""Weights and starts over several rings, with the same methods as over one ring.

A ring is drawn first, by its mass; then a row within the ring. The mass of a ring is its total
weight, or its number of rows. So a batch has the distribution of one buffer with all rows. Each row
of all rings has a number: see ``Rings``. Not here: the rows of one ring (``samplers``), and uniform
draws from several rings (``Followers.draw_each``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate, pairwise
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from cpprb_like._arguments.arrays import Floats, Slots
from cpprb_like._core import Ring
from cpprb_like.errors import NotEnoughDataError
from cpprb_like.processes._followers import Followers
from cpprb_like.processes._shards import Reader
from cpprb_like.samplers import Prioritized, Sampler, Uniform
from cpprb_like.samplers._masses import Masses
from cpprb_like.samplers._row_weights import RowWeights, sync_together, update_together
from cpprb_like.samplers._rows import Rows
from cpprb_like.samplers._ruled import Ruled, RuledRows, without_masses
from cpprb_like.samplers._rules import Rules
from cpprb_like.samplers._starts import Starts, distinct_of, draw_starts
from cpprb_like.samplers._tree_draws import TreeDraws, cut, draw_together
from cpprb_like.samplers._whole_rows import WholeRows

RowNumbers = NDArray[np.intp]
Rng = np.random.Generator

LARGEST = 2.0**1000  # greatest weight before the first ring


class StartsTogether(Rows):
    """The rows of several rings at which the items of a view can start: see ``Starts``.

    ``find(number)`` returns the ``Starts`` of a ring that exists.
    """

    def __init__(self, ring: Followers, find: Callable[[int], Starts]) -> None:
        self._ring = ring
        self.of = cache(find)  # ``of(number)`` returns the same ``Starts`` at each call
        self._rings: tuple[tuple[int, Ring], ...] = ()  # usable rings of the last call
        self._found: list[tuple[int, Starts]] = []  # their starts

    @property
    def ring(self) -> Followers:
        """The rings."""
        return self._ring

    def _parts(self) -> list[tuple[int, Starts]]:
        """The starts of each usable ring, by its number."""
        rings = self.ring.usable_rings
        if self._rings is not rings:
            self._found = [(number, self.of(number)) for number, _ in rings]
            self._rings = rings
        return self._found

    def in_ring(self, number: int, ring: Ring) -> Starts:  # noqa: ARG002
        """See ``AllRows.in_ring``."""
        return self.of(number)

    @property
    def count(self) -> int:
        """The number of all starts."""
        return sum(starts.count for _, starts in self._parts())

    def tell(self, rows: RowNumbers) -> NDArray[np.int8]:
        found = np.empty(len(rows), np.int8)
        for number, places, slots in self.ring.split(rows):
            found[places] = self.of(number).tell(slots)
        return found

    def slots(self) -> RowNumbers:
        """All starts: see ``Starts.slots``."""
        found = [self.ring.name(number, starts.slots()) for number, starts in self._parts()]
        return np.concatenate([np.empty(0, np.intp), *found])

    def weigh(self, rows: WeightsTogether) -> float:
        """The sum of the masses of all starts: see ``Starts.weigh``."""
        return sum(self.of(number).weigh(one) for number, one in rows.parts())

    def draw(self, n: int, rng: Rng) -> RowNumbers:
        """Draw n starts with equal probability: see ``Starts.draw``."""
        drawn = draw_starts(self._parts(), self.ring.bits, n, rng)
        if drawn is None:
            self.refuse()
        return drawn

    def draw_distinct(self, n: int, rng: Rng) -> RowNumbers:
        """Draw n distinct starts: see ``Starts.draw_distinct``."""
        return distinct_of(self, n, rng)

    def refuse(self, distinct: int | None = None) -> NoReturn:
        """Raise ``NotEnoughDataError``: see ``Starts.refuse``."""
        parts = self._parts()
        for _, starts in parts:
            if distinct is None or len(parts) == 1:
                starts.refuse(distinct)
        wanted = "" if distinct is None else f" {distinct} distinct rows"
        raise NotEnoughDataError(
            f"cannot sample{wanted}: of {len(self.ring)} rows {self.count} can be drawn"
        )


class TreesTogether:
    """Draws by the trees of several rings: ``parts`` gives those of now.

    ``indexes`` are handles.
    """

    def __init__(self, ring: Followers) -> None:
        self.ring = ring

    def parts(self) -> Sequence[tuple[int, TreeDraws]]:
        """The rings with a positive total: number, and what draws their rows."""
        raise NotImplementedError

    @property
    def total(self) -> float:
        """The sum of all weights."""
        return sum(one.total for _, one in self.parts())

    @property
    def least(self) -> float:
        """The smallest positive weight of a row; infinity without one."""
        return min((one.least for _, one in self.parts()), default=math.inf)

    def draw(
        self,
        n: int,
        rng: Rng,
        replace: bool,
        stratified: bool,
        as_handles: bool,  # noqa: ARG002 (indexes are always handles)
        without: RowNumbers | None = None,
    ) -> tuple[RowNumbers, NDArray[np.int64], Floats, float, float]:
        """As ``RowWeights.draw``, with numbers of rows in place of slots."""
        if replace:
            bits = self.ring.bits
            rows, masses, least, total = draw_together(self.parts(), bits, n, rng, stratified)
        else:
            rows, masses = self._draw_distinct(n, rng, without)
            least, total = self.least, self.total
        return rows, self.ring.handles(rows), masses, least, total

    def _draw_distinct(
        self, n: int, rng: Rng, without: RowNumbers | None
    ) -> tuple[RowNumbers, Floats]:
        """Distinct rows, drawn one after another by mass among the remaining rows.

        Each ring draws by itself, as a process in time: the rate of the next row is the remaining
        mass of the ring. The first n rows of all rings in time are distributed as draws from all.
        """
        passed = {} if without is None else {own[0]: own[2] for own in self.ring.split(without)}
        wanted = n + sum(map(len, passed.values()))
        found = self.count(wanted) - wanted + n
        if found < n or not self.parts():
            raise NotEnoughDataError(
                f"cannot draw {n} distinct rows: {found} have a weight above zero"
            )
        drawn, masses, times = [np.empty(0, np.intp)], [np.empty(0)], [np.empty(0)]
        for number, one in self.parts():
            own = passed.get(number)
            skipped = 0 if own is None else len(own)
            count = one.count(skipped + n) - skipped
            slots, _, weights, _, _ = one.draw(count, rng, False, False, True, own)
            total = one.total - (0.0 if own is None else float(one.get(own).sum()))
            left = np.maximum(total - weights.cumsum() + weights, weights)
            drawn.append(self.ring.name(number, slots))
            masses.append(weights)
            times.append((rng.exponential(size=count) / left).cumsum())
        order = np.argsort(np.concatenate(times), kind="stable")[:n]
        return np.concatenate(drawn)[order], np.concatenate(masses)[order]

    def check_draw(self, n: int, replace: bool) -> None:
        """Raise ``NotEnoughDataError`` where ``draw`` would, without a draw."""
        if replace and not self.parts():
            raise NotEnoughDataError("cannot draw: there are no rows, or all weights are zero")
        if not replace and self.count(n) < n:
            raise NotEnoughDataError(f"cannot draw {n} distinct rows: there are {self.count(n)}")

    def count(self, n: int) -> int:
        """The number of rows with a positive weight, at most n."""
        return min(n, sum(one.count(n) for _, one in self.parts()))

    def get(self, rows: RowNumbers) -> Floats:
        """The masses of rows."""
        parts = dict(self.parts())
        found = np.zeros(len(rows))
        for number, places, slots in self.ring.split(rows):
            if number in parts:
                found[places] = parts[number].get(slots)
        return found

    def indexes(self, rows: RowNumbers, as_handles: bool) -> NDArray[np.int64]:  # noqa: ARG002
        """The handles of rows, for ``update``."""
        return self.ring.handles(rows)


class WeightsTogether(TreesTogether):
    """The weights of the rows of several rings, as ``RowWeights`` for one ring.

    New rows get the greatest weight of all rings.
    """

    def __init__(self, ring: Followers) -> None:
        super().__init__(ring)
        self.members: dict[int, RowWeights] = {}  # weights of each ring that exists: see ``put``
        self.largest = LARGEST  # greatest weight that a row may have
        self.given = self.late = 0  # priorities passed to ``update``; those whose rows were gone
        self._floor = 0.0, 0.0  # least priority of new rows, and its weight

    def put(self, number: int, weights: RowWeights) -> None:
        """Add the weights of the ring with this number."""
        self.members[number] = weights
        self.largest = min(self.largest, weights.largest / self.ring.width)

    def raise_largest(self, priority: float, weight: float) -> None:
        """Raise the priority of new rows to this one, of this weight, if it is the greatest."""
        if priority > self._floor[0]:
            self._floor = priority, weight
            self._sync()

    def _sync(self) -> None:
        sync_together(list(self.members.values()), *self._floor)

    def parts(self) -> list[tuple[int, RowWeights]]:
        """See ``TreesTogether.parts``."""
        self._sync()
        found = []
        for number, _ in self.ring.usable_rings:
            one = self.members[number]
            if one.total > 0.0:
                found.append((number, one))
        return found

    @property
    def largest_priority(self) -> float:
        """The greatest priority of any row so far, 1.0 at first."""
        self._sync()
        found = (one.largest_priority for one in self.members.values())
        return max(found, default=max(1.0, self._floor[0]))

    def save(self) -> None:
        """None: a copy of a sampler of several rings begins without priorities."""

    def save_each(self) -> dict[int, Any]:
        """The weights of each ring, by number."""
        self._sync()
        return {number: one.save() for number, one in self.members.items()}

    def update(
        self,
        indexes: NDArray[np.int64],
        priorities: Floats,
        weights: Floats,
        as_handles: bool,  # noqa: ARG002 (indexes are always handles)
    ) -> None:
        """Set the weights of rows; the last of duplicates counts. Rows that are gone are skipped.

        Raises ``IndexError``, and changes nothing, for an index that never named a row.
        """
        late = update_together(self.members, self.ring.bits, indexes, priorities, weights)
        self.given += len(indexes)
        self.late += late


class MassesTogether(TreesTogether):
    """Weights times masses of the rows of several rings, as ``Masses`` for one ring.

    ``of(number)`` returns the rows with a mass of a ring. ``weights`` are those of rows, or None.
    """

    def __init__(
        self, ring: Followers, of: Callable[[int], Ruled], weights: WeightsTogether | None
    ) -> None:
        super().__init__(ring)
        self.of, self.weights = of, weights

    @property
    def cuts_only(self) -> bool:
        """Whether each mass has been 0 or 1 so far."""
        return all(one.cuts_only for _, one in self.parts())

    def draw_parts(
        self,
        trees: Sequence[MassesTogether],
        ends: list[int],
        n: int,
        rng: Rng,
        stratified: bool,
    ) -> tuple[RowNumbers, Floats, Floats] | None:
        """See ``TreeDraws.draw_parts``."""
        widths = [
            stop - start if one.total > 0.0 else 0
            for one, (start, stop) in zip(trees, pairwise(ends), strict=True)
        ]
        own = [0, *accumulate(widths)]
        if not own[-1]:
            return None
        counts = np.diff(cut(n, own, rng.random())).tolist()
        found = [(np.empty(0, np.intp), np.empty(0), np.empty(0))]
        for one, count, width in zip(trees, counts, widths, strict=True):
            if count:
                rows, _, masses, _, total = one.draw(count, rng, True, stratified, False)
                found.append((rows, masses, np.full(count, total / (width / own[-1]))))
        rows, masses, totals = map(np.concatenate, zip(*found, strict=True))
        return rows, masses, totals

    def parts(self) -> list[tuple[int, Masses]]:
        known: dict[int, RowWeights] = {} if self.weights is None else self.weights.members
        if self.weights is not None:
            self.weights._sync()
        rings = [(number, self.of(number)) for number, _ in self.ring.usable_rings]
        for is_last in (False, True):
            try:
                for number, ruled in rings:
                    ruled.over(known.get(number))
                break
            except ValueError:
                # ``Share`` may know more values than it takes, of rows of later rings that are
                # gone. Rules begin anew after an error, and then know what is there.
                if is_last or rings[0][1].rules.share is None:
                    raise
        # Once more: what one ring has may change masses of the rows of others.
        found = [(number, ruled.over(known.get(number))) for number, ruled in rings]
        return [(number, one) for number, one in found if one.total > 0.0]


class WholeRowsOf(WholeRows):
    """The rows of a shard, which another process writes."""

    def __init__(self, reader: Reader, ring: Followers) -> None:
        super().__init__(reader.ring)
        self._reader, self._rings = reader, ring

    def follows(self) -> int:
        return self._rings.follows

    def edits(self) -> object:
        return self._reader.edits()

    def bound(self) -> int:
        return self._reader.follower.bound


class RuledTogether(RuledRows):
    """The rows of several rings that have a mass: see ``Ruled``. Rows that are too old are not.

    ``find(number)`` returns the rows of a ring that exists.
    """

    def __init__(
        self, ring: Followers, complete: Rows, rules: Rules, find: Callable[[int], Ruled]
    ) -> None:
        super().__init__(ring, complete, rules)
        self._find = find
        self._found: dict[int, Ruled] = {}  # rows of each ring that was usable so far
        self._weights: WeightsTogether | None = None

    @property
    def _has_edited_groups(self) -> bool:
        """Whether rows of groups may be in a ring that is being edited."""
        is_any_edited = len(self._found) > len(self.ring.usable_rings)
        return is_any_edited and self.rules.group is not None

    def of(self, number: int) -> Ruled:
        """The rows of a ring; the same object at each call."""
        if number not in self._found:
            self._found[number] = self._find(number)
        return self._found[number]

    def over(self, weights: WeightsTogether | None) -> MassesTogether:
        """The masses of now, times these weights of the rows."""
        self._weights = weights
        return MassesTogether(self.ring, self.of, weights)

    def _now(self) -> MassesTogether:
        return self.over(self._weights)

    def has_mass(self, rows: RowNumbers) -> NDArray[np.int8]:
        """See ``RuledRows.has_mass``."""
        self._sync()
        return self._tell(rows, lambda ruled, slots: ruled.has_mass(slots))

    def _tell(
        self, rows: RowNumbers, tell: Callable[[Ruled, Slots], NDArray[np.int8]]
    ) -> NDArray[np.int8]:
        """What ``tell`` says of the slots of each ring; 0 for rows that are too old.

        Also 0 for rows of rings that are being edited: a row of a group may be in one.
        """
        found = np.zeros(len(rows), np.int8)
        usable = {number for number, _ in self.ring.usable_rings}
        for number, places, slots in self.ring.split(rows):
            if number not in usable:
                continue
            states = tell(self.of(number), slots)
            found[places] = np.where(self._is_newer(number, slots), states, 0)
        return found

    def _is_newer(self, number: int, slots: Slots) -> NDArray[np.bool_]:
        """Whether rows are not older than ``Followers.limits``."""
        limit = (self.ring.limits or {}).get(number, 0)
        newer: NDArray[np.bool_] = self.of(number).ring.row_ids(slots) >= limit
        return newer

    def _every(self) -> RowNumbers:
        usable = self.ring.usable_rings
        found = [self.ring.name(one, self.of(one).complete.slots()) for one, _ in usable]
        return np.concatenate([np.empty(0, np.intp), *found])

    def _is_complete(self, rows: RowNumbers) -> NDArray[np.int8]:
        return self._tell(rows, lambda ruled, slots: ruled.complete.tell(slots))

    def _sync(self) -> None:
        """Have all rings follow: new rows get the greatest weight of all rings."""
        self._now().parts()

    def of_value(self, value: int) -> RuledRows:
        """See ``RuledRows.of_value``."""

        def find(number: int) -> Any:
            return self.of(number).of_value(value)

        together = RuledTogether(self.ring, self.complete, self.rules, find)
        together.value = value
        return together

    def trees(self, values: list[int]) -> list[Any]:
        """See ``RuledRows.trees``."""
        return [self.of_value(value).over(self._weights) for value in values]

    def with_mass(self) -> RowNumbers:
        """The numbers of the complete rows that have a mass."""
        self._sync()
        found = [np.empty(0, np.intp)]
        for number, _ in self.ring.usable_rings:
            slots = self.of(number).with_mass()
            found.append(self.ring.name(number, slots[self._is_newer(number, slots)]))
        return np.concatenate(found)

    @property
    def count(self) -> int:
        """See ``Ruled.count``."""
        if self._has_edited_groups or self.ring.limits is not None:
            return len(self.slots())
        self._sync()
        return sum(self.of(number).count for number, _ in self.ring.usable_rings)

    def is_exact(self, rows: MassesTogether) -> bool:
        """See ``Rows.is_exact``."""
        if self._has_edited_groups or self.ring.limits is not None:
            return False
        parts = rows.parts()
        return bool(parts) and all(self.of(number).is_exact(one) for number, one in parts)

    def corrected(self, rows: MassesTogether, slots: RowNumbers, weights: Floats) -> Floats:
        """See ``Rows.corrected``."""
        assert rows.weights is not None
        return weights if rows.cuts_only else without_masses(rows.weights.get(slots), weights)


def check_sampler(sampler: Sampler) -> None:
    """Raise ``TypeError`` unless this sampler can draw rows of several processes.

    These rows have no common order of age. Subclasses may depend on one, so they are refused too.
    """
    if type(sampler) not in (Uniform, Prioritized):
        raise TypeError(
            "sampler: a SharedReplay draws with Uniform or Prioritized, and with no subclass of "
            f"these; got {sampler!r}"
        )
