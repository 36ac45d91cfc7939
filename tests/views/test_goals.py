"""Draws of rows of a row's episode, compared with lists of what was added."""

from __future__ import annotations

from typing import Any

import numpy as np
from episode_cases import FIELDS, History
from hypothesis import given
from hypothesis import strategies as st

from cpprb_like import ReplayBuffer
from cpprb_like._rows.episode_index import EpisodeIndex
from cpprb_like.samplers._starts import EPISODE, FINAL, FUTURE, RANDOM, choose_rows

HISTORIES = st.fixed_dictionaries(
    {
        "capacity": st.integers(3, 40),
        "n_envs": st.integers(1, 4),
        "p_end": st.sampled_from([0.0, 0.1, 0.4]),
        "p_absent": st.sampled_from([0.1, 0.9]),
        "seed": st.integers(0, 1000),
        "late": st.booleans(),
    }
)


@given(HISTORIES)
def test_rows_of_a_rows_episode(case: dict[str, Any]) -> None:
    """Ring that wraps, absent and deleted rows, cuts by hand: the candidates are right.

    ``late``: the index has followed the ring for long before it is asked for a row.
    """
    capacity = max(case["capacity"], case["n_envs"])
    rb = ReplayBuffer(capacity, FIELDS, n_envs=case["n_envs"], next_of="obs", seed=0)
    rng = np.random.default_rng(case["seed"])
    history = History(rb, rng, case["p_end"], case["p_absent"])
    index = rb._episodes
    for turn in range(25):
        history.play(2)
        len(index)
        if case["late"] and turn < 15:
            continue
        alive = {step.row % capacity: step.row for step in history.alive()}
        whole = {step.row: episode for episode in history.episodes() for step in episode}
        for slot, row in alive.items():
            rows = [step.row for step in whole[row]]
            slots = np.full(12, slot, np.intp)
            for strategy, expected in (
                (FUTURE, set(rows[rows.index(row) :])),
                (EPISODE, set(rows)),
                (FINAL, {rows[-1]}),
                (RANDOM, set(alive.values())),
            ):
                chosen = choose_rows(index, slots, rng, strategy)
                assert {alive[k] for k in chosen.tolist()} <= expected


def test_every_candidate_is_as_likely_among_many_absent_rows() -> None:
    """Tries, and a count of the rows that hold a step, give the same distribution."""
    rng = np.random.default_rng(0)
    times = 20_000
    there = np.zeros((times, 2), bool)
    there[:, 0] = True
    there[[0, 7000, 7001, times - 1], 1] = True
    rb = ReplayBuffer(2 * times, {"x": {"shape": (), "dtype": "i8"}}, n_envs=2, seed=0)
    for k in range(times):
        rb.add_where(there[k], x=[2 * k, 2 * k + 1])
    index = EpisodeIndex(rb.ring)
    chosen = choose_rows(index, np.full(4000, 1, np.intp), rng, FUTURE)
    rows, counts = np.unique(chosen, return_counts=True)
    assert rows.tolist() == [1, 14001, 14003, 2 * times - 1]
    assert (np.abs(counts - 1000) < 150).all()
