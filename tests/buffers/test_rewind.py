"""Buffers that go back to a row: their rows, draws, handles and counts.

Files that are killed meanwhile are in ``files/test_rewinds_in_files``, shards in
``processes/test_rewound_shards``, and values of any length in ``test_ragged_rows``.
"""

from __future__ import annotations

import os
import random
from io import UnsupportedOperation
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import refused
from rewound import KINDS, History, Kind
from scale import LONG

from cpprb_like import Mixture, PrioritizedReplayBuffer, ReplayBuffer, checkpoint
from cpprb_like.limiters import MinSize, RateLimited
from cpprb_like.processes import SharedReplay
from cpprb_like.views import Sequences

HISTORIES = int(os.environ.get("CPPRB_LIKE_REWINDS", "50" if LONG else "1"))  # of each kind
ACTIONS = 25 if LONG else 14
FIELDS: dict[str, Any] = {
    "t": {"shape": (), "dtype": "i8"},
    "obs": {"shape": 2},
    "done": {"shape": (), "dtype": bool},
}


def steps(first: int, n: int, length: int = 7, n_envs: int = 1) -> dict[str, Any]:
    """Time steps of all environments; an episode ends after each ``length``."""
    t = np.repeat(np.arange(first, first + n), n_envs)
    obs = np.stack([t, t], 1).astype("f4")
    return {"t": t, "obs": obs, "next_obs": obs + 1, "done": t % length == length - 1}


def numbers(rb: Any) -> list[int]:
    """The numbers of the rows that can be drawn."""
    found: list[int] = sorted(rb.get_all_transitions()["t"].tolist()) if len(rb) else []
    return found


@pytest.mark.once
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_random_histories(tmp_path: Path, kind: Kind) -> None:
    """After each rewind all is as in a buffer in which the forgotten rows never were steps."""
    for seed in range(HISTORIES):
        (tmp_path / str(seed)).mkdir()
        history = History(kind, tmp_path / str(seed), random.Random(f"{kind.name} {seed}"))
        for _ in range(ACTIONS):
            history.act()
            if history.entries and history.entries[-1][0] == "end":
                history.compare()
        history.compare()


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("later", [0, 5, 30, 200])
def test_the_rows_of_a_checkpoint(tmp_path: Path, later: int, n_envs: int) -> None:
    """The rows are those of the checkpoint, but for those that were overwritten since."""
    rb = ReplayBuffer(60, FIELDS, next_of="obs", n_envs=n_envs, seed=0)
    for t in range(33):
        rb.add(**steps(t, 1, 10, n_envs))
    rb.save(tmp_path)
    saved = checkpoint.inspect(tmp_path)
    assert saved == checkpoint.inspect(tmp_path, state=saved.state)
    assert saved.rows == rb.rows == 33 * n_envs
    for t in range(33, 33 + later):
        rb.add(**steps(t, 1, 10, n_envs))
    rb.rewind(saved.rows)
    loaded = ReplayBuffer.load(tmp_path)
    expected = loaded.get_all_transitions()
    n_kept = min(len(loaded), max(60 - later * n_envs, 0))
    assert len(rb) == n_kept
    for name, values in (rb.get_all_transitions() if n_kept else {}).items():
        order = np.argsort(expected["t"], kind="stable")
        mine = np.argsort(rb.get_all_transitions()["t"], kind="stable")
        np.testing.assert_array_equal(values[mine], expected[name][order][-n_kept:])
    if n_kept:
        assert rb.sample(500)["t"].max() == 32
        assert [rb.get_current_episode_len(env) for env in range(n_envs)] == [0] * n_envs
    rb.check()


