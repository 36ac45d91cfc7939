"""Episodes that are open when a mapped buffer is opened again."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forked import outcome

from cpprb_like import NStep, ReplayBuffer, Sequences

FIELDS: Any = {
    "obs": {"shape": (), "dtype": "i8"},
    "rew": {"shape": ()},
    "done": {"shape": (), "dtype": bool},
}
NSTEP: Any = {"size": 3, "gamma": 1.0, "rew": "rew", "next": "next_obs"}
FIRST, SECOND = 7, 5  # steps of the take that is cut, and of the next one

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")


def opened(folder: Path, mode: Any, n_envs: int = 1, **options: Any) -> ReplayBuffer:
    """A buffer in files."""
    return ReplayBuffer(
        50 * n_envs,
        FIELDS,
        n_envs=n_envs,
        next_of="obs",
        mmap_prefix=folder / "a",
        mmap_mode=mode,
        **options,
    )


def add(rb: ReplayBuffer, first: int, n: int) -> None:
    """Add n steps: numbers from ``first`` on, 1000 more for each environment."""
    for t in range(first, first + n):
        obs = t + 1000 * np.arange(rb.n_envs)
        rb.add(obs=obs, next_obs=obs + 1, rew=np.ones(rb.n_envs), done=np.zeros(rb.n_envs))


def killed(folder: Path, n_envs: int = 1, **options: Any) -> None:
    """A process adds a take, and is killed in the middle of it."""

    def act() -> None:
        add(opened(folder, "x", n_envs, **options), 0, FIRST)
        os.kill(os.getpid(), signal.SIGKILL)

    assert outcome(act) == -signal.SIGKILL


@pytest.mark.parametrize("n_envs", [1, 3])
def test_a_new_process_begins_new_episodes(n_envs: int, tmp_path: Path) -> None:
    """An open take that a kill left joined the episode that came next: sequences crossed."""
    killed(tmp_path, n_envs)
    rb = opened(tmp_path, "r+", n_envs)
    assert [rb.get_current_episode_len(env) for env in range(n_envs)] == [0] * n_envs
    add(rb, 100, SECOND)

    listed = [(one.length, one.complete, one.truncated) for one in rb.episodes.list()]
    assert sorted(listed) == [(SECOND, False, False)] * n_envs + [(FIRST, True, True)] * n_envs
    rows = rb.get_all_transitions()
    assert (rows["next_obs"] == rows["obs"] + 1).all()
    batch = rb.view(Sequences(4)).sample(500)
    steps, mask = batch["obs"].reshape(500, 4), batch["mask"]
    assert (np.diff(steps, axis=1)[mask[:, 1:]] == 1).all()
    assert set(mask.sum(axis=1)) == {1, 2, 3, 4}
    sums = rb.view(NStep(3, gamma=1.0, rew="rew")).sample(500)
    left = np.where(sums["obs"] % 1000 < 100, FIRST, 100 + SECOND) - sums["obs"] % 1000
    np.testing.assert_array_equal(sums["rew"], np.minimum(left, 3))
    np.testing.assert_array_equal(sums["next_obs"], sums["obs"] + np.minimum(left, 3))
    rb.check()


def test_rows_that_waited_for_later_ones_are_complete(tmp_path: Path) -> None:
    """With ``Nstep`` the last rows of the take can be drawn, with the steps that it has."""
    killed(tmp_path, Nstep=NSTEP)
    rb = opened(tmp_path, "r+", Nstep=NSTEP)
    assert len(rb) == FIRST
    add(rb, 100, SECOND)
    rows = rb.get_all_transitions()
    assert rows["rew"].ravel().tolist() == [3.0] * 5 + [2.0, 1.0] + [3.0] * 3
    assert rows["next_obs"].ravel().tolist() == [3, 4, 5, 6, 7, 7, 7, 103, 104, 105]


def test_an_environment_that_goes_on(tmp_path: Path) -> None:
    """``mmap_mode="a"`` goes on with the take; ``"r"`` shows it as it is."""
    killed(tmp_path)
    assert opened(tmp_path, "r").get_current_episode_len() == FIRST
    rb = opened(tmp_path, "a")
    assert rb.get_current_episode_len() == FIRST
    add(rb, FIRST, SECOND)
    assert [one.length for one in rb.episodes.list()] == [FIRST + SECOND]
    del rb
    with pytest.raises(BlockingIOError):
        _ = opened(tmp_path, "a"), opened(tmp_path, "a")


def test_a_take_that_has_ended_is_left_alone(tmp_path: Path) -> None:
    """Opening changes no row, and no count of episodes, where nothing is open."""
    rb = opened(tmp_path, "x")
    add(rb, 0, FIRST)
    rb.on_episode_end()
    episodes = rb.stats()["episodes"]
    rb.flush()
    del rb
    before = (tmp_path / "a.dat").read_bytes()
    rb = opened(tmp_path, "r+")
    assert rb.stats()["episodes"] == episodes
    del rb
    assert (tmp_path / "a.dat").read_bytes() == before
