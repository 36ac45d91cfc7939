"""``Ruled``: rows of a ring with a mass by what their values say, for draws by any sampler.

A row is drawn in proportion to the sampler's weight times its mass, and never with mass 0. Masses
are kept in a sum tree (``_masses``), so a draw costs the same however few rows have one. Not here:
what says the masses (``_rules``), and conditions on slots (``_where``).
"""

from __future__ import annotations

import math
import time
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from cpprb_like._arguments.arrays import Floats, Slots
from cpprb_like.errors import NotEnoughDataError
from cpprb_like.samplers._masses import Masses, put_by_value
from cpprb_like.samplers._prioritized import new_sum_tree
from cpprb_like.samplers._row_weights import RowWeights
from cpprb_like.samplers._rows import AllRows, Rows
from cpprb_like.samplers._rules import Rules
from cpprb_like.samplers._whole_rows import WholeRows

COUNTED = 1.0  # seconds for which refused draws do not count rows anew
TRIES = 64  # most tries for each drawn row, before all rows with a mass are listed
ROUNDS = 4  # of tries of distinct rows, before all rows with a mass are listed
LEAST = 32  # least rows tried at a time
FEW = 8  # rows for each one that has a mass, above which these are few


def without_masses(weights: Floats, products: Floats) -> Floats:
    """Weights of rows as of now; where another thread has set one to 0, the product by mass."""
    return np.where(weights > 0.0, weights, products)


