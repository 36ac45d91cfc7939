"""Random histories of buffers with ragged fields, beside their twin: see ``reference_ragged``.

A ``Case`` is a buffer. A history is a list of actions, each with a seed of its own, so that a
history without some of its actions is a history too.
"""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from reference_ragged import (
    Cells,
    RaggedField,
    RaggedRow,
    ReferenceRagged,
    Values,
    joined,
    offsets,
    ragged_fields,
    up_to,
)
from strategies import Array, assert_same, disguise, random_array

from cpprb_like import NotEnoughDataError, ReplayBuffer
from cpprb_like._core import FLAG_ABSENT
from cpprb_like._files.file_maps import FileMode
from cpprb_like._rows.item_ring import ItemRing, memory_of
from cpprb_like.samplers import Prioritized, RankBased, Recency, Reverse, Sampler, Uniform
from cpprb_like.views import NStep, Packed, Padded, Sequences
from cpprb_like.views._layer import Layer

Action = tuple[str, int]
Rows = list[Values]

GAMMA = 0.5
SAMPLERS: dict[str, Callable[[], Sampler]] = {
    "uniform": Uniform,
    "prioritized": lambda: Prioritized(1.0, eps=0.0, check_for_update=True),
    "ranks": lambda: RankBased(1.0, check_for_update=True),
    "recency": lambda: Recency(updates=2, least=3),
    "reverse": Reverse,
}
DTYPES = ["i4", "f4", "?", "u1", "f8", "i8", "f2", ">i2", ">f4", "u2", "M8[s]", "c8", "U2"]
ITEM_SHAPES: list[tuple[tuple[int, ...], int]] = [
    ((), 0),
    ((), 0),
    ((3,), 0),
    ((2,), 1),
    ((2, 3), 1),
    ((1,), 0),
    ((5,), 1),
    ((40,), 0),
]
TEXTS = ["", "a", "é", "字字", "\0", "left \U0001f600", "z" * 7]
# How rows of one call are handed over.
ROW_FORMS = [
    "plain",
    "plain",
    "strided",
    "swapped",
    "fortran",
    "wider",
    "nested lists",
    "memoryview",
]


@dataclass(frozen=True)
class Case:
    """A buffer, and the lengths of the rows that it gets."""

    capacity: int
    n_envs: int
    env_dict: dict[str, Any]
    room: dict[str, int]
    lengths: dict[str, tuple[str, int]]  # by axis: how lengths are drawn, and the usual greatest
    sampler: str
    p_end: float
    longest_call: int  # rows
    size: int = 1  # of the option ``Nstep``
    in_file: bool = False
    next_of: tuple[str, ...] = ()

    @property
    def priorities(self) -> bool:
        """Whether rows have priorities."""
        return self.sampler in ("prioritized", "ranks")

    @cached_property
    def fields(self) -> dict[str, RaggedField]:
        """The fields with an axis."""
        return ragged_fields(self.env_dict)

    @cached_property
    def axes(self) -> dict[str, str]:
        """The axes, each with that of the room: next values are in the room of their source."""
        axes = dict.fromkeys(one.axis for one in self.fields.values())
        named = {f"next_{self.fields[name].axis}": self.fields[name].axis for name in self.next_of}
        return {axis: named.get(axis, axis) for axis in axes}

    @property
    def fixed_axes(self) -> set[str]:
        """The axes whose values are never updated."""
        return {one for pair in self.axes.items() if pair[0] != pair[1] for one in pair}

    def buffer(self, folder: str, mode: FileMode = "x") -> ReplayBuffer:
        """An empty buffer, or the one that is in the file."""
        in_file: dict[str, Any] = {"mmap_prefix": f"{folder}/rows", "mmap_mode": mode}
        sampler = SAMPLERS[self.sampler]()
        return ReplayBuffer(
            self.capacity,
            self.env_dict,
            room=self.room,
            n_envs=self.n_envs,
            next_of=self.next_of or None,
            Nstep={"size": self.size, "gamma": GAMMA, "rew": "rew"} if self.size > 1 else None,
            sampler=sampler,
            seed=0,
            **(in_file if self.in_file else {}),
        )

    def twin(self) -> ReferenceRagged:
        """The twin of the empty buffer."""
        return ReferenceRagged(
            self.capacity, self.env_dict, self.room, self.n_envs, self.size, self.next_of
        )


