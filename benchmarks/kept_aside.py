"""Bytes that ``next_of`` and ``stack_compress`` keep aside over long runs, and whether they stay.

``python benchmarks/kept_aside.py`` adds 10^8 steps of Atari-like episodes to a buffer of single
bytes. Only their lengths are drawn, and the bytes are computed for values of frames. Beside these
are the bytes of memory that grows by an eighth and is copied then. ``--real`` adds random frames to
buffers in files and on the heap, and reads what the system says that they take.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cpprb_like import ReplayBuffer

__all__ = ["PATTERNS", "Growth", "simulate"]

FRAME = 84 * 84
# What an episode keeps aside: the older frames of its first stack, and the newest of its last one.
VALUES = (3 * FRAME, FRAME)
KEY = 8
PARTS = 10  # of a run, after each of which the bytes are read
PATTERNS = ("even", "longer", "shorter", "bursts", "other lengths")


def lengths(pattern: str, steps: int, mean: int = 900, seed: int = 0) -> Iterator[int]:
    """Lengths of episodes, without an end: lognormal around ``mean``, but for a pattern.

    Episodes get ten times longer or shorter over the steps, alternate between 2,000 and 30 steps,
    or have another mean every 2,000 episodes.
    """
    rng = np.random.default_rng(seed)
    done = number = 0
    while True:
        draws = rng.lognormal(0, 0.8, 1000) / np.exp(0.32)
        scale = float(mean)
        if pattern == "longer":
            scale *= 10 ** min(done / steps, 1.0) / 3
        elif pattern == "shorter":
            scale *= 10 ** (1 - min(done / steps, 1.0)) / 3
        elif pattern == "bursts":
            draws[:], scale = 1, 30 if number // 5 % 2 else 2000
        elif pattern == "other lengths" and number % 2 == 0:
            mean = int(rng.integers(30, 1500))
        batch = np.maximum(1, draws * scale).astype(np.int64)
        done, number = done + int(batch.sum()), number + 1
        yield from batch.tolist()


@dataclass
class Growth:
    """Bytes of one store after each part of a run.

    ``needed`` are those of the most values that lived at once, ``copied`` those of memory that
    grows by an eighth, ``at_once`` both memories of such a copy, and ``ring`` those of a ring.
    """

    needed: list[int]
    copied: list[int]
    at_once: list[int]
    ring: list[int]


def simulate(pattern: str, capacity: int, steps: int, nbytes: int) -> Growth:
    """The bytes of what is kept aside, one value of ``nbytes`` for an episode."""
    byte: Any = {"dtype": np.uint8}
    buffer = ReplayBuffer(capacity, {"obs": byte, "next_obs": byte}, next_of="obs")
    living: deque[int] = deque()
    growth = Growth([], [], [], [])
    row = most = room = at_once = 0
    for length in lengths(pattern, steps):
        row += length
        while living and living[0] < row - capacity:
            living.popleft()
        obs, next_obs = np.zeros((2, length), np.uint8)
        next_obs[-1] = 1  # no row has it, so it is kept aside
        buffer.add(obs=obs, next_obs=next_obs)
        living.append(row)
        most = max(most, len(living))
        if len(living) > room:
            grown = max(room + room // 8, len(living))
            room, at_once = grown, max(at_once, room + grown)
        used = buffer.ring.chains[0].overflow_nbytes // (KEY + 1)
        while row * PARTS >= steps * (len(growth.ring) + 1):
            for found, values in (
                (growth.needed, most),
                (growth.copied, room),
                (growth.at_once, at_once),
                (growth.ring, used),
            ):
                found.append(values * (KEY + nbytes))
        if row >= steps:
            return growth
    return growth


def play(buffer: ReplayBuffer, steps: int, mean: int, shape: int) -> Iterator[int]:
    """Add episodes of random frames, and yield the steps so far after each part of the run."""
    rng = np.random.default_rng(1)
    frames = rng.integers(0, 256, (997, shape, shape), np.uint8)
    done = parts = 0
    for length in lengths("even", steps, mean):
        start = int(rng.integers(0, len(frames)))
        episode = frames[(start + np.arange(length + 4)) % len(frames)]
        stacks = np.lib.stride_tricks.sliding_window_view(episode, 4, axis=0)
        stacks = np.ascontiguousarray(np.moveaxis(stacks, -1, 1))
        done_flags = np.arange(length) == length - 1
        buffer.add(obs=stacks[:-1], next_obs=stacks[1:], done=done_flags)
        done += length
        while done * PARTS >= steps * (parts + 1):
            parts += 1
            yield done
        if done >= steps:
            return


def resident() -> int:
    """Bytes of memory of this process."""
    match = re.search(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return 0 if match is None else 1024 * int(match[1])


def measure(steps: int, capacity: int, mean: int, shape: int) -> None:
    """Print the bytes on the disk and in memory of real buffers, after each part of a run."""
    fields: dict[str, Any] = {
        "obs": {"shape": (4, shape, shape), "dtype": np.uint8},
        "next_obs": {"shape": (4, shape, shape), "dtype": np.uint8},
        "done": {"dtype": bool},
    }
    options: dict[str, Any] = {"next_of": "obs", "stack_compress": {"obs": 0}}
    with tempfile.TemporaryDirectory() as folder:
        mapped = ReplayBuffer(capacity, fields, mmap_prefix=Path(folder) / "replay", **options)
        disk = [
            sum(512 * path.stat().st_blocks for path in Path(folder).iterdir())
            for _ in play(mapped, steps, mean, shape)
        ]
        print(f"  disk   {said(disk)}")
        del mapped
    plain = ReplayBuffer(capacity, fields, **options)
    heap = [resident() for _ in play(plain, steps, mean, shape)]
    print(f"  memory {said(heap)}")


def said(found: list[int]) -> str:
    """Bytes after each part, in MB."""
    return " ".join(f"{nbytes / 1e6:8.2f}" for nbytes in found)


def main(words: list[str]) -> None:
    """Print a table for each pattern."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10**8)
    parser.add_argument("--capacity", type=int, default=10**6)
    parser.add_argument("--pattern", choices=PATTERNS)
    parser.add_argument("--real", action="store_true")
    options = parser.parse_args(words)
    print(f"MB after each of {PARTS} parts of {options.steps:,} steps, {options.capacity:,} rows")
    if options.real:
        measure(options.steps, options.capacity, mean=50, shape=32)
        return
    for pattern in [options.pattern] if options.pattern else PATTERNS:
        found = [simulate(pattern, options.capacity, options.steps, nbytes) for nbytes in VALUES]
        print(f"episodes: {pattern}")
        for name in ("needed", "copied", "at_once", "ring"):
            both = np.sum([getattr(growth, name) for growth in found], axis=0)
            print(f"  {name:8}{said(both.tolist())}  {both[-1] / both[PARTS // 2 - 1]:.3f}")


if __name__ == "__main__":
    main(sys.argv[1:])
