"""Views with rules stay right while processes that add rows are killed, against a look at all rows.

A key names one group at most: row t of each shard. So the rows that are there say which groups are
whole, whatever a view has seen of them before.
"""

from __future__ import annotations

import mmap
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from dying_processes import SECONDS, Child, ended, shared_memory
from file_map_cases import unless_full
from helpers import Array
from reference_newest import newest_masses
from scale import PROCESS_KILLS

from cpprb_like import NotEnoughDataError
from cpprb_like._core import FLAG_ABSENT
from cpprb_like.processes import Learner, SharedReplay
from cpprb_like.samplers import Prioritized, Uniform
from cpprb_like.views import Among, AtMost, Groups, Newest, NStep, Sequences, Share
from cpprb_like.views._rows import read_fields

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no fork and no SIGKILL")

SHARDS = 3  # as many as a group has rows
CAPACITY = 48  # rows of a shard
AHEAD = 8  # time steps that a shard may be ahead of the others, which groups wait for
HALF_LIFE = 2.5
FIELDS: dict[str, Any] = {
    "id": {"shape": (), "dtype": "i8"},  # of this row alone
    "obs": {"shape": (6,), "dtype": "i4"},
    "tag": {"shape": (), "dtype": "i4"},  # is changed by updates, ...
    "same": {"shape": (), "dtype": "i4"},  # ... together with this one, ...
    "wide": {
        "shape": (200,),
        "dtype": "f4",
    },  # ... and with this one, which lies beside the records
    "task": {"shape": (), "dtype": "i4"},
    "version": {"shape": (), "dtype": "i8"},
    "key": {"shape": (), "dtype": "i8"},  # is changed by updates, too
    "rew": {"shape": ()},
    "done": {"shape": (), "dtype": bool},
}
PLAIN: dict[str, Any] = {"env_dict": FIELDS, "terminated": "done"}
RAGGED = FIELDS | {"ids": {"shape": ("T",), "dtype": "i4"}, "say": {"dtype": str}}
CASES: dict[str, dict[str, Any]] = {
    "plain": PLAIN,
    "envs": PLAIN | {"n_envs": 2},
    "n-step": PLAIN | {"Nstep": {"size": 3, "gamma": 1.0, "rew": "rew"}},
    # With room for fewer rows than there are slots, so that rows leave early.
    "ragged": PLAIN | {"env_dict": RAGGED, "room": {"T": 350, "say": 350}},
}
SHARES: dict[float, float] = {2: 0.5, 0: 0.3, 5: 0.2}  # of tasks, of which the last has few rows
FOLLOWED = frozenset(["id", "obs", "tag", "same", "wide", "task", "version", "key"])


def step(options: dict[str, Any], shard: int, t: int, tag: int) -> dict[str, Any]:
    """The values of a time step of a shard, for all environments."""
    n_envs = options.get("n_envs", 1)
    keys = t * n_envs + np.arange(n_envs)
    ids = keys * SHARDS + shard
    values: dict[str, Any] = {
        "id": ids,
        "obs": obs_of(ids),
        "tag": np.full(n_envs, tag),
        "same": np.full(n_envs, tag),
        "wide": np.full((n_envs, 200), tag),
        "task": tasks_of(ids),
        "version": versions_of(ids),
        "key": keys,
        "rew": np.ones(n_envs),
        "done": np.full(n_envs, t % 9 == 8),
    }
    if "room" in options:
        values["ids"] = [np.full(one % 17, one, "i4") for one in ids.tolist()]
        values["say"] = [f"key {one}" for one in keys.tolist()]
    return values if n_envs > 1 else {name: value[0] for name, value in values.items()}


def obs_of(ids: Array) -> Array:
    """Values that prove that a row is whole."""
    found: Array = (ids[:, None] * 7 + np.arange(6)).astype("i4")
    return found


