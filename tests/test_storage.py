"""Buffers whose memory is a file: created, refused, opened again, emptied."""

from __future__ import annotations

import copy
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


TWO_OWNERS = """
import sys, numpy as np
from cpprb_like import ReplayBuffer
first = ReplayBuffer(1000, {"x": {"shape": 1000}}, mmap_prefix=sys.argv[1], seed=0)
first.add(x=np.full((1000, 1000), 7))
second = ReplayBuffer(10, {"x": {}}, mmap_prefix=sys.argv[1], mmap_mode="w")
second.add(x=np.ones(10))
first.add(x=np.full((500, 1000), 7))
assert (first.sample(1000)["x"] == 7).all()
assert len(first) == 1000 and len(second) == 10
"""


def test_overwriting_the_file_of_a_living_buffer(prefix: str) -> None:
    """A buffer whose file is replaced keeps its rows, and the process does not crash."""
    done = subprocess.run(
        [sys.executable, "-c", TWO_OWNERS, prefix], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("n", [0, 3, 7, 12])
def test_a_file_can_be_opened_again(prefix: str, n: int) -> None:
    """Mode "r+" finds the rows, the place to go on and the open episode, and goes on from there."""
    plain = ReplayBuffer(7, SCHEMA, seed=1)
    rb = ReplayBuffer(7, SCHEMA, mmap_prefix=prefix, seed=1)
    fill(rb, n)
    fill(plain, n)
    del rb
    again = ReplayBuffer(7, SCHEMA, mmap_prefix=prefix, mmap_mode="r+", seed=1)
    if n:
        assert_same_content(plain, again)
    fill(again, 4, n)
    fill(plain, 4, n)
    assert_same_content(plain, again)
    del again
    assert_same_content(plain, ReplayBuffer(7, SCHEMA, mmap_prefix=prefix, mmap_mode="r+"))


def test_absent_rows_and_streams_are_found_again(prefix: str) -> None:
    """Absent rows and the lengths of several streams' episodes are in the file as well."""
    schema = {"x": {"shape": (), "dtype": "i8"}}
    rb = ReplayBuffer(6, schema, n_envs=2, mmap_prefix=prefix)
    rb.add(x=[0, 1])
    rb.add_where([True, False], x=[2, 3])
    del rb
    again = ReplayBuffer(6, schema, n_envs=2, mmap_prefix=prefix, mmap_mode="r+")
    assert again.get_all_transitions()["x"].tolist() == [0, 1, 2]
    assert [again.get_current_episode_len(env) for env in (0, 1)] == [2, 1]


OTHER: list[tuple[int, dict[str, Any], dict[str, Any]]] = [
    (8, SCHEMA, {}),
    (6, SCHEMA, {}),
    (7, SCHEMA | {"more": {}}, {}),
    (7, {name: SCHEMA[name] for name in ("obs", "act", "name")}, {}),
    (7, SCHEMA | {"act": {"shape": (), "dtype": "<i4"}}, {}),
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


@pytest.mark.parametrize("mode", ["r", "a", "w+", "", None, 3])
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
