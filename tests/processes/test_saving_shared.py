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
import shared_rows
from distributions import chi_square, chi_square_limit
from dying_processes import (
    CASES,
    PIXELS,
    PLAIN,
    Child,
    act,
    ended,
    shared_memory,
    step,
    taken,
    torn,
)
from forged_folders import sealed
from scale import repeats

from cpprb_like import ReplayBuffer
from cpprb_like._core import WORD_RESERVED, stop_at
from cpprb_like._fields.layout import Layout
from cpprb_like.checkpoint import _segments
from cpprb_like.checkpoint._ring_writer import RingWriter
from cpprb_like.processes import SharedReplay, _saving
from cpprb_like.processes._saving import CopiedFiles, copy_of
from cpprb_like.processes._shards import ROWS, FollowedFiles
from cpprb_like.samplers import Prioritized

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="nothing is forked there")
CAPACITY = 50


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Any:
    before = shared_memory()
    yield
    assert shared_memory() <= before


@pytest.fixture(autouse=True)
def _in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wide fields of small shards are not copied, as those of large ones."""
    monkeypatch.setattr(_saving, "WHOLE_NBYTES", 0)


@pytest.fixture(params=["in place", "whole"])
def is_whole(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether shards are copied whole."""
    if request.param == "whole":
        monkeypatch.setattr(_saving, "WHOLE_NBYTES", 1 << 24)
    return bool(request.param == "whole")


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
        theirs = unpadded(theirs)
        for name, values in unpadded(ours).items():
            np.testing.assert_array_equal(values, theirs[name])


def unpadded(rows: dict[str, Any]) -> dict[str, Any]:
    """Rows padded to the longest of them, and not of more rows."""
    if "T_mask" not in rows:
        return rows
    longest = int(rows["T_mask"].sum(axis=1).max(initial=0))
    cut = {name: rows[name][..., :longest] for name in ("ids", "pairs", "T_mask")}
    return rows | cut


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


def test_shards_without_an_actor(tmp_path: Path) -> None:
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


@pytest.mark.once
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


