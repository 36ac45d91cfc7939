"""Files of buffers: what a killed process leaves in them, byte by byte, and who may open them."""

from __future__ import annotations

import errno
import io
import os
import stat
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scale import repeats

from cpprb_like import ReplayBuffer
from cpprb_like._core import WORD_ABSENT_ROWS, WORD_EDITS, WORD_RESERVED, WORD_WRITTEN
from cpprb_like.typing import FieldSpec

FIELDS: dict[str, FieldSpec] = {
    "x": {"shape": (), "dtype": "i8"},
    "big": {"shape": 50, "dtype": "i8"},
    "done": {"shape": (), "dtype": bool},
}


def add(rb: ReplayBuffer, first: int, n: int) -> None:
    """Add ``n`` numbered time steps."""
    for t in range(first, first + n):
        rows = np.arange(t * rb.n_envs, (t + 1) * rb.n_envs)
        values: dict[str, Any] = {
            "x": rows,
            "big": np.repeat(rows[:, None], 50, axis=1),
            "done": rows % 5 == 4,
        }
        rb.add(**(values if rb.n_envs > 1 else {name: value[0] for name, value in values.items()}))


def numbers(rb: ReplayBuffer) -> list[int]:
    """The numbers of the rows, each of which is whole."""
    batch = rb.get_all_transitions()
    assert (batch["big"] == batch["x"][:, None]).all()
    return sorted(batch["x"].tolist())


def reopened(rb: list[ReplayBuffer], mode: Any = "r+", **options: Any) -> ReplayBuffer:
    """Give up the only buffer of a list, and open its file."""
    size, n_envs, files = rb[0].capacity, rb[0].n_envs, rb[0]._files
    assert files is not None
    prefix = str(files.path).removesuffix(".dat")
    del files
    rb.clear()
    return ReplayBuffer(size, FIELDS, n_envs=n_envs, mmap_prefix=prefix, mmap_mode=mode, **options)


@pytest.mark.parametrize("mode", ["r", "r+", "a"])
@pytest.mark.parametrize(("capacity", "n_envs"), [(1, 1), (7, 1), (6, 2)])
@pytest.mark.parametrize("steps", [1, 3, 9])
@pytest.mark.parametrize("begun", [1, 2])
def test_rows_that_were_begun_are_left_out(
    tmp_path: Path, mode: str, capacity: int, n_envs: int, steps: int, begun: int
) -> None:
    """Of a process that was killed in ``add``, the rows whose place it wrote to are absent."""
    rb = [ReplayBuffer(capacity, FIELDS, n_envs=n_envs, mmap_prefix=tmp_path / "a")]
    add(rb[0], 0, steps)
    layout, arena = rb[0]._layout, rb[0]._arena
    state = layout.state(arena)
    lens = [rb[0].get_current_episode_len(env) for env in range(n_envs)]
    written = int(state[WORD_WRITTEN])
    begun = min(begun * n_envs, capacity)
    state[WORD_RESERVED] = written + begun
    files: Any = rb[0]._files
    files._part(files._places.lens).view(np.int64)[:] = lens
    state[-n_envs:] = 77  # as after the first of the stores of a call
    for row in range(written, written + begun):
        layout.records(arena)[row % capacity] = 0xFF
    del arena, state, files
    oldest = max(0, written - capacity)
    alive = list(range(max(oldest, written + begun - capacity), written))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        again = reopened(rb, mode)
    assert len(caught) == (len(alive) < written - oldest)
    again.check()
    assert numbers(again) == alive
    open_lens = [0] * n_envs if mode == "r+" else lens  # "r+" truncates what was open
    assert [again.get_current_episode_len(env) for env in range(n_envs)] == open_lens
    if mode != "r":
        add(again, steps, 20)
        assert numbers(again) == list(range((steps + 20) * n_envs))[-capacity:]
        again.check()


