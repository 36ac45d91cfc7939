"""Real processes that are killed while they save, or have no room to."""

from __future__ import annotations

import errno
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from forked import outcome
from optional import need
from saved_cases import add, check_rows, digest, digest_of_copy, make, small_segments, update
from scale import LONG

from cpprb_like import ReplayBuffer
from cpprb_like.checkpoint import open_beside

KILLS = 1000 if LONG else 12
pytestmark = [
    pytest.mark.once,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork"),
]


_small_segments = small_segments(6000)


def save_for_ever(folder: Path, seed: int, pipe: int) -> None:
    """Change a buffer and save it, again and again; tell what it is before and after."""
    rng = random.Random(seed)
    kind = rng.choice(
        ["plain", "prioritized", "next_of+stacks+n_envs", "Nstep", "ragged", "narrow"]
    )
    rb = make(kind, 120, seed)
    for number in range(1_000_000):
        add(rb, rng.randrange(1, 30))
        update(rb, rng.randrange(1, 9))
        rows = f"{digest_of_copy(rb)} {rb.ring.written}"
        os.write(pipe, f"{number} {rows}\n".encode())
        options: dict[str, Any] = {"keep": 1 + seed % 3, "sync": rng.random() < 0.5}
        options["beside"] = {"model": rows.encode(), "env": lambda file: file.write(bytes(200_000))}
        if seed % 2:
            saving = rb.save_async(folder, **options)
            add(rb, 2)
            update(rb, 2)
            saving.result()
        else:
            rb.save(folder, **options)
        os.write(pipe, f"{number} saved\n".encode())


@pytest.mark.slow
def test_a_killed_save_leaves_a_state_that_was_announced(tmp_path: Path) -> None:
    """The newest one that was saved, or the one that was about to be."""
    rng = random.Random(0)
    within = new = 0
    for seed in range(KILLS):
        folder = tmp_path / str(seed)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.close(reading)
                save_for_ever(folder, seed, writing)
            finally:
                os._exit(1)
        os.close(writing)
        told = b""
        while b"saved" not in told:
            more = os.read(reading, 1 << 16)
            assert more, "the child has ended by itself"
            told += more
        time.sleep(rng.random() * 0.06)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        while more := os.read(reading, 1 << 16):
            told += more
        os.close(reading)
        lines = [line.split() for line in told.decode().splitlines()]
        saved = max(int(line[0]) for line in lines if line[1] == "saved")
        announced = {int(line[0]): line[1:] for line in lines if line[1] != "saved"}
        loaded = ReplayBuffer.load(folder)
        loaded.check()
        check_rows(loaded)
        possible = {n: what for n, what in announced.items() if n >= saved}
        if seed % 2:
            written = {int(what[1]): n for n, what in possible.items()}
            assert loaded.ring.written in written, (seed, possible)
            number = written[loaded.ring.written]
        else:
            digests = {what[0]: n for n, what in possible.items()}
            found = digest_of_copy(loaded)
            assert found in digests, (seed, possible)
            number = digests[found]
        with open_beside(folder, "model") as file:
            assert file.read().decode().split() == announced[number]
        with open_beside(folder, "env") as file:
            assert file.read() == bytes(200_000)
        within += max(announced) > saved
        new += number > saved
        # Nothing that the dead have left is in the way of the next one.
        add(loaded, 3)
        loaded.save(folder)
        assert digest(ReplayBuffer.load(folder)) == digest(loaded)
    print(f"{KILLS} kills, {within} of them during a save, {new} of these left its state")


def test_a_full_disk_leaves_the_old_state(tmp_path: Path) -> None:
    """Files of a limited size: the system refuses what goes beyond."""
    resource = need("resource")
    rb = make("next_of", 500)
    add(rb, 30)
    rb.save(tmp_path)
    old = digest_of_copy(rb)
    add(rb, 300)
    new = digest_of_copy(rb)

    def save() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        for limit in (0, 100, 1000, 2000, 3000):
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
            with pytest.raises(OSError) as caught:
                rb.save(tmp_path)
            assert caught.value.errno == errno.EFBIG
            assert digest(ReplayBuffer.load(tmp_path)) == old
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        rb.save(tmp_path)

    assert outcome(save) == 0
    assert digest(ReplayBuffer.load(tmp_path)) == new