class RuledRows(Rows):
    """Rows that have a mass, out of ``complete``, over one ring or several.

    A subclass has ``over``, ``has_mass`` and ``with_mass``, which do not look at groups.
    """

    def __init__(self, ring: Any, complete: Rows, rules: Rules) -> None:
        self._ring = ring
        self.complete = complete
        self.rules = rules
        self._draws = -1  # batches of the view when a draw was refused first,
        self._starved = math.inf  # and when that was, by ``time.monotonic``
        self._counted = -math.inf  # when the rows of ``_counts`` were counted
        self._counts = "none", ""  # how many can be drawn, and how many each rule leaves
        self.value: int | None = None  # the number of the value that all these rows have

    @property
    def ring(self) -> Any:
        """The ring, or the rings."""
        return self._ring

    def _now(self) -> Any:
        """The masses of now, over the weights of the last draw."""
        raise NotImplementedError

    def _every(self) -> Slots:
        """The slots of ``complete``."""
        return self.complete.slots()

    def _is_complete(self, slots: Slots) -> NDArray[np.int8]:
        """``complete.tell``."""
        return self.complete.tell(slots)

    def has_mass(self, slots: Slots) -> NDArray[np.int8]:
        """State of each slot, all in use: 1 if its row is complete and has a mass, else 0 or -1."""
        raise NotImplementedError

    def with_mass(self) -> Slots:
        """The slots of these rows."""
        raise NotImplementedError

    def of_value(self, value: int) -> RuledRows:
        """The rows of a value that has a share, as of the last draw of all."""
        raise NotImplementedError

    def trees(self, values: list[int]) -> list[Any]:
        """What draws the rows of each of these values, as of the last draw of all."""
        raise NotImplementedError

    def tell(self, slots: Slots) -> NDArray[np.int8]:
        """See ``Rows.tell``: of a row that stands for a group, all rows must be complete."""
        states = self.has_mass(slots)
        there = np.flatnonzero(states == 1)
        if self.rules.group is not None and len(there):
            states[there[~self._is_whole(slots[there])]] = 0
        return states

    def slots(self) -> Slots:
        """The slots of all of these rows. Cost: a look at all masses."""
        found = self.with_mass()
        return found if self.rules.group is None else found[self._is_whole(found)]

    def _is_whole(self, leaders: Slots) -> NDArray[np.bool_]:
        members: Slots = self.rules.group.members(leaders)
        states = self._is_complete(members.ravel()).reshape(members.shape)
        whole: NDArray[np.bool_] = (states == 1).all(axis=1)
        return whole

    def stats(self) -> dict[str, float]:
        """What the rules count of the rows of now, and how many rows are left to be drawn."""
        self.has_mass(np.empty(0, np.intp))  # they are told of all rows
        found = self.rules.stats()
        if self.rules.counts:
            left = self.count if len(self._ring) else 0
            found["rows_left"] = left * self.rules.group_size
        return found

    @property
    def cuts_only(self) -> bool:
        return bool(self._now().cuts_only)

    @property
    def count(self) -> int:
        """Number of these rows. Cost: a look at all masses."""
        return len(self.slots())

    def weigh(self, rows: Any) -> float:
        """The sum of weights times masses. Cost: that of ``slots`` where windows matter."""
        return float(rows.total if self.is_exact(rows) else rows.get(self.slots()).sum())

    def draw(self, n: int, rng: np.random.Generator) -> Slots:
        """Draw n slots in proportion to their masses, with replacement.

        Raises ``NotEnoughDataError`` if no row has a mass.
        """
        rows, found = self._now(), [np.empty(0, np.intp)]
        if not rows.total:
            self.refuse()
        if self.is_exact(rows):
            drawn: Slots = rows.draw(n, rng, True, False, False)[0]
            return drawn
        missing, tries = n, TRIES * max(n, LEAST)
        # Rows that a window allows are tried first, where each mass is 1; then rows with a mass.
        has_windows = not isinstance(self.complete, AllRows)
        of_complete = has_windows and rows.cuts_only and FEW * rows.total > len(self._ring)
        while missing and tries > 0:
            wanted = max(2 * missing, LEAST)
            tries -= wanted
            if of_complete:
                slots = self.complete.draw(wanted, rng)
            else:
                slots = rows.draw(wanted, rng, True, False, False)[0]
            found.append(slots[self.tell(slots) == 1][:missing])
            missing -= len(found[-1])
        if missing:
            every = self.slots()
            shares = rows.get(every)
            if not shares.any():
                self.refuse()
            found.append(rng.choice(every, missing, p=shares / shares.sum()))
        return np.concatenate(found)

    def draw_distinct(self, n: int, rng: np.random.Generator) -> Slots:
        """Draw n different slots, one after another in proportion to their masses.

        Raises ``NotEnoughDataError`` if there are fewer rows.
        """
        rows, found = self._now(), np.empty(0, np.intp)
        passed = found
        for _ in range(ROUNDS):
            wanted = rows.count(max(n, 3 * len(passed))) - len(passed)
            if len(found) == n or wanted <= 0:
                break
            slots = rows.draw(wanted, rng, False, False, False, passed)[0]
            passed = np.concatenate([passed, slots])
            found = np.concatenate([found, slots[self.tell(slots) == 1]])[:n]
        if len(found) < n:
            every = self.slots() if rows.count(len(passed) + 1) > len(passed) else found
            every = np.setdiff1d(every, found)
            shares = rows.get(every)
            every, shares = every[shares > 0], shares[shares > 0]
            missing = n - len(found)
            if len(every) < missing:
                self.refuse(n)
            # The first of exponential times with the masses as rates: distinct draws.
            times = rng.exponential(size=len(every)) / shares
            found = np.concatenate([found, every[np.argsort(times)[:missing]]])
        return found

    def check_distinct(self, n: int, tries: np.random.Generator) -> None:
        """Raise ``NotEnoughDataError`` if there are fewer than n rows; ``tries`` is for trials."""
        rows = self._now()
        if not self.is_exact(rows):
            self.draw_distinct(n, tries)
        elif rows.count(n) < n:
            self.refuse(n)

    def refuse(self, distinct: int | None = None) -> NoReturn:
        """Raise ``NotEnoughDataError``: no row, or fewer than ``distinct``, can be drawn."""
        is_grouped = self.rules.group is not None
        what = "groups" if is_grouped else "rows"
        wanted = "" if distinct is None else f" {distinct} distinct {what}"
        if self.value is not None:
            wanted += f" of {self.rules.share.name_of(self.value)}"
        now = time.monotonic()
        if self._draws != self.rules.draws:  # a batch was drawn since
            self._draws, self._starved, self._counted = self.rules.draws, now, -math.inf
        since = f", for {now - self._starved:.1f} seconds now" if self._starved < now - 0.1 else ""
        if now > self._counted + COUNTED:  # a look at all rows
            slots = self.slots() if len(self._ring) else np.empty(0, np.intp)
            every = self._every() if len(self._ring) else slots
            found = f"{len(slots)} groups" if is_grouped else str(len(slots) or "none")
            self._counts = found, self.rules.tell_left(every, len(slots))
            self._counted = now
        elif self._counted < now - 0.1:
            since += f" (counted {now - self._counted:.1f} s ago)"
        found, by_rule = self._counts
        raise NotEnoughDataError(
            f"cannot sample{wanted}: the buffer holds {len(self._ring)} rows, of which "
            f"{found} can be drawn{since}: {by_rule}"
        )


