"""Copies of sequences: fields of every size and kind, against lists of what was added."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from threads import SECONDS, run_together
from views import sample_sequences

from cpprb_like import NotEnoughDataError, ReplayBuffer
from cpprb_like.samplers._starts import Starts
from cpprb_like.typing import FieldSpec
from cpprb_like.views._gather_windows import take_sequences

Array = npt.NDArray[Any]
Row = dict[str, Any]

# Sizes that have a loop of their own and sizes that have none, in the record and in a block.
FIELDS: dict[str, Any] = {
    "x": {"shape": (), "dtype": "i8"},
    "1": {"shape": (), "dtype": "u1"},
    "2": {"shape": (), "dtype": "i2"},
    "4": {"shape": 1, "dtype": "f4"},
    "16": {"shape": 2, "dtype": "f8"},
    "3": {"shape": 3, "dtype": "u1"},
    "40": {"shape": (5, 4), "dtype": "i2"},
    "150": {"shape": 150, "dtype": "u1"},
    "0": {"shape": (2, 0), "dtype": "f4"},
    "small": {"shape": 2, "dtype": "i4"},
    "image": {"shape": (5, 30), "dtype": "u1"},
    "stack": {"shape": (2, 3), "dtype": "i2"},
    "object": {"shape": (), "dtype": "O"},
    "terminated": {"shape": (), "dtype": bool},
}
CHAINED: dict[str, Any] = {"next_of": ["small", "image", "stack"], "stack_compress": {"stack": -1}}


def values_of(x: int, n_envs: int) -> Row:
    """The values of step number x of all; no two steps are alike, and none is 0."""
    row: Row = {"x": x, "object": f"step {x}"}
    for name in ("1", "2", "4", "16", "3", "40", "150", "0", "small", "image"):
        shape, dtype = FIELDS[name]["shape"], FIELDS[name]["dtype"]
        count = int(np.prod(shape))
        row[name] = (1 + (x * 7 + np.arange(count)) % 125).reshape(shape).astype(dtype)
    frames = [1 + max(x - age * n_envs, 0) % 30_000 for age in (2, 1, 0)]
    row["stack"] = np.array([frames, frames], "i2")
    return row


@dataclass
class Twin:
    """A buffer, and the list of all rows that were added to it."""

    rb: ReplayBuffer
    rng: np.random.Generator
    p_end: float
    p_odd: float  # that a next value is not what the next row holds

    def __post_init__(self) -> None:
        self.rows: list[Row] = []

    def _new(self) -> Row:
        x, k = len(self.rows) + 1, self.rb.n_envs
        row = values_of(x, k)
        for name in CHAINED["next_of"]:
            odd = self.rng.random() < self.p_odd
            following = values_of(x + (100_000 if odd else k), k)[name]
            row[f"next_{name}"] = following
        row["terminated"] = bool(self.rng.random() < self.p_end)
        row["present"] = True
        self.rows.append(row)
        return row

    def add(self, times: int) -> None:
        """Add time steps; of some of them, not every environment has a row."""
        k = self.rb.n_envs
        names = [column.name for column in self.rb.ring.columns]
        if k == 1:
            new = [self._new() for _ in range(times)]
            self.rb.add(**{name: stacked([row[name] for row in new], name) for name in names})
            return
        for _ in range(times):
            new = [self._new() for _ in range(k)]
            there = self.rng.random(k) > 0.1
            for row, present in zip(new, there.tolist(), strict=True):
                row["present"] = present
            columns = {name: stacked([row[name] for row in new], name) for name in names}
            self.rb.add_where(there, **columns)

    def sequence(self, x: int, rows: int, across: bool) -> list[Row]:
        """The rows from step x on."""
        found: list[Row] = []
        for row in self.rows[x - 1 :: self.rb.n_envs]:
            if row["present"]:
                found.append(row)
                if len(found) == rows or (row["terminated"] and not across):
                    break
        return found

    def begins(self, row: Row) -> bool:
        """Whether an episode begins at a row, as far as the ring can tell."""
        oldest = max(len(self.rows) - self.rb.capacity, 0)
        place = int(row["x"]) - 1 - self.rb.n_envs
        while place >= oldest:
            if self.rows[place]["present"]:
                return bool(self.rows[place]["terminated"])
            place -= self.rb.n_envs
        return place < 0


def stacked(values: list[Any], name: str) -> Array:
    """Values as a column."""
    if name != "object":
        return np.stack([np.asarray(value) for value in values])
    column = np.empty(len(values), object)
    column[:] = values
    return column


def assert_sequence(twin: Twin, batch: dict[str, Array], k: int, single: set[str]) -> None:
    """The k-th sequence is what was added, and nothing where no row is."""
    across = "is_first" in batch
    marks = batch["is_first" if across else "mask"]
    n_rows = marks.shape[1]
    x = int(batch["x"][k] if "x" in single else batch["x"][k, 0])
    rows = twin.sequence(x, n_rows, across)
    assert rows[0]["present"]
    assert len(rows) == n_rows or (rows[-1]["terminated"] and not across)
    for name in (column.name for column in twin.rb.ring.columns):
        expected = stacked([row[name] for row in rows], name)
        values = batch[name][k]
        if name in single:
            np.testing.assert_array_equal(values, expected[0], name)
            continue
        assert values.shape == (n_rows, *expected.shape[1:])
        np.testing.assert_array_equal(values[: len(rows)], expected, name)
        behind = values[len(rows) :]
        assert all(value is None for value in behind) if name == "object" else not behind.any()
    if across:
        assert marks[k].tolist() == [twin.begins(row) for row in rows]
    else:
        assert marks[k].tolist() == [i < len(rows) for i in range(n_rows)]


@pytest.mark.once
@pytest.mark.filterwarnings("ignore:.* do not follow:UserWarning")
@given(
    st.fixed_dictionaries(
        {
            "capacity": st.sampled_from([1, 2, 7, 40, 300, 301]),
            "n_envs": st.sampled_from([1, 1, 2, 3]),
            "rows": st.sampled_from([1, 2, 5, 12, 127, 128, 129, 257, 300]),
            "across": st.booleans(),
            "p_end": st.sampled_from([0.0, 0.003, 0.05, 0.3]),
            "p_odd": st.sampled_from([0.0, 0.1, 1.0]),
            "plain": st.booleans(),
            "single": st.sets(st.sampled_from(["x", "3", "150", "stack", "image", "object"])),
            "single_next": st.sets(st.sampled_from(["next_small", "next_image", "next_stack"])),
            "seed": st.integers(0, 2**32),
        }
    )
)
def test_fields_of_every_kind(case: dict[str, Any]) -> None:
    """Whatever its size, wherever it lies and however it is stored: a field is what was added."""
    rng = np.random.default_rng(case["seed"])
    capacity = max(case["capacity"], case["n_envs"])
    rows = min(case["rows"], capacity // case["n_envs"])
    options = {} if case["plain"] else CHAINED
    single = case["single"] | (set() if case["plain"] else case["single_next"])
    fields = {name: spec for name, spec in FIELDS.items() if options or name != "object"}
    single &= {*fields, *(f"next_{name}" for name in options.get("next_of", ()))}
    rb = ReplayBuffer(capacity, fields, n_envs=case["n_envs"], seed=rng, **options)
    twin = Twin(rb, rng, case["p_end"], case["p_odd"])
    for _ in range(3):
        twin.add(int(rng.integers(1, 1 + 2 * capacity // case["n_envs"])))
        for n in (1, 12):
            try:
                batch = sample_sequences(
                    rb, n, rows, across_episodes=case["across"], first_only=single
                )
            except NotEnoughDataError:
                continue
            for k in range(n):
                assert_sequence(twin, batch, k, single)


@pytest.mark.parametrize("n_envs", [1, 2, 3])
def test_every_start_in_turn(n_envs: int) -> None:
    """Sequences from each slot of a ring that has wrapped, over absent rows and ends."""
    rng = np.random.default_rng(3)
    rb = ReplayBuffer(60, FIELDS, n_envs=n_envs, seed=0, **CHAINED)
    twin = Twin(rb, rng, 0.1, 0.1)
    twin.add(145 // n_envs)
    for across in (False, True):
        starts = Starts(rb._episodes, rows=9, least=9 if across else 1, across=across, stride=1)
        slots = np.sort(starts.slots())
        found = take_sequences([(starts, slots, None)], len(slots), frozenset())
        assert found is not None
        batch, marks, _ = found
        assert ((batch["x"][:, 0] - 1) % 60).tolist() == slots.tolist()
        for k in range(len(slots)):
            assert_sequence(twin, {**batch, "is_first" if across else "mask": marks}, k, set())


def test_what_is_no_sequence() -> None:
    """Slots that are not in use, or no dense array of intp, are an error."""
    rb = ReplayBuffer(10, {"x": {"shape": (), "dtype": "i8"}, "done": {}}, seed=0)
    rb.add(x=np.arange(6), done=np.zeros(6))
    starts = Starts(rb._episodes, rows=3, least=1, across=False, stride=1)
    assert take_sequences([(starts, np.array([0, 3], np.intp), None)], 2, frozenset()) is not None
    with pytest.raises(IndexError, match="10"):
        take_sequences([(starts, np.array([10], np.intp), None)], 1, frozenset())
    with pytest.raises(TypeError, match="intp"):
        take_sequences([(starts, np.array([1], np.int32), None)], 1, frozenset())


def test_large_batches_use_memory_again() -> None:
    """A batch that is let go lends its memory to the next, and no living batch does."""
    rb = ReplayBuffer(100, {"x": {"shape": 1000, "dtype": "i8"}}, seed=0)
    rb.add(x=np.arange(100_000).reshape(100, 1000))
    first, second = (sample_sequences(rb, 4, 20, across_episodes=True) for _ in range(2))
    address, kept = second["x"].ctypes.data, first["x"].copy()
    del second
    third = sample_sequences(rb, 4, 20, across_episodes=True)
    assert third["x"].ctypes.data == address
    assert (first["x"] == kept).all()


def following(x: Array) -> Array:
    """What next values say of step x: mostly the next step, and at times something else."""
    return np.where(x % 7 == 3, -x, x + 1)


@pytest.mark.parametrize("across", [False, True])
def test_threads_add_while_next_values_are_read(across: bool) -> None:
    """The newest next value of all, and those that are stored apart, are what was promised."""
    fields: dict[str, FieldSpec] = {
        "x": {"shape": (), "dtype": "i8"},
        "done": {"shape": (), "dtype": bool},
        "obs": {"shape": 400, "dtype": "i8"},
    }
    rb = ReplayBuffer(60, fields, next_of=["x", "obs"], seed=0)
    count = 0

    def add() -> None:
        nonlocal count
        n = 1 + count % 3
        x = np.arange(count, count + n)
        obs, following_obs = (np.repeat(value[:, None], 400, 1) for value in (x, following(x)))
        done = x % 11 == 10
        rb.add(x=x, done=done, obs=obs, next_x=following(x), next_obs=following_obs)
        count += n

    def draw() -> None:
        batch = sample_sequences(rb, 8, 5, across_episodes=across)
        there = np.ones((8, 5), bool) if across else batch["mask"]
        x = batch["x"]
        assert (np.diff(x)[there[:, 1:]] == 1).all()
        assert (batch["next_x"][there] == following(x)[there]).all()
        assert (batch["obs"] == x[:, :, None]).all()
        assert (batch["next_obs"][there] == following(x)[there][:, None]).all()

    while count < 30:
        add()
    run_together(add, draw, draw)


def test_threads_delete_while_sequences_are_read() -> None:
    """An episode in the middle of a sequence is there as a whole, or not at all.

    Rows are copied in runs, and the next one is looked for after that: without a check at the end
    an episode that is deleted in between would be there in part.
    """
    fields: dict[str, FieldSpec] = {
        "x": {"shape": (), "dtype": "i8"},
        "done": {"shape": (), "dtype": bool},
        "copies": {"shape": 1000, "dtype": "i8"},
    }
    rb = ReplayBuffer(1200, fields, seed=0)
    count = 0

    def add() -> None:
        nonlocal count
        x = np.arange(count, count + 40)
        rb.add(x=x, done=x % 40 == 39, copies=np.repeat(x[:, None], 1000, 1))
        count += 40

    def delete() -> None:
        if len(rb.episodes) > 24:
            rb.episodes.delete(count % 23)
        else:
            add()

    def draw() -> None:
        batch = sample_sequences(rb, 4, 300, across_episodes=True)
        x, first = batch["x"], batch["is_first"]
        assert (batch["copies"] == x[:, :, None]).all()
        assert (first[:, 1:] == (x[:, 1:] % 40 == 0)).all()
        assert (np.where(first[:, 1:], x[:, :-1] % 40 == 39, np.diff(x) == 1)).all()

    while count < 1200:
        add()
    run_together(delete, draw, draw, seconds=3 * SECONDS)


def test_threads_update_while_sequences_are_read() -> None:
    """Values that are replaced together are read together."""
    fields: dict[str, FieldSpec] = {
        "a": {"shape": (), "dtype": "i8"},
        "b": {"shape": 2000, "dtype": "i8"},
    }
    rb = ReplayBuffer(50, fields, seed=0)
    rb.add(a=np.zeros(50), b=np.zeros((50, 2000)))
    indexes = rb.sample(500, indexes=True)["indexes"]
    count = 0

    def update() -> None:
        nonlocal count
        count += 1
        rb.update(indexes, a=np.full(500, count), b=np.full((500, 2000), count))

    def draw() -> None:
        batch = sample_sequences(rb, 4, 20, across_episodes=True)
        assert (batch["b"] == batch["a"][0, 0]).all()

    run_together(update, draw)