def test_what_row_can_be() -> None:
    """Wrong ones are refused, and change nothing."""
    rb = ReplayBuffer(20, FIELDS, next_of="obs", n_envs=2)
    for t in range(3):
        rb.add(**steps(t, 1, n_envs=2))
    row: Any
    for row in (True, 2.0, "2", None, np.float64(2), [2]):
        with refused(rb, TypeError, "row: expected an integer, got"):
            rb.rewind(row)
    with refused(rb, ValueError, "row: expected at least 0, got -2"):
        rb.rewind(-2)
    with refused(rb, ValueError, "row: expected at most 6, the number of the next row, got 8"):
        rb.rewind(8)
    with refused(
        rb, ValueError, "the first of the 2 rows of a time step, got 3, which is 1 behind"
    ):
        rb.rewind(3)
    row = np.int64(4)
    assert rb.rewind(row) == 2
    assert [rb.get_current_episode_len(env) for env in range(2)] == [0, 0]
    assert (rb.rewind(4), rb.rewind(0), len(rb), rb.rows) == (0, 4, 0, 6)
    assert ReplayBuffer(5, FIELDS).rewind(0) == 0


def test_a_file_that_is_read_only(tmp_path: Path) -> None:
    """Nothing is forgotten there."""
    rb = ReplayBuffer(20, FIELDS, mmap_prefix=tmp_path / "a")
    rb.add(**{name: one for name, one in steps(0, 5).items() if name in FIELDS})
    reader = ReplayBuffer(20, FIELDS, mmap_prefix=tmp_path / "a", mmap_mode="r")
    with refused(reader, UnsupportedOperation, "mmap_mode='r'"):
        reader.rewind(2)


def test_rows_before_a_clear_are_older_than_all() -> None:
    """A checkpoint from before: all rows are of later; numbers go on over a clear."""
    rb = ReplayBuffer(20, FIELDS, next_of="obs")
    rb.add(**steps(0, 13))
    row = rb.rows
    rb.clear()
    assert rb.rows == row
    rb.add(**steps(100, 15))
    assert rb.rows == row + 15
    assert rb.rewind(row) == 15
    rb.add(**steps(200, 3))
    assert numbers(rb) == [200, 201, 202]


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("size", [60, 500, 20])
def test_rows_go_on_in_a_buffer_of_another_size(tmp_path: Path, size: int, n_envs: int) -> None:
    """``rows`` of a checkpoint names the same rows there; without it all of them were forgotten."""
    size *= n_envs
    rb = ReplayBuffer(60 * n_envs, FIELDS, next_of="obs", n_envs=n_envs, seed=0)
    for t in range(41):
        rb.add(**steps(t, 1, n_envs=n_envs))
        if t == 6:
            rb.clear()
    rb.save(tmp_path)
    saved = checkpoint.inspect(tmp_path)
    assert saved.rows == rb.rows == 41 * n_envs
    other = ReplayBuffer(size, FIELDS, next_of="obs", n_envs=n_envs, seed=0)
    other.add(**steps(900, 1, n_envs=n_envs))
    other.restore(tmp_path)
    loaded = ReplayBuffer.load(tmp_path, size=size, mmap_prefix=tmp_path / "rows")
    for which in (other, loaded):
        assert which.rows == saved.rows
        rows = numbers(which)
        for t in range(50, 59):
            which.add(**steps(t, 1, n_envs=n_envs))
        assert which.rewind(saved.rows) == 9 * n_envs
        assert numbers(which) == rows[max(len(rows) + 9 * n_envs - size, 0) :]
        assert which.rows == saved.rows + 9 * n_envs
        which.check()
    rows = numbers(loaded)
    del which, loaded
    loaded = ReplayBuffer(
        size, FIELDS, next_of="obs", n_envs=n_envs, mmap_prefix=tmp_path / "rows", mmap_mode="r+"
    )
    assert (numbers(loaded), loaded.rows) == (rows, saved.rows + 9 * n_envs)


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("n_envs", [1, 2])
def test_open_episodes_end_at_the_next_row_too(n_envs: int, n_step: int) -> None:
    """No row is later than the checkpoint. The next episode was joined to the open one."""
    options: dict[str, Any] = {"next_of": "obs", "n_envs": n_envs}
    if n_step > 1:
        options["Nstep"] = {"size": n_step, "rew": "rew", "gamma": 1.0}
    rb = ReplayBuffer(100, {**FIELDS, "rew": {}}, **options)
    for first in (0, 1000):
        for t in range(first, first + 4):
            rb.add(**steps(t, 1, 9999, n_envs), rew=np.full(n_envs, first + 1))
        row, kept = rb.rows, len(rb)
        assert rb.rewind(row) == 0
        assert [rb.get_current_episode_len(env) for env in range(n_envs)] == [0] * n_envs
        assert (rb.rows, len(rb) >= kept) == (row, True)
    ends = [(one.length, one.truncated) for one in rb.episodes.list()]
    assert ends == [(4, True)] * 2 * n_envs
    assert rb.stats()["episodes"] == 2 * n_envs
    rewards = rb.get_all_transitions()["rew"].ravel().tolist()
    assert set(rewards) == {k * one for one in (1, 1001) for k in range(1, n_step + 1)}
    rb.check()