@pytest.mark.once
@pytest.mark.usefixtures("is_whole")
def test_saves_of_a_full_shard_in_use(
    tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They write new rows alone, though the oldest rows are overwritten during each copy.

    These rows were marked as absent, and a shard with absent rows is written whole.
    """
    n_envs = options.get("n_envs", 1)
    monkeypatch.setattr(_segments, "SEGMENT_NBYTES", 1 << 14)
    real = CopiedFiles._spans_to_copy
    with SharedReplay(2000 * n_envs, **options, writers=1) as replay:
        fill(replay, options, [2500])
        with replay.actor() as actor:
            newest = iter(range(2500, 10_000))

            def spans_to_copy(*given: Any) -> Any:
                for _ in range(5):
                    actor.add(**step(options, next(newest)))
                return real(*given)

            monkeypatch.setattr(CopiedFiles, "_spans_to_copy", spans_to_copy)
            sizes = []
            for _ in range(4):
                for _ in range(20):
                    actor.add(**step(options, next(newest)))
                replay.save(tmp_path, sync=False)
                sizes.append(written(tmp_path))
                with SharedReplay.load(tmp_path) as again:
                    (rows,) = shards_of(again)
                assert torn(rows, options) is None
                stop = next(newest) - 5  # the rows of the second try were added after its header
                actor.add(**step(options, stop + 5))
                times = np.unique(rows["t"])
                assert times.tolist() == list(range(times[0], stop))
                assert stop - times[0] > 1980
            assert max(sizes[1:]) < 0.2 * sizes[0]


@pytest.mark.once
@pytest.mark.usefixtures("is_whole")
def test_saves_after_rows_left_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They write new rows alone. Rows that left were marked as absent in a whole copy."""
    monkeypatch.setattr(_segments, "SEGMENT_NBYTES", 1 << 14)
    fields: dict[str, Any] = {"ids": {"shape": ("T",), "dtype": "i8"}}
    sizes = []
    with (
        SharedReplay(5000, fields, room={"T": 6000}, writers=1) as replay,
        replay.actor() as actor,
    ):
        for first, n in ((0, 3200), (3200, 30), (3230, 30)):
            actor.add(ids=(np.arange(2 * first, 2 * (first + n)), 2 * np.arange(n + 1)))
            replay.save(tmp_path, sync=False)
            sizes.append(written(tmp_path))
            with SharedReplay.load(tmp_path) as again:
                (rows,) = shards_of(again)
            np.testing.assert_array_equal(rows["ids"], actor.get_all_transitions()["ids"])
        assert actor.stats()["left_for_room"] == 260
    assert max(sizes[1:]) < 0.2 * sizes[0]


def test_an_end_that_only_a_copy_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next save does not take it over, though no row of the shard was edited.

    A copy leaves out the newest row if its next values were overwritten since, and ends the
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

            def have_tag(*given: Any) -> bool:
                if next(copies, None) is not None:  # the second try may lack these rows
                    add(2)
                return real(*given)

            add(3)
            real = CopiedFiles._have_tag
            with monkeypatch.context() as patch:
                patch.setattr(CopiedFiles, "_have_tag", have_tag)
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


@pytest.mark.once
@pytest.mark.usefixtures("is_whole")
def test_saving_beside_actors(tmp_path: Path, options: dict[str, Any]) -> None:
    """Actors add and edit at the same time, without a wait; whatever was saved is whole."""
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


@pytest.mark.once
def test_stacks_and_next_stacks_beside_actors(tmp_path: Path) -> None:
    """Frames are overwritten while they are saved; each loaded stack is whole."""
    fields, options = shared_rows.CHAINED, shared_rows.CHAINED_OPTIONS
    with SharedReplay(300, fields, writers=1, **options) as replay:

        def job(child: Child) -> None:
            actor, t = replay.actor(), 0
            while True:
                actor.add(**shared_rows.chained(shared_rows.ids(0, t, t + 3)))
                t += 3
                child.beat()

        child = Child("writer", job)
        with ended([child]):
            child.wait_for_beats(50)
            for _ in range(repeats(30, 10)):
                replay.save(tmp_path)
                with SharedReplay.load(tmp_path) as again:
                    (rows,) = shards_of(again)
                assert len(rows["id"])
                shared_rows.check(rows, shared_rows.chained)
                child.wait_for_beat()


def test_each_number_of_rows(is_whole: bool) -> None:
    """A copy has the bytes of all rows, however far the ring was written."""
    cls = _saving.WholeShard if is_whole else _saving.SavedShard
    options = {"env_dict": shared_rows.CHAINED, **shared_rows.CHAINED_OPTIONS}
    with SharedReplay(20, **options, writers=1) as replay, replay.actor() as actor:
        for t in range(50):
            actor.add(**shared_rows.chained(shared_rows.ids(0, t, t + 1)))
            copy = copy_of(replay._shard(0), 0, replay._options, cls)
            assert copy is not None
            rows = copy.get_all_transitions()
            assert_same([rows], [actor.get_all_transitions()])
            shared_rows.check(rows, shared_rows.chained)


# ---- what an actor does while the files are written ----------------------------------------


class Meanwhile:
    """Calls ``job`` once while the rows of a save are written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real = RingWriter._write_segment
        self.job: Any = None

        def write_segment(writer: RingWriter, *given: Any) -> Any:
            found = real(writer, *given)
            job, self.job = self.job, None
            if job is not None:
                job()
            return found

        monkeypatch.setattr(RingWriter, "_write_segment", write_segment)


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Meanwhile:
    """A job for the middle of a save."""
    monkeypatch.setattr(_segments, "SEGMENT_NBYTES", 1)  # a file for each row
    return Meanwhile(monkeypatch)


@pytest.mark.once
@pytest.mark.parametrize(
    "more",
    [
        *(0, CAPACITY),
        *(pytest.param(n, marks=pytest.mark.once) for n in (1, 20, CAPACITY - 1, 3 * CAPACITY)),
    ],
)
def test_rows_that_are_overwritten_during_the_save(
    tmp_path: Path, options: dict[str, Any], meanwhile: Meanwhile, more: int, is_whole: bool
) -> None:
    """The save has the others of its moment; a save after it has all."""
    n_envs = options.get("n_envs", 1)
    with SharedReplay(CAPACITY * n_envs, **options, writers=1) as replay:
        fill(replay, options, [2 * CAPACITY])
        with replay.actor() as actor:
            now, steps = 2 * CAPACITY, actor.ring.capacity // n_envs

            def add() -> None:
                for t in range(now, now + more):
                    actor.add(**step(options, t))
                actor.on_episode_end()

            for _ in range(2):
                before = actor.get_all_transitions()
                meanwhile.job = add
                replay.save(tmp_path, sync=False)
                assert meanwhile.job is None
                with SharedReplay.load(tmp_path) as again:
                    (rows,) = shards_of(again)
                assert torn(rows, options) is None
                if more < steps and not is_whole:
                    stays = before["t"] >= now + more - steps
                    before = {name: values[stays] for name, values in before.items()}
                    assert_same([rows], [before])
                elif is_whole:
                    assert_same([rows], [before])
                else:  # no row is left, and the save begins again
                    assert len(rows["t"]) == len(before["t"])
                now += more
            replay.save(tmp_path, sync=False)
        expected = shards_of(replay)
    with SharedReplay.load(tmp_path) as again:
        assert_same(shards_of(again), expected)


@pytest.mark.once
@pytest.mark.parametrize("what", ["update", "clear", "delete", "another actor"])
def test_rows_that_are_edited_during_the_save(
    tmp_path: Path, options: dict[str, Any], meanwhile: Meanwhile, what: str
) -> None:
    """What is loaded is what was there before the edit or after it."""
    with SharedReplay(200, **options, writers=1) as replay:
        before = fill(replay, options, [60])
        actor = replay.actor()

        def edit() -> None:
            nonlocal actor
            if what == "update":
                slots = np.arange(20)
                actor.update(slots, mark=np.full(20, -1), same=np.full(20, -1))
                actor.update(slots, image=np.zeros((20, PIXELS), np.uint8))
            elif what == "clear":
                actor.clear()
                actor.add(**step(options, 1000))
            elif what == "delete":
                actor.episodes.delete(0)
            else:
                actor.close()
                actor = replay.actor()
                actor.add(**step(options, 60))

        meanwhile.job = edit
        replay.save(tmp_path, sync=False)
        with SharedReplay.load(tmp_path) as again:
            (rows,) = shards_of(again)
        actor.close()
        after = shards_of(replay)
        name = "image" if what == "update" else "t"
        is_old = np.array_equal(rows[name], before[0][name])
        assert_same([rows], before if is_old else after)


@pytest.mark.parametrize("what", ["narrow", "wide"])
def test_edits_of_narrow_fields_need_no_copy_of_wide_ones(
    tmp_path: Path, meanwhile: Meanwhile, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Any edit made the save copy all rows, and edits were faster than a copy of a large shard."""
    kinds = []
    copy = _saving.copy_of

    def noted(shard: Path, number: int, rows: Any, cls: Any) -> Any:
        kinds.append(cls.__name__)
        return copy(shard, number, rows, cls)

    monkeypatch.setattr(_saving, "copy_of", noted)
    with SharedReplay(200, **PLAIN, writers=1) as replay:
        (before,) = fill(replay, PLAIN, [60])
        actor = replay.actor()

        def edit() -> None:
            values: Any = {"narrow": {"mark": [-1]}, "wide": {"image": np.zeros((1, PIXELS), "u1")}}
            actor.update([3], **values[what])

        meanwhile.job = edit
        replay.save(tmp_path, sync=False)
        assert kinds == ["SavedShard", "WholeShard"][: 1 + (what == "wide")]
        actor.close()
        (after,) = shards_of(replay)
        with SharedReplay.load(tmp_path) as again:
            assert_same(shards_of(again), [before if what == "narrow" else after])


def test_an_add_that_is_undone_during_the_save(
    tmp_path: Path, meanwhile: Meanwhile, is_whole: bool
) -> None:
    """The next save writes the rows again that had been overwritten for a moment."""
    with SharedReplay(CAPACITY, **PLAIN, writers=1) as replay:
        expected = fill(replay, PLAIN, [2 * CAPACITY])
        files = FollowedFiles(Layout.of(replay._options), replay._shard(0) / ROWS, "r+")
        header, arena = files.layout.state(files.arena), files.arena.copy()

        def begin() -> None:
            header[WORD_RESERVED] += CAPACITY * 4 // 5
            for offset, nbytes in files.layout.spans(CAPACITY)[2:]:
                files.arena[offset : offset + nbytes * 4 // 5] = 77

        meanwhile.job = begin
        replay.save(tmp_path, sync=False)
        with SharedReplay.load(tmp_path) as again:
            assert (len(shards_of(again)[0]["t"]) == CAPACITY) == is_whole
        files.arena[:] = arena
        replay.save(tmp_path, sync=False)
    with SharedReplay.load(tmp_path) as again:
        assert_same(shards_of(again), expected)


def test_priorities_of_rows_that_are_overwritten_during_the_save(
    tmp_path: Path, meanwhile: Meanwhile
) -> None:
    """A learner that was saved before the rows draws those that were saved."""
    with SharedReplay(CAPACITY, **PLAIN, writers=1) as replay:
        fill(replay, PLAIN, [CAPACITY])
        learner = replay.learner(Prioritized(alpha=1.0, eps=0.0), seed=0)
        rows = learner.sample(500)
        learner.update_priorities(rows["indexes"], np.where(rows["t"] < 10, 1e9, rows["t"]))
        with replay.actor() as actor:

            def add() -> None:
                for t in range(CAPACITY, CAPACITY + 10):
                    actor.add(**step(PLAIN, t))

            meanwhile.job = add
            replay.save(tmp_path, learners={"main": learner}, sync=False)
    with SharedReplay.load(tmp_path) as again:
        batch = again.restore_learner(tmp_path, "main").sample(20_000)
    assert torn(batch, PLAIN) is None
    drawn = np.bincount(batch["t"], minlength=CAPACITY)
    assert not drawn[:10].any()
    wanted = 20_000 * np.arange(10, CAPACITY) / np.arange(10, CAPACITY).sum()
    assert chi_square(drawn[10:], wanted) < chi_square_limit(CAPACITY - 10)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells")
def test_a_save_takes_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wide fields are not copied: a save took the memory of the whole capacity."""

    def own() -> int:
        (line,) = (
            line
            for line in Path("/proc/self/status").read_text().splitlines()
            if line.startswith("RssAnon:")
        )
        return int(line.split()[1]) * 1024

    fields: dict[str, Any] = {"x": {"shape": ()}, "image": {"shape": 10_000, "dtype": "u1"}}
    rows, seen = 10_000, []
    real = RingWriter._write_segment

    def write_segment(*given: Any) -> Any:
        found = real(*given)
        seen.append(own())
        return found

    monkeypatch.setattr(RingWriter, "_write_segment", write_segment)
    with SharedReplay(rows, fields, writers=1) as replay:
        with replay.actor() as actor:
            for _ in range(0, rows + 1000, 1000):
                actor.add(x=np.zeros(1000), image=np.ones((1000, 10_000), np.uint8))
        before = own()
        replay.save(tmp_path, sync=False)
    assert len(seen) > 2
    assert max(seen) - before < 0.1 * rows * 10_000


@pytest.mark.once
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
                copy = copy_of(replay._shard(0), 0, replay._options)
            assert copy is not None
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


@pytest.mark.once
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
