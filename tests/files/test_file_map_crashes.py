"""A crash of the machine: what the last flush wrote is there, and rows that are torn are left out.

The crash is simulated. Of all pages, or sectors, that changed since the flush, some are on the disk
and others are not; and the machine has been started anew.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crashing_folder import CrashingFolder
from file_map_cases import LONGEST, Case, step, twin_rows, updated

from cpprb_like import PrioritizedReplayBuffer, ReplayBuffer
from cpprb_like._files import dirty_chunks, file_maps

pytestmark = pytest.mark.once

CASES = [
    Case("plain", capacity=50, updates=True),
    Case("one", capacity=1),
    Case("envs", n_envs=4, capacity=60, n_step=3),
    Case("chained", chained=True, capacity=50),
    Case("chained-envs", chained=True, n_envs=3, capacity=60),
    Case("prioritized", prioritized=True, capacity=50),
    Case("ragged", room=60 * LONGEST, capacity=50, updates=True, wide=40),
    Case("ragged-envs", room=60 * LONGEST, n_envs=4, capacity=60, n_step=3, wide=40),
]


@pytest.fixture
def restart(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Call it to start the machine anew."""
    starts = iter(range(1000))

    def start() -> None:
        name = f"start {next(starts)}".encode()
        monkeypatch.setattr(file_maps, "_boot_id", lambda: name)

    start()
    return start


def add(rb: ReplayBuffer, case: Case, first: int, n: int) -> None:
    """Add time steps."""
    for t in range(first, first + n):
        rb.add(**step(case, t))


def crash(before: Path, after: Path, folder: Path, rng: np.random.Generator, unit: int) -> None:
    """Files as they were before, with some of the parts that they have afterwards.

    What was written to the file of flushes was synchronised at once.
    """
    share = rng.random()
    for path in after.iterdir():
        new = path.read_bytes()
        old = (before / path.name).read_bytes() if (before / path.name).exists() else b""
        parts = bytearray(new if ".flushed." in path.name else old.ljust(len(new), b"\0"))
        for start in range(0, len(parts), unit):
            if rng.random() < share:
                parts[start : start + unit] = new[start : start + unit]
        (folder / path.name).write_bytes(bytes(parts))
    for path in before.iterdir():
        if not (folder / path.name).exists():
            shutil.copy(path, folder / path.name)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("unit", [512, 4096])