def test_handles_of_forgotten_rows() -> None:
    """They name no row for ever: updates are skipped, as for deleted rows."""
    rb: Any = PrioritizedReplayBuffer(20, FIELDS, next_of="obs", check_for_update=True, seed=0)
    rb.add(**steps(0, 15))
    batch = rb.sample(200)
    rb.rewind(10)
    rb.add(**steps(100, 5))
    before = rb.get_all_transitions()
    weights = rb.sampler.rows.get(np.arange(20))
    late = batch["indexes"][batch["t"] >= 10]
    assert len(late)
    rb.update(late, t=np.full(len(late), -1))
    rb.update_priorities(late, np.full(len(late), 9.0))
    for name, values in rb.get_all_transitions().items():
        np.testing.assert_array_equal(values, before[name])
    np.testing.assert_array_equal(rb.sampler.rows.get(np.arange(20)), weights)
    assert rb.stats()["late_updates"] == len(late)
    assert "rewind() forgot it" in str(rb.explain(int(late[0])))
    with pytest.raises(IndexError):
        rb[10]
    assert numbers(rb) == [*range(10), *range(100, 105)]


def test_next_values_stay() -> None:
    """That of the last row that stays was in the row behind it, which is forgotten."""
    rb = ReplayBuffer(10, FIELDS, next_of="obs")
    rb.add(**steps(0, 8, 100))
    rb.rewind(5)
    for t in range(50, 54):
        rows = rb.get_all_transitions()
        np.testing.assert_array_equal(rows["next_obs"], rows["obs"] + 1)
        rb.add(**steps(t, 1, 100))
        rb.check()
    assert numbers(rb) == [2, 3, 4, 50, 51, 52, 53]
    assert [one.length for one in rb.episodes.list()] == [3, 4]


def test_batches_that_were_drawn_ahead_are_dropped() -> None:
    """Those of the buffer, of a view and of a mixture; without it their rows came after."""
    rb = ReplayBuffer(100, FIELDS, next_of="obs", seed=0)
    other = ReplayBuffer(100, FIELDS, next_of="obs", seed=1)
    rb.add(**steps(0, 60, 6))
    other.add(**steps(0, 60, 6))
    sources = [
        rb,
        rb.view(Sequences(3)),
        Mixture({"a": rb, "b": other}, {"a": 0.5, "b": 0.5}, seed=0),
    ]
    kept = [iter(source.batches(40, prefetch=3)) for source in sources]
    for batches in kept:
        next(batches)
    rb.rewind(20)
    for batches, most in zip(kept, (19, 19, 59), strict=True):
        assert max(int(next(batches)["t"].max()) for _ in range(5)) == most


