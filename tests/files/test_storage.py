"""Buffers whose memory is a file: created, refused, opened again, emptied."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import refused, snapshot
from strategies import assert_same

from cpprb_like import ReplayBuffer
from cpprb_like._core import N_STATE_WORDS
from cpprb_like._files import file_maps
from cpprb_like.typing import FieldSpec

SCHEMA: dict[str, Any] = {
    "obs": {"shape": (20, 10), "dtype": "u1"},
    "act": {"shape": (), "dtype": ">i4"},
    "name": {"shape": (), "dtype": "U3"},
    "done": {"dtype": "?"},
}


def fill(rb: ReplayBuffer, n: int, first: int = 0) -> None:
    """Add ``n`` numbered steps."""
    for i in range(first, first + n):
        rb.add(obs=np.full((20, 10), i), act=i, name=f"{i}", done=i % 4 == 3)


def assert_same_content(expected: ReplayBuffer, actual: ReplayBuffer) -> None:
    """Rows, place and episode agree."""
    for name, column in expected.get_all_transitions().items():
        assert_same(column, actual.get_all_transitions()[name], name)
    assert expected.get_next_index() == actual.get_next_index()
    assert len(expected) == len(actual)
    assert expected.get_current_episode_len() == actual.get_current_episode_len()


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    """Where a test's files go."""
    return str(tmp_path / "replay")


def files(prefix: str) -> list[Path]:
    """All files of a test."""
    return sorted(Path(prefix).parent.iterdir())


@pytest.mark.parametrize("kind", [str, Path], ids=["str", "Path"])
def test_a_file_holds_the_rows(prefix: str, kind: Any) -> None:
    """With ``mmap_prefix`` a file of that name appears, and the buffer works as in memory."""
    mapped, plain = (
        ReplayBuffer(7, SCHEMA, mmap_prefix=kind(prefix), seed=1),
        ReplayBuffer(7, SCHEMA, seed=1),
    )
    assert files(prefix)
    assert all(file.name.startswith("replay") for file in files(prefix))
    fill(mapped, 10)
    fill(plain, 10)
    assert_same_content(plain, mapped)
    assert mapped.sample(9)["act"].tolist() == plain.sample(9)["act"].tolist()


def test_an_existing_file_is_not_overwritten(prefix: str) -> None:
    """Mode "x", the default, refuses a file that exists, and leaves it as it is."""
    rb = ReplayBuffer(7, SCHEMA, mmap_prefix=prefix)
    fill(rb, 5)
    del rb
    before = [file.read_bytes() for file in files(prefix)]
    modes: list[dict[str, Any]] = [{}, {"mmap_mode": "x"}]
    for options in modes:
        with pytest.raises(FileExistsError, match="replay"):
            ReplayBuffer(7, SCHEMA, mmap_prefix=prefix, **options)
    assert [file.read_bytes() for file in files(prefix)] == before


def test_an_existing_file_can_be_overwritten(prefix: str) -> None:
    """Mode "w" starts empty, with zeros, whatever was there, also with another schema."""
    fill(ReplayBuffer(7, SCHEMA, mmap_prefix=prefix), 5)
    rb = ReplayBuffer(9, {"x": {"shape": 300}}, mmap_prefix=prefix, mmap_mode="w")
    assert len(rb) == rb.get_next_index() == 0
    rb.add(x=np.ones(300))
    assert (rb[0]["x"] == 1).all()


OPENS = """
import sys
from cpprb_like import ReplayBuffer
try:
    ReplayBuffer(7, {"x": {"shape": ()}}, mmap_prefix=sys.argv[1], mmap_mode=sys.argv[2])
except BlockingIOError as error:
    print(error)
else:
    print("opened")
"""


@pytest.mark.parametrize("mode", ["r+", "w"])
def test_one_file_is_open_in_one_buffer_only(prefix: str, mode: Any) -> None:
    """As long as a buffer lives, no other opens or replaces its file, in any process.

    Two that wrote to one file tore each other's rows, and blamed the thread that read them.
    """
    fields: dict[str, FieldSpec] = {"x": {"shape": ()}}
    rb = ReplayBuffer(7, fields, mmap_prefix=prefix)
    rb.add(x=range(5))

    def open_elsewhere() -> str:
        command = [sys.executable, "-c", OPENS, prefix, mode]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return done.stdout

    for _ in range(2):
        with pytest.raises(BlockingIOError, match="another buffer has this file open"):
            ReplayBuffer(7, fields, mmap_prefix=prefix, mmap_mode=mode)
        assert "another buffer has this file open" in open_elsewhere()
        assert [path.name for path in files(prefix)] == ["replay.dat", "replay.dat.flushed.1"]
        rb.add(x=9)
    assert rb.sample(20)["x"].max() <= 9
    del rb
    assert open_elsewhere() == "opened\n"
    again = ReplayBuffer(7, fields, mmap_prefix=prefix, mmap_mode=mode)
    assert len(again) == (7 if mode == "r+" else 0)


