"""Batches of whole groups, against groups that are made row by row."""

from __future__ import annotations

import os
import pickle
import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributions import chi_square, chi_square_limit
from interruptions import cut_everywhere
from rewound import KINDS, History, Kind, same_batches
from scale import LONG
from slow_groups import SlowGroups

from cpprb_like import NotEnoughDataError, ReplayBuffer, load
from cpprb_like._rows.row_handles import find_rows, handles
from cpprb_like.processes import SharedReplay
from cpprb_like.samplers import LegacyUniform, Prioritized, RankBased, Recency, Uniform
from cpprb_like.samplers._masses import members_of
from cpprb_like.views import Among, AtMost, Groups, NStep, Packed, Rule, Sequences, _items_of_batch

HISTORIES = int(os.environ.get("CPPRB_LIKE_MASS_HISTORIES", "60" if LONG else "2"))
FIELDS: dict[str, Any] = {
    "x": {"shape": (), "dtype": "i8"},
    "key": {"shape": (), "dtype": "i8"},
    "rew": {"shape": ()},
    "done": {"shape": (), "dtype": bool},
}


def rows_of(x: Any, keys: Any) -> dict[str, Any]:
    """Rows with these keys."""
    x = np.asarray(x)
    return {"x": x, "key": keys, "rew": x / 10, "done": np.zeros(len(x), bool)}


class ByX(Rule):
    """A rule whose mass is ``x % 4``."""

    def follows(self, fields: Any) -> Any:
        del fields
        return ["x"]

    def masses(self, rows: Any, slots: Any) -> Any:
        del slots
        return rows["x"] % 4


@pytest.mark.once
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_random_histories(tmp_path: Path, kind: Kind) -> None:
    """A look after each action has the groups of the twin; draws are of these, in order."""
    if kind.capacity < 4 * kind.n_envs:
        return
    for seed in range(HISTORIES):
        (tmp_path / str(seed)).mkdir()
        chance = random.Random(f"groups {kind.name} {seed}")
        history = History(kind, tmp_path / str(seed), chance)
        rb = history.rb
        odd = Among(lambda rows: rows["t"] % 20 > 3, "t")
        pairs = [
            (rb.view(Groups("rew", 3)), SlowGroups(3)),
            (rb.view(Groups("mark", 2), Sequences(2)), SlowGroups(2)),
            (rb.view(Groups("rew", 2), odd, AtMost(2)), SlowGroups(2)),
        ]
        for _ in range(40):
            history._act()  # and the file stays open
            for view, twin in pairs:
                compare(view, twin, chance)


def compare(view: Any, twin: SlowGroups, chance: random.Random) -> None:
    """Compare groups, and a draw, with the twin after an action."""
    rb, now, key = view.buffer, view._now, view.layers[0].key
    can_be_drawn = now.starts.slots() if len(rb) else np.empty(0, np.intp)
    assert not len(rb) or now.starts.count == len(can_be_drawn)
    ring = rb.ring
    there = np.arange(max(ring.first, ring.written - ring.stored), ring.written)
    slots = there % ring.capacity
    slots = slots[ring.flags()[slots] & 8 == 0].astype(np.intp)
    names = handles(ring, slots).tolist()
    keys = dict(zip(names, now.stored(slots, (key,))[key].tolist(), strict=True))
    twin.see(in_order(keys, twin))
    rules = now.rules
    groups = rules.group
    if not len(rb):  # rows that are incomplete are told of at the next draw
        return
    leaders = groups.leaders(slots)
    found = np.unique(leaders[leaders >= 0])
    members = groups.members(found)
    named = handles(ring, members.ravel()).reshape(members.shape).tolist()
    assert sorted(named) == sorted(twin.whole())
    states = now.complete.tell(members.ravel()).reshape(members.shape)
    is_whole = (states == 1).all(axis=1)
    if len(view.layers) == 3:
        used = now.parts[2].layer._counts
        ts = now.stored(members.ravel(), ("t",))["t"].reshape(members.shape)
        is_whole &= (ts % 20 > 3).all(1) & (used[members] < 2).all(1)
    assert can_be_drawn.tolist() == found[is_whole].tolist()
    n, size = len(can_be_drawn), groups.group_size
    if n == 0:
        with pytest.raises(NotEnoughDataError):
            view.sample(size)
        return
    replace = chance.random() < 0.5 and len(view.layers) < 3
    n = chance.randint(1, n)
    options: dict[str, Any] = {} if rb.has_priorities else {"indexes": True}
    drawn = view.sample(n * size, replace=replace, **options)["indexes"].reshape(-1, size)
    expected = [named[k] for k in np.flatnonzero(is_whole)]
    assert all(one in expected for one in drawn.tolist())
    if not replace:
        assert len({tuple(one) for one in drawn.tolist()}) == n


