"""Next values, stacks of frames and sums over steps: what was added is what is drawn."""

from __future__ import annotations

import copy
import itertools
import pickle
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium_cases import MODES, drawn_actions, run_vector, vector
from helpers import rows_of, snapshot
from hypothesis import given
from hypothesis import strategies as st
from reference_views import ReferenceViews, Several, Values
from strategies import Array, assert_same
from threads import run_together
from views import sample_sequences

from cpprb_like import NotEnoughDataError, ReplayBuffer
from cpprb_like.integrations.gymnasium import GymnasiumRecorder
from cpprb_like.processes import SharedReplay
from cpprb_like.samplers import LegacyUniform, Prioritized, Recency, Reverse, Uniform
from cpprb_like.typing import FieldSpec, NstepSpec
from cpprb_like.views import NStep

# Of random stacks none may follow from the one before.
pytestmark = pytest.mark.filterwarnings("ignore:.* do not follow")

DTYPES: list[Any] = [
    "u1",
    "<i2",
    ">i2",
    "<f4",
    ">f4",
    "<f8",
    "m8[s]",
    "S3",
    [("a", "u1"), ("b", "f4")],
]
FRAMES = [(), (1,), (3,), (2, 3), (0,), (40,)]
ENDS = [(), ("terminated", "truncated"), ("done",), ("done", "truncated"), ("terminated", "done")]

STEPS: dict[str, FieldSpec] = {
    "obs": {"shape": ()},
    "rew": {"shape": ()},
    "done": {"shape": (), "dtype": np.bool_},
}


@dataclass(frozen=True)
class Shape:
    """A buffer with readings, and the steps that it takes."""

    capacity: int
    n_envs: int
    depth: int  # frames of ``obs``; 0: no axis of frames
    axis: int
    frame: tuple[int, ...]
    dtype: Any
    next_of: tuple[str, ...]
    compressed: tuple[str, ...]
    ends: tuple[str, ...]
    several: Several | None
    declared: bool = False  # next_of with next_obs in ``env_dict`` as well

    @property
    def obs_shape(self) -> tuple[int, ...]:
        """Of a stack of frames."""
        return (*self.frame[: self.axis], self.depth, *self.frame[self.axis :])

    @property
    def env_dict(self) -> dict[str, FieldSpec]:
        """The declared fields."""
        obs: FieldSpec = {"shape": self.obs_shape, "dtype": self.dtype}
        fields: dict[str, FieldSpec] = {
            "id": {"shape": (), "dtype": "i8"},
            "obs": obs,
            "extra": {"shape": (2, 2), "dtype": "f4"},
            "rew": {"shape": (), "dtype": "f8"},
            "costs": {"shape": 1, "dtype": "f4"},
            **{name: {"shape": 1, "dtype": "f4"} for name in self.ends},
        }
        if "obs" not in self.next_of or self.declared:
            fields["next_obs"] = obs
        return fields

    def buffer(self, seed: int = 0) -> ReplayBuffer:
        """An empty buffer."""
        return ReplayBuffer(
            self.capacity,
            self.env_dict,
            n_envs=self.n_envs,
            next_of=self.next_of,
            stack_compress={name: self.axis if name != "extra" else 0 for name in self.compressed},
            Nstep=None if self.several is None else self.several.options(),
            seed=seed,
        )


