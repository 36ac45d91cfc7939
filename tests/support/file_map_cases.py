"""Buffers in file maps, and a process that writes counters to them until it is killed.

Each step number ``t`` decides all values of its rows, so a row that is not whole shows.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpprb_like import PrioritizedReplayBuffer, ReplayBuffer

__all__ = [
    "BACK",
    "CASES",
    "EACH",
    "LONGEST",
    "Case",
    "items_of",
    "joined",
    "room_for",
    "step",
    "twin_rows",
    "unless_full",
    "updated",
]

WIDE = 4000  # so that much of the time goes into writing rows
RAGGED: dict[str, Any] = {
    "token": {"shape": ("T",), "dtype": "i4"},
    "value": {"shape": ("T", 2), "dtype": "f8"},
    "edge": {"shape": (2, "E"), "dtype": "u2", "counts": "T"},
    "say": {"dtype": str},
}
LONGEST = 40  # items of a row
LONGER = 3  # further items after an update
EACH, BACK = 9, 5  # a writer goes back by so many steps, after each so many


def room_for(calls: int) -> Callable[[int, int, int], None]:
    """As ``os.posix_fallocate``, of a disk that has room for so many calls and is full then."""
    reserve = os.posix_fallocate
    left = calls

    def fail(file: int, offset: int, nbytes: int) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        reserve(file, offset, nbytes)

    return fail


@dataclass(frozen=True)
class Case:
    """A kind of buffer, and what is done to it."""

    name: str
    capacity: int = 100
    n_envs: int = 1
    n_step: int = 1
    block: int = 1  # time steps of a call
    options: dict[str, Any] = field(default_factory=dict)
    chained: bool = False
    prioritized: bool = False
    deletes: bool = False
    updates: bool = False
    clears: bool = False
    rewinds: bool = False
    ids: dict[str, Any] = field(default_factory=dict)
    wide: int = WIDE
    room: int = 0  # items of each named axis; 0: there are none
    has_next_items: bool = False

    @property
    def most_call(self) -> int:
        """Time steps of a call, at most."""
        return self.block

    def open(self, folder: Path, mode: str, **options: Any) -> ReplayBuffer:
        """The buffer in its file."""
        fields: dict[str, Any] = {
            "t": {"shape": (), "dtype": "i8"},
            "env": {"shape": (), "dtype": "i4"},
            "wide": {"shape": self.wide, "dtype": "i4"},
            "mark": {"shape": 3, "dtype": "i8"},
            "done": {"shape": (), "dtype": bool},
        }
        given = {"mmap_prefix": folder / self.name} | self.options | options
        if self.room:
            fields |= RAGGED
            given.setdefault("room", {"T": self.room, "E": self.room, "say": 2 * self.room})
        if self.has_next_items:
            given["next_of"] = list(RAGGED)
        if self.chained:
            fields["stack"] = {"shape": (5, 3), "dtype": "i4"}
            given |= {"stack_compress": {"stack": 1}, "next_of": ["stack", "t"]}
        if self.n_step > 1:
            given["Nstep"] = {"size": self.n_step, "rew": [], "next": []}
        make: Callable[..., ReplayBuffer] = (
            PrioritizedReplayBuffer if self.prioritized else ReplayBuffer
        )
        return make(
            self.capacity, fields, n_envs=self.n_envs, seed=0, **given,
            mmap_mode="a" if mode == "r+" else mode,  # the takes go on
        )  # fmt: skip


CASES = [
    Case("plain", updates=True),
    Case("one", capacity=1),
    Case("envs", n_envs=4, capacity=120, n_step=3),
    Case("blocks", block=37, deletes=True),
    Case("clears", clears=True, updates=True),
    Case("overfull", block=250, capacity=100),
    Case("chained", chained=True, deletes=True, clears=True),
    Case("chained-envs", chained=True, n_envs=3, capacity=60, n_step=3),
    Case("prioritized", prioritized=True, deletes=True, clears=True),
    Case("prioritized-chained", prioritized=True, chained=True, n_envs=2, capacity=60, n_step=3),
    Case("chained-one", chained=True, capacity=1),
    Case("chained-blocks", chained=True, block=30, n_envs=2, capacity=80),
    Case("chained-overfull", chained=True, block=90, capacity=50),
    Case("ragged", room=300, wide=40, updates=True),
    Case("ragged-deletes", room=200, wide=40, deletes=True, clears=True, updates=True),
    Case("ragged-envs", room=400, n_envs=3, capacity=60, n_step=3, wide=40),
    Case("ragged-blocks", room=250, block=19, capacity=50, wide=4),
    Case("ragged-block-envs", room=250, block=7, n_envs=2, capacity=80, wide=4),
    Case("ragged-rows-first", room=5000, capacity=30, wide=40, updates=True),
    Case("ragged-chained", room=300, chained=True, prioritized=True, wide=40),
    Case("ragged-next", room=300, has_next_items=True, deletes=True, clears=True, wide=40),
    Case("ragged-next-envs", room=600, has_next_items=True, n_envs=3, capacity=60, wide=40),
    Case("ragged-next-blocks", room=500, has_next_items=True, block=7, n_envs=2, wide=4),
    Case("rewinds", rewinds=True, updates=True, wide=40),
    Case("rewinds-chained", rewinds=True, chained=True, n_envs=3, capacity=60, wide=40),
    Case("rewinds-prioritized", rewinds=True, prioritized=True, n_step=3, wide=40),
    Case("rewinds-ragged", rewinds=True, room=300, has_next_items=True, wide=40),
]


def is_done(t: int, env: int) -> bool:
    """Whether a step ends its episode."""
    return (t + env) % 7 == 6


def frames(t: int, env: int) -> NDArray[np.int32]:
    """A stack of frames whose first ones repeat where an episode begins: shape (5, 3)."""
    start = t
    while start > 0 and not is_done(start - 1, env):
        start -= 1
    times = np.maximum(np.arange(t - 2, t + 1), start)
    return np.broadcast_to(times * 10 + env, (5, 3)).astype(np.int32)


def after(t: int, env: int) -> NDArray[np.int32]:
    """The next stack: of the end of an episode too."""
    if not is_done(t, env):
        return frames(t + 1, env)
    last = frames(t, env)
    return np.concatenate([last[:, 1:], np.full((5, 1), -t - 1, np.int32)], axis=1)


def items_of(t: int, env: int, longer: int = 0) -> dict[str, Any]:
    """The items of a row, whose numbers follow from it; an update makes the row ``longer``."""
    seed = t * 10 + env
    n = (0, 1, (t + env) % 7, t % 11, t * 13 % LONGEST)[(t * 7 + env * 3) % 5] + longer
    n_edges = ((t * 5 + env) % 13 if n else 0) + longer
    return {
        "token": seed + np.arange(n, dtype=np.int32) + longer,
        "value": np.full((n, 2), seed, np.float64) + np.arange(2 * n).reshape(n, 2) + longer,
        "edge": (seed + np.arange(2 * n_edges).reshape(2, n_edges)).astype(np.uint16) % max(n, 1),
        "say": f"{seed}é" * ((t + env) % 4 + longer),
    }


def next_items_of(t: int, env: int) -> dict[str, Any]:
    """The items of the next step, or others where an episode ends."""
    return items_of(t, env, 2) if is_done(t, env) else items_of(t + 1, env)


@contextmanager
def unless_full() -> Iterator[None]:
    """An update for which there is no room while its rows stay is refused; all else is a fault."""
    try:
        yield
    except ValueError as error:
        if "no place beside the old ones" not in str(error):
            raise


def updated(rows: dict[str, Any]) -> dict[str, Any]:
    """What an update makes of rows: their mark is turned round, and their items with it."""
    signs = np.where(rows["mark"][:, 0] > 0, LONGER, 0)
    each = zip(rows["t"].tolist(), rows["env"].tolist(), signs.tolist(), strict=True)
    items = [items_of(*one) for one in each]
    return {"mark": -rows["mark"]} | {name: [one[name] for one in items] for name in RAGGED}


def are_same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two rows have the same items."""
    return all(np.array_equal(one[name], other[name]) for name in RAGGED)