def in_order(keys: dict[int, Any], twin: SlowGroups) -> dict[int, Any]:
    """Rows in the order in which they are told of: new ones, and then edited ones, by age."""
    return {row: key for row, key in keys.items() if row not in twin.of} | keys


@pytest.mark.parametrize("sampler", [Uniform, Prioritized, RankBased])
@pytest.mark.parametrize("layers", [(), (Sequences(2),), (NStep(2, rew="rew"),)])
def test_groups_are_drawn_in_proportion(sampler: Any, layers: Any) -> None:
    """To the weight of the last row times the least mass; weights are those of the last rows."""
    rb: Any = ReplayBuffer(60, FIELDS, sampler=sampler(), seed=0)
    rb.add(**rows_of(range(60), np.arange(60) % 12))
    view = rb.view(Groups("key", 3), ByX(), *layers)
    slots = np.arange(60)
    if rb.has_priorities:
        rb.update_priorities(slots, 0.1 + np.random.default_rng(0).random(60))
        view.sample(3)  # ranks are sorted at a draw
    weights = rb.sampler.row_weights(slots)
    last = np.arange(24, 36)  # a group ends with the third row of its key; 12 rows follow
    least = (np.stack([last - 24, last - 12, last]) % 4).min(axis=0)
    chances = least * (1.0 if weights is None else weights[last])
    options: dict[str, Any] = {"beta": 0.7} if rb.has_priorities else {}
    batch = view.sample(3 * 8000, **options)
    first = batch["x"][:, 0] if layers and isinstance(layers[0], Sequences) else batch["x"]
    groups = first.reshape(-1, 3)
    np.testing.assert_array_equal(groups - groups[:, :1], [[0, 12, 24]] * 8000)
    counts = np.bincount(groups[:, 0], minlength=12)
    there = chances > 0
    assert not counts[~there].any()
    expected = 8000 * chances[there] / chances.sum()
    assert chi_square(counts[there], expected) < chi_square_limit(len(expected) - 1)
    if weights is not None:
        of_last = np.repeat(weights[groups[:, 2]], 3)
        np.testing.assert_allclose(batch["weights"], (of_last / of_last.min()) ** -0.7, rtol=1e-5)


@pytest.mark.parametrize("check", [False, True])
def test_indexes_name_each_row(check: bool) -> None:
    """As ``update_priorities`` takes them; those of last rows change how groups are drawn."""
    sampler = Prioritized(1.0, eps=0.0, check_for_update=check)
    rb: Any = ReplayBuffer(12, FIELDS, sampler=sampler, seed=0)
    rb.add(**rows_of(range(15), np.arange(15) % 5))
    view = rb.view(Groups("key", 2))
    batch = view.sample(10, replace=False)
    view.update_priorities(batch["indexes"], batch["x"] + 1.0)
    slots = find_rows(rb.ring, np.asarray(batch["indexes"]))[0]
    np.testing.assert_array_equal(rb.sampler.row_weights(slots), batch["x"] + 1.0)
    view.update_priorities(batch["indexes"], np.repeat([0, 0, 1, 0, 0], 2))
    again = view.sample(20)
    assert set(again["x"].tolist()) == set(batch["x"][4:6].tolist())
    view.update_priorities(batch["indexes"][4::2][:1], [0.0])  # of a row that is not the last
    assert set(view.sample(20)["x"].tolist()) == set(batch["x"][4:6].tolist())


KEYS: list[tuple[dict[str, Any], Any]] = [
    ({"shape": (), "dtype": "u1"}, lambda n: n),
    ({"shape": 1, "dtype": "f4"}, lambda n: [n / 7]),
    ({"shape": (), "dtype": "f8"}, lambda n: n * 0.1 if n else np.nan),
    ({"shape": (), "dtype": "S6"}, lambda n: b"p%d" % n),
    ({"shape": (), "dtype": "U6"}, lambda n: f"p{n}"),
    ({"dtype": str}, lambda n: f"prompt {n}" if n else ""),
]