@pytest.mark.skipif(sys.platform == "win32", reason="an open file keeps its name there")
def test_a_file_that_is_replaced_while_it_is_opened(
    prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who opened the old file and locks it then has a file without a name: that is refused."""
    fields: dict[str, FieldSpec] = {"x": {"shape": ()}}
    ReplayBuffer(7, fields, mmap_prefix=prefix)
    path, lock = Path(f"{prefix}.dat"), file_maps._lock

    def lock_late(file: Any, of: Path, **shared: bool) -> None:
        if of == path:
            other = path.with_name("other")
            other.write_bytes(path.read_bytes())
            other.replace(path)
        lock(file, of, **shared)

    monkeypatch.setattr(file_maps, "_lock", lock_late)
    for mode in ("r+", "w"):
        with pytest.raises(BlockingIOError, match="another buffer has this file open"):
            ReplayBuffer(7, fields, mmap_prefix=prefix, mmap_mode=mode)


def test_a_file_that_cannot_be_made_leaves_nothing_behind(
    prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk, for instance: the unfinished file is gone, and the old one is as it was."""
    fields: dict[str, FieldSpec] = {"x": {"shape": ()}}
    ReplayBuffer(7, fields, mmap_prefix=prefix).add(x=5)
    before = {path: path.read_bytes() for path in files(prefix)}

    def fail(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("cpprb_like._files.file_maps.mmap.mmap", fail)
    for name, mode in ((f"{prefix}2", "x"), (prefix, "w")):
        with pytest.raises(OSError, match=r"disk is full.*replay"):
            ReplayBuffer(7, fields, mmap_prefix=name, mmap_mode=mode)  # type: ignore[arg-type]
        assert {path: path.read_bytes() for path in files(prefix)} == before


KILLED = """
import os, signal, sys
from cpprb_like import ReplayBuffer
rb = ReplayBuffer(7, {"x": {"shape": ()}}, mmap_prefix=sys.argv[1])
rb.add(x=range(5))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no SIGKILL")
def test_the_file_of_a_killed_process_can_be_opened(prefix: str) -> None:
    """The system takes the lock back, however the process ended."""
    subprocess.run([sys.executable, "-c", KILLED, prefix], check=False)
    again = ReplayBuffer(7, {"x": {"shape": ()}}, mmap_prefix=prefix, mmap_mode="r+")
    assert again.get_all_transitions()["x"].tolist() == [0, 1, 2, 3, 4]


def test_a_file_with_other_ends_of_episodes_is_not_opened(prefix: str) -> None:
    """Where episodes end stands in the file, and was read as if the new options had said so."""
    fields: dict[str, FieldSpec] = {"x": {"shape": ()}, "stop": {"shape": ()}}
    rb = ReplayBuffer(7, fields, mmap_prefix=prefix, terminated="stop")
    rb.add(x=range(5), stop=[0, 1, 0, 1, 0])
    del rb
    for options in ({}, {"truncated": "stop"}, {"terminated": "x"}):
        with pytest.raises(ValueError, match="replay"):
            ReplayBuffer(7, fields, mmap_prefix=prefix, mmap_mode="r+", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("word", range(N_STATE_WORDS + 2))
@pytest.mark.parametrize("value", [-1, 0, 1, 2, 2**31, 2**62, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("n", [5, 12])
def test_every_number_of_a_header_is_checked(prefix: str, word: int, value: int, n: int) -> None:
    """A changed word of the header is refused, or makes no difference to what is read.

    Fewer rows written than begun is what a process leaves that was killed in a call of ``add``.

    Rows written near 2**63 crashed the process, and wrong episode lengths let ``sample`` hang.
    """
    fields: dict[str, FieldSpec] = {
        "x": {"shape": (), "dtype": "i8"},
        "done": {"shape": (), "dtype": bool},
    }
    options: dict[str, Any] = {
        "n_envs": 2, "Nstep": {"size": 2, "next": "x"}, "mmap_prefix": prefix
    }  # fmt: skip
    rb = ReplayBuffer(8, fields, **options)
    for i in range(n):
        rb.add_where([True, i % 3 > 0], x=[i, -i], done=[i % 4 == 3, False])
    arena, layout = rb._arena, rb._layout
    layout.state(arena)[word] = value
    del rb, arena
    try:
        again = ReplayBuffer(8, fields, mmap_mode="r+", seed=0, **options)
    except ValueError:
        return
    again.check()
    again.add(x=[7, 7], done=[True, True])
    again.sample(50)
    again.update(again.sample(5, indexes=True)["indexes"], x=np.ones(5, int))
    again.clear()
    again.check()


@pytest.mark.parametrize("flag", [1, 2, 4, 8, 9, 16, 64, 255])
def test_flags_that_contradict_the_rows_are_refused(prefix: str, flag: int) -> None:
    """The flags of a row say what its end fields say; the header counts those that are absent."""
    fill(ReplayBuffer(7, SCHEMA, mmap_prefix=prefix), 9)
    rb = ReplayBuffer(7, SCHEMA, mmap_prefix=prefix, mmap_mode="r+")
    rb._layout.flags(rb._arena)[3] ^= flag
    del rb
    with pytest.raises(ValueError, match="damaged"):
        ReplayBuffer(7, SCHEMA, mmap_prefix=prefix, mmap_mode="r+")


@pytest.mark.parametrize("n", [0, 3, 7, 12])
def test_a_file_can_be_opened_again(prefix: str, n: int) -> None:
    """Mode "a" finds the rows, the place to go on and the open episode, and goes on from there."""
    plain = ReplayBuffer(7, SCHEMA, seed=1)
    rb = ReplayBuffer(7, SCHEMA, mmap_prefix=prefix, seed=1)
    fill(rb, n)
    fill(plain, n)
    del rb
    again = ReplayBuffer(7, SCHEMA, mmap_prefix=prefix, mmap_mode="a", seed=1)
    if n:
        assert_same_content(plain, again)
    fill(again, 4, n)
    fill(plain, 4, n)
    assert_same_content(plain, again)
    del again
    assert_same_content(plain, ReplayBuffer(7, SCHEMA, mmap_prefix=prefix, mmap_mode="a"))


def test_the_declared_byte_order_is_no_property_of_the_file(prefix: str) -> None:
    """Values are stored in that of the machine, whatever the declaration says."""
    plain = ReplayBuffer(7, SCHEMA, mmap_prefix=prefix)
    fill(plain, 5)
    act = {"shape": (), "dtype": "<i4"}
    again = ReplayBuffer(7, SCHEMA | {"act": act}, mmap_prefix=prefix, mmap_mode="r")
    assert_same_content(plain, again)


def test_absent_rows_and_streams_are_found_again(prefix: str) -> None:
    """Absent rows and the lengths of several streams' episodes are in the file as well."""
    schema: dict[str, FieldSpec] = {"x": {"shape": (), "dtype": "i8"}}
    rb = ReplayBuffer(6, schema, n_envs=2, mmap_prefix=prefix)
    rb.add(x=[0, 1])
    rb.add_where([True, False], x=[2, 3])
    del rb
    again = ReplayBuffer(6, schema, n_envs=2, mmap_prefix=prefix, mmap_mode="a")
    assert again.get_all_transitions()["x"].tolist() == [0, 1, 2]
    assert [again.get_current_episode_len(env) for env in (0, 1)] == [2, 1]


OTHER: list[tuple[int, dict[str, Any], dict[str, Any]]] = [
    (8, SCHEMA, {}),
    (6, SCHEMA, {}),
    (7, SCHEMA | {"more": {}}, {}),
    (7, {name: SCHEMA[name] for name in ("obs", "act", "name")}, {}),
    (7, SCHEMA | {"act": {"shape": (), "dtype": "f4"}}, {}),
    (7, SCHEMA | {"act": {"shape": (), "dtype": ">u4"}}, {}),
    (7, SCHEMA | {"act": {"shape": (1,), "dtype": ">i4"}}, {}),
    (7, SCHEMA | {"obs": {"shape": (10, 20), "dtype": "u1"}}, {}),
    (7, {"OBS" if name == "obs" else name: spec for name, spec in SCHEMA.items()}, {}),
    (7, SCHEMA, {"n_envs": 7}),
]


@pytest.mark.parametrize(("size", "schema", "options"), OTHER)
def test_another_schema_does_not_open_the_file(
    prefix: str, size: int, schema: dict[str, Any], options: dict[str, Any]
) -> None:
    """A file of another capacity, schema or number of streams is refused and stays as it is."""
    fill(ReplayBuffer(7, SCHEMA, mmap_prefix=prefix), 5)
    before = [file.read_bytes() for file in files(prefix)]
    with pytest.raises(ValueError, match="replay"):
        ReplayBuffer(size, schema, mmap_prefix=prefix, mmap_mode="r+", **options)
    assert [file.read_bytes() for file in files(prefix)] == before


@pytest.mark.parametrize("damage", ["empty", "short", "long", "text"])
def test_a_file_that_is_none_of_ours_does_not_open(prefix: str, damage: str) -> None:
    """A file that was cut, extended or never was a buffer is refused."""
    fill(ReplayBuffer(7, SCHEMA, mmap_prefix=prefix), 5)
    for file in files(prefix):
        raw = file.read_bytes()
        changed = {"empty": b"", "short": raw[:-1], "long": raw + b"x", "text": b"hello" * len(raw)}
        file.write_bytes(changed[damage])
    with pytest.raises(ValueError, match="replay"):
        ReplayBuffer(7, SCHEMA, mmap_prefix=prefix, mmap_mode="r+")


def test_opening_a_file_that_is_not_there(prefix: str) -> None:
    """Mode "r+" without a file is a FileNotFoundError and creates none."""
    with pytest.raises(FileNotFoundError, match="replay"):
        ReplayBuffer(7, SCHEMA, mmap_prefix=prefix, mmap_mode="r+")
    assert not files(prefix)


def test_a_directory_that_is_not_there(prefix: str) -> None:
    """A prefix in a directory that does not exist is a FileNotFoundError."""
    with pytest.raises(FileNotFoundError):
        ReplayBuffer(7, SCHEMA, mmap_prefix=prefix + "/not/there")


@pytest.mark.parametrize("mode", ["rw", "w+", "", None, 3])
def test_unknown_modes(prefix: str, mode: Any) -> None:
    """A mode that does not exist is refused with the list of those that do, and no file appears."""
    with pytest.raises((TypeError, ValueError), match=r"mmap_mode.*x.*w.*r\+"):
        ReplayBuffer(7, SCHEMA, mmap_prefix=prefix, mmap_mode=mode)
    assert not files(prefix)


@pytest.mark.parametrize("dtype", ["O", [("a", "i4"), ("b", "O")]])
def test_objects_do_not_go_into_files(prefix: str, dtype: Any) -> None:
    """Python objects, which no file can hold, are refused, and no file appears."""
    with pytest.raises((TypeError, ValueError), match="'thing'"):
        ReplayBuffer(7, SCHEMA | {"thing": {"dtype": dtype}}, mmap_prefix=prefix)
    assert not files(prefix)


def test_refused_adds_leave_the_file_alone(prefix: str) -> None:
    """A refused add changes no byte of the file."""
    rb = ReplayBuffer(7, SCHEMA, mmap_prefix=prefix)
    fill(rb, 9)
    before = [file.read_bytes() for file in files(prefix)]
    with refused(rb, ValueError, "'name'"):
        rb.add(obs=np.zeros((20, 10)), act=1, name="much too long", done=True)
    assert [file.read_bytes() for file in files(prefix)] == before


@pytest.mark.parametrize("deep", [True, False])
def test_copies_of_a_mapped_buffer_live_in_memory(prefix: str, deep: bool) -> None:
    """A copy or pickle holds the values and not the file: both go their own ways."""
    rb = ReplayBuffer(7, SCHEMA, mmap_prefix=prefix, seed=1)
    fill(rb, 9)
    twin = copy.deepcopy(rb) if deep else pickle.loads(pickle.dumps(rb))
    assert_same_content(rb, twin)
    before = snapshot(rb)
    fill(twin, 3, 100)
    twin.clear()
    assert snapshot(rb) == before


def test_clearing_is_in_the_file(prefix: str) -> None:
    """After ``clear`` and opening again the buffer is empty."""
    rb = ReplayBuffer(7, SCHEMA, mmap_prefix=prefix)
    fill(rb, 9)
    rb.clear()
    del rb
    again = ReplayBuffer(7, SCHEMA, mmap_prefix=prefix, mmap_mode="r+")
    assert len(again) == again.get_next_index() == 0


def test_batches_outlive_a_mapped_buffer(prefix: str) -> None:
    """Batches are copies: they stay when the buffer and its file are gone."""
    rb = ReplayBuffer(7, SCHEMA, mmap_prefix=prefix)
    fill(rb, 9)
    batch = rb.sample(5)
    del rb
    for file in files(prefix):
        file.unlink()
    assert (batch["obs"] == batch["act"][:, None, None]).all()
