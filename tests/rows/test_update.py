"""Values of stored rows are replaced: exactly those of the rows named, all of them or none."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import refused
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from strategies import Array, assert_same
from threads import run_together

from cpprb_like import PrioritizedReplayBuffer, ReplayBuffer
from cpprb_like.samplers import Uniform
from cpprb_like.typing import FieldSpec

NUMBER: FieldSpec = {"shape": (), "dtype": "i8"}
VALUES: dict[str, Any] = {
    "bool": {"shape": (), "dtype": bool},
    "float": {"shape": 1, "dtype": "f4"},
    "big-endian": {"shape": (2,), "dtype": ">f8"},
    "string": {"shape": (), "dtype": "U5"},
    "object": {"shape": (), "dtype": object},
    "objects": {"shape": (2,), "dtype": object},
    "structured": {"shape": (), "dtype": [("a", "i4"), ("b", "f8", 2)]},
    "with object": {"shape": (), "dtype": [("a", "i4"), ("o", object)]},
    "block": {"shape": (40, 5), "dtype": "f4"},
    "nothing": {"shape": (0, 3), "dtype": "f4"},
}


def values_for(name: str, n: int, seed: int) -> Array:
    """So many values of a field of ``VALUES``, most of them different."""
    spec = VALUES[name]
    dtype = np.dtype(spec["dtype"])
    inner = (spec["shape"],) if isinstance(spec["shape"], int) else spec["shape"]
    numbers = np.random.default_rng(seed).integers(0, 2 if dtype.kind == "b" else 100, (n, *inner))
    if dtype.names is None:
        return numbers.astype(dtype)
    values = np.zeros(n, dtype)
    values["a"] = numbers
    if "o" in dtype.names:
        values["o"] = [str(number) for number in numbers]
    else:
        values["b"] = numbers[:, None]
    return values


def numbered(n: int, capacity: int, **options: Any) -> ReplayBuffer:
    """A buffer to which the rows 0 to n - 1 were added, each with a value of 0."""
    rb = ReplayBuffer(capacity, {"x": NUMBER, "v": NUMBER}, seed=0, **options)
    if n:
        rb.add(x=np.arange(n), v=np.zeros(n, int))
    return rb


# ---- what is replaced --------------------------------------------------------------------


@pytest.mark.parametrize("name", VALUES)
def test_values_of_every_kind_are_replaced(name: str) -> None:
    """The rows named have the new values, all other rows and fields what they had."""
    rb = ReplayBuffer(12, {"x": NUMBER, "value": VALUES[name], "wide": {"shape": 50}}, seed=0)
    before = values_for(name, 17, seed=0)
    rb.add(x=np.arange(17), value=before, wide=np.ones((17, 50)))
    batch = rb.sample(5, replace=False, indexes=True)
    after = values_for(name, 5, seed=1)
    rb.update(batch["indexes"], value=after)
    expected = before.copy()
    expected[batch["x"]] = after
    everything = rb.get_all_transitions()
    order = np.argsort(everything["x"])
    assert everything["x"][order].tolist() == list(range(5, 17))
    native = expected.astype(expected.dtype.newbyteorder("="))
    assert_same(everything["value"][order], native[5:], name)
    assert (everything["wide"] == 1).all()


def test_of_duplicates_the_last_wins() -> None:
    """A row that is named several times gets the last of its values, objects too."""
    rb = ReplayBuffer(4, {"v": NUMBER, "o": {"shape": (), "dtype": object}})
    rb.add(v=[0, 0, 0], o=["", "", ""])
    rb.update([1, 0, 1, 1], v=[1, 2, 3, 4], o=["a", "b", "c", "d"])
    assert rb.get_all_transitions()["v"].tolist() == [2, 4, 0]
    assert rb.get_all_transitions()["o"].tolist() == ["b", "d", ""]


def test_one_row_by_its_slot() -> None:
    """A slot and one value will do, as in ``add``."""
    rb = numbered(3, 4)
    rb.update(2, v=7)
    rb.update(np.array([[0], [1]]), v=[5, 6])
    assert rb.get_all_transitions()["v"].tolist() == [5, 6, 7]
    rb.update([], v=[])
    assert rb.get_all_transitions()["v"].tolist() == [5, 6, 7]


def test_input_is_not_modified() -> None:
    """The caller keeps indexes and values, Python objects included."""
    rb = ReplayBuffer(4, {"v": {"shape": (), "dtype": object}})
    rb.add(v=["a", "b"])
    indexes, values = np.array([1, 0]), np.array(["c", "d"], object)
    rb.update(indexes, v=values)
    assert indexes.tolist() == [1, 0]
    assert values.tolist() == ["c", "d"]


def test_replaced_objects_are_let_go() -> None:
    """An object that was replaced dies, and one that was put in lives as long as its row."""

    class Thing:
        pass

    rb = ReplayBuffer(2, {"o": {"shape": (), "dtype": object}})
    old, new = Thing(), Thing()
    died, lives = weakref.ref(old), weakref.ref(new)
    rb.add(o=[old, old])
    rb.update([0, 0, 1], o=[new, old, new])
    del old, new
    gc.collect()
    first: Any = rb[0]["o"]
    assert first is died()
    del first
    rb.update(0, o=None)
    gc.collect()
    assert died() is None
    second: Any = rb[1]["o"]
    assert second is lives()


def test_rows_that_wait_can_be_replaced() -> None:
    """A row that cannot be drawn yet holds a step; what is summed over it is the new value."""
    rb = ReplayBuffer(
        6,
        {"x": NUMBER, "v": {"shape": ()}},
        n_envs=2,
        Nstep={"size": 3, "rew": "v", "gamma": 1.0},
    )
    for x in range(3):
        rb.add(x=[x, x], v=[0, 0])
    rb.update([0, 2, 4], v=[1, 10, 100])
    assert rb[0]["v"] == 111


@pytest.mark.parametrize("option", ["pickle", "deepcopy", "file"])
def test_names_outlive_the_buffer_object(option: str, tmp_path: Path) -> None:
    """A row has the same name in a copy, and in a file that is opened again."""
    where: dict[str, Any] = {"mmap_prefix": tmp_path / "rows"} if option == "file" else {}
    rb = numbered(7, 5, **where)
    rb.clear()
    rb.add(x=np.arange(8), v=np.zeros(8, int))
    batch = rb.sample(4, replace=False, indexes=True)
    if option == "pickle":
        rb = pickle.loads(pickle.dumps(rb))
    elif option == "deepcopy":
        rb = copy.deepcopy(rb)
    else:
        del rb
        gc.collect()
        rb = numbered(0, 5, mmap_mode="r+", **where)
    rb.add(x=8, v=0)
    rb.update(batch["indexes"], v=batch["x"] + 100)
    expected = {x: x + 100 for x in batch["x"].tolist() if x != 3}
    everything = rb.get_all_transitions()
    found = dict(zip(everything["x"].tolist(), everything["v"].tolist(), strict=True))
    assert found == dict.fromkeys(range(4, 9), 0) | expected


# ---- which rows --------------------------------------------------------------------------


class NamesAgainstTwin(RuleBasedStateMachine):
    """Rows are named when drawn, and updated at any later time: a dict by row number knows all."""

    @initialize(capacity=st.integers(1, 12), n_envs=st.integers(1, 3))
    def create(self, capacity: int, n_envs: int) -> None:
        self.capacity, self.n_envs = max(capacity, n_envs), n_envs
        self.rb = ReplayBuffer(
            self.capacity, {"x": NUMBER, "v": NUMBER}, n_envs=n_envs, seed=capacity
        )
        self.added = 0  # rows ever
        self.ring: list[tuple[int, bool]] = []  # the newest rows, oldest first; is there a step?
        self.values: dict[int, int] = {}  # of all rows ever
        self.names: dict[int, int] = {}  # index -> number of the row that got it

    def _added(self, present: list[bool]) -> None:
        for is_there in present:
            self.values[self.added] = 0
            self.ring = [*self.ring, (self.added, is_there)][-self.capacity :]
            self.added += 1

    @rule(n=st.integers(1, 30))
    def add(self, n: int) -> None:
        n = n if self.n_envs == 1 else self.n_envs
        self.rb.add(x=np.arange(self.added, self.added + n), v=np.zeros(n, int))
        self._added([True] * n)

    @rule(data=st.data())
    def add_where(self, data: st.DataObject) -> None:
        present = [data.draw(st.booleans()) for _ in range(self.n_envs)]
        numbers = np.arange(self.added, self.added + self.n_envs)
        self.rb.add_where(present, x=numbers, v=np.zeros(self.n_envs, int))
        self._added(present)

    @rule()
    def clear(self) -> None:
        self.rb.clear()
        self.ring = []

    @rule()
    def end(self) -> None:
        self.rb.on_episode_end()

    @rule(data=st.data())
    def delete_an_episode(self, data: st.DataObject) -> None:
        if len(self.rb.episodes):
            number = data.draw(st.integers(0, len(self.rb.episodes) - 1))
            gone = self.rb.episodes[number]["x"].tolist()
            self.rb.on_episode_end()
            self.rb.episodes.delete(number)
            self.ring = [(x, is_there and x not in gone) for x, is_there in self.ring]

    @rule(n=st.integers(1, 8))
    def draw(self, n: int) -> None:
        if len(self.rb):
            batch = self.rb.sample(n, indexes=True)
            assert batch["indexes"].dtype == np.int64
            slots = (batch["indexes"] % self.capacity).astype(int)
            assert_same(self.rb[slots]["x"], batch["x"], "x")
            for index, x in zip(batch["indexes"].tolist(), batch["x"].tolist(), strict=True):
                assert index >= self.capacity, "an index that could be a slot"
                assert self.names.setdefault(index, x) == x, "two rows with one index"

    @rule(data=st.data(), n=st.integers(0, 8))
    def update(self, data: st.DataObject, n: int) -> None:
        if not self.names:
            return
        indexes = [data.draw(st.sampled_from(sorted(self.names))) for _ in range(n)]
        values = [data.draw(st.integers(1, 10**6)) for _ in range(n)]
        self.rb.update(np.array(indexes, np.uint64), v=np.array(values, int))
        alive = [x for x, is_there in self.ring if is_there]
        for index, value in zip(indexes, values, strict=True):
            if self.names[index] in alive:
                self.values[self.names[index]] = value

    @rule()
    def copied(self) -> None:
        self.rb = pickle.loads(pickle.dumps(self.rb))

    @invariant()
    def rows_are_those_of_the_twin(self) -> None:
        everything = self.rb.get_all_transitions()
        found = dict(zip(everything["x"].tolist(), everything["v"].tolist(), strict=True))
        assert found == {x: self.values[x] for x, is_there in self.ring if is_there}
        self.rb.check()


TestNamesAgainstTwin = NamesAgainstTwin.TestCase


def test_rows_that_went_are_passed_over() -> None:
    """A row that was overwritten or cleared is not updated, nor the one in its place."""
    rb = numbered(4, 4)
    old = rb.sample(4, replace=False, indexes=True)
    rb.add(x=[4, 5], v=[0, 0])
    rb.update(old["indexes"], v=old["x"] + 100)
    assert rb.get_all_transitions()["v"].tolist() == [0, 0, 102, 103]
    rb.clear()
    rb.add(x=np.arange(4), v=np.zeros(4, int))
    rb.update(old["indexes"], v=old["x"] + 200)
    assert rb.get_all_transitions()["v"].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("prioritized", [False, True])
def test_rows_of_deleted_episodes_are_passed_over(prioritized: bool) -> None:
    """A batch with one deleted row updates its other rows, values and priorities alike.

    The row was an absent one, and the handle of an absent row was refused as if no row ever had it.
    """
    fields: dict[str, FieldSpec] = {"x": NUMBER, "v": NUMBER}
    options: Any = {"check_for_update": True, "eps": 0.0, "alpha": 1.0} if prioritized else {}
    rb = (PrioritizedReplayBuffer if prioritized else ReplayBuffer)(8, fields, seed=0, **options)
    for first in (0, 3):
        rb.add(x=np.arange(first, first + 3), v=np.zeros(3, int))
        rb.on_episode_end()
    batch = rb.sample(64) if prioritized else rb.sample(64, indexes=True)
    assert set(batch["x"].tolist()) == set(range(6))
    rb.episodes.delete(0)
    rb.update(batch["indexes"], v=batch["x"] + 100)
    everything = rb.get_all_transitions()
    assert everything["v"].tolist() == [103, 104, 105]
    if prioritized:
        rb.update_priorities(batch["indexes"], batch["x"] + 1)
        probabilities = rb.sampler.probabilities_of(np.arange(6))  # type: ignore[attr-defined]
        assert probabilities * (4 + 5 + 6) == pytest.approx([0, 0, 0, 4, 5, 6])
        assert set(rb.sample(64)["x"].tolist()) == {3, 4, 5}
    with pytest.raises(IndexError, match="holds a step"):
        rb.update(0, v=1)  # as a slot it names nothing


def test_indexes_of_prioritized_buffers_are_the_same_names() -> None:
    """One batch serves for the priorities and for the values; priorities stay as they were."""
    fields: dict[str, FieldSpec] = {"x": NUMBER, "v": NUMBER}
    rb = PrioritizedReplayBuffer(4, fields, check_for_update=True, eps=0.0, alpha=1.0, seed=0)
    rb.add(x=range(6), v=np.zeros(6, int), priorities=[1, 1, 1, 2, 3, 4])
    batch = rb.sample(64)
    rb.add(x=6, v=0, priorities=0)
    rb.update(batch["indexes"], v=batch["x"] + 100)
    rb.update_priorities(batch["indexes"], batch["x"] + 10)
    everything = rb.get_all_transitions()
    assert everything["x"].tolist() == [4, 5, 6, 3]
    assert everything["v"].tolist() == [104, 105, 0, 103]
    probabilities = rb.sampler.probabilities_of(np.arange(4))  # type: ignore[attr-defined]
    assert probabilities * (14 + 15 + 13) == pytest.approx([14, 15, 0, 13])


def test_with_indexes_the_same_rows_are_drawn() -> None:
    """The option adds a column, and changes nothing else."""
    one, other = numbered(9, 5), numbered(9, 5)
    for replace in (True, False):
        plain = one.sample(4, replace=replace)
        out = {"x": np.empty(4, "i8"), "v": np.empty(4, "i8")}
        named = other.sample(4, replace=replace, out=out, indexes=True)
        assert named is out
        assert list(named) == ["x", "v", "indexes"]
        assert_same(named["x"], plain["x"], "x")
        assert (named["indexes"] % 5).tolist() == (plain["x"] % 5).tolist()


# ---- refused -----------------------------------------------------------------------------


def full(**options: Any) -> ReplayBuffer:
    """A buffer with fields of all kinds."""
    fields: dict[str, Any] = {
        "obs": {"shape": 3},
        "stack": {"shape": 4, "dtype": "i4"},
        "act": {"shape": (), "dtype": "i1"},
        "rew": {},
        "done": {"shape": (), "dtype": bool},
        "truncated": {"shape": (), "dtype": bool},
    }
    rb = ReplayBuffer(8, fields, next_of="obs", stack_compress="stack", seed=0, **options)
    for i in range(5):
        rb.add(
            obs=[i] * 3,
            next_obs=[i + 1] * 3,
            stack=np.arange(i, i + 4),
            act=i,
            rew=i,
            done=i == 2,
            truncated=False,
        )
    return rb


@pytest.mark.parametrize(
    ("indexes", "fields", "error", "words"),
    [
        ([0], {}, TypeError, ["got none", "'obs'"]),
        ([0], {"nothing": [1]}, TypeError, ["unknown fields ['nothing']"]),
        ([0], {"rew": [1], "nothing": [1]}, TypeError, ["unknown fields ['nothing']"]),
        ([0], {"done": [True]}, ValueError, ["'done'", "where an episode ends"]),
        ([0], {"truncated": [True]}, ValueError, ["'truncated'", "where an episode ends"]),
        ([0], {"obs": [[1, 2, 3]]}, ValueError, ["'obs'", "'next_obs'"]),
        ([0], {"next_obs": [[1, 2, 3]]}, ValueError, ["'next_obs'", "'obs'"]),
        ([0], {"stack": [[1, 2, 3, 4]]}, ValueError, ["'stack'", "newest frame"]),
        ([0, 1], {"rew": [1, 2], "act": [3, 1.5]}, ValueError, ["'act'", "int8"]),
        ([0, 1], {"rew": [1, 2], "act": [3, 300]}, ValueError, ["'act'", "300"]),
        ([0, 1], {"rew": [1, 1e300]}, ValueError, ["'rew'", "1e+300"]),
        ([0, 1], {"rew": [1]}, ValueError, ["'rew'", "expected 2", "got 1"]),
        ([0, 1], {"act": [1, 2], "rew": [1, 2, 3]}, ValueError, ["'rew'", "expected 2", "got 3"]),
        ([0, 1], {"rew": [[1, 2], [3, 4]]}, ValueError, ["'rew'", "(2, 2)"]),
        ([0, 5], {"rew": [1, 2]}, IndexError, ["indexes[1]", "0 to 4", "5"]),
        ([0, -1], {"rew": [1, 2]}, IndexError, ["indexes[1]", "-1"]),
        ([0, 13], {"rew": [1, 2]}, IndexError, ["indexes[1]", "13"]),
        ([0, 2**64 - 1], {"rew": [1, 2]}, IndexError, ["indexes[1]", str(2**64 - 1)]),
        ([0, 1.5], {"rew": [1, 2]}, TypeError, ["indexes", "integers"]),
        ([True, False], {"rew": [1, 2]}, TypeError, ["indexes", "integers"]),
        (["a"], {"rew": [1]}, TypeError, ["indexes", "integers"]),
        ([[0, 1]], {"rew": [1, 2]}, ValueError, ["indexes", "(1, 2)"]),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_has_changed(
    indexes: Any, fields: dict[str, Any], error: type[Exception], words: list[str]
) -> None:
    """The message names the argument, what was expected and what came; the rows are as before."""
    rb = full()
    with refused(rb, error, *words):
        rb.update(np.array(indexes, np.uint64) if 2**64 - 1 in indexes else indexes, **fields)
    rb.check()


def test_absent_rows_are_refused() -> None:
    """A slot that holds no step cannot get a value."""
    rb = ReplayBuffer(4, {"x": NUMBER}, n_envs=2)
    rb.add_where([True, False], x=[1, 2])
    with refused(rb, IndexError, "indexes[1]", "holds a step", "got 1"):
        rb.update([0, 1], x=[5, 6])


def test_the_buffer_is_empty() -> None:
    """No slot of an empty buffer holds a step."""
    rb = numbered(0, 4)
    with refused(rb, IndexError, "indexes[0]"):
        rb.update([0], v=[1])


def test_prioritized_buffers_say_if_their_indexes_are_slots() -> None:
    """Whoever asks for indexes that name rows gets such, or an error."""
    rb = PrioritizedReplayBuffer(4, {"x": NUMBER}, check_for_update=True)
    rb.add(x=[1, 2])
    assert (rb.sample(4, indexes=True)["indexes"] >= 4).all()
    rb = PrioritizedReplayBuffer(4, {"x": NUMBER})
    rb.add(x=[1, 2])
    with refused(rb, ValueError, "indexes", "check_for_update"):
        rb.sample(4, indexes=True)


def test_columns_of_indexes_that_there_are_already() -> None:
    """A field, or a column of the sampler, of that name is not replaced in silence."""
    rb = ReplayBuffer(4, {"indexes": {}})
    rb.add(indexes=1)
    with refused(rb, ValueError, "field of this name"):
        rb.sample(1, indexes=True)

    class Own(Uniform):
        def draw(self, *args: Any, **options: Any) -> Any:
            slots, _ = super().draw(*args, **options)
            return slots, {"indexes": slots}

    rb = numbered(3, 4, sampler=Own())
    with pytest.raises(ValueError, match="indexes of its own"):
        rb.sample(1, indexes=True)


# ---- threads -----------------------------------------------------------------------------


@pytest.mark.parametrize("nstep", [None, {"size": 2, "rew": "rew", "next": "ahead"}])
def test_no_batch_holds_half_of_an_update(nstep: Any) -> None:
    """Fields that are always replaced together are equal in every row that another thread reads."""
    wide = 20_000
    names = ["low", "wide", "object", "ahead"]
    fields: dict[str, Any] = {
        "x": NUMBER,
        "low": NUMBER,
        "wide": {"shape": wide, "dtype": "i4"},
        "rew": {},
        "object": {"shape": (), "dtype": object},
        "ahead": NUMBER,
    }
    if nstep is not None:
        del fields["object"]
        names = ["low", "wide", "ahead"]
    rb = ReplayBuffer(24, fields, seed=0, Nstep=nstep)
    n = 24 if nstep is None else 25  # the newest row is incomplete with two steps
    rb.add(**{name: np.zeros((n, wide) if name == "wide" else n, int) for name in fields})
    rb.on_episode_end()
    count = 0

    def write() -> None:
        nonlocal count
        count += 1
        new = {name: np.full((24, wide) if name == "wide" else 24, count) for name in names}
        rb.update(np.arange(24), **new)

    def read() -> None:
        batch = rb.sample(16)
        for name in names:
            values = batch[name].reshape(16, -1).astype(int)
            assert (values == batch["low"][:, None]).all(), f"half of an update: {name}"

    run_together(write, read, read)
    rb.check()


def test_a_batch_is_read_again_if_rows_are_updated_while_it_is_read() -> None:
    """A finalizer that runs in the middle of reading replaces two fields: both are new, or none.

    The fields read before it had their old values in the batch.
    """
    fields: dict[str, Any] = {
        "early": NUMBER,
        "o": {"shape": (), "dtype": object},
        "late": {"shape": (), "dtype": object},
    }
    rb = ReplayBuffer(4, fields, seed=0)
    rb.add(early=[0, 0], o=[0, 0], late=[0, 0])
    ran = []

    class Trap:
        def __del__(self) -> None:
            ran.append(True)
            rb.update([0, 1], early=[1, 1], late=[1, 1])

    out: dict[str, Array] = {"early": np.zeros(1, int), "o": np.empty(1, object)}
    out["late"] = np.empty(1, object)
    out["o"][0] = Trap()
    batch = rb.sample(1, out=out)
    assert ran
    assert batch["early"].tolist() == batch["late"].tolist() == [1]
