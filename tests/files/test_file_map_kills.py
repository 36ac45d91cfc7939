"""A process that writes to a file map is killed at any time: nothing published is lost or torn."""

from __future__ import annotations

import gc
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from file_map_cases import BACK, CASES, EACH, LONGEST, Case, items_of, step, twin_rows
from interruptions import killed_everywhere
from scale import KILLS

from cpprb_like import ReplayBuffer
from cpprb_like._files import file_maps
from cpprb_like._files.dirty_chunks import DirtyChunks
from cpprb_like._machine import file_systems
from cpprb_like.checkpoint import DamagedError, load
from cpprb_like.checkpoint._ring_reader import RingReader

pytestmark = [
    pytest.mark.once,
    pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no SIGKILL"),
]

# Kills of all cases together; the long form has 200 and more.
SUPPORT = Path(__file__).parents[1] / "support"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_killed_writer_loses_no_row(tmp_path: Path, case: Case) -> None:
    """Every row that the parent was notified of is there, and every row that is there is whole.

    The file goes from one killed process to the next, as a run that is started again does.
    """
    chance = random.Random(case.name)
    first = 0
    for kill in range(-(-KILLS // len(CASES))):
        command = [sys.executable, "-m", "file_map_cases", case.name, str(tmp_path), str(first)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(SUPPORT), *sys.path])}
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
            time.sleep(chance.random() * 0.1)
            child.kill()
            told = child.stdout.read().split(b"\n")[:-1]  # the last line may be cut off
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # that rows are left out
            rb = case.open(tmp_path, "r+")
        published = int(told[-1]) if told else first
        first = check_after_kill(rb, case, published, kill)
        del rb


def check_after_kill(rb: ReplayBuffer, case: Case, published: int, kill: int) -> int:
    """The rows that are there are whole; returns the counter to go on from."""
    what = f"kill {kill} of case {case.name} after {published} steps"
    rb.check(**case.ids)
    newest = int(rb.ring.written) // rb.n_envs
    batch = rb.get_all_transitions()
    twin_rows(batch, case, what)
    counters = np.unique(batch["t"])
    if case.clears:
        return int(max(published, counters.max(initial=0)) + 1)
    assert newest >= published, what
    if case.rewinds:
        check_rewinds(counters, newest, case, what)
        return newest
    if len(counters):
        assert counters.max() >= published - case.n_step or case.deletes, what
    # At most the rows of one call are torn, beside those that were deleted on purpose.
    torn = case.most_call * rb.n_envs
    if case.room and not (case.deletes or case.updates or case.has_next_items):
        assert len(rb) >= least_kept(case, newest) - torn, what
    elif not case.deletes and not case.room and case.n_step == 1:
        assert len(rb) >= min(published * rb.n_envs, rb.capacity) - torn, what
    return newest


def check_rewinds(counters: Any, newest: int, case: Case, what: str) -> None:
    """Of the steps that the writer goes back by, all were forgotten or none."""
    found = set(counters.tolist())
    for last in range(EACH, newest + 1, EACH):
        steps = set(range(max(last - BACK, counters.min(initial=newest)), last))
        forgotten = steps - found
        assert not forgotten or forgotten == steps or case.n_step > 1, f"{what}: {forgotten}"


def least_kept(case: Case, newest: int) -> int:
    """Rows whose items fit into the rooms beside those of two calls that were cut short."""
    rows = [(t, env) for t in range(newest) for env in range(case.n_envs)]
    left = {"token": case.room, "edge": case.room, "say": 2 * case.room}
    for k, (t, env) in enumerate(reversed(rows[-case.capacity :])):
        for name, value in items_of(t, env).items():
            if name in left:
                left[name] -= len(value.encode()) if name == "say" else value.shape[-1]
                if left[name] < 2 * case.most_call * case.n_envs * LONGEST:
                    return k - (case.n_step - 1) * case.n_envs
    return min(len(rows), case.capacity) - (case.n_step - 1) * case.n_envs


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.parametrize("mode", ["x", "w"])
def test_a_process_that_is_killed_while_it_loads_into_a_file(tmp_path: Path, mode: Any) -> None:
    """The buffer is there whole, with its priorities, or the files are as they were before.

    The file had its name before it had its rows, so ``mmap_mode="r+"`` opened an empty buffer.
    """
    case = Case("loaded", prioritized=True, chained=True, n_step=3, capacity=20, wide=4)
    old, new = (written(case, tmp_path / name, first) for name, first in (("old", 0), ("new", 50)))
    saved = tmp_path / "saved"
    new.save(saved)
    expected = contents(new)

    def make(line: int) -> Path:
        folder = tmp_path / str(line)
        folder.mkdir()
        if mode == "w":
            for path in (tmp_path / "old").iterdir():
                shutil.copy(path, folder)
        return folder

    def call(folder: Path) -> Any:
        return lambda: load(saved, mmap_prefix=folder / case.name, mmap_mode=mode)

    def look(folder: Path) -> None:
        if mode == "x" and not (folder / f"{case.name}.dat").exists():
            return
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for how in ("r", "r+"):
                rb = case.open(folder, how)
                rb.check()
                allowed = [expected] if mode == "x" else [expected, contents(old)]
                assert contents(rb) in allowed
                del rb
        assert not list(folder.glob("*.new"))

    files = file_maps.Files
    loading = (
        *(files._create, files.keep, files.publish, files.flush, files.floats),
        *(ReplayBuffer._open_saved, RingReader.fill, file_systems.name_new),
        *(DirtyChunks.begin, DirtyChunks.commit, DirtyChunks._write),
    )
    assert killed_everywhere(loading, make, call, look) > 80
    folder = make(-1)
    load(saved, mmap_prefix=folder / case.name, mmap_mode=mode)
    look(folder)


def test_a_load_that_fails_leaves_no_files(tmp_path: Path) -> None:
    """What is damaged is found after files were made."""
    case = Case("loaded", chained=True, capacity=20, wide=4)
    rb = written(case, tmp_path / "a", 0)
    rb.save(tmp_path / "saved")
    for path in (tmp_path / "saved").glob("*"):
        if path.name.startswith("wide") or path.stat().st_size > 1000:
            path.write_bytes(path.read_bytes()[:-9])
    (tmp_path / "b").mkdir()
    with pytest.raises((DamagedError, ValueError)):
        load(tmp_path / "saved", mmap_prefix=tmp_path / "b" / "a")
    gc.collect()
    assert not list((tmp_path / "b").iterdir())


def written(case: Case, folder: Path, first: int) -> Any:
    """A buffer in a new folder, with steps from a number on, and priorities."""
    folder.mkdir()
    rb: Any = case.open(folder, "x")
    for t in range(first, first + 30):
        rb.add(**step(case, t))
    if case.prioritized:
        slots = rb.sample(10)["indexes"]
        rb.update_priorities(slots, np.arange(10) + 1.0)
    rb.flush()
    return rb


def contents(rb: Any) -> Any:
    """Numbers of the rows, and their weights."""
    slots = rb.ring.present_slots()
    return rb.get_all_transitions()["t"].tolist(), rb.sampler.rows.get(slots).tolist()
