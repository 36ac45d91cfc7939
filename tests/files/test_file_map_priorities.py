"""Priorities in file maps: opened again, rows have those that they had."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cpprb_like import PrioritizedReplayBuffer, ReplayBuffer
from cpprb_like._rows.row_handles import public_slots
from cpprb_like.samplers import Prioritized, RankBased
from cpprb_like.samplers._prioritized import ByPriority

FIELDS: dict[str, Any] = {
    "x": {"shape": (), "dtype": "i8"},
    "done": {"shape": (), "dtype": bool},
}
SAMPLERS: dict[str, Any] = {
    "proportional": lambda: Prioritized(0.7, eps=0.0),
    "linear": lambda: Prioritized(1.0),
    "ranks": lambda: RankBased(0.8),
}
NSTEP: Any = {"size": 3, "rew": [], "next": []}


def make(name: str, tmp_path: Path, mode: Any, **options: Any) -> PrioritizedReplayBuffer:
    """A buffer in a file."""
    return PrioritizedReplayBuffer(
        40, FIELDS, sampler=SAMPLERS[name](), seed=0,
        mmap_prefix=tmp_path / "a", mmap_mode=mode, **options,
    )  # fmt: skip


def weights(rb: PrioritizedReplayBuffer) -> Any:
    """The weight of each slot, by ranks that are exact; and the priority of the next row."""
    sampler = rb.sampler
    assert isinstance(sampler, ByPriority)
    slots = rb.ring.present_slots()
    read = sampler.row_priorities if isinstance(sampler, RankBased) else sampler.rows.get
    found = read(slots)
    return found.tolist(), rb.get_max_priority()


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize(
    "options", [{}, {"n_envs": 4}, {"Nstep": {"size": 3, "rew": [], "next": []}}]
)
@pytest.mark.parametrize("mode", ["r+", "r"])
def test_priorities_are_found_again(
    tmp_path: Path, rng: np.random.Generator, name: str, options: dict[str, Any], mode: str
) -> None:
    """What is opened again has the priorities of the buffer that is gone, and goes on like it."""
    rb = make(name, tmp_path, "x", **options)
    twin = PrioritizedReplayBuffer(40, FIELDS, sampler=SAMPLERS[name](), seed=0, **options)
    n_envs = rb.n_envs
    for t in range(60):
        x = np.arange(t * n_envs, (t + 1) * n_envs)
        values: dict[str, Any] = {"x": x, "done": x % 7 == 6}
        priorities = rng.random(n_envs) * 9 if t % 3 == 0 else None
        for each in (rb, twin):
            each.add(**values, priorities=priorities)
        if t % 4 == 1 and len(rb):
            slots = rng.choice(public_slots(rb.ring, rb.ring.present_slots()), 5)
            given = rng.random(5) * 10
            for each in (rb, twin):
                each.update_priorities(slots, given)
        if t == 30:
            for each in (rb, twin):
                each.clear()
        if t % 11 == 10 and len(rb.episodes) and rb.episodes.list()[0].complete:
            for each in (rb, twin):
                each.episodes.delete(0)
        if t % 5 == 4 and mode == "r+":
            rb.check()
            del rb, each
            rb = make(name, tmp_path, "a", **options)
            assert weights(rb) == weights(twin)
            rb.check()
    if mode == "r":
        del rb, each
        rb = make(name, tmp_path, "r", **options)
        assert weights(rb) == weights(twin)
        slot = public_slots(rb.ring, rb.ring.present_slots())[:1]
        rb.update_priorities(slot, [3.0])  # in memory
    rb.sample(20)
    rb.check()


def test_a_file_of_other_parameters(tmp_path: Path) -> None:
    """Weights of another exponent are refused: they had been drawn by as if they were right."""
    make("proportional", tmp_path, "x").add(x=[1, 2], done=[0, 0], priorities=[1, 2])
    with pytest.raises(ValueError, match=r"a\.dat\.sampler\.\d.*alpha"):
        make("linear", tmp_path, "r+")
    with pytest.raises(ValueError, match=r"a\.dat\.sampler\.\d.*RankBased"):
        make("ranks", tmp_path, "r+")
    assert weights(make("proportional", tmp_path, "r+"))[1] == 2.0


def test_rows_that_were_added_without_priorities(tmp_path: Path) -> None:
    """Rows that a buffer without priorities wrote have the priority of new rows."""
    rb = make("proportional", tmp_path, "x")
    rb.add(x=[1, 2], done=[0, 0], priorities=[1, 5])
    del rb
    plain = ReplayBuffer(40, FIELDS, mmap_prefix=tmp_path / "a", mmap_mode="r+")
    plain.add(x=[3, 4], done=[0, 0])
    del plain
    found, greatest = weights(make("proportional", tmp_path, "r+"))
    assert greatest == 5.0
    assert found == pytest.approx([1.0, 5**0.7, 5**0.7, 5**0.7])


@pytest.mark.parametrize("name", SAMPLERS)
def test_priorities_of_absent_rows_do_not_count(tmp_path: Path, name: str) -> None:
    """New rows have the greatest priority of steps, whether or not a draw came before the end.

    An absent row's priority was in the file until the next draw, and new rows got it.
    """
    rb = make(name, tmp_path, "x", n_envs=2)
    rb.add_where([True, False], x=[0, 1], done=[False, False], priorities=[2.0, 9.0])
    del rb
    rb = make(name, tmp_path, "r+", n_envs=2)
    rb.add(x=[2, 3], done=[False, False])
    assert len(set(weights(rb)[0])) == 1


def test_a_sampler_file_that_was_damaged_or_lost(tmp_path: Path) -> None:
    """A number that is no weight is refused; without the file all rows have that of new rows."""
    rb = make("proportional", tmp_path, "x")
    rb.add(x=[1, 2], done=[0, 0], priorities=[1, 5])
    del rb
    path = tmp_path / "a.dat.sampler.1"
    raw = path.read_bytes()
    for value in (np.nan, -1.0, np.inf):
        path.write_bytes(raw[:64] + np.array([value]).tobytes() + raw[72:])
        with pytest.raises(ValueError, match="priorities"):
            make("proportional", tmp_path, "r+")
    path.write_bytes(raw[:-8])
    with pytest.raises(ValueError, match="sampler"):
        make("proportional", tmp_path, "r+")
    path.unlink()
    with pytest.warns(
        RuntimeWarning, match=r"a\.dat\.sampler\.\* is missing.*priority of new ones"
    ):
        assert weights(make("proportional", tmp_path, "r")) == ([1.0, 1.0], 1.0)
    with pytest.warns(RuntimeWarning, match=r"a\.dat\.sampler\.\* is missing"):
        assert weights(make("proportional", tmp_path, "r+")) == ([1.0, 1.0], 1.0)
    make("proportional", tmp_path, "r+")  # the file is there again


@pytest.mark.parametrize("name", SAMPLERS)
def test_priorities_set_after_opening_stay(tmp_path: Path, name: str) -> None:
    """Rows whose windows were completed just before the end get no weight a second time.

    Their weights were still held in the file. The next row had set those over newer priorities.
    """
    rb = make(name, tmp_path, "x", Nstep=NSTEP)
    rb.add(x=[0, 1], done=[False, False], priorities=[2.0, 3.0])
    rb.get_max_priority()
    rb.add(x=[2, 3], done=[False, True])
    del rb
    rb = make(name, tmp_path, "r+", Nstep=NSTEP)
    rb.update_priorities([0, 1], [7.0, 9.0])
    expected = weights(rb)[0]
    rb.add(x=4, done=True)
    assert weights(rb)[0][:4] == expected


KILLED_WHILE_OPENING = """
import os, signal, sys
import numpy as np
from test_file_map_priorities import large

