"""``Rules``: the rules of a view, which give rows masses by what they say, over a ring or several.

Masses of several rules are multiplied. A rule may change masses of rows that did not change, such
as those of an older version. Rows have numbers: their slots, or with several rings those of
``Rings``. Not here: the sum tree (``_masses``), draws (``_ruled``), and the rules (``views``).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from cpprb_like._arguments.arrays import Array, Batch, Floats, Slots
from cpprb_like._machine.forks import EPOCH, INNERMOST, watch
from cpprb_like._machine.of_thread import OfThread
from cpprb_like._machine.unreturned import Handles, note_drawn
from cpprb_like._rows.row_handles import find_rows, without_row
from cpprb_like.samplers._whole_rows import RowsChangedError, WholeRows

NOT_RETURNED = "not returned"  # of a state: handles of rows; no rule has this name
MOST_MASS = 1e150  # a sum of weights times masses stays finite
# Of each rule: its name, a function that reads the fields that it follows, and the rule itself.
Parts = Sequence[tuple[str, Callable[[Slots], Batch], Any]]


class Choice:
    """The rows that a draw has chosen, and their handles, as ``names_of`` gave them."""

    def __init__(self) -> None:
        self.rows: Slots = np.empty(0, np.intp)
        self.names: Any = self.rows
        self.names_of: Callable[[Slots], Any] = lambda rows: rows


class Rules:
    """The rules of a view.

    ``lock`` is held while masses are computed. ``turn`` is held from a draw until its rows are
    read, where rules count draws or draw groups; it is taken before any lock of a buffer.
    Rows have numbers below ``numbers``, of which the low ``bits`` are that of their ring.
    """

    def __init__(self, parts: Parts, numbers: int, bits: int = 0) -> None:
        self.parts = parts
        self.bits, self.numbers = bits, numbers
        self._waiting: dict[int, list[tuple[Slots, Floats]]] = {}  # masses that moved, by ring
        # The mass by each rule of each row, if there are several rules.
        self._by_rule = [np.zeros(numbers) for _ in parts] if len(parts) > 1 else []
        self.group: Any = None  # the rule that draws groups
        for name, _, rule in parts:
            if rule.group_size > 1 and self.group is not None:
                raise ValueError(f"{name}: expected one rule that draws groups")
            self.group = rule if rule.group_size > 1 else self.group
        # The rule that gives values of a field their shares of a batch.
        self.share: Any = next((rule for *_, rule in parts if rule.has_shares), None)
        if self.share is not None and self.group is not None:
            raise ValueError("view: expected no rule with shares beside one that draws groups")
        self.relative = [rule for *_, rule in parts if rule.has_reference]
        self._said = [rule for *_, rule in parts if rule.has_said_value]
        self.draws = 0  # batches of the view so far: the time of a schedule of a share
        self.group_size = 1 if self.group is None else self.group.group_size
        # Rules that count draws: a batch then has no row twice.
        self._counting = [rule for *_, rule in parts if defines(rule, "drawn")]
        self._leaving = [rule for *_, rule in parts if defines(rule, "leave")]
        self._moving = [
            (number, name, rule)
            for number, (name, _, rule) in enumerate(parts)
            if defines(rule, "moved")
        ]
        # Rules that are asked which masses moved at each draw.
        self._asked = [rule for *_, rule in self._moving if not rule.moves_with_rows]
        self._has_news = False  # whether rules were told of anything since they were asked
        self.counts = bool(self._counting)
        self.has_stats = any(defines(rule, "stats") for *_, rule in parts)
        self.shape_draws = self.counts or self.group is not None
        # See ``WaitingRows``; of rows that are given back, by ring.
        self.unreturned: dict[Any, Handles] = {}
        self.given_back = deque[Handles]()
        self._back_of: dict[int, list[Handles]] = {}
        self.until = 0  # rows from this handle on are told of later
        self.choices = OfThread[Choice]()  # that of the present turn
        self.is_sound = True  # whether no call of the rules was interrupted
        self.begun = 0  # how often the rules have begun anew
        self.lock, self.turn = threading.RLock(), threading.RLock()
        watch(self.lock, INNERMOST)
        watch(self.turn, EPOCH)

    @property
    def is_still(self) -> bool:
        """Whether masses are those of the last call, unless rows have changed since."""
        is_waiting = self._waiting or self.given_back or self._back_of
        return self.is_sound and not (is_waiting or self._has_news or self._asked)

    def begin_call(self) -> None:
        """Begin to tell the rules of rows: ``is_sound`` is set when that is done.

        After an interrupt meanwhile all rules begin anew, with all rows.
        """
        if not self.is_sound:
            self._waiting.clear()
            for _, _, rule in self.parts:
                rule.begin()
            self.begun += 1
        self.is_sound = False

    def take_in(self, rows: Slots, lost: Slots, whole: WholeRows) -> Floats:
        """The masses of rows that were added or edited; ``lost`` are numbers without a row.

        ``whole`` reads the rows. A row that is being overwritten has mass 0, as if it were lost.
        Masses of other rows may change: see ``changed``.
        """
        if self.group is not None:
            self.group.until = self.until
        slots = rows >> self.bits if self.bits else rows
        parts = whole.parts(slots, lambda places: self._read(rows[places]))
        try:
            part = next(parts, None)
        except RowsChangedError:
            self.is_sound = True  # no rule was told of anything
            raise
        self._leave(lost)
        if self.share is not None:
            self.share.leave(rows)  # values that go with the rows before are not counted
        masses = np.zeros(len(rows))
        while part is not None:
            places, values, gone = part
            if len(gone):
                self._leave(rows[gone])
            own = rows[places]
            if len(own):
                masses[places] = self._masses_of(own, values)
            part = next(parts, None)
        if self.group is not None:
            self._note(rows)
            masses[:] = 0.0  # the masses of groups follow
        return masses

    def _leave(self, lost: Slots) -> None:
        """Tell rules of numbers without a row."""
        for rule in self._leaving:
            rule.leave(lost)
        for by_rule in self._by_rule:
            by_rule[lost] = 0.0

    def number(self, slots: Slots, ring: int) -> Slots:
        """The numbers of the rows of a ring."""
        return slots << self.bits | ring if self.bits else slots

    def _read(self, rows: Slots) -> list[Batch]:
        """What each rule follows of these rows."""
        return [read(rows) for _, read, _ in self.parts]

    def _masses_of(self, rows: Slots, values: list[Batch]) -> Array:
        product: Any = None
        for number, ((name, _, rule), one) in enumerate(zip(self.parts, values, strict=True)):
            masses = as_masses(f"{name}.masses", rule.masses(one, rows), len(rows))
            if self._by_rule:
                self._by_rule[number][rows] = masses
            product = masses if product is None else np.multiply(product, masses, dtype=np.float64)
        check_most(product)
        found: Array = product
        return found

    def waiting(self, ring: int) -> list[tuple[Slots, Floats]]:
        """Rows of a ring, and masses, that changed when rules were told of rows of other rings."""
        return self._waiting.pop(ring, [])

    def changed(self, ring: int) -> list[tuple[Slots, Floats]]:
        """Rows of a ring whose masses have changed although they were not edited, and masses."""
        self._has_news = False
        for number, name, rule in self._moving:
            moved = rule.moved()
            if moved is None:
                continue
            rows = as_rows(f"{name}.moved", moved[0], self.numbers)
            masses = as_masses(f"{name}.moved", moved[1], len(rows))
            if self._by_rule:
                self._by_rule[number][rows] = masses
            if self._by_rule or self.group is not None:
                self._note(rows)
            else:
                check_most(masses)
                self._wait(rows, masses.astype(np.float64))
        return self.waiting(ring)

    def _note(self, rows: Slots) -> None:
        """Compute the masses of rows anew: of the groups that they are in, if groups are drawn."""
        if self.group is None:
            self._wait(rows, self._product(rows))
            return
        of_rows = self.group.leaders(rows)
        others = rows[of_rows != rows]
        self._wait(others, np.zeros(len(others)))
        leaders = distinct(of_rows[of_rows >= 0])
        if len(leaders):
            members = self.group.members(leaders)
            masses = self._product(members.ravel()).reshape(members.shape)
            self._wait(leaders, masses.min(axis=1))

    def _product(self, rows: Slots) -> Floats:
        found = np.ones(len(rows))
        for (_, _, rule), masses in zip(self.parts, self._by_rule, strict=False):
            if rule is not self.group:
                found *= masses[rows]
        check_most(found)
        return found

    def _wait(self, rows: Slots, masses: Floats) -> None:
        """Have rings take in masses."""
        if not self.bits:
            self._waiting.setdefault(0, []).append((rows, masses))
            return
        rings = rows & (1 << self.bits) - 1
        for ring in np.unique(rings).tolist():
            own = rings == ring
            self._waiting.setdefault(ring, []).append((rows[own], masses[own]))

    # ------------------------------------------------------------------ draws

    def groups_of(self, n: int) -> int:
        """How many groups have n rows."""
        size = self.group_size
        groups, left = divmod(n, size)
        if left:
            raise ValueError(
                f"batch_size: expected a multiple of {size}, the rows of a group, got {n}"
            )
        return groups

    def members(self, leaders: Slots) -> Slots:
        """The rows of groups, group by group, of the rows that stand for them."""
        with self.lock:
            found: Slots = self.group.members(leaders).ravel()
        return found

    def check_turn(self) -> None:
        """Raise ``RuntimeError`` within a draw of this thread, whose rows are not counted yet.

        Called before ``turn`` is taken.
        """
        if self.choices.get() is not None:
            raise RuntimeError("sample: this thread is drawing a batch of this view already")

    def drawn(self, choice: Choice) -> None:
        """Tell the rules that count draws that a batch has been made of these rows.

        A row that was overwritten or cleared since counts no more.
        """
        if not self.counts:
            return
        with self.lock:
            self.begin_call()
            try:
                there = choice.names_of(choice.rows) == choice.names
            except IndexError:  # the ring was cleared
                there = np.zeros(len(choice.rows), np.bool_)
            for rule in self._counting:
                rule.drawn(choice.rows[there])
            self._has_news = self.is_sound = True
            note_drawn(self, choice.names)

    def take_back(self, number: int, ring: Any) -> None:
        """Tell the rules of rows of a ring that are given back, when all its rows were told."""
        while self.given_back:
            handles = self.given_back.popleft()  # an interrupt from here on: they are used up
            if not self.bits:
                self._back_of.setdefault(0, []).append(handles)
                continue
            rings = handles & (1 << self.bits) - 1
            for one in np.unique(rings).tolist():
                own = handles[rings == one] >> self.bits
                self._back_of.setdefault(one, []).append(own)
        if number in self._back_of:
            handles = np.concatenate(self._back_of.pop(number))
            handles = np.delete(handles, without_row(ring, handles, True))
            rows = self.number(find_rows(ring, handles)[0], number)
            for rule in self._counting:
                rule.given_back(rows)

    def _not_returned(self) -> Handles:
        """Handles of rows that count as drawn, and whose batches were not returned."""
        found = [*self.unreturned.copy().values(), *self.given_back.copy()]
        for number, own in self._back_of.items():
            found += [handles << self.bits | number for handles in own]
        return np.concatenate([np.empty(0, np.int64), *found])

    def stats(self) -> dict[str, float]:
        """What the rules count."""
        with self.lock:
            return {name: one for *_, rule in self.parts for name, one in rule.stats().items()}

    def ask(self) -> tuple[Any, ...]:
        """The values of now of the functions that a learner of a cluster asks."""
        return tuple(rule.ask() for rule in self._said)

    def say(self, values: tuple[Any, ...]) -> None:
        """Set these values, at a host."""
        for rule, value in zip(self._said, values, strict=True):
            rule.said = (value,)

    # ------------------------------------------------------------------ state

    def state(self) -> dict[str, Any]:
        """What rules say of rows that the rows do not, by the name of the rule."""
        with self.lock:
            found = {name: rule.state() for name, _, rule in self.parts}
            back = self._not_returned()
        found[NOT_RETURNED] = back if len(back) else None
        return {name: state for name, state in found.items() if state is not None}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state`` returned, before a draw."""
        for name, _, rule in self.parts:
            if name in state:
                rule.restore(state[name])
        if NOT_RETURNED in state:
            self.given_back.append(state[NOT_RETURNED])

    # ------------------------------------------------------------------ explanations

    def left_out_by(self, row: int) -> list[str]:
        """Why the rules leave a row out that has no mass."""
        rows = np.array([row], np.intp)
        others = [row]
        if self.group is not None:
            leader = self.group.leaders(rows)
            if leader[0] < 0:
                return [self.group.reason(row)]
            others = self.group.members(leader)[0].tolist()
        found = [self._refusals(one) for one in (row, *others)]
        if found[0]:
            return found[0]
        return next((["of its group, " + why for why in one] for one in found if one), [])

    def _refusals(self, row: int) -> list[str]:
        """What each rule that gives a row mass 0 says; of a single rule, without a look."""
        refusing = [masses[row] == 0 for masses in self._by_rule] or [True]
        return [
            rule.reason(row)
            for (_, _, rule), refuses in zip(self.parts, refusing, strict=True)
            if refuses and rule is not self.group
        ]

    def tell_left(self, rows: Slots, present: int) -> str:
        """How many of ``rows``, all that are there, each rule leaves, for an error."""
        if not self._by_rule:
            return f"{self.parts[0][0]} leaves {present}"
        return ", ".join(
            f"{name} leaves {np.count_nonzero(masses[rows])}"
            for (name, _, _), masses in zip(self.parts, self._by_rule, strict=True)
        )


