"""Files of mapped buffers that were damaged: they are refused, or give wrong values."""

from __future__ import annotations

import os
import random
import shutil
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forked import run_in_child
from scale import LONG, repeats

from cpprb_like import PrioritizedReplayBuffer, ReplayBuffer
from cpprb_like._files import file_maps

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks the system for its memory")

CASES = 10_000 if LONG else repeats(400, 60)  # of each kind of buffer
REFUSALS = (ValueError, OSError, MemoryError)
WORDS = [0, 1, -1, 2, 7, 20, 63, 64, 100, 1 << 31, 1 << 40, 1 << 62, -(1 << 63), (1 << 63) - 1]
PAGE = 4096
FIELDS: dict[str, Any] = {
    "x": {"shape": 50, "dtype": "u1"},
    "stack": {"shape": (3, 40), "dtype": "u1"},
    "t": {"shape": (), "dtype": "i8"},
    "done": {"shape": (), "dtype": bool},
}
CHAINED: dict[str, Any] = {"next_of": ["x", "stack"], "stack_compress": {"stack": 0}}
KINDS: dict[str, tuple[int, dict[str, Any]]] = {  # calls that wrote the files, options
    "plain": (70, {}),
    "chained, not full": (8, CHAINED),
    "chained": (70, CHAINED),
    "chained, several environments": (25, CHAINED | {"n_envs": 3}),
    "prioritized": (70, CHAINED | {"n_step": 3}),
    "ragged": (70, {"room": {"T": 90, "E": 60, "say": 200}}),
    "ragged, not full": (5, {"room": {"T": 90, "E": 60, "say": 200}}),
    "ragged, several environments": (25, {"room": {"T": 900, "E": 60, "say": 200}, "n_envs": 3}),
}
RAGGED: dict[str, Any] = {
    "token": {"shape": ("T",), "dtype": "i4"},
    "edge": {"shape": (2, "E"), "dtype": "u2", "counts": "T"},
    "say": {"dtype": str},
}


def opened(kind: str, folder: Path, mode: Any) -> ReplayBuffer:
    """The buffer in its files."""
    options = dict(KINDS[kind][1])
    make = PrioritizedReplayBuffer if kind == "prioritized" else ReplayBuffer
    if "n_step" in options:
        options["Nstep"] = {"size": options.pop("n_step"), "rew": [], "next": []}
    fields = FIELDS | (RAGGED if "room" in options else {})
    return make(21, fields, seed=0, mmap_prefix=folder / "a", mmap_mode=mode, **options)


def add(rb: ReplayBuffer, calls: int, seed: int) -> None:
    """Random steps; about every third stack is no shift of the one before it."""
    rng, n = np.random.default_rng(seed), rb.n_envs
    stack = np.zeros((n, 3, 40), np.uint8)
    for t in range(calls):
        next_stack = np.concatenate(
            [stack[:, 1:], rng.integers(0, 9, (n, 1, 40), np.uint8)], axis=1
        )
        step = {
            "x": rng.integers(0, 9, (n, 50), np.uint8),
            "stack": stack,
            "t": np.arange(n) + t,
            "done": rng.random(n) < 0.2,
        }
        if "next_x" in rb.fields:
            step |= {"next_x": rng.integers(0, 9, (n, 50), np.uint8), "next_stack": next_stack}
        if "token" in rb.fields:
            lengths, edges = rng.integers(1, 12, n), rng.integers(0, 9, n)
            ragged: dict[str, Any] = {
                "token": [np.arange(k, dtype="i4") for k in lengths],
                "edge": [rng.integers(0, k, (2, e)) for k, e in zip(lengths, edges, strict=True)],
                "say": ["é" * k for k in lengths.tolist()],
            }
            step |= ragged
        rb.add(**(step if n > 1 else {name: value[0] for name, value in step.items()}))
        if "token" in rb.fields and t % 5 == 4:
            items = {"token": [np.arange(7)], "edge": [np.zeros((2, 8))], "say": ["éé"]}
            rb.update(rb.ring.newest_slots(1), **items)  # for older ones there may be no room
        stack = next_stack if rng.random() < 0.7 else rng.integers(0, 9, (n, 3, 40), np.uint8)