find_nan = np.isnan

def isnan(*values):
    signal.setitimer(signal.ITIMER_REAL, float(sys.argv[2]))
    return find_nan(*values)

np.isnan = isnan  # the last call before weights are written
large(sys.argv[1], "r+")
os.kill(os.getpid(), signal.SIGKILL)
"""


def large(folder: str, mode: Any) -> PrioritizedReplayBuffer:
    """A buffer so large that it takes a millisecond to set all weights."""
    return PrioritizedReplayBuffer(
        (1 << 18) - 2, {"x": {"shape": (), "dtype": bool}}, Nstep=NSTEP,
        sampler=Prioritized(1.0, eps=0.0), mmap_prefix=f"{folder}/a", mmap_mode=mode,
    )  # fmt: skip


@pytest.mark.once
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="there are no timers")
def test_a_process_that_is_killed_while_it_opens_a_file(tmp_path: Path) -> None:
    """The weights that were held are there, whichever weights had been set.

    Rows that waited came first, as they are in the first slots, and took the places of others.
    """
    rb = large(str(tmp_path), "x")
    n = rb.ring.capacity
    rb.add(x=np.zeros(n - 2, bool), priorities=np.ones(n - 2))
    rb.add(x=[0, 0], priorities=[5.0, 6.0])
    rb.get_max_priority()
    rb.add(x=[0, 0])
    del rb
    raw = (tmp_path / "a.dat.sampler.1").read_bytes()
    for seconds in (0.0002, 0.0005, 0.001, 0.002):
        (tmp_path / "a.dat.sampler.1").write_bytes(raw)
        command = [sys.executable, "-c", KILLED_WHILE_OPENING, str(tmp_path), str(seconds)]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])
        }
        assert subprocess.run(command, env=environment, check=False).returncode < 0
        rb = large(str(tmp_path), "r+")
        assert rb.sampler.rows.get(np.arange(n - 3, n)).tolist() == [1.0, 5.0, 6.0]  # type: ignore[attr-defined]
        del rb


def cleared(name: str, folder: Path) -> PrioritizedReplayBuffer:
    """A buffer with ``Nstep`` that was full, cleared, and opened again."""
    options: dict[str, Any] = {"Nstep": {"size": 4, "rew": [], "next": []}}
    rb = make(name, folder, "x", **options)
    for t in range(80):
        rb.add(x=t, done=False, priorities=3.0)
    rb.clear()
    del rb
    return make(name, folder, "r+", **options)


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_buffer_with_nstep_that_was_cleared_and_opened_again(tmp_path: Path, name: str) -> None:
    """Each row is drawn when its window is complete.

    The file had the rows whose weights waited before ``clear``; these held the places of new ones.
    """
    rb = cleared(name, tmp_path)
    for t in range(30):
        rb.add(x=t, done=False)
        rb.check()
    assert (rb.sampler.rows.get(rb.ring.present_slots()) > 0).all()  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["proportional", "ranks"])
def test_check_finds_rows_that_are_never_drawn(tmp_path: Path, name: str) -> None:
    """A weight that waits for a row that never comes, and a row that waits without a weight."""
    for row in (1000, -1):
        folder = tmp_path / str(row)
        folder.mkdir()
        rb = cleared(name, folder)
        rb.add(x=[0, 1], done=[False, False])
        rb.check()
        notes = np.memmap(folder / "a.dat.sampler.1", np.int64, "r+")[-6:-3]
        notes[notes >= 0] = row
        with pytest.raises(AssertionError, match="weights wait"):
            rb.check()


def test_check_finds_a_row_without_a_weight(tmp_path: Path) -> None:
    """With ``eps`` above 0 each row that can be drawn has one."""
    rb = PrioritizedReplayBuffer(40, FIELDS, mmap_prefix=tmp_path / "a")
    rb.add(x=[1, 2], done=[False, False])
    rb.sample(1)
    rb.sampler.rows.tree.set(np.array([1]), np.zeros(1))  # type: ignore[attr-defined]
    with pytest.raises(AssertionError, match=r"slots .1.: expected more than 0"):
        rb.check()