def random_bytes(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Array:
    """Values of any bytes: NaNs of every kind, negative zeros."""
    kind = np.dtype(dtype).newbyteorder("=")
    out: Array = np.ndarray(shape, kind, rng.bytes(kind.itemsize * int(np.prod(shape, dtype=int))))
    return out


@dataclass
class Play:
    """What environments send: mostly stacks that slide and next values that come true."""

    shape: Shape
    rng: np.random.Generator
    odd: float  # how often a stack does not slide, or a next value does not come true
    longest: int  # episode
    number: int = 0
    obs: dict[int, Array] = field(default_factory=dict)
    left: dict[int, int] = field(default_factory=dict)

    def step(self, env: int) -> Values:
        """The next step of an environment."""
        rng, shape = self.rng, self.shape
        if self.left.get(env, 0) == 0:
            self.left[env] = int(rng.integers(1, self.longest, endpoint=True))
            if rng.random() < 0.5:  # otherwise the next episode begins where the last one ended
                self.obs[env] = random_bytes(rng, shape.obs_shape, shape.dtype)
        self.left[env] -= 1
        obs = self.obs.setdefault(env, random_bytes(rng, shape.obs_shape, shape.dtype))
        following = np.roll(obs, -1, shape.axis)
        newest = (slice(None),) * shape.axis + (-1,)
        following[newest] = random_bytes(rng, shape.frame, shape.dtype)
        self.obs[env] = following
        if rng.random() < self.odd:
            self.obs[env] = random_bytes(rng, shape.obs_shape, shape.dtype)
        if rng.random() < self.odd:
            following = random_bytes(rng, shape.obs_shape, shape.dtype)
        self.number += 1
        values: Values = {
            "id": np.asarray(self.number),
            "obs": obs,
            "extra": rng.integers(0, 3, (2, 2)).astype("f4"),
            "rew": np.asarray(float(rng.integers(-8, 9))),
            "costs": rng.integers(-8, 9, 1).astype("f4"),
            "next_obs": following,
        }
        if "extra" in shape.next_of:
            values["next_extra"] = rng.integers(0, 2, (2, 2)).astype("f4")
        for name in shape.ends:
            values[name] = np.zeros(1, "f4")
        if self.left[env] == 0 and shape.ends:
            how = rng.integers(1, 2 ** len(shape.ends))
            for i, name in enumerate(shape.ends):
                values[name][0] = how >> i & 1
        return values

    def steps(self, first: int, n: int) -> list[Values]:
        """Steps of the environments in turn."""
        return [self.step((first + i) % self.shape.n_envs) for i in range(n)]


def columns(rb: ReplayBuffer, rows: list[Values]) -> dict[str, Array]:
    """The columns that ``add`` takes."""
    found = {}
    for declared in rb.schema.fields:
        column: Array = np.zeros((len(rows), *declared.shape), declared.dtype)
        for i, row in enumerate(rows):
            column[i, ...] = row[declared.name]
        found[declared.name] = column
    return found


def assert_row(expected: Values, row: dict[str, Array], what: str) -> None:
    """The row holds the expected values, byte for byte, and nothing else."""
    assert row.keys() == expected.keys(), what
    for name, value in expected.items():
        if value.dtype.names is None:
            assert row[name].dtype == value.dtype, f"{what}, {name}"
        assert row[name].shape == value.shape, f"{what}, {name}"
        assert row[name].tobytes() == value.tobytes(), (
            f"{what}, {name}: expected {value!r}, got {row[name]!r}"
        )


def assert_holds(rb: ReplayBuffer, twin: ReferenceViews) -> None:
    """The rows of ``rb`` are those that its twin would draw, in the order of the slots."""
    slots = twin.slots()
    assert len(rb) == rb.get_stored_size() == len(slots)
    for env in range(rb.n_envs):
        assert rb.get_current_episode_len(env) == twin.episode_len(env)
    everything = rows_of(rb.get_all_transitions())
    for (slot, row), got in zip(slots.items(), everything, strict=True):
        assert_row(twin.read(row), got, f"slot {slot}")


def assert_reads(rb: ReplayBuffer, twin: ReferenceViews, rng: np.random.Generator) -> None:
    """Every reading of ``rb`` gives what its twin has, of the rows that its twin would draw."""
    assert_holds(rb, twin)
    slots = twin.slots()
    stored = twin.slots_in_use
    for slot in sorted(set(range(stored)) - slots.keys()):
        with pytest.raises(IndexError):
            rb[slot]
    if not slots:
        return
    chosen = rng.choice(list(slots), 5)
    for slot, got in zip(chosen.tolist(), rows_of(rb[chosen]), strict=True):
        assert_row(twin.read(slots[slot]), got, f"slot {slot}")
    by_id = {int(twin.read(row)["id"]): row for row in slots.values()}
    distinct = rb.sample(len(slots), replace=False)
    assert sorted(distinct["id"].tolist()) == sorted(by_id)
    out = {name: np.empty_like(column) for name, column in rb.sample(3).items()}
    rb.sample(3, out=out)
    shuffled = rb.get_all_transitions(shuffle=True)
    for batch in (distinct, rb.sample(4), out, shuffled, *rb.epoch(3)):
        for got in rows_of(batch):
            assert_row(twin.read(by_id[int(got["id"])]), got, f"id {got['id']}")
    assert_reads_of_some_fields(rb, twin, by_id, rng)
    assert_reads_of_sequences(rb, twin, rng)
    if twin.several is not None:
        assert_reads_of_other_sizes(rb, twin, by_id, rng)


def some_fields(rb: ReplayBuffer, rng: np.random.Generator) -> list[str]:
    """Names of fields, the number of the step among them."""
    others = [name for name in rb.schema.names if name != "id" and rng.random() < 0.4]
    rng.shuffle(others)
    return [*others, "id"]


def assert_reads_of_some_fields(
    rb: ReplayBuffer, twin: ReferenceViews, by_id: dict[int, int], rng: np.random.Generator
) -> None:
    """Each way to draw gives the fields that were asked for, and the names of the rows."""
    fields = some_fields(rb, rng)
    named = rb.sample(4, fields=fields, indexes=True)
    indexes = named.pop("indexes").tolist()
    for got, index in zip(rows_of(named), indexes, strict=True):
        assert index == twin.index(by_id[int(got["id"])])
    everything = rb.get_all_transitions(fields=fields)
    assert len(everything["id"]) == len(by_id)
    for batch in (named, everything, *rb.epoch(5, fields=fields)):
        for got in rows_of(batch):
            assert_row(twin.part(by_id[int(got["id"])], fields), got, f"id {got['id']}")


def assert_reads_of_sequences(
    rb: ReplayBuffer, twin: ReferenceViews, rng: np.random.Generator
) -> None:
    """Rows of sequences are as they were added, and named as for ever."""
    fields, across = some_fields(rb, rng), bool(rng.random() < 0.5)
    by_id = {int(step.values["id"]): row for row, step in enumerate(twin.rows) if step is not None}
    length = int(rng.integers(1, max(2, min(6, rb.ring.capacity // rb.n_envs))))
    try:
        batch = sample_sequences(rb, 3, length, across_episodes=across, fields=fields, indexes=True)
    except NotEnoughDataError:
        return
    assert batch.keys() == {*fields, "indexes", "row_indexes", "is_first" if across else "mask"}
    np.testing.assert_array_equal(batch["indexes"], batch["row_indexes"][:, 0])
    for k, j in np.ndindex(3, length):
        if not across and not batch["mask"][k, j]:
            assert batch["row_indexes"][k, j] == -1
            continue
        row = by_id[int(batch["id"][k, j])]
        assert batch["row_indexes"][k, j] == twin.index(row)
        got = {name: batch[name][k, j, ...] for name in fields}
        assert_row({name: twin.added(row)[name] for name in fields}, got, f"row {row}")


def assert_reads_of_other_sizes(
    rb: ReplayBuffer, twin: ReferenceViews, by_id: dict[int, int], rng: np.random.Generator
) -> None:
    """Views of another number of steps, or one that is drawn, and with another gamma."""
    assert twin.several is not None
    least, most = sorted(rng.integers(1, twin.several.size, 2, endpoint=True).tolist())
    for got in rows_of(rb.view(NStep(most, 0.25)).sample(4)):
        assert_row(twin.read(by_id[int(got["id"])], most, 0.25), got, f"id {got['id']}")
    fields = some_fields(rb, rng)
    for got in rows_of(rb.view(NStep(most, 0.25)).sample(4, fields=fields)):
        row = by_id[int(got["id"])]
        assert_row(twin.part(row, fields, size=most, gamma=0.25), got, f"id {got['id']}")
    for got in rows_of(rb.view(NStep((least, most))).sample(4)):
        row = by_id[int(got["id"])]
        expected = [twin.read(row, size) for size in range(least, most + 1)]
        assert any(
            all(one[name].tobytes() == got[name].tobytes() for name in got) for one in expected
        ), f"id {got['id']} of {least} to {most} steps: none of {expected}, got {got}"


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    """Buffers with every combination of readings."""
    n_envs = draw(st.integers(1, 4))
    capacity = draw(st.integers(n_envs, 40))
    frame = draw(st.sampled_from(FRAMES))
    several = None
    if draw(st.booleans()):
        rewards = draw(st.sampled_from([(), ("rew",), ("rew", "costs"), ("costs",)]))
        ahead = draw(st.sampled_from([(), ("next_obs",), ("next_obs", "extra"), ("obs",)]))
        several = Several(
            draw(st.integers(1, 6)),
            draw(st.sampled_from([0.0, 0.5, 1.0])),
            rewards,
            ahead,
            draw(st.booleans()),
        )
    return Shape(
        capacity,
        n_envs,
        depth=draw(st.integers(1, 5)),
        axis=draw(st.integers(0, len(frame))),
        frame=frame,
        dtype=draw(st.sampled_from(DTYPES)),
        next_of=draw(st.sampled_from([(), ("obs",), ("extra", "obs"), ("extra",)])),
        compressed=draw(st.sampled_from([(), ("obs",), ("extra", "obs"), ("extra",)])),
        ends=draw(st.sampled_from(ENDS)),
        several=several,
        declared=draw(st.booleans()),
    )


ACTIONS = st.one_of(
    st.tuples(st.just("add"), st.integers(0, 9)),
    st.tuples(st.just("add"), st.integers(0, 100)),
    st.tuples(st.just("one by one"), st.integers(1, 30)),
    st.tuples(st.just("some"), st.integers(1, 8)),
    st.tuples(st.just("end"), st.integers(-1, 3)),
    st.tuples(st.sampled_from(["clear", "refused", "pickle", "copy", "strided"]), st.just(1)),
)


def act(
    rb: ReplayBuffer, twin: ReferenceViews, play: Play, action: tuple[str, int]
) -> ReplayBuffer:
    """Do one thing to a buffer and its twin; they say the same about it."""
    what, n = action
    first, n_envs = len(twin.rows), twin.n_envs
    if what == "add":
        n = n if n_envs == 1 else n_envs
        rows = play.steps(first, n)
        assert rb.add(**columns(rb, rows)) == twin.add(rows)
    elif what == "strided":
        rows = play.steps(first, n_envs)
        fields = {name: column.repeat(2, 0)[::2] for name, column in columns(rb, rows).items()}
        assert rb.add(**fields) == twin.add(rows)
    elif what == "one by one":
        for _ in range(n):
            rows = play.steps(len(twin.rows), n_envs)
            assert rb.add(**columns(rb, rows)) == twin.add(rows)
    elif what == "some":
        for _ in range(n):
            rows = play.steps(len(twin.rows), n_envs)
            present = (play.rng.random(n_envs) < 0.6).tolist()
            assert rb.add_where(present, **columns(rb, rows)) == twin.add(rows, present)
    elif what == "end":
        env = n % n_envs if n >= 0 else None
        rb.on_episode_end(env)
        twin.on_episode_end(env)
    elif what == "clear":
        rb.clear()
        twin.clear()
    elif what == "refused":
        fields = columns(rb, play.steps(first, n_envs))
        before = snapshot(rb)
        with pytest.raises(ValueError, match="'extra'"):
            rb.add(**{**fields, "extra": np.zeros(7)})
        assert snapshot(rb) == before
    else:
        return pickle.loads(pickle.dumps(rb)) if what == "pickle" else copy.deepcopy(rb)
    return rb


@given(shapes(), st.lists(ACTIONS, max_size=12), st.integers(0, 2**32), st.data())
def test_every_reading_gives_what_was_added(
    shape: Shape, actions: list[tuple[str, int]], seed: int, data: st.DataObject
) -> None:
    """Whatever is added, wherever episodes end, rows are drawn as their twins in whole episodes."""
    rng = np.random.default_rng(seed)
    odd, longest = data.draw(st.sampled_from([0.0, 0.05, 0.5])), data.draw(st.integers(1, 60))
    rb, twin = shape.buffer(seed), ReferenceViews(shape.capacity, shape.n_envs, shape.several)
    play = Play(shape, rng, odd, longest)
    for action in actions:
        rb = act(rb, twin, play, action)
        assert_reads(rb, twin, rng)


# ---------------------------------------------------------------- values of every kind


@pytest.mark.parametrize("n", [1, 7, 300])
@pytest.mark.parametrize("depth", [2, 255, 256])
def test_deep_stacks(n: int, depth: int) -> None:
    """A stack may have up to 256 frames, of which a ring of 10 rows holds few."""
    several = Several(2, 0.5, ("rew",), ("next_obs",))
    shape = Shape(10, 1, depth, 0, (2,), "u1", ("obs",), ("obs",), ("done",), several)
    rng = np.random.default_rng(depth)
    rb, twin = shape.buffer(), ReferenceViews(10, 1, several)
    play = Play(shape, rng, 0.02, 30)
    for _ in range(600 // n):
        act(rb, twin, play, ("add", n))
    assert_reads(rb, twin, rng)


@pytest.mark.parametrize("before", range(1, 9))
def test_nothing_follows_from_rows_before_a_clear(before: int) -> None:
    """Stacks that slide on after ``clear`` are whole: their older frames went with the rows."""
    fields: dict[str, Any] = {"obs": {"shape": (3, 4), "dtype": "u1"}}
    rb = ReplayBuffer(5, fields, next_of="obs", stack_compress={"obs": 1})
    frames = np.arange(99, dtype="u1")

    def add(step: int) -> None:
        stack, following = frames[step : step + 4], frames[step + 1 : step + 5]
        rb.add(obs=[stack] * 3, next_obs=[following] * 3)

    for step in range(before):
        add(step)
    rb.clear()
    for step in range(before, before + 9):
        add(step)
        batch = rb.get_all_transitions()
        newest = np.sort(batch["obs"][:, :, -1], axis=0)[-1]
        assert newest.tolist() == [step + 3] * 3
        assert (np.diff(batch["obs"]) == 1).all()
        assert (batch["next_obs"] - batch["obs"] == 1).all()
        assert len(rb) == min(5, step - before + 1)


@pytest.mark.parametrize("option", ["next_of", "stack_compress"])
@pytest.mark.parametrize("n_envs", [1, 2])
def test_a_call_without_rows_leaves_the_newest_values(option: str, n_envs: int) -> None:
    """``add`` of no rows had later calls read an older value, or zeros, as the newest one."""
    options: dict[str, Any] = {option: "obs", "n_envs": n_envs}
    rb = ReplayBuffer(9 * n_envs, {"obs": {"shape": 3, "dtype": "i8"}}, **options)
    stacks = np.array([0, 50, 1, 70, 80])[:, None] + np.arange(3)  # the third follows the first
    rows = np.repeat(stacks, n_envs, axis=0)
    steps = rows if n_envs == 1 else rows.reshape(-1, n_envs, 3)
    for obs in (*steps[:2], steps[:0], *steps[2:], steps[:0]):
        rb.add(obs=obs, **({"next_obs": -obs} if option == "next_of" else {}))
        batch = rb.get_all_transitions()
        np.testing.assert_array_equal(batch["obs"], rows[: len(rb)])
        if option == "next_of":
            np.testing.assert_array_equal(batch["next_obs"], -batch["obs"])


@pytest.mark.parametrize("next_of", ["obs", None])
@pytest.mark.parametrize("stack", ["obs", None])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_bits_of_floats(dtype: str, stack: str | None, next_of: str | None) -> None:
    """NaNs keep their bits, and a zero its sign: equal numbers of other bits do not follow."""
    fields: dict[str, Any] = {name: {"shape": 2, "dtype": dtype} for name in ("obs", "next_obs")}
    rb = ReplayBuffer(9, fields, next_of=next_of, stack_compress=stack)
    nan = np.array([np.nan, -np.nan], dtype)
    bits = nan.view(f"u{nan.itemsize}")
    bits[1] ^= bits.dtype.type(1)
    rows = [[0.0, -0.0], [0.0, 0.0], [-0.0, nan[0]], [nan[1], nan[0]], [nan[0], nan[1]]]
    obs = np.array(rows, dtype)
    following = np.array(rows[1:] + rows[:1], dtype) * np.array(-1, dtype)
    for i in range(5):
        rb.add(obs=obs[i], next_obs=following[i])
    batch = rb.get_all_transitions()
    assert batch["obs"].tobytes() == obs.tobytes()
    assert batch["next_obs"].tobytes() == following.tobytes()


def test_next_values_of_everything() -> None:
    """Any field has next values: ends, text, structures, and fields beside Python objects."""
    fields: dict[str, Any] = {
        "word": {"shape": 2, "dtype": "U5"},
        "both": {"shape": (), "dtype": [("x", "f4", 2), ("y", "M8[s]")]},
        "object": {"shape": (), "dtype": "O"},
        "done": {"shape": (), "dtype": bool},
    }
    rb = ReplayBuffer(3, fields, next_of=["done", "both", "word"], stack_compress="word")
    both = np.zeros(2, fields["both"]["dtype"])
    both["x"][1] = np.nan
    steps: list[dict[str, Any]] = [
        {
            "word": [f"w{i}", f"w{i + 1}"],
            "both": both[i % 2],
            "object": f"object {i}",
            "done": i % 3 == 0,
            "next_done": i % 2 == 0,
            "next_both": both[i // 2 % 2],
            "next_word": ["a", f"w{i + 2}"] if i % 4 else [f"w{i + 1}", f"w{i + 2}"],
        }
        for i in range(20)
    ]
    for i, step in enumerate(steps):
        rb.add(**step)
        for row in rb:
            (expected,) = [one for one in steps if one["object"] == row["object"]]
            for name, value in row.items():
                assert str(value) == str(np.array(expected[name])), f"{name} after {i} steps"


def test_inputs_are_left_alone() -> None:
    """``add`` changes none of the arrays that it is given, and keeps none of them."""
    rb = ReplayBuffer(
        9, {"obs": {"shape": 3}, "rew": {"shape": ()}}, next_of="obs", stack_compress="obs",
        Nstep={"size": 3, "rew": "rew", "next": "next_obs"},
    )  # fmt: skip
    given = {"obs": np.ones((5, 3), "f4"), "rew": np.ones(5, "f4"), "next_obs": np.eye(5, 3)}
    before = {name: value.tobytes() for name, value in given.items()}
    rb.add(**given)
    assert {name: value.tobytes() for name, value in given.items()} == before
    first = {name: value.tobytes() for name, value in rb.get_all_transitions().items()}
    for value in given.values():
        value[...] = 7
    second = {name: value.tobytes() for name, value in rb.get_all_transitions().items()}
    assert first == second


def test_batches_are_the_callers() -> None:
    """What is done to a batch is not seen in the buffer, nor in the next batch."""
    rb = ReplayBuffer(
        9, {"obs": {"shape": (40_000, 2)}, "rew": {"shape": ()}}, next_of="obs",
        stack_compress="obs", Nstep={"size": 2, "rew": "rew", "discount": True},
    )  # fmt: skip
    for i in range(12):
        rb.add(obs=np.full((40_000, 2), i), next_obs=np.full((40_000, 2), i + 1), rew=i)
    before = rb.get_all_transitions()
    for batch in (rb.sample(4), rb.get_all_transitions(), rb[1:3]):
        for column in batch.values():
            column[...] = -1
    for name, column in rb.get_all_transitions().items():
        assert_same(before[name], column, name)


def test_rows_in_a_file(tmp_path: Any) -> None:
    """The rows may lie in a mapped file."""
    shape = Shape(7, 2, 3, 1, (2,), "<f4", ("obs",), ("obs",), ("done",), None)
    rng = np.random.default_rng(3)
    rb = ReplayBuffer(
        7, shape.env_dict, n_envs=2, next_of="obs", stack_compress={"obs": 1}, seed=1,
        mmap_prefix=tmp_path / "rows", mmap_mode="w",
    )  # fmt: skip
    twin, play = ReferenceViews(7, 2), Play(shape, rng, 0.1, 5)
    for _ in range(30):
        act(rb, twin, play, ("one by one", 1))
        assert_reads(rb, twin, rng)


# ---------------------------------------------------------------- several steps


def walk(end: str | None, **nstep: Any) -> ReplayBuffer:
    """Six steps of reward 1 from observation i to i + 1; the last one may end the episode."""
    fields: dict[str, FieldSpec] = {
        name: {"shape": ()} for name in ("obs", "next_obs", "rew", "terminated", "truncated")
    }
    options: Any = {"size": 3, "gamma": 0.5, "rew": "rew", **nstep}
    rb = ReplayBuffer(20, fields, Nstep=options, seed=1)
    for i in range(6):
        ends = {name: i == 5 and name == end for name in ("terminated", "truncated")}
        rb.add(obs=i, next_obs=i + 1, rew=1, **ends)
    return rb


@pytest.mark.parametrize(
    ("end", "discount"),
    [
        ("terminated", [0.125, 0.125, 0.125, 0, 0, 0]),
        ("truncated", [0.125, 0.125, 0.125, 0.125, 0.25, 0.5]),
        ("on_episode_end", [0.125, 0.125, 0.125, 0.125, 0.25, 0.5]),
        (None, [0.125, 0.125, 0.125, 0.125]),
    ],
)
def test_the_last_steps_of_an_episode(end: str | None, discount: list[float]) -> None:
    """They have fewer steps, the true last observation, and nothing behind a termination."""
    rb = walk(end, next="next_obs", discount=True)
    if end == "on_episode_end":
        rb.on_episode_end()
    batch = rb.get_all_transitions()
    n = len(discount)
    assert batch["obs"].tolist() == [0, 1, 2, 3, 4, 5][:n]
    assert batch["rew"].tolist() == [1.75, 1.75, 1.75, 1.75, 1.5, 1][:n]
    assert batch["next_obs"].tolist() == [3, 4, 5, 6, 6, 6][:n]
    assert batch["discount"].tolist() == discount
    for name in ("terminated", "truncated"):
        assert batch[name].tolist() == ([0, 0, 0, 1, 1, 1] if name == end else [0] * n)


def test_an_empty_list_leaves_next_values_as_those_of_one_step() -> None:
    """With an empty list only ends come from the last step."""
    batch = walk("terminated", next=[]).get_all_transitions()
    assert batch["next_obs"].tolist() == [1, 2, 3, 4, 5, 6]
    assert batch["terminated"].tolist() == [0, 0, 0, 1, 1, 1]
    assert "discount" not in batch


def test_flags_stay_flags() -> None:
    """Episodes of one step have their own ends: they are not added up."""
    rb = ReplayBuffer(9, {"rew": {"shape": ()}, "done": {"shape": ()}}, Nstep={"size": 5})
    rb.add(rew=np.ones(8), done=[0, 1, 0, 1, 1, 0, 1, 0])
    assert rb.get_all_transitions()["done"].tolist() == [1] * 7
    assert len(rb) == 7


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "g", ">f4", ">f8"])
@pytest.mark.parametrize("shape", [(), (1,), (2, 3)])
def test_sums_are_as_exact_as_the_field(dtype: str, shape: tuple[int, ...]) -> None:
    """Rewards are added with more digits than a float has that is narrower than 8 bytes."""
    rng = np.random.default_rng(5)
    rewards = rng.normal(size=(40, *shape)).astype(np.dtype(dtype).newbyteorder("="))
    rb = ReplayBuffer(
        40, {"rew": {"shape": shape, "dtype": dtype}}, Nstep={"size": 6, "rew": "rew"}
    )
    rb.add(rew=rewards)
    got = rb.get_all_transitions()["rew"]
    assert got.dtype == rewards.dtype
    exact = sum(np.longdouble(0.99) ** i * rewards[i : 35 + i].astype("g") for i in range(6))
    largest = sum(np.abs(rewards[i : 35 + i].astype("g")) for i in range(6))
    rounding = np.finfo(rewards.dtype).eps * (
        np.abs(exact) * 0.51 if rewards.dtype.itemsize < 8 else largest * 4
    )
    assert (np.abs(got.astype("g") - exact) <= rounding).all()


@pytest.mark.parametrize("dtype", ["f8", "g", ">f8"])
def test_a_sum_is_the_same_in_each_batch(dtype: str) -> None:
    """How many steps the other rows of a batch have does not change its rounding."""
    rng = np.random.default_rng(5)
    spec: FieldSpec = {"shape": (), "dtype": dtype}
    rb = ReplayBuffer(
        200,
        {"rew": {"shape": (), "dtype": "f8"}, "cost": spec, "done": {"shape": (), "dtype": bool}},
        Nstep={"size": 20, "rew": ["rew", "cost"]},
    )
    rb.add(rew=np.zeros(200), cost=rng.normal(size=200), done=rng.random(200) < 0.08)
    every = rb.get_all_transitions()["cost"]
    assert [rb[slot]["cost"].item() for slot in range(len(every))] == every.tolist()


@pytest.mark.parametrize("dtype", ["f4", "f8", ">f4", "f2"])
@pytest.mark.parametrize("shape", [(), (1,), (3,)])
def test_chained_rewards_are_summed(dtype: str, shape: tuple[int, ...]) -> None:
    """Rewards may be stacks of frames, and next values, which are not stored as they are."""
    values = np.arange(13.0)[:, None] + np.arange(3)  # slides along its axis
    rewards = values.astype(dtype)[:, slice(*shape) if shape else 0]
    rb = ReplayBuffer(
        12,
        {"rew": {"shape": shape, "dtype": dtype}, "done": {"shape": (), "dtype": bool}},
        next_of="rew",
        stack_compress="rew" if shape else None,
        Nstep={"size": 2, "rew": ["rew", "next_rew"], "gamma": 0.5},
    )
    rb.add(rew=rewards[:-1], next_rew=rewards[1:], done=np.arange(12) == 5)
    batch = rb.get_all_transitions()
    for name, steps in (("rew", rewards[:-1]), ("next_rew", rewards[1:])):
        expected = steps[:-1] + steps[1:] / 2
        expected[5] = steps[5]
        assert_same(expected.astype(np.dtype(dtype).newbyteorder("=")), batch[name], name)
    single = rb.view(NStep(1)).sample(50)
    for column in (single["rew"], single["next_rew"]):
        assert set(column.reshape(50, -1)[:, 0].tolist()) <= set(range(13))


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "g"])
def test_one_step_is_what_was_added(dtype: str) -> None:
    """Read as one step, a reward keeps each of its bits."""
    rewards = np.array([1, -0.0, 0.0, np.inf, np.nan, 1], dtype) / np.array(3, dtype)
    fields: dict[str, Any] = {
        "id": {"shape": (), "dtype": "i8"},
        "rew": {"shape": (), "dtype": dtype},
    }
    rb = ReplayBuffer(6, fields, Nstep={"size": 3, "rew": "rew"})
    rb.add(id=np.arange(6), rew=rewards)
    rb.on_episode_end()
    batch = rb.view(NStep(1)).sample(100)
    assert_same(rewards[batch["id"]], batch["rew"], "rewards")


@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan])
def test_special_rewards_stay_where_they_are(special: float) -> None:
    """An infinite reward is part of the sums of its own steps only, and warns of nothing."""
    rb = ReplayBuffer(
        9, {"rew": {"shape": ()}, "done": {}}, Nstep={"size": 2, "rew": "rew", "gamma": 0.5}
    )
    rb.add(rew=[1, special, 1, 1], done=[0, 1, 0, 1])
    got = rb.get_all_transitions()["rew"]
    np.testing.assert_array_equal(got, np.array([special, special, 1.5, 1], "f4"))


def test_sums_that_are_too_large() -> None:
    """A sum that its dtype cannot hold is infinite, as in NumPy's own float arithmetic."""
    rb = ReplayBuffer(
        9, {"rew": {"shape": (), "dtype": "f2"}}, Nstep={"size": 2, "rew": "rew", "gamma": 1}
    )
    with np.errstate(all="ignore"):
        rb.add(rew=[60_000, 60_000, -60_000])
        assert rb.get_all_transitions()["rew"].tolist() == [np.inf, 0]


def test_gamma_of_0_and_1() -> None:
    """Nothing of the steps behind the first, or all of them."""
    for gamma, total in [(0, 1), (1, 3)]:
        rb = walk("truncated", gamma=gamma, discount=True)
        assert rb.get_all_transitions()["rew"].tolist()[:4] == [total] * 4
        assert rb.get_all_transitions()["discount"].tolist()[:4] == [gamma] * 4


def test_numbers_of_steps_are_drawn_evenly() -> None:
    """``NStep((1, 3))`` draws each number equally often, by the buffer's generator."""
    rb = walk(None, discount=True)
    view = rb.view(NStep((1, 3)))
    counts = np.unique(view.sample(30_000)["discount"], return_counts=True)
    assert counts[0].tolist() == [0.125, 0.25, 0.5]
    assert counts[1].min() > 9_600  # 5 standard deviations
    same = pickle.loads(pickle.dumps(view))
    for batch in (view.sample(50) for _ in range(3)):
        for name, column in same.sample(50).items():
            assert_same(batch[name], column, name)


@pytest.mark.parametrize("sampler", [Uniform, Prioritized], ids=["uniform", "prioritized"])
@pytest.mark.parametrize("writers", [0, 2], ids=["buffer", "learner"])
def test_options_change_no_row_of_a_view(sampler: type[Any], writers: int) -> None:
    """A view draws the same rows for each option of ``sample``, and counts each draw once."""

    def draw(**options: Any) -> dict[str, Array]:
        source: Any = ReplayBuffer(60, STEPS, sampler=sampler(), seed=7)
        actors: list[Any] = [source]
        if writers:
            replay = SharedReplay(60, STEPS, writers=writers)
            actors = [replay.actor(number) for number in range(writers)]
            source = replay.learner(sampler(), seed=7)
        for actor in actors:
            actor.add(obs=np.arange(25), rew=np.arange(25), done=np.arange(25) % 7 == 6)
        view = source.view(NStep(3, gamma=0.5, discount=True))
        for number in range(3):
            assert view.draws == number
            batch: dict[str, Array] = view.sample(20, **options)
        assert source.stats()["draws"] == 3
        return batch

    plain = draw()
    out = {name: np.zeros_like(plain[name]) for name in STEPS}
    some = draw(fields=["rew"])
    assert {*some} == {*plain} - {"obs", "done"}
    for batch in (draw(indexes=True), draw(out=out), draw(fields=list(STEPS)), some):
        for name in {*plain} & {*batch}:
            assert_same(batch[name], plain[name], name)


def test_discount_goes_into_the_callers_dict() -> None:
    """With ``out`` the fields lie in its arrays, and the discounts beside them."""
    rb = walk("terminated", discount=True)
    view = rb.view(NStep(2))
    out = {name: np.zeros_like(column) for name, column in view.sample(9).items()}
    arrays = dict(out)
    assert view.sample(9, out=out) is out
    for name in rb.schema.names:
        assert out[name] is arrays[name]
    last = np.minimum(out["obs"] + 2, 6)
    np.testing.assert_array_equal(
        out["discount"], np.where(out["terminated"], 0, 0.5 ** (last - out["obs"]))
    )


@pytest.mark.parametrize(
    "sampler", [Uniform(), LegacyUniform(), Recency(least=1), Reverse(2)], ids=repr
)
def test_samplers_draw_rows_that_are_complete(sampler: Any) -> None:
    """No sampler draws a row that waits for others, and those that draw all rows miss none."""
    np.random.seed(3)
    fields: dict[str, FieldSpec] = {
        "id": {"shape": (), "dtype": "i8"},
        "done": {"shape": (), "dtype": bool},
    }
    rb = ReplayBuffer(20, fields, n_envs=2, Nstep={"size": 4}, sampler=sampler, seed=5)
    drawn: set[int] = set()
    for i in range(60):
        rb.add_where([i % 7 != 0, i % 5 != 0], id=[2 * i, 2 * i + 1], done=[i % 11 == 0, False])
        there = rb.get_all_transitions()["id"].tolist()
        if there:
            batch = rb.sample(40)["id"].tolist()
            assert set(batch) <= set(there)
            drawn |= set(batch)
    assert len(drawn) > 60


# ---------------------------------------------------------------- memory


def test_an_atari_step_takes_the_memory_of_a_frame() -> None:
    """Stacks of four frames and next stacks: 7,056 bytes of frame and at most 244 of all else."""
    fields: dict[str, Any] = {
        "obs": {"shape": (84, 84, 4), "dtype": "u1"},
        "act": {"shape": (), "dtype": "u1"},
        "rew": {"shape": ()},
        "done": {"shape": (), "dtype": bool},
    }
    rb = ReplayBuffer(2500, fields, next_of="obs", stack_compress="obs")
    frames = np.random.default_rng(2).integers(0, 256, (84, 84, 40), dtype="u1")
    for step in range(6000):
        if step % 190 == 0:
            stack = np.ascontiguousarray(frames[:, :, [step % 40] * 4])
        following = np.concatenate([stack[:, :, 1:], frames[:, :, step % 37, None]], axis=2)
        rb.add(obs=stack, next_obs=following, act=0, rew=0, done=step % 190 == 189)
        stack = following
    assert len(rb) == 2500
    assert rb.nbytes <= 7_300 * 2500


@pytest.mark.parametrize("at_once", [1, 50])
@pytest.mark.parametrize("axis", [0, -1])
def test_an_episode_keeps_a_stack_and_a_frame(axis: int, at_once: int) -> None:
    """Of the first stack all frames, of the last next stack its newest, however they are added."""
    steps, size = 50, 5000
    fields: dict[str, Any] = {"obs": {"shape": (4, 600) if axis == 0 else (600, 4), "dtype": "u1"}}
    rb = ReplayBuffer(size, fields, next_of="obs", stack_compress={"obs": axis})
    empty = rb.nbytes
    rng = np.random.default_rng(4)
    for _ in range(2 * size // steps):
        frames = rng.integers(0, 256, (steps + 4, 600), dtype="u1")
        stacks = np.stack([frames[i : steps + 1 + i] for i in range(4)], 1 if axis == 0 else 2)
        for k in range(0, steps, at_once):
            rb.add(obs=stacks[:-1][k : k + at_once], next_obs=stacks[1:][k : k + at_once])
    np.testing.assert_array_equal(rb[-1]["next_obs"], stacks[-1])
    kept = size // steps * 4 * 600
    assert empty + kept <= rb.nbytes <= empty + 1.15 * kept + 2 * 4 * 600


def test_memory_of_values_stored_apart_is_bounded() -> None:
    """Where nothing follows, ``nbytes`` grows until the ring is full, and no more."""
    fields: dict[str, Any] = {"obs": {"shape": (50, 4), "dtype": "u1"}}
    rb = ReplayBuffer(100, fields, next_of="obs", stack_compress="obs")
    values = np.random.default_rng(1).integers(0, 256, (997, 50, 4), dtype="u1")
    empty = rb.nbytes
    sizes = []
    for i in range(20_000):
        rb.add(obs=values[i % 997], next_obs=values[i * 7 % 997])
        sizes.append(rb.nbytes)
    assert empty + 99 * (150 + 200) <= sizes[-1] <= empty + 125 * (158 + 208)
    assert max(sizes) == sizes[300]
    rb.clear()
    for i in range(1000):
        rb.add(obs=values[i % 997], next_obs=values[i * 7 % 997])
    assert rb.nbytes == sizes[-1]


def test_a_call_longer_than_the_ring_needs_no_memory_for_rows_that_go() -> None:
    """Only values of rows that stay are stored apart."""
    fields: dict[str, Any] = {"obs": {"shape": (50, 4), "dtype": "u1"}}
    rb = ReplayBuffer(10, fields, next_of="obs", stack_compress="obs")
    empty = rb.nbytes
    values = np.random.default_rng(1).integers(0, 256, (5000, 50, 4), dtype="u1")
    rb.add(obs=values, next_obs=values[::-1])
    np.testing.assert_array_equal(rb[0]["next_obs"], values[9])
    assert rb.nbytes <= empty + 4 * 16 * 208


def test_values_that_follow_need_no_memory() -> None:
    """Within an episode nothing but the newest stack's first frames is stored apart."""
    rb = ReplayBuffer(
        1000, {"obs": {"shape": (1000, 4), "dtype": "u1"}}, next_of="obs", stack_compress="obs"
    )
    for i in range(5000):
        frames = np.arange(i, i + 5).astype("u1")
        rb.add(
            obs=np.broadcast_to(frames[:4], (1000, 4)),
            next_obs=np.broadcast_to(frames[1:], (1000, 4)),
        )
    assert rb.nbytes < 1000 * 1000 * 1.05
    np.testing.assert_array_equal(rb[-1]["next_obs"][0] - rb[-1]["obs"][0], 1)


# ---------------------------------------------------------------- threads


class Counting:
    """Steps whose values all follow from their number; every seventh one ends its episode."""

    def __init__(self, rb: ReplayBuffer, nstep: int = 1, at_once: int = 1) -> None:
        self.rb, self.nstep, self.at_once, self.number = rb, nstep, at_once, 0
        self.width = rb.schema.fields[1].shape[0]
        self.prepared = [self.fields(number) for number in range(0, 7 * 256, at_once)]

    def fields(self, number: int) -> dict[str, Any]:
        """Steps from a number on, whose bytes repeat after 256 episodes."""
        ids = np.arange(number, number + self.at_once)
        frames = (ids[:, None] + np.arange(4) - 3).astype("u1")
        obs = np.repeat(frames[:, None], self.width, axis=1)
        # Now and then a next value does not come true, as a whole or in its newest frame.
        following = obs + np.where(ids % 5 == 0, 7, 1)[:, None, None].astype("u1")
        following[:, :, -1] += np.where(ids % 3 == 0, 9, 0)[:, None].astype("u1")
        return {
            "id": ids,
            "obs": obs,
            "rew": ids % 7 + 1.0,
            "done": ids % 7 == 6,
            "next_obs": following,
        }

    def __call__(self) -> None:
        fields = self.prepared[self.number % len(self.prepared)]
        self.number += 1
        self.rb.add(**fields)

    def check(self, batch: dict[str, Array]) -> None:
        """Each row holds what belongs to its number."""
        ids = batch["id"]
        steps = np.minimum(self.nstep, 7 - ids % 7)
        last = ids + steps - 1
        frames = (ids[:, None] + np.arange(4) - 3).astype("u1")
        assert (batch["obs"] == frames[:, None]).all(), "a torn stack"
        frames = (last[:, None] + np.arange(4) - 3).astype("u1")
        frames += np.where(last % 5 == 0, 7, 1)[:, None].astype("u1")
        frames[:, -1] += np.where(last % 3 == 0, 9, 0).astype("u1")
        assert (batch["next_obs"] == frames[:, None]).all(), "a torn next stack"
        assert (batch["done"] == (last % 7 == 6)).all(), "a torn end"
        if self.nstep > 1:
            total = sum(np.where(i < steps, 0.5**i * (ids % 7 + i + 1), 0) for i in range(3))
            assert (batch["rew"] == total).all(), "a torn sum"
            discount = np.where(last % 7 == 6, 0, 0.5**steps)
            assert (batch["discount"] == discount).all(), "a torn discount"


def counting(nstep: int, size: int, width: int, *, compress: bool = True) -> ReplayBuffer:
    """A buffer for counted steps."""
    options: NstepSpec = {
        "size": nstep, "gamma": 0.5, "rew": "rew", "next": "next_obs", "discount": True,
    }  # fmt: skip
    return ReplayBuffer(
        size,
        {
            "id": {"shape": (), "dtype": "i8"},
            "obs": {"shape": (width, 4), "dtype": "u1"},
            "rew": {"shape": ()},
            "done": {"shape": (), "dtype": bool},
        },
        next_of="obs",
        stack_compress={"obs": 1} if compress else None,
        Nstep=options if nstep > 1 else None,
        seed=1,
    )


@pytest.mark.once
@pytest.mark.usefixtures("switch_often")
@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize("width", [10, 3000])
@pytest.mark.parametrize("nstep", [1, 3])
def test_readers_never_see_a_torn_reading(nstep: int, width: int, compress: bool) -> None:
    """Batches of a small ring that is overwritten all the time are whole, row by row."""
    rb = counting(nstep, 16, width, compress=compress)
    writer = Counting(rb, nstep)
    for _ in range(30):
        writer()
    counts = run_together(
        writer,
        lambda: writer.check(rb.sample(40)),
        lambda: writer.check(rb.sample(3, replace=False)),
        lambda: writer.check(rb.get_all_transitions()),
        seconds=0.5,
    )
    assert min(counts) >= 3, f"a thread starved: {counts}"


@pytest.mark.usefixtures("switch_often")
@pytest.mark.parametrize("nstep", [1, 3])
def test_readings_beside_clears(nstep: int) -> None:
    """Beside clears, readers get whole rows, or the error of an empty buffer."""
    rb = counting(nstep, 40, 20)
    writer = Counting(rb, nstep, at_once=7)

    def read() -> None:
        try:
            writer.check(rb.sample(200))
        except NotEnoughDataError:
            time.sleep(0)

    def clear() -> None:
        rb.clear()
        time.sleep(0.0005)

    counts = run_together(writer, clear, read, read)
    assert min(counts) >= 3, f"a thread starved: {counts}"


@pytest.mark.usefixtures("switch_often")
def test_no_sum_runs_on_from_an_episode_that_is_deleted() -> None:
    """Beside a thread that deletes episodes, each window is that of its row.

    Rows that were deleted behind the first of a window were passed over, ends of episodes too, and
    the next episode was summed.
    """
    fields: dict[str, Any] = {
        "id": {"shape": (), "dtype": "i8"},
        "rew": {"shape": ()},
        "costs": {"shape": 2},
        "done": {"shape": (), "dtype": bool},
    }
    rb = ReplayBuffer(
        7000, fields, Nstep={"size": 3, "gamma": 1.0, "rew": ["rew", "costs"]}, seed=1
    )
    ids = np.arange(7000)
    steps = {"id": ids, "rew": ids // 7, "costs": np.stack([ids // 7] * 2, 1), "done": ids % 7 == 6}
    rb.add(**steps)

    def delete() -> None:
        if len(rb.episodes) < 500:
            rb.add(**steps)
        rb.episodes.delete(len(rb.episodes) // 2)

    def read() -> None:
        batch = rb.sample(2000)
        expected = batch["id"] // 7 * np.minimum(3, 7 - batch["id"] % 7)
        assert (batch["rew"] == expected).all(), "a torn sum"
        assert (batch["costs"] == expected[:, None]).all(), "a torn sum"

    counts = run_together(delete, read, read)
    assert min(counts) >= 3, f"a thread starved: {counts}"


@pytest.mark.usefixtures("switch_often")
def test_the_next_value_of_the_newest_row_is_never_torn() -> None:
    """It lies where the next call of ``add`` puts its own; a reader sees it whole.

    It was copied without the interpreter lock while writers overwrote it.
    """
    rb = ReplayBuffer(
        20_000,
        {"id": {"shape": (), "dtype": "i8"}, "obs": {"shape": 50_000, "dtype": "u1"}},
        next_of="obs",
    )
    values = [np.full(50_000, i, "u1") for i in range(54)]
    count = itertools.count()

    def write() -> None:
        i = next(count)
        if i % 10_000 == 0:
            rb.clear()
        rb.add(id=i, obs=values[i % 53], next_obs=values[i % 53 + 1])

    def read() -> None:
        try:
            batch = rb[np.full(100, -1)]
        except IndexError:  # cleared
            return
        assert (batch["next_obs"] == (batch["id"] % 53 + 1)[:, None]).all()

    write()
    counts = run_together(write, read)
    assert min(counts) >= 3, f"a thread starved: {counts}"


@pytest.mark.usefixtures("switch_often")
def test_writers_keep_values_aside_at_the_same_time() -> None:
    """Values of several writers that do not follow are all stored.

    Room for them was made by copies that let go of the interpreter lock.
    """
    rng = np.random.default_rng(0)
    obs = rng.integers(0, 256, (50, 500, 4), dtype="u1")
    for _ in range(5):
        rb = ReplayBuffer(
            20_000, {"k": {"shape": (), "dtype": "i8"}, "obs": {"shape": (500, 4), "dtype": "u1"}},
            next_of="obs", stack_compress="obs", seed=1,
        )  # fmt: skip

        def write(k: int, rb: ReplayBuffer = rb) -> Callable[[], object]:
            turn = itertools.count(k, 7)

            def add() -> None:
                i = next(turn) % 50
                rb.add(k=i, obs=obs[i], next_obs=obs[i] ^ 255)

            return add

        def check(rb: ReplayBuffer = rb) -> None:
            batch = rb.sample(64)
            assert (batch["obs"] == obs[batch["k"]]).all()
            assert (batch["next_obs"] == obs[batch["k"]] ^ 255).all()

        write(0)()
        run_together(write(1), write(2), write(3), check, seconds=0.3)
        for _ in range(20):
            check()


# ---------------------------------------------------------------- Gymnasium


@pytest.mark.parametrize("mode", MODES)
def test_recorded_steps_need_no_next_observations(mode: AutoresetMode) -> None:
    """With ``next_of`` and ``Nstep`` a recorder's rows are those of a buffer that stores it all."""
    batches = []
    for options in ({}, {"next_of": "obs"}):
        env = vector("cart pole", mode, n_envs=3)
        recorder = GymnasiumRecorder(env)
        fields = {**recorder.env_dict, "env": {"shape": (), "dtype": int}}
        if options:
            del fields["next_obs"]
        rb = recorder.attach(
            ReplayBuffer(150, fields, n_envs=3, Nstep={"size": 1}, **options)  # type: ignore[arg-type]
        )
        actions = drawn_actions(env, 150, 3, seed=4)
        ended = sum(run_vector(env, recorder, actions, seed=8))
        assert np.min(ended) >= 3
        batches.append(rb.get_all_transitions())
        env.close()
    plain, lean = batches
    assert sorted(plain) == sorted(lean)
    for name, column in plain.items():
        assert_same(column, lean[name], name)


@pytest.mark.parametrize("mode", MODES)
def test_recorded_steps_several_at_a_time(mode: AutoresetMode) -> None:
    """No sum of several recorded steps crosses a reset."""
    env = vector("cart pole", mode, n_envs=3)
    recorder = GymnasiumRecorder(env)
    fields: dict[str, FieldSpec] = {**recorder.env_dict, "env": {"shape": (), "dtype": int}}
    del fields["next_obs"]
    several = Several(3, 0.5, ("rew",), ("next_obs",), True)
    options: dict[str, Any] = {"n_envs": 3, "seed": 1}
    plain = ReplayBuffer(3000, {**recorder.env_dict, "env": fields["env"]}, **options)
    rb = ReplayBuffer(3000, fields, next_of="obs", Nstep=several.options(), **options)
    twin = ReferenceViews(3000, 3, several)
    for buffer in (plain, rb):
        recorder.attach(buffer)
        list(run_vector(env, recorder, drawn_actions(env, 200, 3, seed=4), seed=8))
        buffer.on_episode_end()
    env.close()
    steps = dict(zip(plain.ring.present_slots().tolist(), rows_of(plain[:]), strict=True))
    for first in range(0, plain.get_next_index(), 3):
        slots = range(first, first + 3)
        twin.add([steps.get(slot, {}) for slot in slots], [slot in steps for slot in slots])
    twin.on_episode_end()
    assert len(plain) == len(twin.drawable())
    assert_holds(rb, twin)
