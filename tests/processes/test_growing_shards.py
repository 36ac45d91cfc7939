"""Files of a shard grow beside learners: no process is hindered, whatever becomes of the writer."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dying_processes import Child, ended, shared_memory, taken
from file_map_cases import room_for
from interruptions import killed_everywhere
from scale import PROCESS_KILLS

from cpprb_like._files import file_maps
from cpprb_like._machine import file_systems
from cpprb_like.processes import Learner, SharedReplay, _shards

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no fork and no SIGKILL")

# Of all tests of ``test_deaths``; here a tenth. The long form has 1000.
CAPACITY = 2000
FIELDS: dict[str, Any] = {
    "x": {"shape": 5, "dtype": "i8"},
    "y": {"shape": 3, "dtype": "i8"},
}


@pytest.fixture(autouse=True)
def _little_room(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Files begin with room for four values, so that they grow often; none is left."""
    monkeypatch.setattr(file_maps, "FIRST_ROOM", 4)
    before = shared_memory()
    yield
    assert shared_memory() <= before


def made(capacity: int = CAPACITY, next_of: Any = ("x", "y"), **options: Any) -> SharedReplay:
    """A replay of one writer."""
    return SharedReplay(capacity, FIELDS, writers=1, next_of=list(next_of), **options)


def step(t: int) -> dict[str, Any]:
    """A step that does not follow the one before: its next values are stored apart."""
    x, y = np.full(5, t), np.full(3, t)
    return {"x": x, "next_x": -x - 1, "y": y, "next_y": -y - 2}


def add(actor: Any, first: int, n: int) -> None:
    """Add numbered steps; only the fields that there are."""
    names = actor.fields
    for t in range(first, first + n):
        actor.add(**{name: value for name, value in step(t).items() if name in names})


def whole(batch: dict[str, Any]) -> list[int]:
    """The numbers of rows, each of which is whole."""
    t = batch["x"][:, :1]
    for name, values in {"next_x": -t - 1, "y": t, "next_y": -t - 2}.items():
        assert name not in batch or (batch[name] == values).all(), name
    return sorted(set(t[:, 0].tolist()))


def drawn(learner: Learner, n: int = 200) -> list[int]:
    """The numbers of rows that are drawn."""
    return whole(learner.sample(n))


def test_a_writer_that_is_killed_while_its_files_grow(tmp_path: Path) -> None:
    """Before whichever line: learners draw, the replay is saved, and another actor goes on.

    A larger file had its name before its header, and the shard was lost to all of them.
    """

    def make(line: int) -> Any:
        replay = made(100, ["x"])
        with replay.actor() as actor:
            add(actor, 0, 5)
        old = replay.learner(seed=0)
        assert drawn(old) == list(range(5))
        return line, replay, old

    def call(thing: Any) -> Any:
        actor = thing[1].actor()
        return lambda: add(actor, 5, 1)

    def look(thing: Any) -> None:
        line, replay, old = thing
        with replay:
            allowed = list(range(5)), list(range(6))
            assert drawn(old) in allowed
            assert drawn(replay.learner(seed=0)) in allowed
            if line % 3 == 0:
                folder = tmp_path / str(line)
                replay.save(folder)
                with SharedReplay.load(folder) as loaded:
                    assert drawn(loaded.learner(seed=0)) in allowed
            with taken(replay) as actor:
                actor.check()
                add(actor, 6, 30)
                assert drawn(old, 500)[-30:] == list(range(6, 36))
                assert drawn(replay.learner(seed=0), 500)[-30:] == list(range(6, 36))
            left = [path.name for path in (replay.folder / "shard-0").glob("rows.*")]
            assert len([name for name in left if ".0-0." in name]) == 1, left
            assert not [name for name in left if name.endswith(".new")]

    growing = (
        _shards.ShardFiles.grow, file_maps.Files.grow, file_maps.Files._create_side,
        file_maps.reserve, file_systems.name_new,
    )  # fmt: skip
    assert killed_everywhere(growing, make, call, look) > 25