class Ruled(RuledRows):
    """The rows of a ring that have a mass, out of ``complete``.

    ``number`` is that of the ring for the rules. ``whole`` reads the rows, by default those of a
    ring of this process. When another process has edited rows, all masses are computed.
    """

    def __init__(
        self,
        ring: Any,
        complete: Rows,
        rules: Rules,
        number: int = 0,
        whole: WholeRows | None = None,
    ) -> None:
        super().__init__(ring, complete, rules)
        self._number = number
        self._whole = WholeRows(ring) if whole is None else whole
        self._seen = self._whole.edits(), rules.begun
        self._follows = -1  # of the rows of another process, at the last call of ``over``
        # Whether each row with a mass can be drawn, unless its n-step window is incomplete.
        self._is_of_all = isinstance(complete, AllRows)
        self._masses: Masses | None = None
        self._by_value: list[Masses] = []  # of the rows of each value that has a share
        # By slot, 1 more than the number of the value in whose tree the row has a mass, or 0.
        self._known = np.zeros(0, np.int8)

    def over(self, weights: RowWeights | None) -> Masses:
        """The masses of now, times these weights of the rows."""
        rules, masses = self.rules, self._masses
        if (
            masses is not None
            and masses.weights is weights
            and rules.is_still
            and self._follows == self._whole.follows()
            and self._seen[1] == rules.begun
            and masses.stale() is None
        ):
            return masses
        with rules.lock:
            rules.begin_call()
            masses = self._masses
            if masses is None or masses.weights is not weights:
                masses = self._masses = self._no_masses(weights)
                self._by_value = []
            follows = self._whole.follows()
            # Edits since the rows were followed are of the next time: masses do not change amid a
            # draw, which is repeated if its rows have changed.
            edits = self._seen[0] if follows == self._follows else self._whole.edits()
            seen = edits, rules.begun
            if seen != self._seen:
                self._forget(masses, seen)
            # What other rings changed comes first: it is about the rows before those that are new.
            self._move(rules.waiting(self._number))
            # Once: rows that change meanwhile are of the next draw. A read tells if they matter.
            while (stale := masses.stale()) is not None:
                slots, lost, moment = stale
                after = self._ring.handle_base + self._ring.span + moment[0]
                rules.until = after << rules.bits | self._number
                rows = rules.number(slots, self._number)
                found = rules.take_in(rows, rules.number(lost, self._number), self._whole)
                if self._put(slots, found, lost, moment):
                    break
                rules.is_sound = False  # they were told of rows that a clear has removed
                rules.begin_call()
                self._forget(masses, (self._whole.edits(), rules.begun))
            rules.take_back(self._number, self._ring)
            self._move(rules.changed(self._number))
            self._follows = follows
            rules.is_sound = True
            return masses

    def _forget(self, masses: Masses, seen: Any) -> None:
        """Have all masses computed anew."""
        masses.forget()
        self._by_value = []  # a draw of another thread may have the old ones
        self._seen = seen

    def _no_masses(self, weights: RowWeights | None) -> Masses:
        return Masses(self._ring, new_sum_tree(self._ring.capacity), weights)

    def _move(self, moved: list[tuple[Slots, Floats]]) -> None:
        """Set the masses of rows by their numbers."""
        for rows, masses in moved:
            self._put(rows >> self.rules.bits, masses, rows[:0], None)

    def _put(self, slots: Slots, masses: Floats, lost: Slots, moment: Any) -> bool:
        """See ``Masses.put``: of all rows, and of the rows of each value that has a share."""
        assert self._masses is not None
        rules, is_put = self.rules, self._masses.put(slots, masses, moment)
        if is_put and rules.share is not None:
            if not len(self._known):
                self._known = np.zeros(self._ring.capacity, np.int8)
            by_value, of_rows, number = self._trees(), rules.share.of_rows, self._number
            where = by_value, self._known, of_rows, rules.bits, number
            put_by_value(*where, slots, masses, lost, moment)
        return is_put

    def _trees(self) -> list[Masses]:
        """The masses of the rows of each value that has a share, as of the last ``over``."""
        assert self._masses is not None
        found = self._by_value
        while len(found) < self.rules.share.n_values:
            found.append(self._no_masses(self._masses.weights))
        return found

    def masses_of(self, value: int) -> Masses:
        """The masses of the rows of a value that has a share, as of the last ``over``."""
        return self._trees()[value]

    def trees(self, values: list[int]) -> list[Masses]:
        """See ``RuledRows.trees``."""
        found = self._trees()
        return [found[value] for value in values]

    def of_value(self, value: int) -> RuledRows:
        """See ``RuledRows.of_value``."""
        return RuledOfValue(self, value)

    def _now(self) -> Masses:
        masses = self._masses
        return self.over(None if masses is None else masses.weights)

    def has_mass(self, slots: Slots) -> NDArray[np.int8]:
        """State of each slot, all in use: 1 if its row has a mass, else 0 or -1."""
        states = self.complete.tell(slots)
        states[(states == 1) & (self._now().at(slots) == 0)] = 0
        return states

    @property
    def count(self) -> int:
        """Number of these rows. Cost: a look at all masses where windows matter."""
        masses = self._now()
        is_exact = self._is_of_all and not self._ring.lookahead
        return masses.n_rows if is_exact else len(self.slots())

    def masses(self, slots: Slots) -> Floats:
        """The masses of rows; of a group that of the row that stands for it, else 0."""
        return self._now().at(slots)

    def with_mass(self) -> Slots:
        """The slots of the complete rows with a mass, ascending. Cost: a look at all masses."""
        masses = self._now()
        found: Slots = np.flatnonzero(masses.at(np.arange(self._ring.stored)))
        if self._is_of_all or FEW * len(found) < self._ring.stored:
            there: Slots = found[self.complete.tell(found) == 1]
        else:
            found = self.complete.slots()
            there = found[masses.at(found) > 0]
        return there

    def is_exact(self, rows: Masses) -> bool:
        """See ``Rows.is_exact``: a row whose n-step window is incomplete weighs nothing."""
        is_grouped = rows.weights is None or self.rules.group is not None
        waits = self._ring.lookahead and is_grouped
        return self._is_of_all and not waits and rows.total > 0.0

    def corrected(self, rows: Masses, slots: Slots, weights: Floats) -> Floats:
        """See ``Rows.corrected``: priorities, and not the masses of rules, which are no bias."""
        assert rows.weights is not None
        rows.weights.drawn = rows.drawn
        return weights if rows.cuts_only else without_masses(rows.weights.get(slots), weights)


class RuledOfValue(Ruled):
    """The rows of a ring that have a value that has a share, as of the last ``over`` of all."""

    def __init__(self, every: Ruled, value: int) -> None:
        super().__init__(every.ring, every.complete, every.rules)
        self._all, self.value, self._of = every, value, value

    def over(self, weights: RowWeights | None) -> Masses:  # noqa: ARG002 (those of all)
        return self._all.masses_of(self._of)

    def _now(self) -> Masses:
        return self._all.masses_of(self._of)