def step(case: Case, t: int) -> dict[str, Any]:
    """Time step ``t`` of all environments, one row each."""
    envs = range(case.n_envs)
    values: dict[str, Any] = {
        "t": np.full(case.n_envs, t),
        "env": np.arange(case.n_envs, dtype=np.int32),
        "wide": np.repeat(
            (t * 10 + np.arange(case.n_envs, dtype=np.int32))[:, None], case.wide, axis=1
        ),
        "mark": np.repeat((t * 10 + np.arange(case.n_envs))[:, None], 3, axis=1),
        "done": np.array([is_done(t, env) for env in envs]),
    }
    if case.room:
        rows = [items_of(t, env) for env in envs]
        values |= {name: [row[name] for row in rows] for name in RAGGED}
    if case.has_next_items:
        rows = [next_items_of(t, env) for env in envs]
        values |= {f"next_{name}": [row[name] for row in rows] for name in RAGGED}
    if case.chained:
        values["stack"] = np.stack([frames(t, env) for env in envs])
        values["next_stack"] = np.stack([after(t, env) for env in envs])
        values["next_t"] = np.array([-t if is_done(t, env) else t + 1 for env in envs])
    return values


def twin_rows(batch: dict[str, NDArray[Any]], case: Case, what: str) -> None:
    """Raise ``AssertionError`` unless each row is that of its step number, whole."""
    for k in range(len(batch["t"])):
        t, env = int(batch["t"][k]), int(batch["env"][k])
        if case.room:
            of_row = {name: cut(batch, name, k) for name in RAGGED}
            mark = int(batch["mark"][k][0])  # an update turns it round, together with the items
            allowed = [LONGER] * (mark <= 0) + [0] * (mark >= 0)
            assert any(are_same(of_row, items_of(t, env, one)) for one in allowed), (
                what, t, env, mark, of_row,
            )  # fmt: skip
        if case.has_next_items:
            of_row = {name: cut(batch, name, k, "next_") for name in RAGGED}
            assert are_same(of_row, next_items_of(t, env)), (what, t, env, of_row)
        for name, values in step(case, t).items():
            if name.removeprefix("next_") in RAGGED:
                continue
            value, found = values[env], batch[name][k]
            if name == "done" and case.n_step > 1:
                continue
            allowed = [value, -value] if name == "mark" else [value]  # ``update`` turns it round
            assert any(np.array_equal(found, one) for one in allowed), (what, name, t, env, found)


