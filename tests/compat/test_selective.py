"""``SelectiveReplayBuffer``: whole episodes, read and deleted one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import Array

from cpprb_like import NotEnoughDataError, SelectiveReplayBuffer

SHAPES = {"obs": (3,), "act": (2,), "rew": (1,), "next_obs": (3,), "done": (1,)}


def steps(first: int, n: int, ends: list[int]) -> dict[str, Array]:
    """Steps number ``first`` to ``first + n - 1``; those of ``ends`` end an episode."""
    numbers = np.arange(first, first + n, dtype=float)[:, None]
    return {
        "obs": numbers + np.zeros(3),
        "act": numbers + np.zeros(2),
        "rew": numbers,
        "next_obs": numbers + np.ones(3),
        "done": np.isin(numbers, ends).astype(float),
    }


def selective(**options: Any) -> SelectiveReplayBuffer:
    """A buffer for 3 episodes of 4 steps."""
    return SelectiveReplayBuffer(4, obs_dim=3, act_dim=2, Nepisodes=3, **options)


@given(
    calls=st.lists(
        st.tuples(st.integers(1, 7), st.lists(st.booleans(), min_size=7, max_size=7))
        | st.integers(-1, 6)
        | st.none(),
        max_size=12,
    )
)
def test_episodes_are_those_of_a_list(calls: list[Any]) -> None:
    """Adds, deletions and clears leave the episodes that a list of lists has."""
    rb = selective(seed=0)
    episodes: list[list[int]] = []
    is_open, number = False, 0
    for call in calls:
        stored = sum(map(len, episodes))
        if call is None:
            rb.clear()
            episodes, is_open = [], False
        elif isinstance(call, int):
            known = 0 <= call < len(episodes)
            assert rb.delete_episode(call) == (len(episodes[call]) if known else 0)
            if known:
                is_open = is_open and call != len(episodes) - 1
                del episodes[call]
        else:
            n, ends = call
            ended = [number + i for i in range(n) if ends[i]]
            given_steps = steps(number, n, ended)
            if stored + n > 12:
                with pytest.raises(ValueError, match=f"at most {12 - stored} steps, got {n}"):
                    rb.add(**given_steps)
            else:
                assert rb.add(**given_steps) == stored
                for i in range(n):
                    if not is_open:
                        episodes.append([])
                    episodes[-1].append(number + i)
                    is_open = not ends[i]
                number += n
        stored = sum(map(len, episodes))
        assert rb.get_stored_episode_size() == len(episodes)
        assert len(rb) == rb.get_stored_size() == rb.get_next_index() == stored
        found = [rb.get_episode(i) for i in range(len(episodes))]
        assert [episode["rew"].ravel().tolist() for episode in found] == episodes
        for episode in found:
            assert (episode["next_obs"] == episode["rew"] + np.ones(3)).all()
            assert {name: values.shape[1:] for name, values in episode.items()} == SHAPES
        if stored:
            assert set(rb.sample(20)["rew"].ravel()) <= {row for rows in episodes for row in rows}


def test_every_done_of_a_batch_ends_an_episode() -> None:
    """A call with three ends makes four episodes, of which the last is open."""
    rb = selective()
    rb.add(**steps(0, 7, [0, 1, 4]))
    sizes = [len(rb.get_episode(i)["obs"]) for i in range(rb.get_stored_episode_size())]
    assert sizes == [1, 1, 3, 2]


def test_episodes_are_copies() -> None:
    """What was given out does not change, and changes to it do not come back."""
    rb = selective()
    rb.add(**steps(0, 4, [3]))
    episode = rb.get_episode(0)
    rb.delete_episode(0)
    rb.add(**steps(8, 4, [11]))
    assert episode["rew"].ravel().tolist() == [0, 1, 2, 3]
    rb.get_episode(0)["rew"][...] = -1
    assert rb.get_episode(0)["rew"].ravel().tolist() == [8, 9, 10, 11]


@pytest.mark.parametrize("i", [-1, 1, 2, 100])
def test_episodes_that_there_are_not(i: int) -> None:
    """They have no rows, and nothing is removed."""
    rb = selective()
    rb.add(**steps(0, 4, []))
    assert {name: values.shape for name, values in rb.get_episode(i).items()} == {
        name: (0, *shape) for name, shape in SHAPES.items()
    }
    assert rb.delete_episode(i) == 0
    assert len(rb) == 4
    with pytest.raises(TypeError, match="i: expected an integer"):
        rb.get_episode("first")  # type: ignore[arg-type]


def test_discrete_actions_can_be_sampled() -> None:
    """They are int32 of shape (1,), whatever number of them there is."""
    rb = SelectiveReplayBuffer(5, 2, 6, is_discrete_action=True, seed=0)
    rb.add([0, 0], 5, 1, [1, 1], 0)
    assert rb.sample(3)["act"].dtype == np.int32
    assert rb.sample(3)["act"].tolist() == [[5], [5], [5]]
    assert rb.get_act_dim() == 6
    with pytest.raises(ValueError, match="'act'"):
        rb.add([0, 0], 0.5, 1, [1, 1], 0)


def test_surface_of_cpprb() -> None:
    """Sizes and shapes are those of the constructor."""
    rb = SelectiveReplayBuffer(10, obs_shape=(4, 5), act_dim=3, rew_dim=2, Nepisodes=7)
    assert rb.get_buffer_size() == 70
    assert (rb.get_obs_shape(), rb.get_obs_dim()) == ((4, 5), 20)
    assert (rb.get_act_dim(), rb.get_rew_dim()) == (3, 2)
    assert SelectiveReplayBuffer(1).get_obs_shape() == (1,)
    assert SelectiveReplayBuffer(1, obs_shape=6).get_obs_shape() == (6,)
    assert SelectiveReplayBuffer(3).get_buffer_size() == 30
    assert "size=70, stored=0, episodes=0" in repr(rb)
    assert bool(rb)


def test_the_same_seed_gives_the_same_batches() -> None:
    """All randomness comes from the seed."""
    batches = []
    for _ in range(2):
        rb = selective(seed=3)
        rb.add(**steps(0, 10, []))
        batches.append(rb.sample(20)["rew"].tolist())
    assert batches[0] == batches[1]


def test_what_is_refused() -> None:
    """Bad arguments get an error that names them, and nothing is stored."""
    with pytest.raises(NotEnoughDataError):
        selective().sample(1)
    for options in ({"episode_len": 0}, {"episode_len": 1, "Nepisodes": 0}):
        with pytest.raises(ValueError, match="at least 1"):
            SelectiveReplayBuffer(**options)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="unknown"):
        SelectiveReplayBuffer(1, unknown=2)  # type: ignore[call-arg]
    rb = selective()
    with pytest.raises(ValueError, match="'obs'"):
        rb.add([1, 2], [1, 2], 0, [1, 2, 3], 0)
    with pytest.raises(ValueError, match="disagree"):
        rb.add(np.zeros((2, 3)), np.zeros((3, 2)), [0, 0], np.zeros((2, 3)), [0, 0])
    assert len(rb) == 0
