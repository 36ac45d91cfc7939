"""A mapped buffer that goes back to a row: killed at each store, it has gone back or it has not.

Kills and crashes at random moments are in ``test_file_map_kills`` and
``test_file_map_crash_images``.
"""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from file_map_cases import Case, joined, step, twin_rows
from forked import outcome
from scale import KILLS

from cpprb_like import ReplayBuffer
from cpprb_like._core import stop_at
from cpprb_like._files.dirty_chunks import DirtyChunks

pytestmark = pytest.mark.once

forking = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")

CASES = [
    Case("plain", capacity=20, wide=4),
    Case("envs", capacity=30, n_envs=3, n_step=3, wide=4),
    Case("chained", capacity=20, chained=True, prioritized=True, n_step=2, wide=4),
    Case("ragged", capacity=20, room=200, has_next_items=True, n_envs=2, wide=4),
]


def add(rb: ReplayBuffer, case: Case, first: int, n: int) -> None:
    """Add time steps, one call for each."""
    for t in range(first, first + n):
        rb.add(**joined([step(case, t)], case))


def contents(rb: Any, case: Case) -> Any:
    """What is seen of a buffer."""
    rb.check()
    batch = rb.get_all_transitions()
    twin_rows(batch, case, "rows")
    weights = rb.sampler.rows.get(rb.ring.present_slots()).tolist() if case.prioritized else None
    lens = [rb.get_current_episode_len(env) for env in range(case.n_envs)]
    names = "rows", "adds", "episodes"
    stats = rb.stats()
    return (
        sorted(zip(batch["t"].tolist(), batch["env"].tolist(), strict=True)),
        rb.episodes.list(),
        lens,
        [stats[name] for name in names],
        rb.rows,
        weights,
    )


def filled(case: Case, folder: Path, first: int) -> ReplayBuffer:
    """A buffer that is full, with an episode that was deleted."""
    folder.mkdir()
    rb = case.open(folder, "x")
    add(rb, case, first, 25)
    rb.episodes.delete(1)
    add(rb, case, first + 25, 4)
    return rb


def test_a_signal_handler_that_adds_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows are forgotten too: they were left, in an open episode of length 0."""
    case = CASES[0]
    rb = filled(case, tmp_path / "live", 0)
    rb.flush()
    write = DirtyChunks._write

    def add_too(chunks: Any, parts: Any) -> None:
        monkeypatch.setattr(DirtyChunks, "_write", write)
        write(chunks, parts)
        add(rb, case, 50, 2)

    monkeypatch.setattr(DirtyChunks, "_write", add_too)
    row = rb.rows - 5
    assert rb.rewind(row) == 7
    assert rb.get_all_transitions()["t"].max() == row - 1
    assert contents(rb, case)[2] == [0]


@forking
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_kill_at_each_store(tmp_path: Path, case: Case) -> None:
    """The rows are those before the call or those after it, for readers too, and adding goes on.

    Once no row is later, and the open episodes end. The short form kills at each eleventh store.
    """
    kills = 0
    for turn in range(max(KILLS // 125, 1)):
        for back, every in ((12, 3)[turn % 2], 1 if KILLS >= 125 else 11), (0, 1):
            folder = tmp_path / f"{turn} {back}"
            folder.mkdir()
            kills += killed_at_stores(folder, case, back, turn, every)
    print(f"{case.name}: {kills} kills")
    assert kills > 1


def killed_at_stores(folder: Path, case: Case, back: int, turn: int, step: int) -> int:
    """Kill processes at each ``step``-th store of a rewind; how many."""
    rb = filled(case, folder / "before", turn)
    before, row = contents(rb, case), rb.rows - back * case.n_envs
    del rb
    shutil.copytree(folder / "before", folder / "after")
    rb = case.open(folder / "after", "a")
    rb.rewind(row)
    after = contents(rb, case)
    assert after != before or back == 0  # then the open episode alone ends, if there is one
    del rb
    rb = case.open(folder / "after", "a")
    assert contents(rb, case) == after
    add(rb, case, 100, 3)
    gone_on = contents(rb, case)
    places = [("editing", 1), *(("rewinding", k) for k in range(1 + turn % step, 1000, step))]
    for kills, (place, visit) in enumerate(places):
        killed = folder / f"{place} {visit}"
        shutil.copytree(folder / "before", killed)

        def job(killed: Path = killed, place: str = place, visit: int = visit) -> None:
            rb = case.open(killed, "a")
            stop_at(place, signal.SIGKILL, visit)
            rb.rewind(row)

        code = outcome(job)
        for mode in ("r", "a"):
            rb = case.open(killed, mode)
            found = contents(rb, case)
            assert found == (before if place == "editing" else after), f"{place} {visit}, {mode}"
            if mode == "a":
                rb.rewind(row)
                add(rb, case, 100, 3)
                assert contents(rb, case) == gone_on
            del rb
        shutil.rmtree(killed)
        if code == 0:
            return kills
        assert code == -signal.SIGKILL
    raise AssertionError
