"""Values of chained fields that do not follow: how they are counted, and the warning of them."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from hypothesis import given
from hypothesis import strategies as st

from cpprb_like import GymnasiumRecorder, ReplayBuffer
from cpprb_like.typing import FieldSpec

FIELDS: dict[str, FieldSpec] = {
    "obs": {"shape": 3, "dtype": "u1"},
    "done": {"shape": (), "dtype": bool},
}
PARTS = ("obs.0", "obs.1", "obs.2")


class Counts:
    """The slow twin: rows in a list since the last clear, and [compared, apart] of both fields."""

    def __init__(self, capacity: int, n_envs: int, is_stacked: bool) -> None:
        self.capacity, self.n_envs, self.is_stacked = capacity, n_envs, is_stacked
        self.rows: list[dict[str, Any]] = []
        self.counts = {name: [0, 0] for name in ["obs"] * is_stacked + ["next_obs"]}

    def add(self, rows: list[dict[str, Any]]) -> None:
        """Count new rows."""
        self.rows += rows
        oldest = len(self.rows) - self.capacity
        for number in range(len(self.rows) - len(rows), len(self.rows)):
            row, place = self.rows[number], number - self.n_envs
            before = self.rows[place] if place >= 0 else None
            continues = before is not None and place >= oldest and not before["ends"]
            if self.is_stacked:
                shifts = before is not None and before["obs"][1:] == row["obs"][:-1]
                self._count("obs", shifts, continues, not shifts)
            follows = before is None or place < oldest or before["next_obs"] == row["obs"]
            shifts = before is not None and before["obs"][1:] == before["next_obs"][:-1]
            self._count("next_obs", follows, continues, not (self.is_stacked and shifts))

    def _count(self, name: str, follows: bool, continues: bool, is_whole: bool) -> None:
        self.counts[name][0] += follows or continues
        self.counts[name][1] += continues and not follows and is_whole


@given(
    st.integers(0, 2**32 - 1), st.integers(1, 3), st.integers(1, 6), st.booleans(), st.booleans()
)
def test_values_are_counted_within_episodes(
    seed: int, n_envs: int, steps: int, is_stacked: bool, has_absent: bool
) -> None:
    """A value that begins an episode counts only if it follows from the row before."""
    rng = np.random.default_rng(seed)
    rb = ReplayBuffer(
        steps * n_envs,
        FIELDS,
        n_envs=n_envs,
        next_of="obs",
        stack_compress={"obs": 0} if is_stacked else None,
    )
    twin = Counts(rb.capacity, n_envs, is_stacked)
    for _ in range(12):
        shape = int(rng.integers(0, 9)), n_envs
        values = {
            "obs": rng.integers(0, 2, (*shape, 3), "u1"),
            "next_obs": rng.integers(0, 2, (*shape, 3), "u1"),
            "done": rng.random(shape) < 0.3,
        }
        present = rng.random(shape) < 0.8 if has_absent else np.full(shape, True)
        rb.add_where(present, **values)
        ends = (values["done"] | ~present).reshape(-1).tolist()
        parts = [values[name].reshape(-1, 3).tolist() for name in ("obs", "next_obs")]
        twin.add(
            [
                dict(zip(("obs", "next_obs", "ends"), row, strict=True))
                for row in zip(*parts, ends, strict=True)
            ]
        )
        if rng.random() < 0.2:
            rb.on_episode_end()
            for row in twin.rows[-n_envs:]:
                row["ends"] = True
        if rng.random() < 0.1:
            rb.clear()
            twin.rows = []
        found = {chain.name: [chain.compared, chain.apart] for chain in rb.ring.chains}
        assert found == twin.counts


def blackjack(share: float, steps: int, mode: Any = None) -> ReplayBuffer:
    """A run of Blackjack, whose episodes have one or two steps; hits in a share of them.

    With an autoreset mode it is one of four environments.
    """
    made: Any = gym.make("Blackjack-v1")
    if mode is not None:
        made = gym.make_vec("Blackjack-v1", 4, vector_kwargs={"autoreset_mode": mode})
    env, rng = GymnasiumRecorder(made), np.random.default_rng(0)
    n = env.n_envs
    rb: ReplayBuffer = env.attach(
        ReplayBuffer(steps * n, env.env_dict, n_envs=n, next_of=PARTS, seed=0)
    )
    env.reset(seed=0)
    for _ in range(steps):
        hits = (rng.random(n) < share).astype(int)
        env.step(int(hits[0]) if mode is None else hits)
    env.close()
    return rb


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("mode", [None, AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_short_episodes_are_no_reason_to_warn(share: float, mode: Any) -> None:
    """First observations of episodes do not follow, and most steps of Blackjack are first ones.

    They were counted like others, so the loop of a user who did nothing wrong got a warning.
    """
    rb = blackjack(share, 2500, mode)
    assert [chain.apart for chain in rb.ring.chains] == [0, 0, 0]
    assert share == 0 or rb.ring.chains[0].compared > 500


@pytest.mark.parametrize("fault", ["shuffled", "the same field", "one row late", "ends unknown"])
def test_faults_of_short_episodes_are_warned_of(fault: str) -> None:
    """Next values in another order, of another field, of another row; and episodes without ends."""
    rows = dict(blackjack(0.8, 5000).get_all_transitions())
    for name in PARTS:
        following = rows[f"next_{name}"]
        if fault == "shuffled":
            rows[f"next_{name}"] = np.random.default_rng(0).permutation(following)
        elif fault == "the same field":
            rows[f"next_{name}"] = rows[name]
        elif fault == "one row late":
            rows[f"next_{name}"] = np.roll(following, 1)
        else:
            rows["terminated"] = np.zeros_like(rows["terminated"])
    fields: dict[str, FieldSpec] = {
        name: {"shape": values.shape[1:], "dtype": values.dtype} for name, values in rows.items()
    }
    rb = ReplayBuffer(5000, fields, next_of=PARTS)
    rb.add(**rows)
    with pytest.warns(UserWarning, match=r"values of 'next_obs.0'.* in their episode"):
        rb.add(**rows)