def copied(folder: Path, to: Path) -> None:
    """Copy files with their holes."""
    for path in folder.iterdir():
        with path.open("rb") as source, (to / path.name).open("xb") as copy:
            for start, stop in spans(source.fileno()):
                source.seek(start)
                copy.seek(start)
                copy.write(source.read(stop - start))
            copy.truncate(path.stat().st_size)


def spans(descriptor: int) -> list[tuple[int, int]]:
    """Start and stop of each part of a file that is no hole."""
    found, stop = [], 0
    while stop < os.fstat(descriptor).st_size:
        try:
            start = os.lseek(descriptor, stop, os.SEEK_DATA)
        except OSError:  # a hole to the end
            break
        stop = os.lseek(descriptor, start, os.SEEK_HOLE)
        found.append((start, stop))
    return found


def damage(folder: Path, chance: random.Random) -> str:
    """Damage a file: a word, a byte, a run of bytes, its length or its name."""
    path = chance.choice(sorted(folder.iterdir()))
    size, what = path.stat().st_size, chance.random()
    if what < 0.05:
        os.truncate(path, chance.choice([chance.randrange(size), size + chance.randrange(1, 5000)]))
        return f"length of {path.name}"
    if what < 0.08:
        path.unlink()
        return f"{path.name} is missing"
    with path.open("r+b") as file:
        start, stop = chance.choice(spans(file.fileno()))
        if chance.random() < 0.4:  # the header
            start, stop = 0, min(size, PAGE)
        place = chance.randrange(start, stop)
        if what < 0.7:
            place = place // 8 * 8
            if what < 0.4:  # a word that may be a count
                file.seek(0)
                words = np.frombuffer(file.read(stop)[: stop // 8 * 8], np.int64)
                counts = 8 * np.flatnonzero((words > 0) & (words < 100))
                place = chance.choice([place, *counts.tolist()])
            file.seek(place)
            word = int.from_bytes(file.read(8), "little", signed=True)
            near = [word + 1, word - 1, word + 20, word - 20, word ^ 1 << 40]
            word = chance.choice(chance.choice([WORDS, near]))
            new = (word & (1 << 64) - 1).to_bytes(8, "little")
        elif what < 0.85:
            new = chance.randbytes(1)
        else:
            n = chance.randint(1, 2000)
            new = chance.choice([bytes(n), b"\xff" * n, chance.randbytes(n)])
        file.seek(place)
        file.write(new[: size - place])
    return f"{len(new)} bytes at {place} of {path.name}"


def use(rb: ReplayBuffer, mode: str, seed: int) -> None:
    """Read all rows, draw, and add more if the mode allows it."""
    rb.get_all_transitions()
    for calls in (0, 1, 3, 50):
        if len(rb):
            rb.sample(20)
        if mode == "r+":
            add(rb, calls, seed)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_file_is_refused_or_harmless(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a file says, an open is refused with words, or the buffer can be used.

    No case ends the process, hangs, or takes memory that the files do not hold.
    """
    whole = tmp_path / "whole"
    whole.mkdir()
    rb = opened(kind, whole, "x")
    add(rb, KINDS[kind][0], 0)
    rb.flush()
    del rb

    def job(number: int) -> str | None:
        chance = random.Random(number)
        folder = tmp_path / str(number)
        folder.mkdir()
        copied(whole, folder)
        what = [damage(folder, chance) for _ in range(chance.choice([1, 1, 2]))]
        mode = chance.choice(["r", "r+"])
        if chance.random() < 0.3:
            monkeypatch.setattr(file_maps, "_boot_id", lambda: b"after a crash")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                use(opened(kind, folder, mode), mode, number)
        except REFUSALS as error:
            return None if str(error) else f"{what}: {error!r} says nothing"
        except BaseException as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            return f"{what}: {error!r}, {place.name}:{place.lineno}"
        finally:
            monkeypatch.undo()
            shutil.rmtree(folder)
        return None

    told = run_in_child(job, CASES)
    assert not told, "\n".join(told)
