"""Histories with rewinds, and their twin: the same history in which forgotten rows were no steps.

The twin is a buffer that never rewinds. Where the buffer has forgotten a row, the twin has added an
absent one (``add_where``), and where the buffer has rewound, all episodes of the twin end. So both
have the same rows, slots, handles and draws.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from helpers import Array

from cpprb_like import ReplayBuffer
from cpprb_like.samplers import Prioritized, RankBased, Recency, Sampler, Uniform
from cpprb_like.views import Hindsight, NStep, Sequences

Entry = tuple[str, Any, Any, Any]

SAMPLERS: dict[str, Any] = {
    "uniform": Uniform,
    "prioritized": lambda: Prioritized(1.0, eps=0.0, check_for_update=True),
    "ranks": lambda: RankBased(1.0, check_for_update=True),
    "recency": lambda: Recency(updates=2, least=3),
}
DEPTH = 3  # frames of a stack


@dataclass(frozen=True)
class Kind:
    """A kind of buffer, and of what is done to it."""

    name: str
    capacity: int = 30
    n_envs: int = 1
    chained: bool = False  # ``next_of`` and ``stack_compress``
    n_step: int = 1
    sampler: str = "uniform"
    in_file: bool = False
    ragged: bool = False

    def open(self, folder: Path | None, mode: Any = "x") -> ReplayBuffer:
        """The buffer; in a file if it is to be and there is a folder."""
        fields: dict[str, Any] = {
            "t": {"shape": (), "dtype": "i8"},
            "mark": {"shape": (), "dtype": "i8"},
            "goal": {"shape": 2},
            "at": {"shape": 2},
            "rew": {"shape": ()},
            "done": {"shape": (), "dtype": bool},
        }
        options: dict[str, Any] = {}
        if self.chained:
            fields["stack"] = {"shape": (2, DEPTH), "dtype": "i4"}
            options |= {"next_of": ["stack", "t"], "stack_compress": {"stack": 1}}
        if self.ragged:
            fields["token"] = {"shape": ("T",), "dtype": "i4"}
            options["room"] = {"T": 100 * self.capacity}
        if self.n_step > 1:
            options["Nstep"] = {"size": self.n_step, "rew": "rew", "gamma": 0.5}
        if self.in_file and folder is not None:
            options |= {"mmap_prefix": folder / "rows", "mmap_mode": mode}
        sampler: Sampler = SAMPLERS[self.sampler]()
        return ReplayBuffer(
            self.capacity, fields, n_envs=self.n_envs, sampler=sampler, seed=0, **options
        )


KINDS = [
    Kind("plain"),
    Kind("one", capacity=1),
    Kind("envs", n_envs=3),
    Kind("chained", chained=True),
    Kind("chained-envs", chained=True, n_envs=2),
    Kind("n-step", n_step=3),
    Kind("n-step-envs", n_step=3, n_envs=3, chained=True),
    Kind("prioritized", sampler="prioritized"),
    Kind("prioritized-n-step", sampler="prioritized", n_step=3, chained=True),
    Kind("prioritized-envs", sampler="prioritized", n_step=2, n_envs=2),
    Kind("ranks", sampler="ranks", n_envs=2),
    Kind("recency", sampler="recency"),
    Kind("file", in_file=True, chained=True, sampler="prioritized"),
    Kind("file-envs", in_file=True, chained=True, n_step=3, n_envs=2, sampler="prioritized"),
    Kind("ragged", ragged=True, n_envs=2),
    Kind("ragged-file", ragged=True, in_file=True, chained=True),
]


@dataclass
class History:
    """A buffer, and what was done to it."""

    kind: Kind
    folder: Path
    chance: random.Random
    entries: list[Entry] = field(default_factory=list)
    t: int = 0
    deletes: int = 0
    kept: list[Array] = field(default_factory=list)  # indexes of batches

    def __post_init__(self) -> None:
        self.rb: Any = self.kind.open(self.folder)

    def step(self) -> dict[str, Array]:
        """A time step; its stacks slide, with gaps now and then."""
        kind, t = self.kind, self.t
        self.t += 1
        number = t * 10 + np.arange(kind.n_envs)
        values: dict[str, Any] = {
            "t": number,
            "mark": number,
            "goal": np.zeros((kind.n_envs, 2), "f4"),
            "at": np.stack([number, -number], 1).astype("f4"),
            "rew": (number % 7).astype("f4"),
            "done": np.array([self.chance.random() < 0.15 for _ in number]),
        }
        if kind.chained:
            shift = t if self.chance.random() < 0.9 else t + 1000
            stack = np.stack([number + k - DEPTH for k in range(DEPTH)], 1) + shift - t
            values["stack"] = np.repeat(stack[:, None], 2, 1).astype("i4")
            values["next_stack"] = values["stack"] + 10 * (self.chance.random() < 0.9)
            values["next_t"] = number + (10 if self.chance.random() < 0.9 else 5)
        if kind.ragged:
            lengths = [self.chance.randint(0, 6) for _ in number]
            values["token"] = [
                np.arange(n, dtype="i4") + one for n, one in zip(lengths, number, strict=True)
            ]
            if kind.n_envs == 1:
                values["token"] = values["token"][0]
        return values

    def act(self) -> None:
        """Do one thing, and open the file again now and then."""
        self._act()
        if self.kind.in_file and self.chance.random() < 0.1:
            generator = self.rb.rng.bit_generator.state
            self.rb = None  # closes the file
            self.rb = self.kind.open(self.folder, "a")
            self.rb.rng.bit_generator.state = generator

    def _act(self) -> None:
        rb, chance = self.rb, self.chance
        what = chance.choice(["add"] * 8 + ["end", "delete", "update", "clear", "rewind", "rewind"])
        if what == "add":
            for _ in range(chance.randint(1, 12)):
                self.add()
        elif what == "end":
            self.entries.append(("end", chance.choice([None, *range(rb.n_envs)]), 0, 0))
            rb.on_episode_end(self.entries[-1][1])
        elif what == "delete":
            self.delete()
        elif what == "update" and len(rb):
            batch = rb.sample(5, indexes=not rb.has_priorities)
            self.kept.append(batch["indexes"])
            self.update()
        elif what == "clear" and chance.random() < 0.3:
            self.entries.append(("clear", 0, 0, 0))
            rb.clear()
        elif what == "rewind":
            low = max(0, rb.rows - rb.n_envs * chance.choice([0, 1, 3, 10, 40]))
            self.rewind(low)

    def add(self) -> None:
        rb, values = self.rb, self.step()
        present = np.array([self.chance.random() < 0.9 for _ in range(rb.n_envs)])
        self.entries.append(("add", rb.rows, values, present.copy()))
        add_to(rb, values, present)

    def delete(self) -> None:
        """Delete an episode that has ended; in the twin that of the same row."""
        rb = self.rb
        ended = [k for k, one in enumerate(rb.episodes.list()) if one.terminated or one.truncated]
        if ended:
            number = self.chance.choice(ended)
            rows = rb.ring.row_ids(rb.episodes._index.slots(number)[0]) + rb.ring.handle_base
            self.entries.append(("delete", rows, 0, 0))
            rb.episodes.delete(number)
            self.deletes += 1

    def update(self) -> None:
        """Update rows of a batch from before; some are gone by now."""
        indexes = self.chance.choice(self.kept)
        new = np.array([self.chance.randint(1, 9) for _ in indexes])
        self.entries.append(("update", indexes, new, 0))
        update(self.rb, indexes, new)

    def rewind(self, row: int) -> None:
        rb = self.rb
        row, before = max(row, 0), rb.rows
        later = [slot for slot in rb.ring.present_slots() if number_at(rb, slot) >= row]
        assert rb.rewind(row) >= len(later)  # incomplete rows count too
        for what, first, _, present in self.entries:
            if what == "add" and first >= row:
                present[:] = False
        self.entries.append(("end", None, 0, 0))
        assert rb.rows == before

    def compare(self) -> None:
        """Compare the buffer with its twin; ended episodes only while all rows are there."""
        is_whole = not self.deletes and self.rb.ring.written <= self.rb.ring.capacity
        assert_same(self.rb, self.twin(), self.kind, counts_episodes=is_whole)

    def twin(self) -> ReplayBuffer:
        """The buffer that never had the forgotten rows."""
        rb = self.kind.open(None)
        for what, one, two, three in self.entries:
            if what == "add":
                add_to(rb, two, three)
            elif what == "end":
                rb.on_episode_end(one)
            elif what == "clear":
                rb.clear()
            elif what == "delete":
                delete(rb, one)
            else:
                update(rb, one, two)
        return rb


def number_at(rb: ReplayBuffer, slot: int) -> int:
    """Number of the row in a slot, as ``rewind`` takes it."""
    return int(rb.ring.row_ids(np.array([slot]))[0]) + rb.ring.cleared


def add_to(rb: ReplayBuffer, values: dict[str, Any], present: Array) -> None:
    """Add a time step of the environments that have one."""
    if present.all():
        rb.add(**values)
    else:
        rb.add_where(present, **values)


def update(rb: Any, indexes: Array, new: Array) -> None:
    """Update rows, and their priorities where there are some."""
    rb.update(indexes, mark=new)
    if rb.has_priorities:
        rb.update_priorities(indexes, new / 10)  # below those of new rows, whose maximum stays 1


def delete(rb: ReplayBuffer, rows: Array) -> None:
    """Delete the episode that has some of these rows. It may be open here, or gone."""
    if number_of(rb, rows, ended=False) is not None:
        rb.on_episode_end(int(rows[0]) % rb.n_envs)
    number = number_of(rb, rows, ended=True)
    if number is not None:
        rb.episodes.delete(number)


def number_of(rb: ReplayBuffer, rows: Array, *, ended: bool) -> int | None:
    """Number of the episode that has some of these rows."""
    for number in range(len(rb.episodes)):
        slots, flags = rb.episodes._index.slots(number)
        ids = rb.ring.row_ids(slots) + rb.ring.handle_base
        if bool(flags & 1) == ended and np.isin(ids, rows).any():
            return number
    return None


def views_of(rb: ReplayBuffer) -> dict[str, Any]:
    """Readings of a buffer."""
    if rb.capacity < 4 * rb.n_envs:
        return {"itself": rb}
    return {
        "itself": rb,
        "sequences": rb.view(Sequences(4)),
        "strides": rb.view(Sequences(3, stride=2, burn_in=1)),
        "steps": rb.view(NStep(3, gamma=0.5, rew="rew")),
        **{
            strategy: rb.view(Hindsight(reward_of, achieved="at", goal="goal", strategy=strategy))
            for strategy in ("future", "final", "episode")
        },
    }


def reward_of(achieved: Array, goal: Array, rows: Any) -> Array:
    """A reward that shows the goal."""
    del achieved, rows
    found: Array = goal[..., 0]
    return found


def assert_same(rb: Any, twin: Any, kind: Kind, *, counts_episodes: bool) -> None:
    """A buffer and its twin have and draw the same."""
    rb.check()
    assert (rb.rows, len(rb)) == (twin.rows, len(twin))
    np.testing.assert_array_equal(rb.ring.present_slots(), twin.ring.present_slots())
    assert rb.get_next_index() == twin.get_next_index()
    if len(rb):
        same_batches(rb.get_all_transitions(), twin.get_all_transitions())
    one, other = rb.episodes.list("rew"), twin.episodes.list("rew")
    for mine, its in zip(one, other, strict=True):
        assert mine.complete >= its.complete  # that it begins an episode is known for longer
        assert vars(mine) | {"complete": 0} == vars(its) | {"complete": 0}
    lens = [[each.get_current_episode_len(k) for k in range(kind.n_envs)] for each in (rb, twin)]
    assert lens[0] == lens[1]
    stats, expected = rb.stats(), twin.stats()
    names = ["rows", "adds", *(["episodes"] if counts_episodes else [])]
    assert [stats[name] for name in names] == [expected[name] for name in names]
    if kind.sampler in ("ranks", "recency"):  # they have counters of draws
        if len(rb):
            assert set(rb.sample(50)["t"].tolist()) <= set(rb.get_all_transitions()["t"].tolist())
        return
    views, expected_views = views_of(rb), views_of(twin)
    if rb.ring.first:  # a row that begins an episode is known for longer
        views.pop("strides", None), expected_views.pop("strides", None)
    for (name, view), its in zip(views.items(), expected_views.values(), strict=True):
        batches = []
        for source in (view, its):
            source.reseed(7)
            try:
                batches.append(source.sample(16))
            except ValueError:
                batches.append(None)
        assert (batches[0] is None) == (batches[1] is None), name
        if batches[0] is not None:
            same_batches(*batches)
    epochs = []
    for source in (rb, twin):
        source.reseed(8)
        epochs.append(list(source.epoch(7)) if len(source) else [])
    for mine, its in zip(*epochs, strict=True):
        same_batches(mine, its)


def same_batches(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Two batches have the same values."""
    assert list(one) == list(other)
    for name, values in one.items():
        np.testing.assert_array_equal(values, other[name], err_msg=name)