def tasks_of(ids: Array) -> Array:
    """Tasks of rows: 0, 1, 2, and 5 at times."""
    return np.where(ids // 60 % 4 == 1, ids % 2 * 5, ids // SHARDS % 3)


def versions_of(ids: Array) -> Array:
    """Versions, which rise, and are older in some shards."""
    found: Array = ids // (9 * SHARDS) - ids % SHARDS
    return found


class Clock:
    """The next time step of each shard, in memory that all processes share.

    A time step counts before its rows are added: so no row has the number of another one.
    """

    def __init__(self) -> None:
        self._words = np.frombuffer(mmap.mmap(-1, 8 * SHARDS), np.int64)

    def take(self, shard: int) -> int:
        """The next time step, once the other shards have come near."""
        until = time.monotonic() + 0.05  # the others may be dead
        while self._words[shard] > self._words.min() + AHEAD and time.monotonic() < until:
            time.sleep(0.0001)
        t = int(max(self._words[shard], self._words.max() - AHEAD))
        self._words[shard] = t + 1
        return t


def act(
    replay: SharedReplay, options: dict[str, Any], clock: Clock, shard: int, seed: int
) -> Callable[[Child], None]:
    """A job: add rows without end, and edit, delete and clear them now and then."""

    def job(child: Child) -> None:
        chance = random.Random(seed)
        actor = taken(replay, shard)
        while True:
            for _ in range(chance.randrange(1, 12)):
                actor.add(**step(options, shard, clock.take(shard), chance.choice([0, 0, 1, 2])))
            if chance.random() < 0.2:
                actor.on_episode_end()
            if chance.random() < 0.4 and len(actor):
                chosen = actor.sample(4, indexes=True)["indexes"]
                tag = np.full(len(chosen), chance.choice([0, 1, 3]))
                wide = np.repeat(tag[:, None], 200, 1)
                actor.update(chosen, tag=tag, same=tag, wide=wide)
            if chance.random() < 0.05 and len(actor):
                batch = actor.sample(1, indexes=True, fields="id")
                actor.update(batch["indexes"], key=-1 - batch["id"])
            if chance.random() < 0.05 and "room" not in options:
                ended_ones = [k for k, one in enumerate(actor.episodes.list()) if one.terminated]
                if ended_ones:
                    actor.episodes.delete(ended_ones[0])
            if "room" in options and chance.random() < 0.2 and len(actor):
                batch = actor.sample(4, indexes=True, fields="id")
                with unless_full():
                    moved = [f"key {one // SHARDS}" for one in batch["id"].tolist()]
                    actor.update(batch["indexes"], say=moved)
            if chance.random() < 0.01:
                actor.clear()
            child.beat()

    return job


def taken(replay: SharedReplay, shard: int) -> Any:
    """A shard; a process that was killed may not have let go of it yet."""
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        with suppress(BlockingIOError):
            return replay.actor(shard)
        time.sleep(0.001)
    return replay.actor(shard)


class Rows:
    """All rows of a learner, with what they say: the slow twin of its views.

    ``dead`` says whether a process was killed while it wrote a row over an older one. Until the
    shard is taken over, the older row is no more drawn, but may count for rules.
    """

    def __init__(self, learner: Learner) -> None:
        shards = learner._shards
        with shards.lock:
            shards.follow()
            group = shards.group
            self.dead = False
            numbers, parts = [np.empty(0, np.intp)], []
            for number, ring in group.usable_rings:
                slots = np.flatnonzero(ring.flags() & FLAG_ABSENT == 0)
                slots = slots[ring.row_ids(slots) >= ring.first]
                is_alive = ring.row_ids(slots) >= shards.reader(number).follower.bound
                self.dead |= not is_alive.all()
                slots = slots[is_alive]
                numbers.append(group.name(number, slots))
                parts.append(read_fields(ring, slots, FOLLOWED))
            self.numbers = np.concatenate(numbers)
            self.of = {
                name: np.concatenate([part[name] for part in parts]) if parts else np.empty(0)
                for name in FOLLOWED
            }
        self.ids = self.of["id"].tolist()
        check_whole(self.of)

    def newest(self, **options: Any) -> Array:
        """Masses by ``Newest``."""
        masses = newest_masses(dict(enumerate(self.of["version"].tolist())), **options)
        return np.array([masses[k] for k in range(len(self.ids))])

    def whole_groups(self, keys: Array, allowed: Array) -> set[int]:
        """The keys of the groups that have all their rows, all of them allowed."""
        counts = Counter(keys.tolist())
        return {key for key, n in counts.items() if n == SHARDS} - set(keys[~allowed].tolist())


def check_whole(batch: dict[str, Any]) -> None:
    """The values of each row fit its number."""
    there = batch.get("mask", np.ones(batch["id"].shape, np.bool_))  # without padding
    row = {name: batch[name][there] for name in FOLLOWED}
    ids, tags = row["id"], row["tag"]
    np.testing.assert_array_equal(row["obs"], obs_of(ids))
    np.testing.assert_array_equal(row["task"], tasks_of(ids))
    np.testing.assert_array_equal(row["version"], versions_of(ids))
    np.testing.assert_array_equal(row["same"], tags)
    assert (row["wide"] == tags[:, None]).all()
    assert ((row["key"] == ids // SHARDS) | (row["key"] == -1 - ids)).all()


def by_wide(rows: Any) -> Array:
    """A condition, of a field that lies beside the records."""
    found: Array = rows["wide"][:, 199] > 0
    return found


class Watched:
    """A view with rules, and what its batches have to be."""

    draws_groups = False
    is_relative = False  # whether masses have a scale of their own
    most = sys.maxsize  # draws of a row
    shares: dict[float, float] | None = None  # of tasks
    is_equal = False  # whether all tasks have the same share

    def __init__(self, learner: Learner, layers: tuple[Any, ...]) -> None:
        self.layers, self.name = layers, ", ".join(map(repr, layers))
        self.view: Any = learner.view(*layers)
        self.counts: Counter[int] = Counter()  # draws of each row

    def masses(self, rows: Rows) -> Array:
        """The mass of each row, without groups and counts."""
        raise NotImplementedError

    def keys_of(self, rows: dict[str, Any]) -> Array:
        """The key of each row, for a view that draws groups."""
        found: Array = rows["key"]
        return found

    def check(self, batch: dict[str, Any]) -> None:
        """What can be said of a batch by its rows alone."""

    # ------------------------------------------------------------------ batches

    def draw(self, n: int, **options: Any) -> dict[str, Any] | None:
        """Draw and check a batch; None if there are too few rows."""
        try:
            batch = self.view.sample(n, **options)
        except NotEnoughDataError:
            return None
        assert len(batch["id"]) == n
        check_whole(batch)
        first = dict(batch)
        if batch["id"].ndim > 1:
            first = {name: first[name][:, 0] for name in FOLLOWED}
        self.check(first)
        ids = first["id"]
        if self.most < sys.maxsize or options.get("replace") is False:
            assert len(np.unique(ids)) == n
        self.counts.update(ids.tolist())
        assert max(self.counts[one] for one in ids.tolist()) <= self.most
        if self.draws_groups:
            keys = self.keys_of(first).reshape(-1, SHARDS)
            assert (keys == keys[:, :1]).all()
            assert (np.sort(ids.reshape(-1, SHARDS) % SHARDS, 1) == np.arange(SHARDS)).all()
        if self.has_shares:
            self.check_quotas(first["task"].tolist())
        return dict(batch)

    @property
    def has_shares(self) -> bool:
        """Whether tasks have shares."""
        return self.is_equal or self.shares is not None

    def check_quotas(self, tasks: list[int], there: Any = None) -> None:
        """The rows of each task are as many as its share; ``there`` are tasks with rows."""
        counts = Counter(tasks)
        shares = self.shares or dict.fromkeys(sorted(counts), 1.0)
        present = [task for task in shares if counts[int(task)]]
        assert tasks == sorted(tasks, key=lambda task: list(shares).index(task))
        if there is not None:
            assert set(present) == set(there)
        total = sum(shares[task] for task in present)
        for task in present:
            assert abs(counts[int(task)] - len(tasks) * shares[task] / total) < 1 + 1e-6

    # ------------------------------------------------------------------ quiet points

    def compare(self, learner: Learner, rows: Rows) -> None:
        """Compare the masses of all rows, and what can be drawn, with the rows."""
        now, shards = self.view._now, learner._shards
        ruled = now.starts.every if self.has_shares else now.starts
        expected = self.masses(rows)
        used: Array = np.array([self.counts[int(one)] >= self.most for one in rows.ids], np.bool_)
        allowed = (expected > 0) & ~used
        with shards.lock:
            shards.follow()
            over = ruled.over(shards.weights)
            parts = dict(over.parts())
            found, leaves, weights = np.zeros((3, len(rows.ids)))
            complete = ruled._is_complete(rows.numbers) == 1
            for number, places, slots in shards.group.split(rows.numbers):
                found[places] = ruled.of(number).masses(slots)
                if number in parts:
                    leaves[places] = parts[number].get(slots)
                weights[places] = 1.0
                if shards.weights is not None:
                    weights[places] = shards.weights.members[number].get(slots)
        if self.draws_groups:
            keys, stands = self.keys_of(rows.of), found > 0
            np.testing.assert_array_equal(
                sorted(keys[stands].tolist()),
                sorted(rows.whole_groups(keys, allowed)),
                err_msg=self.name,
            )
            assert (found[stands] == 1).all()
        elif self.is_relative:
            scale = found[np.argmax(expected)] / expected.max(initial=0.0) if len(found) else 1.0
            np.testing.assert_allclose(found, expected * scale, rtol=1e-9, err_msg=self.name)
        else:
            np.testing.assert_array_equal(found, np.where(used, 0, expected), err_msg=self.name)
        np.testing.assert_allclose(leaves, found * weights, rtol=1e-12, err_msg=self.name)
        total = sum(one.total for one in parts.values())
        np.testing.assert_allclose(total, leaves.sum(), rtol=1e-9, atol=1e-9, err_msg=self.name)
        if self.has_shares:
            self.compare_values(ruled, shards, rows, found)
        self.compare_draws(rows, allowed & complete & (leaves > 0), leaves, complete)

    def compare_values(self, ruled: Any, shards: Any, rows: Rows, found: Array) -> None:
        """The tree of each task has the masses of its rows."""
        numbers = ruled.rules.share.numbers
        for task, value in numbers.items():
            for number, places, slots in shards.group.split(rows.numbers):
                own = np.where(rows.of["task"][places] == task, found[places], 0.0)
                of_task = ruled.of(number).masses_of(value).at(slots)
                np.testing.assert_array_equal(of_task, own, err_msg=self.name)

    def compare_draws(self, rows: Rows, can_draw: Array, leaves: Array, complete: Array) -> None:
        """All rows that can be drawn are drawn, and no others."""
        ids, options = np.array(rows.ids, np.int64), {"replace": False}
        if self.draws_groups:
            keys, stands = self.keys_of(rows.of), leaves > 0
            whole = set(keys[stands].tolist()) - set(keys[~complete].tolist())
            n = len(whole) * SHARDS
            assert self.draw(n + SHARDS, **options) is None
            if n:
                batch = self.draw(n, **options)
                assert batch is not None, self.name
                first = {name: batch[name].reshape(n, -1)[:, 0] for name in ("id", "key")}
                assert set(self.keys_of(first).tolist()) == whole
        elif not self.has_shares:
            n = int(np.count_nonzero(can_draw))
            assert self.draw(n + 1, **options) is None
            if n:
                batch = self.draw(n, **options)
                assert batch is not None, self.name
                drawn = batch["id"].reshape(n, -1)[:, 0]
                assert sorted(drawn.tolist()) == sorted(ids[can_draw].tolist()), self.name
        else:
            shares = self.shares or dict.fromkeys(rows.of["task"].tolist(), 1.0)
            counts = Counter(rows.of["task"][can_draw].tolist())
            there = [task for task in shares if counts[int(task)]]
            batch = self.draw(12)
            if not there:
                assert batch is None
            elif batch is not None:
                self.check_quotas(batch["task"].reshape(12, -1)[:, 0].tolist(), there)
            else:
                assert self.most < sys.maxsize
                assert min(counts[int(task)] for task in there) < 12


class Tagged(Watched):
    """Of ``Among``."""

    def masses(self, rows: Rows) -> Array:
        return (rows.of["tag"] > 0).astype(float)

    def check(self, batch: dict[str, Any]) -> None:
        assert (batch["tag"] > 0).all()


class NewestOnes(Watched):
    """Of ``Newest`` with k."""

    k = 3

    def masses(self, rows: Rows) -> Array:
        return rows.newest(k=self.k)

    def check(self, batch: dict[str, Any]) -> None:
        assert len(np.unique(batch["version"])) <= self.k


class NewestTagged(NewestOnes):
    """Of ``Newest`` and ``Among``."""

    def masses(self, rows: Rows) -> Array:
        return super().masses(rows) * (rows.of["tag"] > 0)

    def check(self, batch: dict[str, Any]) -> None:
        super().check(batch)
        assert (batch["tag"] > 0).all()


class Weighed(Watched):
    """Of ``Newest`` with a half-life."""

    is_relative = True

    def masses(self, rows: Rows) -> Array:
        return rows.newest(half_life=HALF_LIFE)


class Every(Watched):
    """Of rules that leave out no row by its values."""

    def masses(self, rows: Rows) -> Array:
        return np.ones(len(rows.ids))


class Counted(Every):
    """Of ``AtMost``."""

    most = 2


class Grouped(Every):
    """Of ``Groups``."""

    draws_groups = True


class GroupedByText(Grouped):
    """Of ``Groups`` by a text, which no update changes."""

    def keys_of(self, rows: dict[str, Any]) -> Array:
        found: Array = rows["id"] // SHARDS
        return found


class GroupedCounted(Grouped):
    """Of ``Groups`` and ``AtMost``."""

    most = 2


class Shared(Watched):
    """Of ``Share``."""

    shares = SHARES

    def masses(self, rows: Rows) -> Array:
        return np.isin(rows.of["task"], list(SHARES)).astype(float)


class SharedCounted(Shared):
    """Of ``Share`` and ``AtMost``."""

    most = 3


class SharedEqually(Every):
    """Of ``Share`` of equal shares, and ``Among``."""

    is_equal = True

    def masses(self, rows: Rows) -> Array:
        return (rows.of["tag"] > 0).astype(float)

    def check(self, batch: dict[str, Any]) -> None:
        assert (batch["tag"] > 0).all()


KINDS: list[tuple[type[Watched], tuple[Any, ...]]] = [
    (Tagged, (Among("tag"),)),
    (Tagged, (Among(by_wide, "wide"), Sequences(3))),
    (Tagged, (Among("tag"), NStep(3, gamma=1.0))),
    (NewestOnes, (Newest("version", 3),)),
    (NewestOnes, (Newest("version", 3), Sequences(2))),
    (NewestTagged, (Newest("version", 3), Among("tag"))),
    (Weighed, (Newest("version", half_life=HALF_LIFE),)),
    (Counted, (AtMost(2), NStep(2, gamma=1.0))),
    (Grouped, (Groups("key", SHARDS),)),
    (Grouped, (Groups("key", SHARDS), Sequences(2))),
    (GroupedCounted, (Groups("key", SHARDS), AtMost(2))),
    (Shared, (Share({"task": SHARES}),)),
    (Shared, (Share({"task": SHARES}), NStep(2, gamma=1.0))),
    (SharedCounted, (Share({"task": SHARES}), AtMost(3))),
    (SharedEqually, (Share({"task": "equal"}), Among("tag"))),
]


def watch(learner: Learner, options: dict[str, Any]) -> list[Watched]:
    """A view of each kind."""
    kinds = [*KINDS]
    if "room" in options:
        kinds.append((GroupedByText, (Groups("say", SHARDS),)))
    if "Nstep" in options:  # the replay has the returns already
        kinds = [
            (kind, tuple(one for one in layers if not isinstance(one, NStep)))
            for kind, layers in kinds
        ]
    return [kind(learner, layers) for kind, layers in kinds]


def draw(watched: Watched, learner: Learner, chance: random.Random) -> None:
    """A batch of a view, of random size; and priorities for it."""
    n = chance.choice([3, 6, 12])
    batch = watched.draw(n, replace=chance.random() < 0.7)
    if batch is not None and learner.has_priorities and chance.random() < 0.5:
        indexes = batch["indexes"].reshape(-1)
        learner.update_priorities(indexes, [chance.choice([0.1, 1, 5]) for _ in indexes])


def compare_all(views: list[Watched], learner: Learner) -> None:
    """At a quiet point: compare each view with the rows."""
    rows = Rows(learner)
    for one in views:
        if rows.dead:
            draw(one, learner, random.Random(0))
        else:
            one.compare(learner, rows)


@pytest.mark.once
@pytest.mark.parametrize("sampler", [Uniform, Prioritized])
@pytest.mark.parametrize("case", CASES)
def test_rules_amid_kills_at_random_moments(case: str, sampler: Any) -> None:
    """Processes that add and edit rows are killed and come back; a learner draws all the while.

    Each batch keeps the rules of its view. When all of them are dead, all masses are right.
    """
    options, chance = CASES[case], random.Random(f"{case} {sampler}")
    before = shared_memory()
    replay = SharedReplay(SHARDS * CAPACITY, **options, writers=SHARDS)
    children: list[Child] = []
    clock, kills = Clock(), 0

    def start(shard: int) -> Child:
        return Child("actor", act(replay, options, clock, shard, chance.randrange(1 << 30)))

    with replay, ended(children):
        learner = replay.learner(sampler(), seed=0)
        views = watch(learner, options)
        children += [start(shard) for shard in range(SHARDS)]
        while kills < -(-PROCESS_KILLS // (2 * len(CASES))):
            until = time.monotonic() + chance.random() * 0.05
            while time.monotonic() < until:
                draw(chance.choice(views), learner, chance)
            for child in children:
                child.must_live()
            if chance.random() < 0.3:
                place = chance.randrange(len(views))
                views[place] = type(views[place])(learner, views[place].layers)
            if chance.random() < 0.6:
                shard = chance.randrange(SHARDS)
                children[shard].kill()
                for _ in range(chance.randrange(3)):
                    draw(chance.choice(views), learner, chance)
                children[shard] = start(shard)
                kills += 1
                continue
            for child in children:
                child.wait_for_beat()
            for child in children:
                child.kill()
            kills += SHARDS
            children.clear()
            if chance.random() < 0.7:
                for shard in range(SHARDS):
                    taken(replay, shard).close()
            compare_all(views, learner)
            children += [start(shard) for shard in range(SHARDS)]
        for child in children:
            child.kill()
        children.clear()
        for shard in range(SHARDS):
            taken(replay, shard).close()
        compare_all(views, learner)
    assert shared_memory() <= before