def cut(batch: dict[str, NDArray[Any]], name: str, k: int, following: str = "") -> Any:
    """The items of a row of a padded batch."""
    value = batch[following + name][k]
    if name == "say":
        return value
    mask = batch[following + ("E_mask" if name == "edge" else "T_mask")][k]
    return value[:, mask] if name == "edge" else value[mask]


def joined(steps: list[dict[str, Any]], case: Case) -> dict[str, Any]:
    """One call for some time steps."""
    found: dict[str, Any] = {}
    for name in steps[0]:
        each = [one[name] for one in steps]
        if name.removeprefix("next_") in RAGGED:
            found[name] = each if case.n_envs > 1 else [value for one in each for value in one]
        else:
            found[name] = np.concatenate(each)
            if case.n_envs > 1 and case.block > 1:
                shape = case.block, case.n_envs, *found[name].shape[1:]
                found[name] = found[name].reshape(shape)
        if case.room and case.block == 1:  # one row by itself, or one of each environment
            found[name] = each[0] if case.n_envs > 1 else each[0][0]
    return found


def write(case: Case, folder: Path, first: int) -> None:
    """Write step after step, and say how many are published."""
    rb = case.open(folder, "r+" if (folder / f"{case.name}.dat").exists() else "x")
    print("ready", flush=True)
    t = first
    while True:
        steps = [step(case, t + k) for k in range(case.block)]
        rb.add(**joined(steps, case))
        t += case.block
        print(t, flush=True)
        if case.updates and t % 3 == 0:
            n = min(rb.ring.stored, 8)
            slots = np.flatnonzero(~rb.ring.absent_at(np.arange(n)))
            if len(slots):
                rows = rb[slots]
                if case.room:
                    with unless_full():
                        rb.update(slots, **updated(rows))
                else:
                    mark = -(rows["t"] * 10 + rows["env"])[:, None].repeat(3, axis=1)
                    rb.update(slots, mark=mark)
        if case.prioritized and t % 2 == 0 and len(rb):
            batch = rb.sample(16)
            rb.update_priorities(batch["indexes"], batch["t"] % 97 + 1.0)
        if case.deletes and t % 5 == 0:
            episodes = rb.episodes.list()
            ended = [k for k, one in enumerate(episodes) if one.terminated or one.truncated]
            for number in ended[:1]:
                rb.episodes.delete(number)
        if case.rewinds and t % EACH == 0:
            rb.rewind(rb.rows - BACK * case.n_envs)
        if case.clears and t % 50 == 0:
            rb.clear()


if __name__ == "__main__":
    name, folder, first = sys.argv[1:]
    (chosen,) = [case for case in CASES if case.name == name]
    write(chosen, Path(folder), int(first))