@pytest.mark.parametrize(("spec", "key"), KEYS, ids=["u1", "f4", "f8", "bytes", "str", "text"])
@pytest.mark.parametrize("layers", [(), (Packed(),)])
def test_keys_of_each_kind(tmp_path: Path, spec: Any, key: Any, layers: Any) -> None:
    """With values of any length beside them; saves go on bit for bit, as do copies of copies."""
    fields = {"x": {"shape": ()}, "ids": {"shape": ("T",), "dtype": "i4"}, "key": spec}
    room = {"T": 900} | ({"key": 900} if spec["dtype"] is str else {})
    rb = ReplayBuffer(40, fields, room=room, seed=0)
    view = rb.view(Groups("key", 3), *layers)
    chance, came = random.Random(0), []
    for x in range(130):
        n = chance.randrange(9)
        came.append(n)
        rb.add(x=x, ids=np.full(x % 5, x), key=key(n))
        if x % 10 == 9:
            try:
                batch = view.sample(6)
            except NotEnoughDataError:
                continue
            keys = np.array(came)[batch["x"].astype(int)].reshape(-1, 3)
            assert (keys == keys[:, :1]).all()
            assert (np.diff(batch["x"].reshape(-1, 3)) > 0).all()
    view.save(tmp_path)
    copies: list[Any] = [load(tmp_path), pickle.loads(pickle.dumps(view))]
    copies.append(pickle.loads(pickle.dumps(copies[0])))
    for x in range(130, 150):
        for each in (view, *copies):
            each.buffer.add(x=x, ids=np.full(x % 5, x), key=key(x % 9))
        expected = view.sample(9)
        for copy in copies:
            same_batches(copy.sample(9), expected)