def defines(rule: Any, hook: str) -> bool:
    """Whether a rule has a method of its own, and not that of its base class."""
    base: Any = next(one for one in type(rule).__mro__ if one.__name__ == "Rule")
    return getattr(type(rule), hook) is not getattr(base, hook)


def distinct(numbers: Slots) -> Slots:
    """The different numbers out of these, ascending."""
    if len(numbers) < 2:
        return numbers
    ordered: Slots = np.sort(numbers)
    is_first = np.ones(len(ordered), bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    return ordered[is_first]


def check_most(masses: Array) -> None:
    """Raise ``ValueError`` for masses so large that sums with weights may be infinite."""
    if masses.dtype.kind != "b" and float(masses.max(initial=0)) > MOST_MASS:
        raise ValueError(f"masses: expected at most 1e150, got {masses.max()}")


def as_rows(where: str, found: Any, numbers: int) -> Slots:
    """Checked slots that a rule gives, below ``numbers``."""
    rows = np.asarray(found)
    if rows.ndim != 1 or rows.dtype.kind not in "iu":
        raise ValueError(f"{where}: expected slots, got {rows.dtype} of shape {rows.shape}")
    slots = np.ascontiguousarray(rows, np.intp)
    if len(slots) and slots.view(np.uintp).max() >= numbers:  # negative ones are large
        raise IndexError(
            f"{where}: expected slots from 0 to {numbers - 1}, got {rows.min()} to {rows.max()}"
        )
    return slots


def as_masses(where: str, found: Any, n: int) -> Array:
    """Checked masses of n rows: bools, or numbers of at least 0. Errors begin with ``where``."""
    if type(found) is np.ndarray and found.dtype == np.bool_ and found.shape == (n,):
        return found
    if isinstance(found, np.ma.MaskedArray):
        raise TypeError(f"{where}: expected numbers, got a masked array, whose mask would be lost")
    array = np.asarray(found)
    if array.dtype.kind not in "biuf" or array.shape != (n,):
        raise ValueError(
            f"{where}: expected bools or numbers of shape ({n},), got {array.dtype} of shape "
            f"{array.shape}"
        )
    if array.dtype.kind != "b" and not ((array >= 0) & (array < np.inf)).all():  # false for NaN
        wrong = array[~((array >= 0) & (array < np.inf))][0]
        raise ValueError(f"{where}: expected finite numbers of at least 0, got {wrong}")
    return array
