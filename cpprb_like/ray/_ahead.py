"""``Ahead``: batches that a learner asks hosts for, ahead of the calls that need them.

The host of each item is drawn by the host's mass (``_owners``). The host draws the item. Not here:
which hosts answer (``_directory``), and draws at a host (``_drawing``).
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray
from ray._private.state import available_resources_per_node

from cpprb_like._core import Ring
from cpprb_like._fields.schema import ColumnSpec
from cpprb_like._machine.aligned import empty
from cpprb_like._rows.rings import Parts
from cpprb_like.buffers._source import Batch
from cpprb_like.errors import NotEnoughDataError
from cpprb_like.processes import Mass
from cpprb_like.ray._blocks import Pair, join
from cpprb_like.ray._directory import MOST_PARTS, Directory
from cpprb_like.ray._items import ItemsOfAnswers
from cpprb_like.ray._messages import Reply
from cpprb_like.ray._owners import Quotas, compared, distinct_owners, factors_of, owners_of
from cpprb_like.ray._parts import Part, PartDownError
from cpprb_like.ray._updates import Updates
from cpprb_like.samplers._rules import Rules
from cpprb_like.views._items_of_batch import ItemPlan

# Of a part: its place, its answer, the places of its items in a batch, which items, and how many.
Taken = tuple[int, Reply, slice | NDArray[np.intp], slice, int]
STORE = 0.5  # seconds between two looks at what the object stores have left
INLINE = 100e3  # bytes of an answer that Ray carries without its object store


@dataclass(frozen=True)
class BatchKind:
    """One kind of batches of a learner."""

    view: str  # name of the view
    n: int  # number of items of a batch
    options: Mapping[str, Any]  # further arguments of ``sample`` at a host
    specs: Mapping[str, ColumnSpec]  # fields of a batch
    pairs: list[Pair]  # fields that are stacks and next stacks of the same frames
    plan: ItemPlan | None = None  # layout of values of any length; None without such fields
    group_size: int = 1  # rows of an item that a rule draws as a group
    counts: bool = False  # whether the hosts count draws of the view: no row is twice in a batch
    rules: Rules | None = None  # rules of the view

    @property
    def key(self) -> tuple[Any, ...]:
        """The same for two calls of ``sample`` that want the same kind of batches."""
        return self.view, self.n, self.options.get("fields"), self.options["indexes"]

    @property
    def share(self) -> Any:
        """The rule that gives values of a field their shares of each batch, if any."""
        return None if self.rules is None else self.rules.share

    @property
    def row_nbytes(self) -> int:
        """Bytes of an item of a batch, without values of any length."""
        ragged = {} if self.plan is None else self.plan.fields
        return sum(
            spec.dtype.itemsize * math.prod(spec.shape)
            for name, spec in self.specs.items()
            if name not in ragged
        )


@dataclass(eq=False)
class Group:
    """Batches that were requested together."""

    asked: float  # by ``time.monotonic``
    # Place in ``parts`` of the host of each item, shape ``(batches, n)``.
    owners: NDArray[np.intp] = field(init=False)
    quotas: Quotas | None = field(init=False)  # values of the items, where these have shares
    chances: NDArray[np.float64] = field(init=False)  # probability of a draw of each part
    parts: list[Part] = field(init=False)
    # Mass of each host by which its number of items was drawn.
    masses: list[Mass] = field(init=False)
    # The ``Reply`` of each part, or the reference of the call; None without a request.
    answers: list[Any] = field(init=False)
    taken: NDArray[np.intp] = field(init=False)  # items of each part that were given so far
    ring: Ring | None = field(init=False)  # values of any length of all answers
    next: int = 0  # the batch that is given next

    @property
    def left(self) -> int:
        """Number of batches that were not given yet."""
        return len(self.owners) - self.next


class Ahead:
    """The batches that one learner has asked hosts for. Each caller holds the learner's lock.

    If ``is_weighted``, items have masses, which batches have as probabilities. ``items`` takes the
    values of any length, if there are some. ``rng`` draws the host of each item. ``ahead``,
    ``batches`` and ``nbytes`` are as for ``ClusterReplay.learner``.
    """

    def __init__(
        self,
        directory: Directory,
        updates: Updates,
        learner: str,
        rng: np.random.Generator,
        *,
        is_weighted: bool,
        items: ItemsOfAnswers | None,
        ahead: int,
        batches: int,
        nbytes: float,
    ) -> None:
        self._directory, self._updates = directory, updates
        self._learner, self._rng, self._is_weighted = learner, rng, is_weighted
        self._ahead, self._batches, self._nbytes = ahead, batches, nbytes
        self._items = items
        # Mean bytes of the values of any length of an item, by the kind of the last batches.
        self._items_nbytes: dict[tuple[Any, ...], float] = {}
        self._connection = directory.connection
        self.names = Parts(MOST_PARTS)  # handles of batches: part, and handle at the host
        self.groups: dict[tuple[Any, ...], deque[Group]] = {}
        self._ahead_now = ahead  # as far as the object stores have room
        self._store_at, self._store_left = -math.inf, math.inf
        self.age_of_masses = self.age_of_batch = math.nan
        # Of the items of the last prioritized batch: probability, and what weights correct; and the
        # least probability of a row.
        self.chances = self.corrected = np.empty(0)
        self.least = math.inf
        self.waited_for_inserts = 0.0

    def next(self, kind: BatchKind, arrays: Batch | None) -> Batch:
        """The next batch, from earlier requests or from new ones; ``arrays`` take its fields."""
        until = time.monotonic() + self._directory.timeout
        groups = self.groups.setdefault(kind.key, deque())
        for other in [other for other in self.groups if other != kind.key]:
            self._forget(other)  # the program went on to another kind of batch
        try:
            return self._next(groups, kind, arrays, until)
        except BaseException:
            self._forget(kind.key)  # an interrupt may have left a group half done
            raise

    def _next(
        self, groups: deque[Group], kind: BatchKind, arrays: Batch | None, until: float
    ) -> Batch:
        """``next``, of groups of this kind."""
        if not groups:
            groups.append(self._ask(kind, until))
        group = groups[0]
        self._collect(group, kind, until)
        is_far = self._ahead_of(kind) and any(part.drawer is None for part in group.parts)
        try:
            while len(groups) <= self._ahead_now and is_far:
                groups.append(self._ask(kind, until, sum(one.left for one in groups)))
        except (TypeError, ValueError):  # of the shares of later batches: this one comes first
            if kind.share is None:
                raise
        if group.next == 0 and len(groups) > 1:
            asked = [one for one in groups[1].answers if isinstance(one, ray.ObjectRef)]
            if asked:  # ready answers come to this node now, and not when they are read
                ray.wait(asked, num_returns=len(asked), timeout=0)
        slots = group.owners[group.next]
        batch = self._batch(group, kind, arrays)
        if group.next == len(group.owners):
            groups.popleft()
        if kind.plan is not None and group.ring is not None:
            kind.plan.laid.ragged.ring = group.ring
            return kind.plan.put(batch, slots)
        return batch

    def _ahead_of(self, kind: BatchKind) -> int:
        """How many calls ahead of need; 0 if rows of batches that are dropped would count."""
        return 0 if kind.counts else self._ahead

    def forget_all(self) -> None:
        """Drop all batches that were requested and not returned."""
        for key in list(self.groups):
            self._forget(key)

    def _forget(self, key: tuple[Any, ...]) -> None:
        """Drop batches that were requested from hosts and will not be returned."""
        for group in self.groups.pop(key):
            left = group.owners[group.next :].size
            if left:
                self._connection.give_back(left)

    def _ask(self, kind: BatchKind, until: float, before: int = 0) -> Group:
        """Ask the hosts for the next batches, behind ``before`` ones that are on their way."""
        n = kind.n
        most, ahead = 1, self._ahead_of(kind)
        self._ahead_now = ahead
        if ahead and any(part.drawer is None for part in self._directory.parts.values()):
            room: float = ahead + 1  # batches on their way
            items_nbytes = 0.0 if kind.plan is None else self._items_nbytes.get(kind.key)
            if items_nbytes is not None:
                room = self._room() / max(n * (kind.row_nbytes + items_nbytes), 1)
            most = max(1, min(self._batches, int(room / (ahead + 1))))
            self._ahead_now = max(0, min(ahead, int(room / most) - 1))
        count = self._take(n, most, until)
        group = Group(time.monotonic())
        try:
            self._request(group, kind, count, until, before)
        except BaseException:
            self._connection.give_back(count * n)
            raise
        self.age_of_masses = time.monotonic() - min(mass.moment for mass in group.masses)
        return group

    def _take(self, n: int, most: int, until: float) -> int:
        """How many batches of n items the limiter allows, at least one."""
        began = time.monotonic()
        count = self._connection.take(n, most, until, self._directory.timeout)
        self.waited_for_inserts += time.monotonic() - began
        return count

    def sample_here(
        self, part: Part, view: str, n: int, how: Mapping[str, Any], time_of_shares: int
    ) -> Batch | None:
        """A batch of a part of this process, which has all rows; None if it has none to draw."""
        assert part.drawer is not None
        self._take(n, 1, time.monotonic() + self._directory.timeout)
        try:
            largest, said = self._directory.largest, self._directory.said_of(view)
            batch = part.drawer.sample(view, n, largest, how, time_of_shares, said)
        except BaseException as error:
            self._connection.give_back(n)
            if isinstance(error, NotEnoughDataError):
                return None
            raise
        self.age_of_masses = self.age_of_batch = 0.0
        return batch

    def _room(self) -> float:
        """Bytes of batches that may be on their way: see ``nbytes``, and the object stores.

        Answers that are not read yet stay in the stores of both nodes. A store that is full writes
        to the disk, so they take half of what the fullest store has left. Ray carries small answers
        without the store.
        """
        now = time.monotonic()
        if now > self._store_at + STORE:
            self._store_at = now
            left = [
                one.get("object_store_memory") for one in available_resources_per_node().values()
            ]
            self._store_left = min((one for one in left if one is not None), default=0.0)
        return min(self._nbytes, max(self._store_left / 2, INLINE))

    def _request(
        self, group: Group, kind: BatchKind, count: int, until: float, before: int = 0
    ) -> None:
        """Draw the host of each item by its mass, and request the items of each host."""
        self._updates.send()
        if kind.rules is not None:
            self._directory.say(kind.view, kind.rules.ask())
        n, share, shares_of = kind.n // kind.group_size, kind.share, None
        first = before + (0 if kind.rules is None else kind.rules.draws)  # time of the first batch
        if share is not None:
            shares_of = partial(share.shares_of, time=first)
        distinct = n if kind.counts else 0
        if kind.counts:
            self._directory.ask_again(kind.view)
        group.parts = self._directory.parts_with_mass(kind.view, until, distinct, shares_of)
        group.masses = masses = [part.masses[kind.view] for part in group.parts]
        factors = factors_of(kind.rules, masses)
        totals = compared(np.array([mass.total for mass in masses]), factors)
        group.chances = totals / totals.sum()
        group.quotas = None
        owners = np.zeros((count, n), np.intp)
        if share is not None:
            group.quotas = Quotas(share, first, masses, factors, count, n, self._rng)
            owners = group.quotas.owners(self._rng, counts=kind.counts)
        elif len(masses) > 1 and kind.counts:
            left = np.array([mass.left for mass in masses])
            owners = np.stack([distinct_owners(totals, left, distinct, self._rng)])
        elif len(masses) > 1:
            owners = owners_of(totals, (count, n), self._rng)
        group.owners = owners.repeat(kind.group_size, axis=1)
        counts = np.bincount(group.owners.ravel(), minlength=len(masses)).tolist()
        group.next, group.taken, group.ring = 0, np.zeros(len(masses), np.intp), None
        group.answers = [None] * len(masses)
        for place, (part, items) in enumerate(zip(group.parts, counts, strict=True)):
            asked = None if group.quotas is None else group.quotas.asked_of(place, owners)
            said = self._directory.said_of(kind.view)
            draw = kind.view, items, kind.options, self._directory.largest, asked, said
            if items and part.drawer is not None:
                group.answers[place] = part.drawer.draw(*draw, masses[place])
            elif items:
                group.answers[place] = part.host.begin("draw", self._learner, *draw)
            if items:
                part.told = self._directory.largest
        self._updates.tell_largest()
        self._updates.send()
        if len(owners) < count:
            self._connection.give_back((count - len(owners)) * kind.n)

    def _collect(self, group: Group, kind: BatchKind, until: float) -> None:
        """Wait for the answers, and replace the items of lost hosts by items of the others."""
        for place, part in enumerate(group.parts):
            answer = group.answers[place]
            if answer is None or isinstance(answer, Reply):
                continue
            try:
                reply: Reply = self._directory.answer(part, answer, until)
                if reply.identity != part.identity:
                    raise self._directory.is_down(part)
                group.answers[place] = reply
                self._directory.note(part, kind.view, reply.mass, group.asked)
            except PartDownError:
                group.answers[place] = None
        missing = [
            place
            for place, answer in enumerate(group.answers)
            if (answer is None or not answer.columns) and (group.owners == place).any()
        ]
        if missing:
            self._replace(group, kind, missing, until)
        elif kind.plan is not None and self._items is not None and group.ring is None:
            columns: Any = [answer.columns for answer in group.answers if answer is not None]
            nbytes = sum(one[name].nbytes for one in columns for name in kind.plan.fields)
            group.ring = self._items.ring_of(kind.plan, columns)
            self._items_nbytes = {kind.key: nbytes / max(1, group.owners[group.next :].size)}

    def _replace(self, group: Group, kind: BatchKind, missing: list[int], until: float) -> None:
        """Draw all batches that were not returned yet again, from the hosts that answer."""
        if time.monotonic() > until:
            names = ", ".join(str(group.parts[place].host) for place in missing)
            raise TimeoutError(f"sample: {names} did not answer in {self._directory.timeout:g} s")
        count = group.left
        self._request(group, kind, count, until)
        groups = self.groups[kind.key]
        while group.left < count and len(groups) > 1:  # they are no longer the next ones
            self._connection.give_back(groups.pop().owners.size)
        self._collect(group, kind, until)

    def _batch(self, group: Group, kind: BatchKind, arrays: Batch | None) -> Batch:
        """One batch of a group: each row of the answers at the place of its item."""
        owners, specs = group.owners[group.next], kind.specs
        n = len(owners)
        taken: list[Taken] = []
        places: slice | NDArray[np.intp]
        for place, answer in enumerate(group.answers):
            places, count = slice(None), n
            if len(group.parts) > 1:
                places = np.flatnonzero(owners == place)
                count = len(places)
            if count:
                start = int(group.taken[place])
                taken.append((place, answer, places, slice(start, start + count), count))
        batch: Batch = {} if arrays is None else dict(arrays)
        for name in () if kind.plan is None else kind.plan.fields:
            batch.pop(name, None)  # they follow when the entries are there
        first: Mapping[str, Any] = taken[0][1].columns if taken else {}
        is_own = len(taken) == 1 and group.parts[taken[0][0]].drawer is not None
        if is_own and not batch and len(group.owners) == 1:
            batch, first = dict(first), {}  # fresh arrays already
        for name, values in first.items():
            if name not in batch and name in specs:
                batch[name] = empty((n, *specs[name].shape), specs[name].dtype)
            elif name not in batch:
                batch[name] = empty((n, *values.shape[1:]), values.dtype)
            for _, answer, places, items, _ in taken:
                join(answer.columns, name, items, kind.pairs, batch[name], places)
        if "indexes" in batch:
            for place, _, places, _, _ in taken:
                own = np.ascontiguousarray(batch["indexes"][places])
                batch["indexes"][places] = self.names.name(group.parts[place].number, own)
        if self._is_weighted:
            self._note_chances(group, taken)
        for place, _, _, _, count in taken:
            group.taken[place] += count
        group.next += 1
        self.age_of_batch = time.monotonic() - group.asked
        return batch

    def _note_chances(self, group: Group, taken: list[Taken]) -> None:
        """Note the probabilities of the items of a batch, by the masses of the request."""
        quotas, found, least = group.quotas, np.empty(group.owners.shape[1]), math.inf
        for place, answer, places, items, _ in taken:
            assert answer.masses is not None
            scale: Any = group.chances[place] / answer.mass.total
            if quotas is not None:
                scale = quotas.scales(place, answer.mass)[quotas.of_items[group.next, places]]
            found[places] = answer.masses[items] * scale
        for place, answer in enumerate(group.answers):
            one = group.masses[place] if answer is None else answer.mass
            least = min(least, group.chances[place] * one.least / max(one.total, 1e-300))
        self.chances, self.corrected, self.least = found, found, least
        if quotas is not None:
            self.chances = found * quotas.chances(group.next)[quotas.of_items[group.next]]