@pytest.mark.parametrize("sampler", [Uniform, Prioritized, RankBased, Recency, LegacyUniform])
def test_other_rules_leave_out_whole_groups(sampler: Any) -> None:
    """A row that was drawn often enough, or that a condition leaves out, does."""
    rb = ReplayBuffer(30, FIELDS, sampler=sampler(), seed=0)
    rb.add(**rows_of(range(24), np.arange(24) // 4))
    view = rb.view(Groups("key", 4), AtMost(1), Among("x"))
    found = np.concatenate([view.sample(8)["x"], view.sample(12)["x"]]).reshape(-1, 4)
    assert sorted(found[:, 0].tolist()) == [4, 8, 12, 16, 20]
    with pytest.raises(
        NotEnoughDataError,
        match="0 groups can be drawn: Groups leaves 24, AtMost leaves 4, Among le",
    ):
        view.sample(4)
    assert view.explain(1)["reasons"] == ["of its group, Among leaves it out"]
    assert view.explain(5)["reasons"][0].endswith("drawn 1 of 1 times")
    assert view.stats()["rows_used_up"] == 20
    rb.update([0], x=[1])
    assert view.sample(4)["x"].tolist() == [1, 1, 2, 3]
    with pytest.raises(ValueError, match="batch_size: expected a multiple of 4"):
        view.sample(6)
    with pytest.raises(ValueError, match="epoch"):
        list(view.epoch(4))


def test_reasons() -> None:
    """A group that is not complete, and one that lost a row."""
    rb = ReplayBuffer(8, FIELDS, seed=0)
    view = rb.view(Groups("key", 3))
    rb.add(**rows_of(range(7), [0, 0, 0, 1, 1, 2, 2]))
    assert view.explain(1)["can_be_drawn"]
    assert [view.explain(row)["mass"] for row in range(7)] == [1, 1, 1, 0, 0, 0, 0]
    assert view.explain(3)["reasons"] == ["Groups leaves it out: its group has 2 of 3 rows so far"]
    rb.update([3], key=[9])
    why = ["Groups leaves it out: a row of its group left, or got another key"]
    assert view.explain(4)["reasons"] == why
    rb.add(**rows_of([7, 8], [1, 2]))  # the first is the last row of the group that broke
    assert view.explain(1)["reasons"] == view.explain(4)["reasons"] == why
    assert view.explain(7)["reasons"] == why
    assert view.sample(3)["x"].tolist() == [5, 6, 8]
    rb.add(**rows_of([9, 10, 11, 12], [1, 1, 1, 1]))
    groups = view.sample(6, replace=False)["x"].reshape(2, 3)
    assert sorted(groups.tolist()) == [[5, 6, 8], [9, 10, 11]]


def test_the_weight_of_a_group_is_that_of_its_last_row() -> None:
    """For ``explain`` too."""
    rb = ReplayBuffer(8, FIELDS, sampler=Prioritized(eps=0.0), seed=0)
    rb.add(**rows_of(range(6), [0, 0, 0, 1, 1, 1]))
    view = rb.view(Groups("key", 3))
    rb.update_priorities([rb.explain(row)["index"] for row in (1, 5)], [0, 0])
    assert [view.explain(row)["can_be_drawn"] for row in range(6)] == [True] * 3 + [False] * 3
    assert view.explain(3)["reasons"] == ["the priority of its group is 0"]
    assert set(view.sample(30)["x"].tolist()) == {0, 1, 2}


def test_a_group_may_come_from_several_actors() -> None:
    """And is left out when one of them overwrites its row; ``indexes`` are handles."""
    for sampler in (Uniform, lambda: Prioritized(1.0, eps=0.0)):
        with SharedReplay(32, FIELDS, writers=2) as replay:
            actors = [replay.actor(number) for number in range(2)]
            for x in range(16):
                actors[x % 2].add(x=x, key=x // 4, rew=0, done=True)
            learner = replay.learner(sampler(), seed=0)
            view = learner.view(Groups("key", 4))
            groups = view.sample(16, replace=False)["x"].reshape(-1, 4)
            assert sorted(map(sorted, groups.tolist())) == np.arange(16).reshape(4, 4).tolist()
            if learner.has_priorities:
                batch = view.sample(16, replace=False)
                view.update_priorities(batch["indexes"], (batch["key"] == 2) * 1.0)
                assert set(view.sample(400, 1.0)["key"].tolist()) == {2}
                assert learner.stats()["late_updates"] == 0
            else:
                keys = view.sample(4000)["key"][::4]
                assert chi_square(np.bincount(keys, minlength=4), 250.0) < chi_square_limit(3)
            for x in range(16, 28):
                actors[0].add(x=x, key=9, rew=0, done=True)  # rows 0, 2, 4 and 6 leave
            kept = {2, 3, 9} if not learner.has_priorities else {2, 9}
            keys = np.concatenate([view.sample(8)["key"] for _ in range(40)])
            assert set(keys.tolist()) == kept
            actors[1].update([0], key=[8])  # row 1, of a group that has left
            actors[1].update([7], key=[8])  # row 15, of group 3
            keys = np.concatenate([view.sample(8)["key"] for _ in range(40)])
            assert set(keys.tolist()) == kept - {3}


def test_threads_that_add_update_and_draw() -> None:
    """Each group of a batch has one key, in the order of its rows, whatever comes meanwhile."""
    rb = ReplayBuffer(240, FIELDS, seed=0)
    rb.add(**rows_of(range(240), np.arange(240) // 4))
    view, over = rb.view(Groups("key", 4)), threading.Event()
    wrong: list[Any] = []

    def change() -> None:
        x, chance = 240, random.Random(0)
        while not over.is_set():
            rb.add(**rows_of([x], [x // 4]))
            if chance.random() < 0.05:
                rb.update([chance.randrange(240)], key=[-1 - x])
            x += 1

    def draw() -> None:
        try:
            for _ in range(150):
                batch = view.sample(32)
                keys, x = batch["key"].reshape(-1, 4), batch["x"].reshape(-1, 4)
                is_wrong = (keys != keys[:, :1]).any(1) | (np.diff(x) != 1).any(1)
                wrong.extend(zip(keys[is_wrong].tolist(), x[is_wrong].tolist(), strict=True))
        except BaseException as error:
            wrong.append(error)

    changer = threading.Thread(target=change)
    drawers = [threading.Thread(target=draw) for _ in range(2)]
    for thread in (changer, *drawers):
        thread.start()
    for thread in drawers:
        thread.join()
    over.set()
    changer.join()
    assert wrong == []


def test_rows_that_come_while_others_are_seen_keep_their_order() -> None:
    """A new row in the slot of an edited one was seen before the rows that came before it."""
    rb = ReplayBuffer(8, FIELDS, seed=0)
    rb.add(**rows_of(range(8), [0, 0, 0, 1, 1, 1, 2, 2]))
    adds = False

    def condition(rows: Any) -> Any:
        nonlocal adds
        if adds:
            adds = False
            rb.add(**rows_of([8, 9, 10], [3, 3, 3]))
        return rows["x"] >= 0

    view = rb.view(Among(condition, "x"), Groups("key", 3))
    assert view.sample(3)["key"].tolist() in ([0, 0, 0], [1, 1, 1])
    rb.update([2], x=[2])
    adds = True
    view.sample(3)
    groups = view.sample(6, replace=False)["x"].reshape(2, 3)
    assert sorted(groups.tolist()) == [[3, 4, 5], [8, 9, 10]]


def test_an_end_of_an_episode_amid_a_read_of_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of another thread: all rows were grouped for good as if their texts were empty."""
    fields: dict[str, Any] = {"say": {"dtype": str}, "done": {"shape": (), "dtype": bool}}
    rb = ReplayBuffer(10, fields, seed=0, room={"say": 100})
    rb.add(say=["a", "b", "a", "b"], done=np.zeros(4))
    view = rb.view(Groups("say", 2))
    module: Any = _items_of_batch
    read, ends = module.read_fields, [rb.on_episode_end]

    def hooked(*arguments: Any) -> Any:
        found = read(*arguments)
        if ends:
            ends.pop()()
        return found

    monkeypatch.setattr(module, "read_fields", hooked)
    keys = view.sample(4, replace=False)["say"].reshape(-1, 2)
    assert sorted(keys.tolist()) == [["a", "a"], ["b", "b"]]


def test_an_interrupt_changes_no_group() -> None:
    """At each line of a draw that takes in rows, and that sees others leave."""

    def make() -> Any:
        rb = ReplayBuffer(12, FIELDS, seed=0)
        rb.add(**rows_of(range(11), [0, 0, 1, 1, 2, 2, 2, 1, 3, 3, 4]))
        view = rb.view(Groups("key", 3), Among("rew"))
        view.sample(3)
        rb.add(**rows_of([11, 12, 13], [3, 4, 4]))
        rb.update([5], key=[6])
        return view

    def look(view: Any) -> Any:
        drawable = view._now.starts.slots().tolist()
        state = view._now.rules.state()["Groups"]
        return (
            drawable,
            view._now.rules.group.leaders(np.arange(12)).tolist(),
            {name: values.tolist() for name, values in state.items()},
        )

    assert cut_everywhere(make, lambda view: view.sample(3), look, looks_first=False) > 300


@pytest.mark.parametrize(
    ("key", "k", "error", "match"),
    [
        ("key", 1, ValueError, "k: expected"),
        ("key", 2.5, TypeError, "k: expected"),
        (3, 2, TypeError, "key: expected the name of a field, got 3"),
        ("other", 2, ValueError, "Groups: expected one of the fields"),
        ("vector", 2, ValueError, "'vector' of shape \\(2,\\) and float32"),
        ("wide", 2, ValueError, "'wide' of shape \\(\\) and complex64"),
        ("key", 11, ValueError, "k of at most 10, the capacity, got 11"),
    ],
)
def test_bad_input(key: Any, k: Any, error: type[Exception], match: str) -> None:
    """An error names what was expected."""
    fields = FIELDS | {"vector": {"shape": 2}, "wide": {"shape": (), "dtype": "c8"}}
    rb = ReplayBuffer(10, fields)
    with pytest.raises(error, match=match):
        rb.view(Groups(key, k))
    assert repr(Groups("key", k=3)) == "Groups('key', 3)"


def test_one_view_has_one_rule_that_draws_groups() -> None:
    """A subclass is another layer."""

    class More(Groups):
        """Other groups."""

    rb = ReplayBuffer(10, FIELDS)
    with pytest.raises(ValueError, match="More: expected one rule that draws groups"):
        rb.view(Groups("key", 2), More("x", 2))


def test_rows_are_linked_in_circles() -> None:
    """A row of no ring is an error, and no memory is read there."""
    rng = np.random.default_rng(0)
    groups, nexts = rng.permutation(40).reshape(10, 4), np.zeros(40, np.intp)
    nexts[groups] = np.roll(groups, -1, axis=1)
    assert members_of(nexts, groups[:, -1].copy(), 4).tolist() == groups.tolist()
    assert members_of(nexts, np.empty(0, np.intp), 4).shape == (0, 4)
    nexts[3] = 40
    for leaders in ([-1], [40], [3]):
        with pytest.raises(IndexError, match="below 40"):
            members_of(nexts, np.array(leaders), 4)