@pytest.mark.filterwarnings("ignore:.* do not follow:UserWarning")
@pytest.mark.parametrize("seed", range(3))
def test_kills_at_random_moments_while_files_grow(seed: int) -> None:
    """A learner draws beside the writer, learners come, and the next actor has all rows."""
    chance = random.Random(seed)
    for _ in range(-(-PROCESS_KILLS // 30)):

        def write(child: Child) -> None:
            with taken(replay) as actor:
                child.beat()
                add(actor, 0, CAPACITY)
            while True:
                time.sleep(1)

        with made() as replay:
            old = replay.learner(seed=0)
            child = Child("writer", write)
            with ended([child]):
                child.wait_for_beats(1)
                until = time.monotonic() + chance.random() * 0.05
                while time.monotonic() < until:
                    with replay.learner(seed=0) as new:
                        for learner in (old, new):
                            if len(learner):
                                drawn(learner)
                child.kill()
            if len(old):
                drawn(old)
            with taken(replay) as actor:
                actor.check()
                rows = whole(actor.get_all_transitions())
                assert rows == list(range(len(rows)))
                add(actor, len(rows), 10)
            assert drawn(old, 20000)[-1] == len(rows) + 9


def test_an_error_while_files_are_opened_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next draw opens them; after a whole round of rows, too, which it had taken for read."""
    with made(8) as replay, replay.actor() as actor:
        add(actor, 0, 8)
        learner = replay.learner(seed=0)
        drawn(learner)
        for first in (8, 28):
            add(actor, first, 20)
            with monkeypatch.context() as patch:
                patch.setattr(file_maps.Files, "_open_side", refuse)
                with pytest.raises(ValueError, match="a test"):
                    drawn(learner)
            assert drawn(learner) == list(range(first + 12, first + 20))


def refuse(*_: Any) -> None:
    """An error that no race explains."""
    raise ValueError("damaged (a test)")


@pytest.mark.parametrize("room", [4, 1024])
@pytest.mark.parametrize("first", [1, 2, 3, 10, 50])
def test_a_learner_that_comes_while_rows_are_there(
    monkeypatch: pytest.MonkeyPatch, room: int, first: int
) -> None:
    """It finds the next values of later rows, too.

    Places of a file without a value counted as values of rows before the first one, as long as rows
    were fewer than the capacity. So the learner had no room for others, and read the next row's.
    """
    monkeypatch.setattr(file_maps, "FIRST_ROOM", room)
    with made(100) as replay, replay.actor() as actor:
        add(actor, 0, first)
        learner = replay.learner(seed=0)
        for t in range(first, first + 150, 3):
            drawn(learner, 20)
            add(actor, t, 3)
        assert drawn(learner, 2000)[-50:] == list(range(first + 100, first + 150))


def test_files_that_are_gone_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A learner tries again while a larger file takes the place of one, and not for ever."""
    count = 0
    real = file_maps.Files._open_side

    def missing(*given: Any) -> Any:
        nonlocal count
        count += 1
        if count <= 3:
            raise FileNotFoundError("gone (a test)")
        return real(*given)

    with made(8) as replay, replay.actor() as actor:
        add(actor, 0, 8)
        with monkeypatch.context() as patch:
            patch.setattr(file_maps.Files, "_open_side", missing)
            assert drawn(replay.learner(seed=0)) == list(range(8))
        monkeypatch.setattr(_shards, "PATIENCE", 0.0)
        for path in (replay.folder / "shard-0").glob("rows.dat.0-0.*"):
            path.unlink()
        with pytest.raises(FileNotFoundError, match="a part of the rows is missing"):
            drawn(replay.learner(seed=0))


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="memory cannot be reserved here")
@pytest.mark.parametrize("calls", [0, 1])
def test_memory_that_runs_out_while_files_grow(monkeypatch: pytest.MonkeyPatch, calls: int) -> None:
    """``add`` says what to do and adds nothing; no process is hindered, and it goes on with room.

    It was a bare ``OSError``. One file may have grown before another did not: learners hear of it.
    """
    with made(100) as replay, replay.actor() as actor:
        add(actor, 0, 3)
        learner = replay.learner(seed=0)
        assert drawn(learner) == [0, 1, 2]
        block = [step(t) for t in range(3, 20)]
        values = {name: np.array([one[name] for one in block]) for name in block[0]}
        with monkeypatch.context() as patch:
            patch.setattr(os, "posix_fallocate", room_for(calls))
            with pytest.raises(
                MemoryError,
                match=r"keep aside needs [\d,]+ bytes .*enlarge it .*--shm-size.*nothing was added",
            ):
                actor.add(**values)
            assert whole(actor.get_all_transitions()) == drawn(learner) == [0, 1, 2]
            actor.check()
            assert not list((replay.folder / "shard-0").glob("*.new"))
            add(actor, 3, 2)  # for which there is room
            assert drawn(learner) == [0, 1, 2, 3, 4]
        actor.add(**values)
        add(actor, 20, 30)
        actor.check()
        assert drawn(learner, 1000)[-30:] == list(range(20, 50))