@pytest.mark.parametrize("later", [0, 5, 17, 300])
def test_what_was_flushed_is_there(
    tmp_path: Path, rng: np.random.Generator, restart: Any, case: Case, unit: int, later: int
) -> None:
    """Rows that were flushed and not overwritten are there, and every row there is whole."""
    live, before = tmp_path / "live", tmp_path / "before"
    live.mkdir()
    rb = case.open(live, "x")
    flushed = int(rng.integers(1, 120))
    for first, stop in ((0, flushed // 2), (flushed // 2, flushed)):
        add(rb, case, first, stop - first)
        if case.updates and first:
            rows = rb[np.arange(1)]
            rb.update([0], **(updated(rows) if case.room else {"mark": -rows["mark"]}))
        rb.on_episode_end()
        rb.flush()
    rows = rb.get_all_transitions()
    alive = set(zip(rows["t"].tolist(), rows["env"].tolist(), strict=True))
    shutil.copytree(live, before)
    add(rb, case, flushed, later)
    rb.on_episode_end()
    after = tmp_path / "after"
    shutil.copytree(live, after)  # nobody has flushed since
    restart()
    for attempt in range(3):
        folder = tmp_path / f"crash {attempt}"
        folder.mkdir()
        crash(before, after, folder, rng, unit)
        for again_so in range(2):  # and the machine crashes again
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                again = case.open(folder, "r+")
            again.check()
            batch = again.get_all_transitions()
            twin_rows(batch, case, f"attempt {attempt}")
            found = set(zip(batch["t"].tolist(), batch["env"].tolist(), strict=True))
            overwritten = later * case.n_envs
            kept = sorted(alive)[overwritten:]
            # With n steps rows that were left out are there again when newer ones are gone.
            assert case.n_step > 1 or set(kept) <= found <= alive
            is_told = len(found) < len(alive) and not again_so
            assert bool(caught) == is_told or case.n_step > 1
            if case.prioritized and len(again):
                again.sample(20)
            del again
            restart()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            again = case.open(folder, "r+")
        add(again, case, flushed, 30)
        again.check()
        twin_rows(again.get_all_transitions(), case, "afterwards")
        del again
    del rb


def test_without_a_crash_nothing_is_lost(tmp_path: Path, restart: Any) -> None:
    """A buffer that goes out of use is flushed, so a machine that is started anew has all of it."""
    case = CASES[3]
    rb = case.open(tmp_path, "x")
    add(rb, case, 0, 70)
    expected = rb.get_all_transitions()
    del rb
    restart()
    again = case.open(tmp_path, "r+")
    for name, values in again.get_all_transitions().items():
        np.testing.assert_array_equal(values, expected[name])
    assert again.get_current_episode_len() == 70 % 7


def test_a_file_of_flushes_that_is_gone(tmp_path: Path, restart: Any) -> None:
    """Nothing is known of the rows, so all are left out, with a warning; the file is of use."""
    case = CASES[0]
    rb = case.open(tmp_path, "x")
    add(rb, case, 0, 20)
    del rb
    (tmp_path / "plain.dat.flushed.1").unlink()
    restart()
    with pytest.warns(RuntimeWarning, match="all rows are left out"):
        again = case.open(tmp_path, "r+")
    assert len(again) == 0
    add(again, case, 0, 20)
    again.check()


@pytest.fixture
def synchronised(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The file descriptors that were synchronised with the disk."""
    found: list[int] = []
    sync = os.fsync

    def fsync(file: int) -> None:
        found.append(file)
        sync(file)

    monkeypatch.setattr(os, "fsync", fsync)
    return found


@pytest.mark.parametrize("n", [1, 4, 700])
def test_adding_meets_the_disk_once_for_each_chunk(
    tmp_path: Path, synchronised: list[int], n: int
) -> None:
    """And not at all while rows take free slots, or slots of rows that came after the flush."""
    rb = ReplayBuffer(2560, {"x": {"dtype": "i8"}}, mmap_prefix=tmp_path / "a")
    synchronised.clear()
    for _ in range(0, 2560, n):
        rb.add(x=[1] * min(n, 2560 - len(rb)))
    assert not synchronised
    rb.flush()
    synchronised.clear()
    for _ in range(0, 2560, n):
        rb.add(x=[1] * n)
    assert len(synchronised) == (256 if n < 10 else 4)
    synchronised.clear()
    for _ in range(0, 2560, n):
        rb.add(x=[1] * n)
    assert not synchronised


def test_edits_meet_the_disk_once_for_each_chunk(tmp_path: Path, synchronised: list[int]) -> None:
    """An update, a deletion and ``clear`` mark rows of the last flush, and no later ones."""
    fields: dict[str, Any] = {"x": {"dtype": "i8"}, "done": {"dtype": bool}}
    rb = ReplayBuffer(2560, fields, mmap_prefix=tmp_path / "a")
    rb.add(x=range(1000), done=[x % 10 == 9 for x in range(1000)])
    rb.flush()
    rb.add(x=range(10), done=[0] * 10)
    synchronised.clear()
    rb.update(range(1000, 1010), x=[1] * 10)
    rb.on_episode_end()
    assert not synchronised
    for _ in range(2):
        rb.update([0, 9, 999], x=[1, 1, 1])
        assert len(synchronised) == 1
    rb.episodes.delete(0)
    assert len(synchronised) == 1
    rb.episodes.delete(0)
    assert len(synchronised) == 2
    rb.clear()
    assert len(synchronised) == 3
    rb.add(x=range(2560), done=[0] * 2560)
    assert len(synchronised) == 3


@pytest.mark.parametrize("mode", ["x", "r+"])
def test_a_folder_that_was_renamed(tmp_path: Path, restart: Any, mode: str) -> None:
    """Marks go to the file that is open, not to one that has its path now."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        rb = ReplayBuffer(1024, {"x": {}}, mmap_prefix=tmp_path / name / "x")
        rb.add(x=np.arange(1024))
        rb.flush()
        if name == "first":
            first = rb
    if mode == "r+":
        del first
        first = ReplayBuffer(1024, {"x": {}}, mmap_prefix=tmp_path / "first/x", mmap_mode="r+")
    del rb
    (tmp_path / "first").rename(tmp_path / "renamed")
    first.add(x=[2000] * 10)
    first.update([500], x=3000)
    (tmp_path / "second").rename(tmp_path / "first")
    before = {path: path.read_bytes() for path in (tmp_path / "first").iterdir()}
    first.add(x=[2000] * 90)
    assert before == {path: path.read_bytes() for path in (tmp_path / "first").iterdir()}
    restart()
    (tmp_path / "copy").mkdir()
    for path in (tmp_path / "renamed").iterdir():
        shutil.copy(path, tmp_path / "copy")
    with pytest.warns(RuntimeWarning, match="104 rows that may have changed"):
        again = ReplayBuffer(1024, {"x": {}}, mmap_prefix=tmp_path / "copy/x", mmap_mode="r+")
    assert len(again) == 1024 - 104


AT_THE_END = """
import atexit, os, sys

def at_the_end():
    files = [open(os.path.join(sys.argv[1], f"{k}"), "w+b") for k in range(4)]
    for file in files:
        file.write(b"x" * 20000)
        file.flush()
    for k in range(1000):
        rb.add(x=k)
    rb.flush()
    for file in files:
        file.seek(0)
        assert file.read() == b"x" * 20000
    print("added")

atexit.register(at_the_end)

from cpprb_like import ReplayBuffer

rb = ReplayBuffer(1000, {"x": {}}, mmap_prefix=os.path.join(sys.argv[1], "x"))
for k in range(1500):
    rb.add(x=k)
rb.flush()
"""


def test_an_exit_handler_adds_rows(tmp_path: Path) -> None:
    """Marks went to a file of the handler, which had the number of the closed file of marks."""
    done = subprocess.run(
        [sys.executable, "-c", AT_THE_END, tmp_path], capture_output=True, text=True, check=False
    )
    assert done.stdout == "added\n", done.stderr


@pytest.mark.parametrize("mode", ["x", "r+"])
def test_a_folder_that_was_renamed_beside_values_kept_aside(tmp_path: Path, mode: str) -> None:
    """Disk space was reserved in the file that has the path now, which a flush synchronised too.

    Flushes go to the file that is open.
    """

    def opened(mode: Any) -> ReplayBuffer:
        path = tmp_path / "first/x"
        return ReplayBuffer(
            5000, {"x": {"shape": 99}}, next_of="x", mmap_prefix=path, mmap_mode=mode
        )

    def add(rb: ReplayBuffer) -> None:
        x = np.arange(99.0)
        for k in range(400):
            rb.add(x=x + k, next_x=-x)

    (tmp_path / "first").mkdir()
    rb = opened("x")
    if mode == "r+":
        del rb
        rb = opened("r+")
    (tmp_path / "first").rename(tmp_path / "renamed")
    add(rb)
    (tmp_path / "first").mkdir()
    other = opened("x")
    blocks = (tmp_path / "first/x.dat").stat().st_blocks
    add(rb)
    assert (tmp_path / "first/x.dat").stat().st_blocks == blocks
    rb.flush()
    del rb, other
    (tmp_path / "first").rename(tmp_path / "second")
    (tmp_path / "renamed").rename(tmp_path / "first")
    assert len(opened("r+")) == 800


@pytest.mark.parametrize("seed", range(4))
def test_a_crash_after_all_rows_of_a_flush_were_overwritten(
    tmp_path: Path, restart: Any, seed: int
) -> None:
    """No row is left then, so keys of any time on the disk damage nothing."""
    n_envs = 1024
    fields: dict[str, Any] = {"obs": {"shape": (4, 1), "dtype": "u1"}}
    options: dict[str, Any] = {"n_envs": n_envs, "stack_compress": {"obs": 0}}
    (tmp_path / "live").mkdir()
    path, rng = tmp_path / "live/a.dat", np.random.default_rng(seed)
    rb = ReplayBuffer(8 * n_envs, fields, mmap_prefix=path.with_suffix(""), **options)

    def add(steps: int) -> None:
        for _ in range(steps):
            rb.add(obs=rng.integers(0, 255, (n_envs, 4, 1)))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nothing follows from the row before
        add(8)
    rb.flush()
    before = np.fromfile(path, np.uint8)
    add(16)
    image = np.fromfile(path, np.uint8)
    aside = rb._layout.asides[0]
    places = slice(aside.keys_at, aside.keys_at + 8 * aside.units)
    is_old = np.repeat(rng.random(aside.units // 8) < 0.5, 64)  # by cache line
    image[places][is_old] = before[places][is_old]
    (tmp_path / "crashed").mkdir()
    for side in path.parent.glob("a.dat.*"):
        shutil.copy(side, tmp_path / "crashed")
    image.tofile(tmp_path / "crashed/a.dat")
    restart()
    with pytest.warns(RuntimeWarning, match="left out"):
        rb = ReplayBuffer(
            8 * n_envs, fields, mmap_prefix=tmp_path / "crashed/a", mmap_mode="r+", **options
        )
    assert len(rb) == 0


@pytest.mark.parametrize("what", ["add", "update", "delete", "clear"])
def test_nothing_changes_before_its_mark_is_on_the_disk(
    tmp_path: Path, restart: Any, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """A disk that fails then fails the call, and the next call tries again."""
    case = Case("plain", capacity=600, updates=True)
    rb = case.open(tmp_path, "x")
    add(rb, case, 0, 600)
    rb.flush()
    before = (tmp_path / "plain.dat").read_bytes()
    calls: dict[str, Any] = {
        "add": lambda: add(rb, case, 600, 1),
        "update": lambda: rb.update([5], mark=-rb[np.array([5])]["mark"]),
        "delete": lambda: rb.episodes.delete(0),
        "clear": rb.clear,
    }

    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        for _ in range(2):
            with pytest.raises(OSError, match="Input/output"):
                calls[what]()
            assert (tmp_path / "plain.dat").read_bytes() == before
    calls[what]()
    assert (tmp_path / "plain.dat").read_bytes() != before
    folder = crashed(tmp_path, tmp_path.with_name(f"{tmp_path.name} crashed"), restart)
    lost = {"add": 3, "update": 3, "delete": 9, "clear": 600}[what]
    with pytest.warns(RuntimeWarning, match=f"{lost} rows that may have changed"):
        again = case.open(folder, "r+")
    assert len(again) == 600 - lost


def test_a_flush_costs_what_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither values stored apart nor the files of the folder: one row took 52 ms, and 360 ms."""
    fields: dict[str, Any] = {"x": {"shape": 4, "dtype": "i8"}}
    rb = ReplayBuffer(5000, fields, next_of="x", mmap_prefix=tmp_path / "a")
    x = np.arange(16000).reshape(4000, 4)
    rb.add(x=x, next_x=-x - 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        rb.add(x=x[0], next_x=-x[0] - 1)  # the file grows
    rb.flush()
    (path,) = tmp_path.glob("a.dat.flushed.*")
    nbytes = path.stat().st_size

    def refuse(*_: Any) -> Any:
        raise AssertionError("a flush looks at all files, or sorts all keys")

    monkeypatch.setattr(os, "scandir", refuse)
    monkeypatch.setattr(os, "listdir", refuse)
    monkeypatch.setattr(np, "argsort", refuse)
    for _ in range(3):
        rb.add(x=x[0], next_x=-x[0] - 1)
        rb.flush()
    assert path.stat().st_size == nbytes < 20000


def test_rows_beside_those_that_changed_are_left_out(
    tmp_path: Path, restart: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk at a time, counted from the oldest row; the newest rows are the last to go."""
    monkeypatch.setattr(dirty_chunks, "CHUNKS", 4)
    case = Case("chained", chained=True, capacity=40, wide=4)
    live = tmp_path / "live"
    live.mkdir()
    rb = case.open(live, "x")
    add(rb, case, 0, 55)
    rb.flush()
    for k, (first, n, kept) in enumerate([(55, 1, 25), (56, 9, 25), (65, 1, 35), (66, 25, 55)]):
        add(rb, case, first, n)
        folder = crashed(live, tmp_path / str(k), restart)
        with pytest.warns(RuntimeWarning, match=f"{kept - 15} rows that may have changed"):
            again = case.open(folder, "r+")
        batch = again.get_all_transitions()
        assert sorted(batch["t"].tolist()) == list(range(kept, 55))
        twin_rows(batch, case, "what was flushed")
        again.check()


def test_an_interrupted_flush(
    tmp_path: Path, restart: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether its last step has happened or not: rows that change later are left out."""
    live = tmp_path / "live"
    live.mkdir()
    case = CASES[0]
    rb = case.open(live, "x")
    add(rb, case, 0, 60)
    rb.flush()
    write = dirty_chunks.DirtyChunks._write

    def interrupt(chunks: Any, parts: Any) -> None:
        write(chunks, parts)
        if parts[0][0].number:  # not where the half of the first flush is blanked
            raise KeyboardInterrupt

    for t in (60, 70):
        with monkeypatch.context() as patch:
            add(rb, case, t, 5)
            patch.setattr(dirty_chunks.DirtyChunks, "_write", interrupt)
            with pytest.raises(KeyboardInterrupt):
                rb.flush()
        add(rb, case, t + 5, 5)
    folder = crashed(live, tmp_path / "crashed", restart)
    with pytest.warns(RuntimeWarning, match="5 rows that may have changed"):
        again = case.open(folder, "r+")
    batch = again.get_all_transitions()
    assert sorted(batch["t"].tolist()) == list(range(30, 75))
    twin_rows(batch, case, "after an interrupted flush")


def flushed_numbers(folder: Path) -> ReplayBuffer:
    """A buffer of the numbers up to 1,023, all of them flushed."""
    folder.mkdir()
    rb = ReplayBuffer(1024, {"x": {}}, mmap_prefix=folder / "x")
    rb.add(x=np.arange(1024))
    rb.flush()
    return rb


def greatest_number(folder: Path) -> float:
    """That of the rows which are there after a crash; some are left out."""
    with pytest.warns(RuntimeWarning, match="rows that may have changed"):
        rb = ReplayBuffer(1024, {"x": {}}, mmap_prefix=folder / "x", mmap_mode="a")
    return float(rb.get_all_transitions()["x"].max())


def test_a_flush_that_follows_one_that_was_cut_short(
    tmp_path: Path, restart: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first may be whole on the disk: the marks of the second are not those of the first."""
    live = tmp_path / "live"
    rb = flushed_numbers(live)
    rb.add(x=5000)
    write = dirty_chunks.DirtyChunks._write

    def interrupt(chunks: Any, parts: Any) -> None:
        write(chunks, parts)
        raise KeyboardInterrupt

    def fail(_: Path | int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(dirty_chunks.DirtyChunks, "_write", interrupt)
        with pytest.raises(KeyboardInterrupt):
            rb.flush()
    with monkeypatch.context() as patch:
        patch.setattr(file_maps, "sync", fail)
        with pytest.raises(OSError, match="Input/output"):
            rb.flush()
    rb.add(x=np.arange(6000, 6100))
    assert greatest_number(crashed(live, tmp_path / "crashed", restart)) <= 5000


def test_a_signal_handler_that_flushes_within_an_update(
    tmp_path: Path, restart: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row that is about to change gets a mark for that flush too."""
    live = tmp_path / "live"
    rb = flushed_numbers(live)
    write = dirty_chunks.DirtyChunks._write

    def flush_too(chunks: Any, parts: Any) -> None:
        monkeypatch.setattr(dirty_chunks.DirtyChunks, "_write", write)
        write(chunks, parts)
        rb.flush()

    monkeypatch.setattr(dirty_chunks.DirtyChunks, "_write", flush_too)
    rb.update([7], x=[7777])
    assert greatest_number(crashed(live, tmp_path / "crashed", restart)) < 1024


def test_a_disk_that_is_full(tmp_path: Path, restart: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush that fails says so, what was flushed before holds, and the next one does it all."""
    case = CASES[0]
    rb = case.open(tmp_path, "x")
    add(rb, case, 0, 10)
    rb.flush()

    def fail(_: Path | int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(file_maps, "sync", fail)
        add(rb, case, 10, 10)
        with pytest.raises(OSError, match="disk is full"):
            rb.flush()
    rb.flush()
    folder = tmp_path / "copy"
    folder.mkdir()
    for path in tmp_path.glob("plain.dat*"):
        shutil.copy(path, folder)
    restart()
    assert sorted(case.open(folder, "r+").get_all_transitions()["t"].tolist()) == list(range(20))


def crashed(live: Path, folder: Path, restart: Any) -> Path:
    """A copy of the files, as a crash of the machine leaves them that comes now."""
    shutil.copytree(live, folder)
    restart()
    return folder


def test_an_episode_ends_before_rows_that_are_left_out(tmp_path: Path, restart: Any) -> None:
    """Also before a pause: the end of an episode is lost together with its row.

    Windows of rows, for n-step sums and sequences, joined the steps before and after.
    """
    live = tmp_path / "live"
    live.mkdir()
    fields: dict[str, Any] = {"t": {"dtype": "i8"}, "done": {"dtype": bool}, "mark": {}}
    options: dict[str, Any] = {"n_envs": 2}
    rb = ReplayBuffer(40, fields, mmap_prefix=live / "a", **options)
    for t in range(12):
        values = {"t": [t, t], "done": [t == 6, t == 9], "mark": [0, 0]}
        if t == 5:  # the first environment pauses
            rb.add_where([False, True], **values)
        else:
            rb.add(**values)
    rb.flush()
    ends = [12, 19]  # of the first episode of each environment
    rb.update(ends, mark=[1, 1])
    folder = crashed(live, tmp_path / "crashed", restart)
    with pytest.warns(RuntimeWarning, match="2 rows that may have changed"):
        rb = ReplayBuffer(40, fields, mmap_prefix=folder / "a", mmap_mode="a", **options)
    rb.check()
    assert not np.isin(ends, rb.ring.present_slots()).any()
    found = [
        rb.episodes.read(k)["t"][:, 0].tolist() for k in range(len(rb.episodes))
    ]  # they are numbered in the order of their first rows
    assert sorted(found) == [
        [0, 1, 2, 3, 4],
        [0, 1, 2, 3, 4, 5, 6, 7, 8],
        [7, 8, 9, 10, 11],
        [10, 11],
    ]
    ended = [(one.length, one.complete, one.truncated) for one in rb.episodes.list()]
    assert sorted(ended) == [(2, False, False), (5, False, False), (5, True, True), (9, True, True)]
    assert [rb.get_current_episode_len(env) for env in range(2)] == [5, 2]


def test_what_was_flushed_stays_when_the_next_flush_fails(
    tmp_path: Path, restart: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that are added then take away no value that the last flush promised."""
    live = tmp_path / "live"
    live.mkdir()
    fields: dict[str, Any] = {"x": {"shape": 4, "dtype": "i8"}}
    rb = ReplayBuffer(100, fields, next_of="x", mmap_prefix=live / "a")
    x = np.arange(16).reshape(4, 4)
    rb.add(x=x, next_x=-x - 1)
    rb.flush()

    def fail(_: Path | int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(file_maps, "sync", fail)
        with pytest.raises(OSError, match="disk is full"):
            rb.flush()
    for _ in range(5):
        rb.add(x=x, next_x=-x - 1)
    folder = crashed(live, tmp_path / "crashed", restart)
    rb = ReplayBuffer(100, fields, next_of="x", mmap_prefix=folder / "a", mmap_mode="r+")
    batch = rb.get_all_transitions()
    assert (batch["x"] == x).all()
    assert (batch["next_x"] == -x - 1).all()


@pytest.mark.skipif(sys.platform == "win32", reason="folders are not synchronised there")
def test_flush_puts_new_names_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is synchronised after the file of the sampler was made.

    Its name was in memory only.
    """
    fields: dict[str, Any] = {"x": {"shape": 4, "dtype": "i8"}}
    done: list[Path | int] = []
    monkeypatch.setattr(file_maps, "sync", done.append)
    rb = PrioritizedReplayBuffer(100, fields, next_of="x", mmap_prefix=tmp_path / "a")
    names = [path.name for path in done if isinstance(path, Path)]
    assert any(name.startswith("a.dat.sampler.1") for name in names)
    assert done[-1] == tmp_path
    done.clear()
    x = np.arange(4)
    rb.add(x=x, next_x=-x - 1)
    rb.flush()
    assert tmp_path / "a.dat.sampler.1" in done
    assert tmp_path not in done


def test_a_row_whose_priority_was_taken_away(tmp_path: Path, restart: Any) -> None:
    """Its episode was deleted after the flush, and the file of the sampler had that already.

    The row was there after the crash, with weight 0.
    """
    live = tmp_path / "live"
    live.mkdir()
    case = Case("weights", prioritized=True, capacity=50, wide=4)
    rb: Any = case.open(live, "x")
    add(rb, case, 0, 21)
    rb.update_priorities(np.arange(21), np.arange(21) + 1.0)
    rb.flush()
    rb.episodes.delete(1)
    rb.sample(1)
    folder = crashed(live, tmp_path / "crashed", restart)
    with pytest.warns(RuntimeWarning, match="7 rows that may have changed"):
        again: Any = case.open(folder, "r+")
    there = np.delete(np.arange(21), np.arange(7, 14))
    assert again.ring.present_slots().tolist() == there.tolist()
    np.testing.assert_allclose(again.sampler.row_priorities(there), there + 1.0, rtol=1e-12)


def test_flushing_a_buffer_in_memory() -> None:
    """There is nothing to do."""
    ReplayBuffer(5, {"x": {}}).flush()


@pytest.mark.skipif(sys.platform == "win32", reason="files in use have no other links")
@pytest.mark.filterwarnings("ignore:.*sampler.* is missing:RuntimeWarning")
def test_a_file_of_priorities_that_was_just_made(
    tmp_path: Path, restart: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name reached the disk before its bytes: the buffer could not be opened after a crash."""
    fields: dict[str, Any] = {"x": {"dtype": "i8"}}
    live, beside = tmp_path / "live", tmp_path / "beside"
    for folder in (live, beside):
        folder.mkdir()
    rb: ReplayBuffer = PrioritizedReplayBuffer(100, fields, mmap_prefix=live / "a")
    rb.add(x=range(10))
    rb.flush()
    del rb
    (live / "a.dat.sampler.1").unlink()
    images: list[Path] = []

    def take_images() -> None:
        for _ in range(10):
            images.append(tmp_path / f"image {len(images)}")
            images[-1].mkdir()
            crashing.crash(images[-1], random.Random(len(images)), 4096)

    with monkeypatch.context() as patch:
        crashing = CrashingFolder(live, beside, patch, take_images)
        rb = PrioritizedReplayBuffer(100, fields, mmap_prefix=live / "a", mmap_mode="r+")
        take_images()
    del rb
    assert len(images) > 30
    restart()
    for image in images:
        again = PrioritizedReplayBuffer(100, fields, mmap_prefix=image / "a", mmap_mode="r+")
        assert again.get_all_transitions()["x"].tolist() == [[x] for x in range(10)]
        assert again.sample(10)["indexes"].shape == (10,)
