"""``Groups``: batches of whole groups of rows that have the same key.

Not here: masses of groups, and how their rows are read (``samplers._rules``, ``buffers._reading``).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cpprb_like._arguments.arrays import Array, Batch, Slots
from cpprb_like._arguments.checks import as_int
from cpprb_like._rows.row_handles import find_rows, handles
from cpprb_like.samplers._masses import members_of
from cpprb_like.samplers._rules import distinct
from cpprb_like.views._items_of_batch import TEXT
from cpprb_like.views._layer import Fields, ViewedRows
from cpprb_like.views._rule import Moved, Rule

NONE = np.empty(0, np.intp)
GONE = -1  # in place of a row that left its group before the group was complete
BROKEN = -1  # in place of the leader of a group of which a row has left


class Groups(Rule):
    """Draws whole groups: k rows that have the same key, such as the answers to one prompt.

    Parameters
    ----------
    key : str
        Name of a field of one number, bool, string or text a row.
    k : int
        Rows of a group, at least 2.

    Raises
    ------
    TypeError, ValueError
        A parameter is of a wrong type or value. By ``view``: there is no such field, it is not one
        value a row, or the buffer has fewer than k rows. By ``sample``: ``batch_size`` is not a
        multiple of k. By ``epoch``: groups have no epoch.

    Notes
    -----
    A batch has its rows group by group, so that ``reshape(-1, k, ...)`` of a column has a group in
    each row; the rows of a group are in the order in which they came. Rows of a key may come at any
    time, between others and from several actors. The first k of a key are a group, the next k
    another one. A group that is not complete is not drawn. If a row of a group leaves, as it is
    overwritten or deleted, or its key is updated, the other rows are left out for good: no row
    changes to another group. A view groups the rows that are there when it is made, so make it
    before rows leave. Rows count as they are seen, at a draw: one that came and left between two
    draws is in no group. If that may happen, use each key for one group only.

    A group is drawn by the mass of its last row, the one that completed it, as sequences are by
    their first: with priorities those of other rows do not matter. ``weights`` are the same for all
    rows of a group; ``indexes`` name each row. Of masses by other rules the least of the group
    counts: if ``AtMost`` leaves out a row, the group is left out. With ``Sequences`` each row
    begins a sequence. ``replace=False`` gives distinct groups.

    Each host of a cluster groups its own rows: an actor, whose rows are on one host, adds all rows
    of a key, or all actors that do so have the same ``host``.

    Cost: a microsecond for each new row, before the next draw. Memory: 24 bytes and a key a row for
    each view, and some 100 bytes for each group that is not complete. A save keeps the groups.

    Examples
    --------
    >>> from cpprb_like import ReplayBuffer
    >>> from cpprb_like.views import Groups
    >>> fields = {"prompt": {"shape": (), "dtype": int}, "rew": {"shape": ()}}
    >>> rb = ReplayBuffer(100, fields, seed=0)
    >>> rb.add(prompt=[1, 2, 1, 1, 2, 2, 3], rew=[0, 5, 1, 2, 6, 7, 9])
    0
    >>> batch = rb.view(Groups("prompt", k=3)).sample(6)
    >>> batch["rew"].reshape(-1, 3).tolist()
    [[5.0, 6.0, 7.0], [0.0, 1.0, 2.0]]
    """

    def __init__(self, key: str, k: int) -> None:
        if not isinstance(key, str):
            raise TypeError(f"key: expected the name of a field, got {key!r}")
        self.key = key
        self.k = as_int("k", k, 2)

    def open(self, rows: ViewedRows) -> Rule:
        if self.k > rows.ring.capacity:
            raise ValueError(
                f"Groups: expected k of at most {rows.ring.capacity}, the capacity, got {self.k}"
            )
        return _Groups(self.key, self.k, rows)

    def __repr__(self) -> str:
        return f"Groups({self.key!r}, {self.k})"


class _Groups(Rule):
    """Which rows are in which group.

    Rows of a group that is complete are linked in a circle, in the order in which they came.
    """

    moves_with_rows = True

    def __init__(self, key: str, k: int, rows: ViewedRows) -> None:
        self.group_size, self._key, self._ring = k, key, rows.ring
        self._names = np.zeros(rows.numbers, np.int64)  # handle of the row in each slot; 0: none
        self._keys: Any = None  # of each slot; an array from the first rows on
        # Of each row the slot of the leader of its group plus 1; 0 while the group is not complete.
        self._leaders = np.zeros(rows.numbers, np.intp)
        self._nexts = np.zeros(rows.numbers, np.intp)  # the next row of the group
        # Slots of the rows of groups that are not complete, by key; ``GONE`` for those that left.
        self._waiting: dict[Any, list[int]] = {}
        self._moved: list[Slots] = []
        self.until = 0  # see ``Rules.until``
        self._change: Any = None  # arguments of ``_finish``, until it is done
        self._saved: Any = None  # state to restore

    def follows(self, fields: Fields) -> tuple[str]:
        spec = fields.get(self._key)
        if spec is None:
            raise ValueError(
                f"Groups: expected one of the fields {list(fields)}, got {self._key!r}"
            )
        is_wide = spec.dtype.kind == "f" and spec.dtype.itemsize > 8
        if spec.shape not in ((), (1,)) or spec.dtype.kind not in "biufSUTO" or is_wide:
            raise ValueError(
                "Groups: expected a field of one number, bool, string or text a row, got "
                f"{self._key!r} of shape {spec.shape} and {spec.dtype}"
            )
        return (self._key,)

    def begin(self) -> None:
        # Groups go by handles; a change that an interrupt cut off is made whole.
        if self._change is not None:
            self._finish(*self._change)

    def masses(self, rows: Batch, slots: Slots) -> Array:
        self._recall()
        names, keys = handles(self._ring, slots), as_keys(rows[self._key], len(slots))
        if self._keys is None:
            self._keys = np.zeros(len(self._names), keys.dtype)
        known = self._names[slots]
        is_new = (known != names) | (self._keys[slots] != keys)
        # A row that is written meanwhile is told of once more, in its turn.
        places = np.flatnonzero(is_new & (names < self.until))
        if len(places):
            if len(places) > 1:  # an edited row may come twice
                places = places[np.unique(slots[places], return_index=True)[1]]
                # New rows first, by age, then those with another key: also where all are told of.
                places = places[np.lexsort((names[places], known[places] == names[places]))]
            known = known[places]
            self._replace(slots[places], names[places], keys[places], slots[places][known > 0])
        return self._leaders[slots] > 0

    def leave(self, slots: Slots) -> None:
        self._recall()
        slots = distinct(slots[self._names[slots] > 0])
        if len(slots):
            names, keys = np.zeros(len(slots), np.int64), self._keys[slots]
            self._replace(slots, names, keys, slots)

    def moved(self) -> Moved | None:
        if not self._moved:
            return None
        slots = distinct(np.concatenate(self._moved))
        self._moved.clear()
        slots = slots[self._names[slots] > 0]
        return slots, self._leaders[slots] > 0

    def leaders(self, slots: Slots) -> Slots:
        """The row that stands for the complete group of each row; -1 if there is none."""
        found: Slots = np.maximum(self._leaders[slots] - 1, -1)
        return found

    def members(self, leaders: Slots) -> Slots:
        """The rows of groups, as they came, shape (n, k); ``leaders`` are their last rows."""
        return members_of(self._nexts, leaders, self.group_size)

    def reason(self, slot: int) -> str:
        slots, k = np.array([slot], np.intp), self.group_size
        came = self._waiting.get(self._keys_of(slots)[0], [])
        if self._leaders[slot] == BROKEN or GONE in came:
            return "Groups leaves it out: a row of its group left, or got another key"
        return f"Groups leaves it out: its group has {len(came)} of {k} rows so far"

    # ------------------------------------------------------------------ changes

    def _keys_of(self, slots: Slots) -> list[Any]:
        found: list[Any] = self._keys[slots].tolist()
        return found

    def _replace(self, slots: Slots, names: Array, keys: Array, lost: Slots) -> None:
        """Take in new rows, with handles and keys; ``lost`` are slots whose rows have left.

        Rows whose handle is 0 are no rows.
        """
        leaders, k = self._leaders[lost], self.group_size
        broken = [self.members(distinct(leaders[leaders > 0]) - 1).ravel()]
        waiting: dict[Any, list[int]] = {}

        def group_of(key: Any) -> list[int]:
            group = waiting.get(key)
            if group is None:
                group = waiting[key] = [*self._waiting.get(key, ())]
            return group

        alone = lost[leaders == 0]
        for slot, key in zip(alone.tolist(), self._keys_of(alone), strict=True):
            group = group_of(key)
            group[group.index(slot)] = GONE
            if max(group) == GONE:
                group.clear()
        whole = []
        there = names > 0
        for slot, key in zip(slots[there].tolist(), keys[there].tolist(), strict=True):
            group = group_of(key)
            group.append(slot)
            if len(group) == k:
                if GONE in group:
                    broken.append(np.array([one for one in group if one != GONE], np.intp))
                else:
                    whole.append(group)
                waiting[key] = []
        groups = np.array(whole, np.intp).reshape(-1, k)
        self._change = slots, names, keys, broken, groups, waiting
        self._finish(*self._change)

    def _finish(
        self,
        slots: Slots,
        names: Array,
        keys: Array,
        broken: list[Slots],
        groups: Slots,
        waiting: dict[Any, list[int]],
    ) -> None:
        """Make a change; once more, it changes nothing."""
        leaders = self._leaders
        leaders[broken[0]] = BROKEN
        leaders[slots] = 0
        if len(groups):
            leaders[groups] = groups[:, -1:] + 1
            self._nexts[groups] = np.roll(groups, -1, axis=1)
        for rows in broken[1:]:
            leaders[rows] = BROKEN
        self._names[slots] = names
        self._keys[slots] = keys
        for key, group in waiting.items():
            if group:
                self._waiting[key] = group
            else:
                self._waiting.pop(key, None)
        self._moved += [*broken, groups.ravel()]
        self._change = None

    # ------------------------------------------------------------------ state

    def state(self) -> dict[str, Any] | None:
        self.begin()
        if self._saved is not None or self._keys is None:
            saved: dict[str, Any] | None = self._saved
            return saved
        every = self._names
        slots = np.flatnonzero(every)
        leaders, keys = self._leaders[slots], self._keys[slots]
        nexts = self._nexts[slots]
        waiting = np.zeros((len(self._waiting), self.group_size), np.int64)
        for place, group in enumerate(self._waiting.values()):
            waiting[place, : len(group)] = [one if one == GONE else every[one] for one in group]
        return {
            "rows": every[slots],
            "keys": keys.tolist() if keys.dtype == TEXT else keys,
            "leaders": np.where(leaders > 0, every[leaders - 1], leaders),
            "nexts": np.where(leaders > 0, every[nexts], 0),
            "waiting": waiting,
        }

    def restore(self, state: Any) -> None:
        self._saved = state

    def _recall(self) -> None:
        """Restore groups, now that the rows are there; rows that left since break theirs."""
        if self._saved is None:
            return
        saved, self._waiting = self._saved, {}
        slots, there = find_rows(self._ring, saved["rows"])
        names, keys = saved["rows"][there], saved["keys"]
        keys = (np.array(keys, TEXT) if isinstance(keys, list) else keys)[there]
        slot_of = dict(zip(names.tolist(), slots.tolist(), strict=True))
        leaders = saved["leaders"][there]
        every, group, counts = np.unique(leaders, return_inverse=True, return_counts=True)
        is_whole = ((every > 0) & (counts == self.group_size))[group]
        found = [slot_of.get(name, GONE) for name in leaders.tolist()]
        nexts = [slot_of.get(name, GONE) for name in saved["nexts"][there].tolist()]
        self._keys = np.zeros(len(self._names), keys.dtype)
        self._names[slots] = names
        self._keys[slots] = keys
        self._nexts[slots] = nexts
        self._leaders[slots] = np.where(
            is_whole, np.array(found, np.intp) + 1, np.where(leaders > 0, BROKEN, leaders)
        )
        for row in saved["waiting"].tolist():
            came = [slot_of.get(name, GONE) for name in row if name]
            if max(came) != GONE:
                self._waiting[self._keys_of(np.array([max(came)]))[0]] = came
        self._saved = None


def as_keys(values: Array, n: int) -> Array:
    """Keys of n rows, which are equal if they are: floats as the integers of the same bits."""
    values = values.reshape(n)
    if values.dtype.kind == "f":
        return (values + 0).view(f"i{values.dtype.itemsize}")  # 0.0 and -0.0 are one key
    return values