def test_epochs_and_iterations_that_go_on() -> None:
    """An epoch gives the rows that are left; an iteration over episodes says that they changed."""
    rb = ReplayBuffer(100, FIELDS, next_of="obs", seed=0)
    rb.add(**steps(0, 60, 6))
    epoch, episodes = iter(rb.epoch(7, shuffle=False)), iter(rb.episodes)
    first = [next(epoch)["t"].tolist(), next(episodes)["t"].tolist()]
    assert first == [[*range(7)], [*range(6)]]
    rb.rewind(33)
    rb.add(**steps(100, 27, 6))
    assert [t for batch in epoch for t in batch["t"].tolist()] == [*range(7, 33)]
    with pytest.raises(RuntimeError, match="episodes changed"):
        next(episodes)


def test_counts() -> None:
    """Episodes that ended in forgotten rows do not count, those that were cut do."""
    rb = ReplayBuffer(100, FIELDS, next_of="obs", n_envs=2)
    for t in range(20):
        rb.add(**steps(t, 1, 6, 2))
    assert rb.stats()["episodes"] == 6
    rb.rewind(2 * 12)
    assert (rb.stats()["episodes"], rb.stats()["rows"], rb.stats()["adds"]) == (4, 24, 40)
    rb.rewind(2 * 9)
    assert (rb.stats()["episodes"], len(rb), len(rb.episodes)) == (4, 18, 4)
    ends = [(one.length, one.terminated, one.truncated) for one in rb.episodes.list()]
    assert ends == [(6, True, False)] * 2 + [(3, False, True)] * 2


def test_objects_and_checkpoints_after_a_rewind(tmp_path: Path) -> None:
    """A save after it has the rows that are left; ``rows`` is that of the next row."""
    rb = ReplayBuffer(50, FIELDS, next_of="obs", seed=0)
    rb.add(**steps(0, 40))
    rb.save(tmp_path)
    rb.rewind(22)
    rb.add(**steps(70, 5))
    rb.save(tmp_path)
    other = ReplayBuffer.load(tmp_path)
    assert numbers(other) == numbers(rb) == [*range(22), *range(70, 75)]
    assert other.rows == checkpoint.inspect(tmp_path).rows == 45
    other.rewind(22)
    assert numbers(other) == [*range(22)]


def test_a_limiter_counts_the_rows_that_are_left() -> None:
    """A draw waits for them; the forgotten rows stay inserts."""
    limiter = MinSize(10, timeout=0.01)
    rb = RateLimited(ReplayBuffer(50, FIELDS, next_of="obs", seed=0), limiter)
    rb.add(**steps(0, 9))
    row = rb.rows
    rb.add(**steps(9, 6))
    rb.sample(4)
    assert rb.rewind(row) == 6
    assert (rb.stats()["rows"], rb.stats()["inserts"]) == (9, 15)
    with pytest.raises(TimeoutError, match="9 of 10 rows"):
        rb.sample(4)
    with SharedReplay(50, FIELDS, writers=1, next_of="obs", limiter=limiter) as replay:
        with replay.actor() as actor:
            actor.add(**steps(0, 15))
            assert actor.rewind(9) == 6
        with pytest.raises(TimeoutError, match="9 of 10 rows"):
            replay.learner().sample(4)


def test_rows_of_several_buffers(tmp_path: Path) -> None:
    """A mixture has a number for each of its buffers, a view that of its buffer."""
    one, two = (ReplayBuffer(50, FIELDS, next_of="obs", seed=0) for _ in range(2))
    one.add(**steps(0, 5))
    two.add(**steps(0, 9))
    mixture = Mixture({"one": one, "two": two}, {"one": 0.5, "two": 0.5}, seed=0)
    mixture.save(tmp_path / "mixture")
    one.view(Sequences(2)).save(tmp_path / "view")
    assert checkpoint.inspect(tmp_path / "mixture").rows == (5, 9)
    assert checkpoint.inspect(tmp_path / "view").rows == 5
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        checkpoint.inspect(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match="no state 7"):
        checkpoint.inspect(tmp_path / "view", state=7)