def random_case(rng: np.random.Generator) -> Case:
    """A buffer of one to three axes, small or large beside its capacity."""
    n_envs = int(rng.choice([1, 1, 1, 2, 3]))
    capacity = max(n_envs, int(rng.choice([1, 2, 3, 5, 8, 13, 30])))
    env_dict: dict[str, Any] = {"id": {"shape": (), "dtype": "i8"}, "rew": {"shape": 1}}
    axes = ["T", "N", "E"][: int(rng.choice([1, 1, 2, 3]))]
    for number, axis in enumerate(axes):
        for k in range(int(rng.choice([1, 2, 3], p=[0.5, 0.4, 0.1]))):
            item, at = ITEM_SHAPES[rng.integers(len(ITEM_SHAPES))]
            spec: dict[str, Any] = {"shape": (*item[:at], axis, *item[at:])}
            spec["dtype"] = DTYPES[rng.integers(len(DTYPES))]
            if rng.random() < 0.25:  # its own axis, or one before
                spec["dtype"] = str(rng.choice(["i8", "i4", "u2"]))
                spec["counts"] = axes[int(rng.integers(number + 1))]
            env_dict[f"{axis.lower()}{k}"] = spec
    if rng.random() < 0.25:
        env_dict["say"] = {"dtype": str}
        axes.append("say")
    next_of = random_next_of(env_dict, rng) if rng.random() < 0.4 else []
    if rng.random() < 0.2 and "t0" not in next_of:
        env_dict["next_t0"] = {"shape": ("M",), "dtype": "i2"}
        axes.append("M")
    if rng.random() < 0.3:
        env_dict["root"] = {"shape": 2, "dtype": "i4", "counts": axes[0]}
    if rng.random() < 0.7:
        env_dict["done"] = {"shape": (), "dtype": "?"}
    names = list(env_dict)
    rng.shuffle(names)
    room, lengths = {}, {}
    for axis in axes:
        usual = int(rng.choice([1, 3, 8, 20]))
        choices = [1, 2, 3, usual, 2 * usual, capacity * usual // 2, 3 * capacity * usual]
        room[axis] = max(1, int(rng.choice(choices)))
        lengths[axis] = str(rng.choice(["even", "ends", "few", "both"])), usual
    return Case(
        capacity,
        n_envs,
        {name: env_dict[name] for name in names},
        room,
        lengths,
        sampler=str(rng.choice([*SAMPLERS, "uniform", "prioritized"])),
        p_end=float(rng.choice([0.05, 0.3])),
        longest_call=int(rng.choice([2, 5, 2 * capacity + 3])),
        size=int(rng.integers(2, 5)) if rng.random() < 0.2 else 1,
        in_file=bool(rng.random() < 0.1),
        next_of=tuple(next_of),
    )


def random_next_of(env_dict: dict[str, Any], rng: np.random.Generator) -> list[str]:
    """All fields of some axes, and of the axes that they count; their next values are declared."""
    fields = ragged_fields(env_dict)
    axes = {one.axis for one in fields.values() if rng.random() < 0.6}
    for _ in fields:  # until nothing changes any more
        axes |= {one.counts for one in fields.values() if one.axis in axes and one.counts}
    names = [name for name, one in fields.items() if one.axis in axes]
    for name in names:
        spec = env_dict[f"next_{name}"] = dict(env_dict[name])
        if "shape" in spec:
            spec["shape"] = tuple(f"next_{n}" if isinstance(n, str) else n for n in spec["shape"])
        if "counts" in spec:
            spec["counts"] = f"next_{spec['counts']}"
    return names


# ---- values ------------------------------------------------------------------------------


def random_text(rng: np.random.Generator, most: int) -> str:
    """A text of at most so many bytes, or often exactly so many."""
    words = rng.choice(TEXTS, int(rng.integers(5)))
    text = "".join(words.tolist()) + "x" * (most if rng.random() < 0.3 else 0)
    while len(text.encode()) > most:
        text = text[:-1]
    return text


def random_length(case: Case, axis: str, rng: np.random.Generator) -> int:
    """Items of a row on an axis."""
    how, usual = case.lengths[case.axes[axis]]
    room = case.room[case.axes[axis]]
    if axis in case.fixed_axes:  # a row has own items and next ones
        room //= 2
    if how == "ends" or (how == "both" and rng.random() < 0.4):
        return int(rng.choice([0, min(1, room), max(room - 1, 0), room]))
    if how == "few" and rng.random() < 0.6:
        return 0
    return int(rng.integers(min(room, usual), endpoint=True))


def random_values(case: Case, lengths: dict[str, int], rng: np.random.Generator) -> Values:
    """The values of a row with these lengths, but for its number."""
    fields = case.fields
    values: Values = {}
    for name, spec in case.env_dict.items():
        one = fields.get(name)
        if one is not None and one.is_text:
            values[name] = random_text(rng, lengths[name])
            continue
        shape = one.empty(lengths[one.axis]).shape if one is not None else spec["shape"]
        dtype = np.dtype(spec.get("dtype", "f4")).newbyteorder("=")
        if spec.get("counts"):
            values[name] = rng.integers(max(lengths[spec["counts"]], 1), size=shape).astype(dtype)
        elif name == "done":
            values[name] = np.array(rng.random() < case.p_end)
        elif name == "rew":
            values[name] = rng.integers(-8, 9, 1).astype("f4")
        else:
            values[name] = random_array(rng, dtype, (shape,) if isinstance(shape, int) else shape)
    return values


def random_lengths(case: Case, rng: np.random.Generator) -> dict[str, int]:
    """Lengths of a row; where values count items there are some."""
    lengths = {axis: random_length(case, axis, rng) for axis in case.axes}
    for spec in case.env_dict.values():
        if "counts" in spec and isinstance(spec["shape"], int):
            lengths[spec["counts"]] = max(lengths[spec["counts"]], 1)
    for _ in lengths:  # until nothing changes any more
        for one in case.fields.values():
            if one.counts is not None and lengths[one.counts] == 0:
                lengths[one.axis] = 0
    return lengths


def hand_over(case: Case, rows: Rows, rng: np.random.Generator) -> dict[str, Any]:
    """Rows as arguments of ``add``: each field in a form of its own."""
    fields = case.fields
    steps = len(rows) // case.n_envs
    as_block = case.n_envs > 1 and (steps != 1 or rng.random() < 0.3)
    bare = len(rows) == case.n_envs == 1 and rng.random() < 0.7
    arguments: dict[str, Any] = {}
    for name, spec in case.env_dict.items():
        values = [row[name] for row in rows]
        if name not in fields:
            shape = spec["shape"] if isinstance(spec["shape"], tuple) else (spec["shape"],)
            dtype = np.dtype(spec.get("dtype", "f4"))
            lead = (steps, case.n_envs) if as_block else () if bare else (len(rows),)
            column = np.array(values, dtype).reshape((*lead, *shape))
            arguments[name] = column
        elif not rows:  # ``[]`` is a row without items
            lead = (0, case.n_envs) if as_block else (0,)
            arguments[name] = np.zeros((*lead, *fields[name].empty(0).shape), fields[name].dtype)
            if fields[name].is_text:
                arguments[name] = np.zeros(lead, object)
        elif as_block:
            by_step = [values[k : k + case.n_envs] for k in range(0, len(rows), case.n_envs)]
            arguments[name] = [_rows_of_a_call(fields[name], step, rng) for step in by_step]
        elif bare:
            arguments[name] = _one_row(fields[name], values[0], rng)
        else:
            arguments[name] = _rows_of_a_call(fields[name], values, rng)
    return arguments


def _one_row(one: RaggedField, value: Any, rng: np.random.Generator) -> Any:
    return value if one.is_text else disguise(value, str(rng.choice(ROW_FORMS)))


def _rows_of_a_call(one: RaggedField, values: list[Any], rng: np.random.Generator) -> Any:
    """Several rows of a ragged field."""
    how = rng.choice(["list", "list", "packed", "objects", "dense"])
    if one.is_text:
        return np.array(values, object) if how == "objects" else values
    counts = [value.shape[one.axis_at] for value in values]
    if how == "packed":
        return joined(one, values), np.array(offsets(counts))
    if how == "dense" and len(set(counts)) == 1:
        return np.stack(values)
    rows = [_one_row(one, value, rng) for value in values]
    if how == "objects" and rows:
        column = np.empty(len(rows), object)
        for k, row in enumerate(values):
            column[k] = row
        return column
    return rows


# ---- actions -----------------------------------------------------------------------------


class History:
    """A buffer and its twin, and the actions on both."""

    def __init__(self, case: Case, folder: str) -> None:
        self.case, self.folder = case, folder
        self.rb, self.twin = case.buffer(folder), case.twin()
        self.number = 0  # of rows ever
        self.newest: dict[int, Values] = {}  # by environment: the values of the newest row
        self.drawn: list[int] = []  # indexes of batches

    def act(self, action: Action) -> None:
        """Do one thing to both, and compare them."""
        what, seed = action
        rng = np.random.default_rng(seed)
        ACTIONS[what](self, rng)
        assert_holds(self)
        if rng.random() < 0.2 or what == "copy":
            self.rb.check()

    # ---- writing -------------------------------------------------------------------------

    def new_rows(self, n: int, rng: np.random.Generator) -> Rows:
        """Rows with numbers of their own."""
        rows = []
        for k in range(n):
            values = self.newest[k % self.case.n_envs] = self._new_values(k, rng)
            values["id"] = np.array(self.number)
            self.number += 1
            rows.append(values)
        return rows

    def _new_values(self, k: int, rng: np.random.Generator) -> Values:
        """Values of a row, often with the next values of the row before in its stream."""
        case, lengths = self.case, random_lengths(self.case, rng)
        before = self.newest.get(k % case.n_envs)
        if not case.next_of or before is None or rng.random() < 0.25:
            return random_values(case, lengths, rng)
        fields = case.fields
        for name in case.next_of:
            lengths[fields[name].axis] = fields[name].length(before[f"next_{name}"])
        for _ in lengths:  # until nothing changes any more
            for one in fields.values():
                if one.counts and lengths[one.counts] == 0 and one.name not in case.next_of:
                    lengths[one.axis] = 0
        if any(
            lengths[spec["counts"]] == 0
            for name, spec in case.env_dict.items()
            if spec.get("counts") and name not in fields
        ):
            return random_values(case, random_lengths(case, rng), rng)
        values = random_values(case, lengths, rng)
        values |= {name: before[f"next_{name}"] for name in case.next_of}
        if rng.random() < 0.2:  # one field differs
            name = str(rng.choice(case.next_of))
            if fields[name].counts is None and not fields[name].is_text:
                values[name] = random_values(case, lengths, rng)[name]
        return values

    def add(self, n: int, rng: np.random.Generator) -> None:
        rows = self.new_rows(n, rng)
        arguments = hand_over(self.case, rows, rng)
        priorities = None
        if self.case.priorities and rng.random() < 0.5:
            priorities = rng.integers(1, 9, n).astype(float).tolist()
            shape = (-1, self.case.n_envs) if self.case.n_envs > 1 and rng.random() < 0.5 else (-1,)
            arguments["priorities"] = np.reshape(priorities, shape)
        before = self._state()
        try:
            expected = self.twin.add(rows, None, priorities)
        except ValueError:
            self._refused(lambda: self.rb.add(**arguments), before)
            return
        slot = self.rb.add(**arguments)
        assert slot == expected or self.case.size > 1

    def add_one_step(self, rng: np.random.Generator) -> None:
        self.add(self.case.n_envs, rng)

    def add_several(self, rng: np.random.Generator) -> None:
        most = max(self.case.longest_call // self.case.n_envs, 1)
        least = int(self.case.n_envs > 1 and "say" in self.case.env_dict)  # no form for no texts
        self.add(int(rng.integers(least, most, endpoint=True)) * self.case.n_envs, rng)

    def add_where(self, rng: np.random.Generator) -> None:
        """One step, or a block, of some environments."""
        case = self.case
        steps = int(rng.integers(1, 4)) if rng.random() < 0.3 else 1
        rows = self.new_rows(steps * case.n_envs, rng)
        present = rng.random(len(rows)) < 0.6
        arguments = hand_over(case, rows, rng)
        is_block = np.ndim(arguments["id"]) == 2 or steps > 1
        if case.n_envs == 1 and steps > 1:
            return
        mask = present.reshape(steps, case.n_envs) if is_block else present
        before = self._state()
        try:
            expected = self.twin.add(rows, present.tolist())
        except ValueError:
            self._refused(lambda: self.rb.add_where(mask, **arguments), before)
            return
        slot = self.rb.add_where(mask, **arguments)
        assert slot == expected or case.size > 1

    def refused_add(self, rng: np.random.Generator) -> None:
        """Calls that are wrong in one field or row change nothing."""
        case, rows = self.case, self.new_rows(self.case.n_envs, rng)
        most = {
            axis: case.room[room] // (1 + (axis in case.fixed_axes))
            for axis, room in case.axes.items()
        }
        lengths = [{axis: min(n, 2) for axis, n in most.items()} for _ in rows]
        rows = [
            {**random_values(case, one, rng), "id": row["id"]}
            for one, row in zip(lengths, rows, strict=True)
        ]
        fields = case.fields
        victim = str(rng.choice(list(fields)))
        one = fields[victim]
        how = str(rng.choice(["long", "disagrees", "range", "missing", "shape"]))
        row = rows[int(rng.integers(len(rows)))]
        if how == "long":
            long = {
                axis: n + (axis == one.axis) * (case.room[case.axes[axis]] + 1)
                for axis, n in lengths[0].items()
            }
            row.update(random_values(case, long, rng) | {"id": row["id"]})
            if one.is_text:
                row[victim] = "x" * (case.room[case.axes[one.axis]] + 1)
        elif how == "disagrees":
            if one.is_text or [other.axis for other in fields.values()].count(one.axis) < 2:
                return
            row[victim] = one.empty(lengths[0][one.axis] + 1)
        elif how == "range":
            if one.counts is None or row[victim].size == 0:
                return
            row[victim].reshape(-1)[0] = lengths[0][one.counts]
        arguments: dict[str, Any] = {name: [row[name] for row in rows] for name in case.env_dict}
        if case.n_envs == 1 and rng.random() < 0.5:
            arguments = {name: value[0] for name, value in arguments.items()}
        if how == "missing":
            del arguments[victim]
        elif how == "shape":
            arguments[victim] = np.zeros((case.n_envs, 7, 7, 7, 7, 7))
        self._refused(lambda: self.rb.add(**arguments), self._state())

    def _refused(self, call: Callable[[], object], before: Any) -> None:
        """The call raises, and changes nothing."""
        try:
            call()
        except (ValueError, TypeError):
            assert self._state() == before, "a refused call changed the buffer"
            return
        raise AssertionError("the call was not refused")

    def _state(self) -> Any:
        rb = self.rb
        return rb.stats(), rb.get_next_index(), used_of(rb)

    def update(self, rng: np.random.Generator) -> None:
        """New values of some rows of any age, of the same lengths or others."""
        known = self.drawn + 3 * [self.twin.index(row) for row in self.twin.living()]
        if not known:
            return
        indexes = rng.choice(known, int(rng.choice([1, 1, 1, 2, 4])))
        rows = [self.twin.row_of(index) for index in indexes.tolist()]
        free = [axis for axis in self.twin.axes if axis not in self.case.fixed_axes]
        chosen = {axis for axis in free if rng.random() < 0.5}
        fields = self.twin.fields
        names = [
            name
            for name, spec in self.case.env_dict.items()
            if (name in fields and fields[name].axis in chosen) or spec.get("counts") in chosen
        ]
        if not names or rng.random() < 0.2:  # of the same lengths
            chosen = set()
            names = [name for name in fields if fields[name].axis in free and rng.random() < 0.5]
        names += ["rew"] if not names or rng.random() < 0.3 else []
        share = len(rows) if rng.random() < 0.8 else 1
        new = [
            random_values(self.case, self._new_lengths(row, chosen, share, rng), rng)
            for row in rows
        ]
        values = {name: [row[name] for row in new] for name in names}
        arguments = {
            name: _rows_of_a_call(fields[name], given, rng) if name in fields else np.array(given)
            for name, given in values.items()
        }
        before = self._state()
        try:
            self.twin.update(rows, values, in_place=self.rb._files is None)
        except ValueError:
            self._refused(lambda: self.rb.update(indexes, **arguments), before)
            return
        self.rb.update(indexes, **arguments)

    def _new_lengths(
        self, row: RaggedRow, chosen: set[str], share: int, rng: np.random.Generator
    ) -> dict[str, int]:
        """Lengths of a row, of which those of the chosen axes may have changed.

        These are at most the room of ``share`` rows.
        """
        lengths = {axis: self.twin.length(row.values, axis) for axis in self.twin.axes}
        new = random_lengths(self.case, rng)
        lengths.update({axis: min(new[axis], self.case.room[axis] // share) for axis in chosen})
        free = set(chosen)  # axes that may have no items
        for _ in 2 * list(lengths):  # until nothing changes any more
            for name, counts in self.twin.counts.items():
                if counts is None or lengths[counts]:
                    continue
                one = self.twin.fields.get(name)
                if one is not None and one.axis in free:
                    lengths[one.axis] = 0
                elif one is None or lengths[one.axis]:
                    lengths[counts] = 1
                    free.discard(counts)
        return lengths

    def update_priorities(self, rng: np.random.Generator) -> None:
        if not self.case.priorities or not self.drawn:
            return
        indexes = rng.choice(self.drawn, int(rng.integers(1, 6)))
        priorities = rng.integers(1, 9, len(indexes)).astype(float)
        self.rb.update_priorities(indexes, priorities)
        self.twin.set_priorities(
            [self.twin.row_of(index) for index in indexes.tolist()], priorities.tolist()
        )

    def clear(self, rng: np.random.Generator) -> None:
        if rng.random() < 0.3:
            self.rb.clear()
            self.twin.clear()
            self.drawn = []

    def end(self, rng: np.random.Generator) -> None:
        env = None if rng.random() < 0.5 else int(rng.integers(self.case.n_envs))
        self.rb.on_episode_end(env)
        self.twin.on_episode_end(env)

    def delete(self, rng: np.random.Generator) -> None:
        """An episode that has ended; or end one."""
        if not len(self.rb.episodes):
            return
        number = int(rng.integers(len(self.rb.episodes)))
        rows = self._episode(number)
        if not rows[-1].end:
            self.end_of(rows[-1])  # with n-step returns, rows may be left out now
            return
        assert self.rb.episodes.delete(number) == len(rows)
        self.twin.delete(rows[0])

    def rewind(self, rng: np.random.Generator) -> None:
        """Back by some time steps, sometimes to before all rows."""
        rows, step = len(self.twin.rows), self.case.n_envs
        first = max(rows - step * int(rng.choice([0, 1, 2, 5, 100])), 0)
        self.rb.rewind(self.rb.rows - rows + first)
        self.twin.rewind(first)

    def end_of(self, row: RaggedRow) -> None:
        env = row.number % self.case.n_envs
        self.rb.on_episode_end(env)
        self.twin.on_episode_end(env)

    def _episode(self, number: int) -> list[RaggedRow]:
        """The rows of an episode, by their numbers."""
        ids = self.rb.episodes.read(number, fields="id")["id"].tolist()
        by_id = {int(row.values["id"]): row for row in self.twin.living()}
        rows = [by_id[one] for one in ids]
        assert rows == self.twin.episode(rows[0])
        return rows

    def copy(self, rng: np.random.Generator) -> None:
        """A copy goes on, or the file that was closed."""
        if self.rb._files is not None and rng.random() < 0.7:
            del self.rb
            gc.collect()
            self.rb = self.case.buffer(self.folder, "a")
        elif rng.random() < 0.3:
            self.rb = copy.deepcopy(self.rb)
        else:
            self.rb = pickle.loads(pickle.dumps(self.rb))

    # ---- reading -------------------------------------------------------------------------

    def rows_named(self, indexes: Array, *, distinct: bool = False) -> list[RaggedRow]:
        """The rows of a batch, which are there."""
        rows = [self.twin.row_of(index) for index in indexes.tolist()]
        assert all(row.there and row.number >= self.twin.oldest for row in rows)
        assert not distinct or len(set(indexes.tolist())) == len(rows)
        self.drawn = [*self.drawn, *indexes.tolist()][-30:]
        return rows

    def sample(self, rng: np.random.Generator) -> None:
        """Batches of rows, by the buffer and by a view, of some fields or all."""
        n = int(rng.integers(6))
        replace = bool(rng.random() < 0.7) or self.case.sampler == "reverse"
        layout = Layout.random(self.case, rng) if rng.random() < 0.7 else Layout()
        source = self.rb if rng.random() < 0.5 and not layout.kind else self.rb.view(*layout.layers)
        names = self._some_names(rng)
        wanted: dict[str, Any] = {} if names == list(self.case.env_dict) else {"fields": names}
        living = self.twin.drawable()
        before = self.rb.rng.bit_generator.state
        try:
            batch = source.sample(n, replace=replace, indexes=True, **wanted)
        except NotEnoughDataError:
            assert not living or (not replace and n > len(living))
            return
        except ValueError:
            if self.case.sampler in ("recency", "reverse"):  # they draw others the next time
                assert layout.can_fail
                return
            self.rb.rng.bit_generator.state = before
            rows = self.rows_named(self.rb.sample(n, replace=replace, indexes=True)["indexes"])
            assert layout.expected(self.cells_of(rows), names) is None
            return
        assert living
        rows = self.rows_named(batch["indexes"], distinct=not replace)
        assert_batch(batch, layout.expected(self.cells_of(rows), names), layout)

    def _some_names(self, rng: np.random.Generator) -> list[str]:
        """All fields, or some in declared order."""
        names = list(self.case.env_dict)
        if rng.random() < 0.7:
            return names
        return [name for name in names if rng.random() < 0.5] or names

    def cells_of(self, rows: Sequence[RaggedRow | None], *lead: int) -> Cells:
        """The values of rows in a batch, n-step returns if the buffer has the option."""
        size = self.case.size
        cells = [None if row is None else self.twin.read(row, size, GAMMA) for row in rows]
        return Cells(self.twin, cells, lead or (len(rows),))

    def sample_into(self, rng: np.random.Generator) -> None:
        """Arrays of the caller get the values; packed ones may be longer."""
        n = int(rng.integers(1, 6))
        if not self.twin.drawable():
            return
        layout = Layout.random(self.case, rng, fixed=True)
        view = self.rb.view(*layout.layers)
        try:
            like = view.sample(n)
        except ValueError:
            return
        more = int(rng.integers(3)) if layout.kind is Packed else 0
        out: dict[str, Any] = {}
        for name in self.case.env_dict:
            shape, one = list(like[name].shape), self.twin.fields.get(name)
            if one is not None and not one.is_text:
                shape[one.axis_at + (layout.kind is not Packed)] += more
            out[name] = np.empty(shape, like[name].dtype)
        try:
            batch = view.sample(n, out=out, indexes=True)
        except ValueError:
            return
        rows = self.rows_named(batch["indexes"])
        assert_batch(batch, layout.expected(self.cells_of(rows), list(self.case.env_dict)), layout)
        assert all(
            np.shares_memory(batch[name], out[name]) or not batch[name].size
            for name in self.case.env_dict
            if name != "say"
        )

    def sequences(self, rng: np.random.Generator) -> None:
        """Rows of a sequence follow one another."""
        length, n = int(rng.integers(1, 5)), int(rng.integers(1, 5))
        across = bool(rng.random() < 0.5)
        if length > self.case.capacity // self.case.n_envs:
            return
        layout = Layout.random(self.case, rng)
        view = self.rb.view(NStep(1), Sequences(length, across_episodes=across), *layout.layers)
        names = self._some_names(rng)
        try:
            batch = view.sample(n, indexes=True, fields=names)
        except NotEnoughDataError:
            return
        except ValueError:
            if layout.can_fail:
                return
            raise
        by_index = batch.pop("row_indexes")
        cells: list[RaggedRow | None] = []
        for k in range(n):
            named = by_index[k][by_index[k] >= 0]
            rows = self.rows_named(named)
            assert rows == self.twin.following(rows[0], length, across=across)
            assert len(rows) == length or (not across and rows[-1].end)
            cells += [*rows, *[None] * (length - len(rows))]
        np.testing.assert_array_equal(batch.pop("indexes"), by_index[:, 0])
        mark = batch.pop("is_first" if across else "mask")
        assert across or mark.ravel().tolist() == [cell is not None for cell in cells]
        values = [None if cell is None else cell.values for cell in cells]
        assert_batch(batch, layout.expected(Cells(self.twin, values, (n, length)), names), layout)

    def nstep(self, rng: np.random.Generator) -> None:
        """Fields of the first row, and next ones of the last."""
        size, n = int(rng.integers(1, 4)), int(rng.integers(1, 5))
        if size > self.case.capacity // self.case.n_envs:
            return
        layout = Layout.random(self.case, rng)
        view = self.rb.view(NStep(size, GAMMA), *layout.layers)
        names = self._some_names(rng)
        try:
            batch = view.sample(n, indexes=True, fields=names)
        except NotEnoughDataError:
            return
        except ValueError:
            if layout.can_fail:
                return
            raise
        cells = []
        for row in self.rows_named(batch["indexes"]):
            steps = self.twin.following(row, size)
            assert len(steps) == size or steps[-1].end
            cells.append(self.twin.read(row, size, GAMMA))
        assert_batch(batch, layout.expected(Cells(self.twin, cells, (n,)), names), layout)

    def others(self, rng: np.random.Generator) -> None:
        """Slots, whole buffers, epochs and episodes."""
        names, living = self._some_names(rng), self.twin.drawable()
        plain = Layout()
        slots = self.twin.slots()
        everything = self.rb.get_all_transitions(fields=names)
        cells = self.cells_of(list(slots.values()))
        assert_batch(everything, plain.expected(cells, names), plain)
        if not living:
            return
        chosen = rng.choice(list(slots), int(rng.integers(1, 4)))
        batch = self.rb[chosen]
        cells = self.cells_of([slots[slot] for slot in chosen.tolist()])
        assert_batch(batch, plain.expected(cells, list(self.case.env_dict)), plain)
        size = int(rng.integers(1, 6))
        layout = Layout.random(self.case, rng)
        by_id = {int(row.values["id"]): row for row in living}
        seen = []
        with suppress_if(layout.can_fail, ValueError):
            for batch in self.rb.view(*layout.layers).epoch(size):
                rows = [by_id[one] for one in batch["id"].tolist()]
                seen += rows
                cells = self.cells_of(rows)
                assert_batch(batch, layout.expected(cells, list(self.case.env_dict)), layout)
            assert sorted(seen, key=lambda row: row.number) == living
        self.episodes(names)

    def episodes(self, names: list[str]) -> None:
        """All episodes, which have all rows that are there."""
        plain = Layout()
        for number in range(len(self.rb.episodes)):
            rows = self._episode(number)
            batch = self.rb.episodes.read(number, fields=names)
            cells = Cells(self.twin, [row.values for row in rows], (len(rows),))
            assert_batch(batch, plain.expected(cells, names), plain)


@contextmanager
def suppress_if(condition: bool, error: type[Exception]) -> Iterator[None]:
    """``suppress`` if the condition holds."""
    try:
        yield
    except error:
        if not condition:
            raise


@dataclass(frozen=True)
class Layout:
    """A layer for values of any length, and its options; by default the layout without a layer."""

    kind: type[Layer] | None = None
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def layers(self) -> list[Layer]:
        """The layers of a view."""
        return [] if self.kind is None else [self.kind(**self.options)]

    @property
    def can_fail(self) -> bool:
        """Whether the rows of a batch may have too many items."""
        return self.options.get("length") is not None or self.options.get("total") is not None

    @classmethod
    def random(cls, case: Case, rng: np.random.Generator, *, fixed: bool = False) -> Layout:
        """A layout with random options; ``fixed``: of arrays of the same shapes each time."""
        fields = case.fields
        axes = sorted({one.axis for one in fields.values() if not one.is_text})
        if not axes:
            return cls()
        multiple = int(rng.choice([1, 1, 2, 5]))

        def numbers(make: Callable[[str], int], p: float) -> Any:
            """A number for all axes, or for some."""
            if rng.random() < p:
                return max(make(axis) for axis in axes)
            return {axis: make(axis) for axis in axes if fixed or rng.random() < 0.6}

        def some_axes() -> Any:
            chosen = [axis for axis in axes if rng.random() < 0.5]
            return [False, True, chosen, axes[0]][int(rng.integers(4))]

        numeric = [one.name for one in fields.values() if one.dtype.kind in "iufc"]
        numeric = [name for name in numeric if not fields[name].is_text]
        wide = {"f4": "f8", "f8": "f4", "i4": "i8", "u1": "i4", "f2": "f4", "i2": "i8"}
        dtypes: dict[str, Any] = {
            name: np.dtype(wide[one.dtype.str[1:]])
            for name, one in fields.items()
            if one.dtype.str[1:] in wide and not one.is_text and rng.random() < 0.2
        }
        options: dict[str, Any] = {}
        if rng.random() < 0.5:
            options["multiple_of"] = multiple if rng.random() < 0.5 else {axes[0]: multiple}
        if rng.random() < 0.5:
            sides = rng.choice(["left", "right"], len(axes)).tolist()
            by_name = dict(zip(axes, sides, strict=True))
            options["side"] = by_name if rng.random() < 0.4 else sides[0]
            if rng.random() < 0.4:
                options["value"] = {name: 100 for name in numeric if rng.random() < 0.7}
            if fixed or rng.random() < 0.2:
                longest = {axis: min(case.room[case.axes[axis]], 60) for axis in axes}
                options["length"] = numbers(lambda axis: up_to(longest[axis], multiple), 0.5)
            if rng.random() < 0.3:
                options["dtypes"] = dtypes | {f"{axes[0]}_mask": rng.choice(["i8", "f4"])}
            return cls(Padded, options)
        options["offsets"] = [np.int32, np.int64][int(rng.integers(2))]
        options |= {"positions": some_axes(), "segments": some_axes()}
        for name, one in fields.items():
            if one.counts is not None and one.dtype not in (np.int32, np.int64):
                dtypes[name] = np.int64
        if rng.random() < 0.2:
            dtypes[f"{axes[0]}_offsets"] = np.int64
        if dtypes:
            options["dtypes"] = dtypes
        if rng.random() < 0.3:
            free = [name for name in numeric if fields[name].counts is None]
            options["value"] = {name: 100 for name in free if rng.random() < 0.7}
        if fixed or rng.random() < 0.3:
            most = {axis: min(5 * case.room[case.axes[axis]], 100) for axis in axes}
            options["total"] = numbers(lambda axis: up_to(most[axis], multiple), 0.5)
        return cls(Packed, options)

    def expected(self, cells: Cells, names: Sequence[str]) -> dict[str, Any] | None:
        """The columns of a batch; None if its rows have too many items for the options."""
        twin = cells.twin
        try:
            if self.kind is Packed:
                options = dict(self.options)
                offsets_dtype = options.pop("offsets")
                found: dict[str, Any] = cells.packed(names, offsets_dtype=offsets_dtype, **options)
            else:
                found = cells.padded(
                    [name for name in names if name in twin.fields], **self.options
                )
        except ValueError:
            return None
        for name in names:
            if name in found and found[name].size:
                continue
            if name in twin.fields and twin.fields[name].is_text:
                found[name] = cells.texts(twin.fields[name])
            elif name not in twin.fields:
                found[name] = cells.fixed(name)
        return found


ACTIONS: dict[str, Callable[[History, np.random.Generator], None]] = {
    "add one step": History.add_one_step,
    "add several": History.add_several,
    "add where": History.add_where,
    "refused add": History.refused_add,
    "update": History.update,
    "update priorities": History.update_priorities,
    "clear": History.clear,
    "end": History.end,
    "delete": History.delete,
    "rewind": History.rewind,
    "copy": History.copy,
    "sample": History.sample,
    "sample into": History.sample_into,
    "sequences": History.sequences,
    "nstep": History.nstep,
    "others": History.others,
}
OFTEN = ["add one step", "add several", "add several", "add where", "sample", "sample", "update"]


def random_history(seed: int) -> tuple[Case, list[Action]]:
    """A buffer and up to 40 actions."""
    rng = np.random.default_rng(seed)
    case = random_case(rng)
    names = [*ACTIONS, *OFTEN]
    n = int(rng.choice([5, 15, 40]))
    return case, [
        (names[int(rng.integers(len(names)))], int(rng.integers(2**32))) for _ in range(n)
    ]


def play(case: Case, actions: Sequence[Action]) -> None:
    """Do all to a buffer and its twin; they agree after each action."""
    with TemporaryDirectory() as folder:
        history = History(case, folder)
        for action in actions:
            history.act(action)


# ---- comparison --------------------------------------------------------------------------


def assert_batch(batch: dict[str, Any], expected: dict[str, Any] | None, layout: Layout) -> None:
    """A batch has the columns that it should have, bit for bit, and no others of axes."""
    assert expected is not None, f"{layout}: a batch of rows with too many items"
    further = batch.keys() - expected.keys()
    assert further <= {"indexes", "weights"}, f"{layout}: further columns {further}"
    for name, values in expected.items():
        if isinstance(values, list):
            assert batch[name].tolist() == values, f"{layout}, {name}"
        else:
            assert_same(values, np.asarray(batch[name]), f"{layout}, {name}")


def used_of(rb: ReplayBuffer) -> dict[str, int]:
    """By axis: items of memory from the oldest living one on, by words and entries in memory."""
    found = {}
    for items, ring in zip(rb._layout.item_rings, rb.ring.items, strict=False):
        words = rb._layout.item_words(rb._arena, items).tolist()
        head, base, previous = words[1 + 3 * words[0] :][:3]
        assert previous <= base <= head
        among = set()
        for own in (ring, ring.following) if ring.following else (ring,):
            for place, count, _ in entries_of(rb, own).values():
                if count:
                    start = (base if place < head - base else previous) + place
                    assert 0 <= place <= place + count <= ring.units
                    assert start + count <= head
                    assert ring.following or (start, count) not in among
                    among.add((start, count))
        places = sorted(among)
        for (start, count), (following, _) in pairwise(places):
            assert start + count <= following, f"axis {ring.axis}: two rows in one place"
        found[ring.axis] = head - places[0][0] if places else 0
    return found


def entries_of(rb: ReplayBuffer, ring: ItemRing) -> dict[int, tuple[int, int, bool]]:
    """Place and number of the items of each row that is there, and whether they were moved."""
    dtype = ring.entry.dtype
    top = 8 * dtype.itemsize - 1
    found = {}
    stored = rb.ring.stored  # incomplete rows too
    slots = np.arange(stored)[(rb.ring.flags()[:stored] & FLAG_ABSENT) == 0]
    for slot in slots.tolist():
        start = ring.entry.offset + slot * ring.entry.stride
        raw = rb._arena[start : start + 2 * dtype.itemsize].tobytes()
        place, count = np.frombuffer(raw, dtype).tolist()
        found[slot] = place, count & ((1 << top) - 1), bool(count >> top)
    return found


def stored(rb: ReplayBuffer, one: RaggedField, place: int, count: int) -> Array:
    """Items in memory, with the axis in its place."""
    (ring,) = [ring for ring in rb.ring.items if ring.axis == one.axis]
    raw = memory_of(ring, ring.names.index(one.name))[place : place + count].tobytes()
    shape = one.empty(count).shape
    items = np.frombuffer(raw, one.dtype) if raw else np.zeros(0, one.dtype)
    axis_first = (count, *shape[: one.axis_at], *shape[one.axis_at + 1 :])
    return np.moveaxis(items.reshape(axis_first), 0, one.axis_at)


def assert_memory(rb: ReplayBuffer, twin: ReferenceRagged) -> None:
    """The items of each row are in memory, bit for bit, and as much memory is in use."""
    assert used_of(rb) == {axis: twin.used(axis) for axis in twin.rooms}
    assert {ring.axis: ring.left for ring in rb.ring.items if not ring.is_next} == twin.left
    places = {ring.axis: entries_of(rb, ring) for ring in rb.ring.items}
    for row in twin.living():
        slot = row.number % twin.capacity
        for name, one in twin.fields.items():
            place, count, _ = places[one.axis][slot]
            assert count == one.length(row.values[name]), f"slot {slot}, {name}"
            expected = np.ascontiguousarray(joined(one, [row.values[name]]))
            assert_same(
                expected,
                np.ascontiguousarray(stored(rb, one, place, count)),
                f"slot {slot}, {name}",
            )


def assert_holds(history: History) -> None:
    """Rows, counts and memory are those of the twin."""
    rb, twin = history.rb, history.twin
    slots = twin.slots()
    assert len(rb) == rb.get_stored_size() == len(slots)
    if twin.size == 1:
        assert rb.ring.present_slots().tolist() == list(slots)
        assert rb.get_next_index() == len(twin.rows) % twin.capacity
    for env in range(twin.n_envs):
        assert rb.get_current_episode_len(env) == twin.episode_len(env)
    stats = rb.stats()
    assert (stats["rows"], stats["adds"]) == (len(slots), len(twin.rows))
    assert_memory(rb, twin)
    if history.case.sampler == "prioritized" and twin.size == 1:
        weights = [slots[slot].priority if slot in slots else 0.0 for slot in range(rb.ring.stored)]
        found = rb.sampler.row_weights(np.arange(rb.ring.stored))
        assert found is not None
        assert found.tolist() == weights