def test_an_edit_that_was_cut_short_is_undone(tmp_path: Path) -> None:
    """The old bytes of the row that was being replaced are restored, in whatever order they lay."""
    rb = [ReplayBuffer(7, FIELDS, mmap_prefix=tmp_path / "a")]
    add(rb[0], 0, 9)
    layout, arena, files = rb[0]._layout, rb[0]._arena, rb[0]._files
    assert files is not None
    log = files._part(files._places.log)
    entries = []
    for number in (0, 1):
        row = layout.rows(arena, number)[3]
        offset = layout.offsets[number] + 3 * layout.strides[number]
        entries.append(np.array([offset, len(row)]).view(np.uint8))
        entries.append(row.copy())
        row[: len(row) // 2] = 0xFF
    saved = np.concatenate(entries)
    log[8 : 8 + len(saved)] = saved
    log[:8].view(np.int64)[0] = len(saved)
    layout.state(arena)[WORD_EDITS] += 1
    del arena, files, log, row
    again = reopened(rb)
    assert numbers(again) == list(range(2, 9))
    again.check()
    assert again._layout.state(again._arena)[WORD_EDITS] % 2 == 0


@pytest.mark.parametrize(
    "words", [[1, 3], [8], [2**62], [16, 2**40, 8], [24, 8, 2**40], [24, -8, 8], [-8]]
)
def test_an_undo_log_that_was_damaged_is_refused(tmp_path: Path, words: list[int]) -> None:
    """No entry is followed out of the file."""
    rb = [ReplayBuffer(7, FIELDS, mmap_prefix=tmp_path / "a")]
    add(rb[0], 0, 9)
    files: Any = rb[0]._files
    files._part(files._places.log)[: 8 * len(words)].view(np.int64)[:] = words
    del files
    with pytest.raises(ValueError, match=r"a\.dat.*undo log"):
        reopened(rb)


def test_a_deletion_that_was_cut_short(tmp_path: Path) -> None:
    """Rows that had been deleted by then are deleted, and counted anew."""
    rb = [ReplayBuffer(9, FIELDS, mmap_prefix=tmp_path / "a")]
    add(rb[0], 0, 9)
    layout, arena = rb[0]._layout, rb[0]._arena
    layout.flags(arena)[:2] |= 8
    layout.state(arena)[WORD_EDITS] += 1
    del arena
    again = reopened(rb)
    assert numbers(again) == list(range(2, 9))
    assert again._layout.state(again._arena)[WORD_ABSENT_ROWS] == 2
    again.check()


def test_the_end_of_an_episode_that_was_cut_short(tmp_path: Path) -> None:
    """The flag of the row decides, and the length of the open episode follows."""
    rb = [ReplayBuffer(9, FIELDS, mmap_prefix=tmp_path / "a")]
    add(rb[0], 0, 7)
    layout, arena = rb[0]._layout, rb[0]._arena
    layout.flags(arena)[6] |= 1 | 4
    layout.state(arena)[WORD_EDITS] += 1
    del arena
    again = reopened(rb)
    assert again.get_current_episode_len() == 0
    again.check()


# ---------------------------------------------------------------------- reading


def test_a_file_that_is_opened_to_be_read(tmp_path: Path) -> None:
    """Mode "r" draws and reads, refuses whatever changes rows, and leaves the file as it is."""
    rb = [ReplayBuffer(7, FIELDS, mmap_prefix=tmp_path / "a", seed=1)]
    add(rb[0], 0, 11)
    before = rb[0].get_all_transitions()
    again = reopened(rb, "r", seed=1)
    raw = (tmp_path / "a.dat").read_bytes()
    assert again.get_all_transitions()["x"].tolist() == before["x"].tolist()
    assert set(again.sample(50)["x"].tolist()) <= set(range(4, 11))
    for change in (
        lambda: add(again, 11, 1),
        lambda: again.update([0], x=[1]),
        again.clear,
        again.on_episode_end,
        lambda: again.episodes.delete(0),
    ):
        with pytest.raises(io.UnsupportedOperation, match="mmap_mode='r'"):
            change()
    again.check()
    assert (tmp_path / "a.dat").read_bytes() == raw
    both = ReplayBuffer(7, FIELDS, mmap_prefix=tmp_path / "a", mmap_mode="r")
    assert numbers(both) == numbers(again)
    with pytest.raises(BlockingIOError, match=r"a\.dat"):
        ReplayBuffer(7, FIELDS, mmap_prefix=tmp_path / "a", mmap_mode="r+")


@pytest.mark.once
def test_reading_beside_a_writer(tmp_path: Path) -> None:
    """Who opens a file that somebody writes to has the rows of that time, all of them whole."""
    rb = ReplayBuffer(5000, FIELDS, mmap_prefix=tmp_path / "a")
    add(rb, 0, 6000)
    stop = threading.Event()

    def write() -> None:
        t = 6000
        while not stop.is_set():
            add(rb, t, 1)
            t += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(10):
            before = rb.ring.written
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                other = ReplayBuffer(5000, FIELDS, mmap_prefix=tmp_path / "a", mmap_mode="r")
            found = numbers(other)
            other.check()
            assert found == list(range(found[0], found[-1] + 1))
            assert found[-1] >= before - 1
            del other
    finally:
        stop.set()
        thread.join()


CREATES = """
import sys
from cpprb_like import ReplayBuffer
sys.stdin.readline()
try:
    rb = ReplayBuffer(7, {"x": {"shape": ()}}, mmap_prefix=sys.argv[1], mmap_mode=sys.argv[2])
except (BlockingIOError, FileExistsError) as error:
    print(type(error).__name__, flush=True)
else:
    print("made", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("mode", ["x", "w"])
def test_two_processes_that_create_one_file(tmp_path: Path, mode: str) -> None:
    """One has it, and the other hears so: both had written to files of their own."""
    command = [sys.executable, "-c", CREATES, str(tmp_path / "a"), mode]
    for _ in range(repeats(3, 1)):
        pair = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(3)
        ]
        for child in pair:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        said = []
        for child in pair:
            assert child.stdout is not None
            said.append(child.stdout.readline().strip())
        for child in pair:
            child.communicate("end\n")
        assert said.count("made") == 1, said
        rows, log = sorted(path.name for path in tmp_path.iterdir())
        assert rows == "a.dat"
        assert log.startswith("a.dat.flushed.")
        (tmp_path / "a.dat").unlink()


@pytest.mark.parametrize("mode", ["r", "r+"])
def test_what_is_no_file_of_a_buffer(tmp_path: Path, mode: Any) -> None:
    """A folder, an empty file, another version, no permission: an error that names the file."""
    path = tmp_path / "a.dat"

    def refused(error: type[Exception], what: str) -> None:
        with pytest.raises(error, match=rf"(?s)a\.dat.*{what}|{what}.*a\.dat"):
            ReplayBuffer(7, FIELDS, mmap_prefix=tmp_path / "a", mmap_mode=mode)

    path.mkdir()
    refused(OSError, "")
    path.rmdir()
    path.write_bytes(b"")
    refused(ValueError, "empty")
    path.write_bytes(b"something else" * 1000)
    refused(ValueError, "no file of a buffer")
    path.unlink()
    ReplayBuffer(7, FIELDS, mmap_prefix=tmp_path / "a")
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b"version 10", b"version 9 "))
    refused(ValueError, "version 9")
    path.write_bytes(raw[:-1])
    refused(ValueError, "cut off")
    path.write_bytes(raw)
    path.chmod(0)
    if not os.access(path, os.R_OK):  # root may read everything
        refused(PermissionError, "")


def test_a_stack_with_another_axis_is_refused(tmp_path: Path) -> None:
    """Frames of one axis have as many bytes as those of the other: rows would be mixed up."""
    fields: dict[str, FieldSpec] = {"frames": {"shape": (4, 3, 4)}}

    def opened(axis: int, mode: Any) -> ReplayBuffer:
        return ReplayBuffer(
            7,
            fields,
            stack_compress={"frames": axis},
            mmap_prefix=tmp_path / "a",
            mmap_mode=mode,
        )

    opened(0, "x").add(frames=np.arange(48).reshape(4, 3, 4))
    with pytest.raises(ValueError, match="or other options"):
        opened(2, "r+")
    assert opened(0, "r+").get_all_transitions()["frames"].ravel().tolist() == list(range(48))


unix = pytest.mark.skipif(
    sys.platform == "win32", reason="there is no flock and no fsync of folders"
)


def refusing(function: Any, code: int) -> Any:
    """As a call that a file system refuses, of ``fsync`` for folders alone."""

    def call(file: int, *arguments: Any) -> Any:
        if arguments or stat.S_ISDIR(os.fstat(file).st_mode):
            raise OSError(code, os.strerror(code))
        return function(file)

    return call


@unix
def test_a_file_system_that_does_not_synchronise_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A warning says what a crash may cost, and the buffer works; another error is raised."""
    monkeypatch.setattr(os, "fsync", refusing(os.fsync, errno.EINVAL))
    with pytest.warns(RuntimeWarning, match="does not synchronise folders.*may cost the files"):
        rb = ReplayBuffer(20, FIELDS, mmap_prefix=tmp_path / "a")
    add(rb, 0, 10)
    rb.flush()
    del rb
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        rb = ReplayBuffer(20, FIELDS, mmap_prefix=tmp_path / "a", mmap_mode="r+")
    assert numbers(rb) == list(range(10))
    monkeypatch.undo()
    monkeypatch.setattr(os, "fsync", refusing(os.fsync, errno.EIO))
    with pytest.raises(OSError, match="Input/output"):
        ReplayBuffer(20, FIELDS, mmap_prefix=tmp_path / "b")


@unix
def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two writers would tear rows, so writing is refused by name; who reads makes a copy."""
    import fcntl  # noqa: PLC0415 (not on Windows)

    add(ReplayBuffer(20, FIELDS, mmap_prefix=tmp_path / "a"), 0, 10)
    monkeypatch.setattr(fcntl, "flock", refusing(None, errno.ENOLCK))
    modes: list[tuple[str, Any]] = [("a", "r+"), ("a", "w"), ("b", "x")]
    for name, mode in modes:
        with pytest.raises(OSError, match=f"no locks.*{tmp_path / name}.dat") as caught:
            ReplayBuffer(20, FIELDS, mmap_prefix=tmp_path / name, mmap_mode=mode)
        assert caught.value.errno == errno.ENOLCK
        del caught
    rb = ReplayBuffer(20, FIELDS, mmap_prefix=tmp_path / "a", mmap_mode="r")
    assert numbers(rb) == list(range(10))


@unix
@pytest.mark.parametrize("files", [False, True])
def test_a_limit_of_the_address_space(tmp_path: Path, files: bool) -> None:
    """``MemoryError`` has the bytes of each field. It was an ``OSError`` without them."""
    prefix = str(tmp_path / "a") if files else None
    program = f"""
import resource
from cpprb_like import ReplayBuffer
resource.setrlimit(resource.RLIMIT_AS, (1 << 31, 1 << 31))
try:
    ReplayBuffer(10**6, {{"wide": {{"shape": 600}}}}, mmap_prefix={prefix!r})
except MemoryError as error:
    assert "float32" in str(error) and "2.2 GiB" in str(error), error
else:
    raise AssertionError
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=100)
    assert not list(tmp_path.iterdir())
