"""Takes of a robot whose values say which take and tick they are of, by examples/robot_recorder.py.

Take n has ``ticks_of(n)`` rows; every third is dropped by its operator.
"""

from __future__ import annotations

import os
import random
import runpy
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from children import child

from cpprb_like import ReplayBuffer

EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "robot_recorder.py"))
OBSERVATIONS = EXAMPLE["OBSERVATIONS"]
SIDE = EXAMPLE["SIDE"]
ROWS = 2000


def ticks_of(take: int) -> int:
    """Its length."""
    return 1 + take * 7 % 23


def is_kept(take: int) -> bool:
    """What the operator says."""
    return take % 3 != 1


def says(take: int) -> str:
    """Its instruction."""
    return f"put cup {take} on the shelf"


def observation(take: int, tick: int) -> dict[str, Any]:
    """Of a tick, with a camera of a third of the rate."""
    image = np.full((SIDE, SIDE, 3), (take + tick // 3) % 256, np.uint8)
    return {
        "obs.joints": np.array([take, tick]),
        "obs.goal": np.array([tick, take]),
        "obs.camera": image,
        "obs.camera_age": tick % 3,
    }


class Numbered:
    """The robot of a take."""

    def __init__(self, take: int) -> None:
        self.take, self.tick = take, 0

    def observe(self) -> dict[str, Any]:
        """At a tick."""
        return observation(self.take, self.tick)

    def demonstrate(self) -> Any:
        """Take and tick."""
        return np.array([self.take, self.tick])

    def move(self, act: Any) -> None:
        """On to the next tick."""
        assert act.tolist() == [self.take, self.tick]
        self.tick += 1

    def is_there(self) -> bool:
        """Takes of odd numbers get there, the others run out of time."""
        return self.take % 2 == 1 and self.tick == ticks_of(self.take)


def record(takes: ReplayBuffer, take: int) -> bool:
    """Record a take as fast as it goes."""
    kept: bool = EXAMPLE["record"](
        takes,
        Numbered(take),
        says(take),
        lambda _: is_kept(take),
        most_ticks=ticks_of(take),
        rate=None,
    )
    return kept


def open_takes(folder: Path, rows: int = ROWS) -> ReplayBuffer:
    """As the example opens them, after a kill too."""
    takes: ReplayBuffer = EXAMPLE["open_takes"](folder / "arm", rows)
    return takes


def expected(take: int) -> dict[str, Any]:
    """The rows of a take, by name."""
    n = ticks_of(take)
    rows: dict[str, Any] = {}
    for prefix, first in (("", 0), ("next_", 1)):
        seen = [observation(take, tick) for tick in range(first, first + n)]
        rows |= {f"{prefix}{name}": np.stack([one[name] for one in seen]) for name in OBSERVATIONS}
    ends = np.arange(n) == n - 1
    return rows | {
        "act": np.array([[take, tick] for tick in range(n)]),
        "rew": (ends & (take % 2 == 1)).astype(np.float32),
        "terminated": ends & (take % 2 == 1),
        "truncated": ends & (take % 2 == 0),
        "instruction": [says(take)] * n,
    }


def check_takes(takes: ReplayBuffer) -> list[int]:
    """The numbers of the takes, each of which must be whole and kept."""
    numbers = []
    for number in range(len(takes.episodes)):
        rows = takes.episodes.read(number)
        take = int(rows["obs.joints"][0, 0])
        for name, values in expected(take).items():
            np.testing.assert_array_equal(rows[name], values, f"take {take}: {name}")
        assert (np.diff(rows["time"]) >= 0).all()
        assert is_kept(take), f"take {take} was dropped"
        numbers.append(take)
    assert numbers == sorted(set(numbers))
    takes.check()
    return numbers


def record_until_killed(
    folder: Path, takes_to_do: Iterable[int], seconds: float, *, flushes: bool
) -> list[int]:
    """The takes that a process said that it had recorded, before it was killed."""
    read, write = os.pipe()

    def job() -> None:
        takes = open_takes(folder)
        if not flushes:  # which takes most of the time, so kills seldom meet anything else
            ReplayBuffer.flush = lambda self: None  # type: ignore[method-assign]
        for take in takes_to_do:
            record(takes, take)
            os.write(write, take.to_bytes(4, "little"))

    with child(job) as one:
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            said = pipe.read(4)  # it has begun
            time.sleep(seconds)
            one.kill()
            said += pipe.read()
    return [int.from_bytes(said[k : k + 4], "little") for k in range(0, len(said) - 3, 4)]


def killed_often(folder: Path, kills: int, most: int = 40) -> ReplayBuffer:
    """Record takes in processes that are killed, at most so many in each; check them each time."""
    chance, take = random.Random(0), 0
    must: list[int] = []
    takes = open_takes(folder)
    for kill in range(kills):
        if takes.stats()["adds"] > ROWS - 1000:
            takes.clear()
            must = []
        del takes
        first = take
        said = record_until_killed(
            folder, range(first, first + most), chance.random() * 0.02, flushes=kill % 4 == 0
        )
        take = max([first - 1, *said]) + 1
        must += [one for one in range(first, take) if is_kept(one)]
        takes = open_takes(folder)
        found = check_takes(takes)
        if found and found[-1] == take:  # whole, but killed before it could say so
            must.append(take)
            take += 1
        assert found == must, f"kill {kill}"
    return takes
