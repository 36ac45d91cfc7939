"""A shared replay is saved while processes add to it, and loaded: whole rows of each shard."""

from __future__ import annotations

import json
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dying_processes import CASES, PLAIN, Child, act, ended, shared_memory, step, taken, torn
from forged_folders import sealed
from scale import repeats

from cpprb_like import ReplayBuffer
from cpprb_like._core import stop_at
from cpprb_like.checkpoint import _segments
from cpprb_like.processes import SharedReplay
from cpprb_like.processes._saving import CopiedFiles, SavedShard
from cpprb_like.processes._shards import ROWS
from cpprb_like.samplers import Uniform

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="nothing is forked there")
CAPACITY = 50


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Any:
    before = shared_memory()
    yield
    assert shared_memory() <= before


@pytest.fixture(params=list(CASES))
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What the replay is made with."""
    return CASES[request.param]


def fill(replay: SharedReplay, options: dict[str, Any], counts: list[int]) -> list[dict[str, Any]]:
    """Have each actor add so many time steps; returns what each shard has."""
    rows = []
    for number, count in enumerate(counts):
        with replay.actor(number) as actor:
            for t in range(count):
                actor.add(**step(options, t))
            actor.on_episode_end()
            rows.append(actor.get_all_transitions())
    return rows


def shards_of(replay: SharedReplay) -> list[dict[str, Any]]:
    """What each shard has."""
    rows = []
    for number in range(replay.writers):
        with replay.actor(number) as actor:
            actor.check()
            rows.append(actor.get_all_transitions())
    return rows


def assert_same(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> None:
    """All rows of all shards are the same."""
    for ours, theirs in zip(one, other, strict=True):
        assert ours.keys() == theirs.keys()
        for name, values in ours.items():
            np.testing.assert_array_equal(values, theirs[name])


@pytest.mark.parametrize("counts", [[0, 0], [7, 0], [20, 130], [CAPACITY, CAPACITY + 1]])
def test_what_is_loaded_is_what_was_saved(
    tmp_path: Path, options: dict[str, Any], counts: list[int]
) -> None:
    """Each shard has its rows again, and actors go on behind them."""
    with SharedReplay(2 * CAPACITY, **options, writers=2) as replay:
        expected = fill(replay, options, counts)
        replay.save(tmp_path)
    with SharedReplay.load(tmp_path, name="loaded") as again:
        assert (again.name, again.writers, again.capacity) == ("loaded", 2, 2 * CAPACITY)
        if any(counts):
            assert torn(again.learner(seed=0).sample(50), options) is None
        assert_same(shards_of(again), expected)
        with again.actor(1) as actor:
            for t in range(counts[1], counts[1] + 3 * CAPACITY):
                actor.add(**step(options, t))
            actor.check()
            assert torn(actor.get_all_transitions(), options) is None


def test_shards_that_nobody_took(tmp_path: Path) -> None:
    """They are there, and empty."""
    with SharedReplay(100, **PLAIN, writers=3, reserve=False) as replay:
        fill(replay, PLAIN, [5])
        replay.save(tmp_path)
    with SharedReplay.load(tmp_path) as again:
        assert [len(rows["t"]) for rows in shards_of(again)] == [5, 0, 0]


def written(folder: Path) -> int:
    """Bytes of the files of the newest state that no older one has."""
    newest = max(int(path.name[1:].split("-")[0]) for path in folder.glob("s*-*.npy"))
    return sum(path.stat().st_size for path in folder.glob(f"s{newest}-*"))


def test_a_save_that_follows_another_one(
    tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It writes new rows alone, whoever saves; all of a shard of which old rows were edited."""
    monkeypatch.setattr(_segments, "SEGMENT_NBYTES", 1 << 16)
    with SharedReplay(20_000, **options, writers=2) as replay:
        fill(replay, options, [3000 // options.get("n_envs", 1)] * 2)
        with replay.actor(0) as actor:
            replay.save(tmp_path)
            first = written(tmp_path)
            rows = actor.get_all_transitions()
            t = int(rows["t"].max()) + 1
            for more in range(5):
                actor.add(**step(options, t + more))
            actor.on_episode_end()
            attached = SharedReplay.attach(replay.name)
            attached.save(tmp_path)
            assert written(tmp_path) < first * 0.2
            mark = np.array([77, 88])
            actor.update([3, 100], mark=mark, same=mark)
        attached.save(tmp_path)
        expected = shards_of(replay)
        assert 88 in expected[0]["mark"]
        for _ in range(2):
            attached.save(tmp_path)
    with SharedReplay.load(tmp_path) as again:
        assert_same(shards_of(again), expected)


def test_an_end_that_only_a_copy_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next save does not take it over, though no row of the shard was edited.

    A copy leaves out the newest row if its next values were overwritten meanwhile, and ends the
    episode before it. That row lay in a file that the next save took over. The episode of the
    loaded header then contradicted it, so that no load succeeded.
    """
    monkeypatch.setattr(_segments, "SEGMENT_NBYTES", 1)  # a file for each row
    options, steps, copies = CASES["chained"], iter(range(100)), iter(range(2))
    with SharedReplay(4 * CAPACITY, **options, writers=1) as replay:
        with replay.actor() as actor:

            def add(n: int) -> None:
                for _ in range(n):
                    actor.add(**step(options, next(steps)))

            def copy_sides(files: Any) -> None:
                if next(copies, None) is not None:  # the second try may lack these rows
                    add(2)
                return real(files)

            add(3)
            real = CopiedFiles._copy_sides
            with monkeypatch.context() as patch:
                patch.setattr(CopiedFiles, "_copy_sides", copy_sides)
                replay.save(tmp_path)
            with SharedReplay.load(tmp_path) as again:
                assert [len(rows["t"]) for rows in shards_of(again)] == [4]
            replay.save(tmp_path)
        expected = shards_of(replay)
    with SharedReplay.load(tmp_path) as again:
        assert_same(shards_of(again), expected)


def test_a_folder_of_another_replay(tmp_path: Path) -> None:
    """Nothing of it is taken for a row of this one."""
    for offset in (0, 1000):
        with SharedReplay(100, **PLAIN, writers=1) as replay:
            with replay.actor() as actor:
                for t in range(30):
                    actor.add(**step(PLAIN, t + offset))
            expected = shards_of(replay)
            replay.save(tmp_path)
    with SharedReplay.load(tmp_path) as again:
        assert_same(shards_of(again), expected)


@pytest.mark.parametrize("capacity", [20, 200])
def test_another_capacity(tmp_path: Path, capacity: int) -> None:
    """Each shard has its newest rows."""
    with SharedReplay(100, **PLAIN, writers=2) as replay:
        fill(replay, PLAIN, [80, 30])
        replay.save(tmp_path)
    with SharedReplay.load(tmp_path, capacity=capacity) as again:
        assert again.capacity == capacity
        first, second = (rows["t"].tolist() for rows in shards_of(again))
        most = min(50, capacity // 2)
        assert first == list(range(80 - most, 80))
        assert second == list(range(30 - min(30, most), 30))


def test_saving_beside_actors(tmp_path: Path, options: dict[str, Any]) -> None:
    """Actors add and edit meanwhile and wait for nobody; whatever was saved is whole."""
    with SharedReplay(400, **options, writers=2) as replay:
        children = [Child("writer", act(replay, options, seed)) for seed in range(2)]
        with ended(children):
            for child in children:
                child.wait_for_beat(5)
            for _ in range(5):
                replay.save(tmp_path)
                with SharedReplay.load(tmp_path) as again:
                    for rows in shards_of(again):
                        assert torn(rows, options) is None
                for child in children:
                    child.wait_for_beat()


def test_episodes_that_end_while_a_shard_is_copied(options: dict[str, Any]) -> None:
    """The copy is whole at the first try: its header is that of its rows.

    The header was read while rows were added, and an episode that ended after that left flags which
    contradicted it; so copies were made again on any error, at most 20 times.
    """
    with SharedReplay(CAPACITY, **options, writers=1) as replay:

        def job(child: Child) -> None:
            actor = replay.actor()
            t = 0
            while True:
                actor.add(**step(options, t))
                t += 1
                time.sleep(1e-5)
                actor.on_episode_end()
                time.sleep(1e-5)
                child.beat()

        child = Child("writer", job)
        with ended([child]):
            child.wait_for_beats(1)
            for _ in range(repeats(300, 100)):
                copy = SavedShard._of(
                    replay._options,
                    Uniform(),
                    np.random.default_rng(0),
                    replay._shard(0) / ROWS,
                    "r",
                )
            copy.check()
            assert torn(copy.get_all_transitions(), options) is None
            child.wait_for_beat()


def test_a_writer_that_was_killed_in_an_edit(tmp_path: Path, options: dict[str, Any]) -> None:
    """The edit is undone, and its rows are saved."""
    with SharedReplay(100, **options, writers=2) as replay:

        def job(child: Child) -> None:
            actor = replay.actor(0)
            for t in range(20):
                actor.add(**step(options, t))
            actor.on_episode_end()
            child.beat()
            stop_at("editing", signal.SIGKILL)
            slots = actor.sample(4, indexes=True)["indexes"]
            actor.update(slots, mark=np.zeros(4), same=np.ones(4))

        child = Child("writer", job)
        with ended([child]):
            assert child.end() == -signal.SIGKILL
        replay.save(tmp_path)
        expected = shards_of(replay)
        assert len(expected[0]["t"]) == 20 * options.get("n_envs", 1)
    with SharedReplay.load(tmp_path) as again:
        assert_same(shards_of(again), expected)


def test_a_save_that_is_killed(tmp_path: Path) -> None:
    """The folder has the state before, or the new one."""
    chance = random.Random(0)
    with SharedReplay(2000, **PLAIN, writers=1) as replay:
        fill(replay, PLAIN, [500])
        replay.save(tmp_path)
        newest = 499
        for _ in range(8):
            with taken(replay) as actor:
                for t in range(newest + 1, newest + 101):
                    actor.add(**step(PLAIN, t))

            def job(child: Child) -> None:
                child.beat()
                replay.save(tmp_path)
                time.sleep(60)

            child = Child("program that saves", job)
            with ended([child]):
                child.wait_for_beats(1)
                time.sleep(chance.random() * 0.03)
                child.kill()
            with SharedReplay.load(tmp_path) as again:
                (rows,) = shards_of(again)
                assert torn(rows, PLAIN) is None
                assert rows["t"].tolist() in (list(range(newest + 1)), list(range(newest + 101)))
            newest += 100
            replay.save(tmp_path)


def test_what_cannot_be_loaded(tmp_path: Path) -> None:
    """A folder without a checkpoint, with another one, and a name that is taken."""
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        SharedReplay.load(tmp_path)
    ReplayBuffer(10, {"x": {}}).save(tmp_path / "other")
    with pytest.raises(TypeError, match="has a ReplayBuffer, no SharedReplay"):
        SharedReplay.load(tmp_path / "other")
    with SharedReplay(10, {"x": {}}, writers=1, name="taken") as replay:
        replay.save(tmp_path / "ours")
        with pytest.raises(FileExistsError, match=r"'taken'; SharedReplay.attach"):
            SharedReplay.load(tmp_path / "ours", name="taken")
        with pytest.raises(ValueError, match="name: expected letters"):
            SharedReplay.load(tmp_path / "ours", name="a/b")
        with pytest.raises(TypeError, match=r"no ReplayBuffer|SavedReplay"):
            ReplayBuffer.load(tmp_path / "ours")


FORGERIES: list[tuple[tuple[str, ...], Any]] = [
    (("root",), []),
    (("root", "state"), {}),
    (("root", "state", "description"), {}),
    (("root", "state", "description", "writers"), None),
    (("root", "state", "description", "writers"), 10**5),
    (("root", "state", "shards"), []),
    (("root", "state", "description", "limiter"), 7),
    (("root", "state", "description", "limiter"), {}),
    (("root", "state", "description", "options"), {}),
    (("root", "state", "description", "options", "schema", "next_of"), [["x", "none"]]),
]


@pytest.mark.parametrize(("path", "value"), FORGERIES)
def test_a_forged_description_is_refused(tmp_path: Path, path: tuple[str, ...], value: Any) -> None:
    """No error of a missing key or a wrong type reaches the caller."""
    with SharedReplay(10, {"x": {}}, writers=1) as replay:
        replay.save(tmp_path)
    (file,) = tmp_path.glob("state-*.json")
    manifest = json.loads(file.read_text().splitlines()[0])
    place = manifest
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    file.write_bytes(sealed(manifest))
    with pytest.raises(ValueError):
        SharedReplay.load(tmp_path)
