"""keras-gym's caches of an episode: what is popped when, against sums over whole lists."""

# The parts of a batch have keras-gym's names.
# ruff: noqa: N806

from __future__ import annotations

import copy
import pickle
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpprb_like.compat.keras_gym import (
    ActionSpaceError,
    EpisodeDoneError,
    InsufficientCacheError,
    MonteCarloCache,
    NStepCache,
)

ACTIONS = 3


def env_of(space: Any = None) -> Any:
    """Just enough of an environment."""
    return SimpleNamespace(action_space=SimpleNamespace(n=ACTIONS) if space is None else space)


def one_hot(*steps: int) -> list[list[float]]:
    """The actions of steps."""
    return [[float(step % ACTIONS == a) for a in range(ACTIONS)] for step in steps]


def fill(cache: Any, length: int, done: bool = True) -> None:
    """Add steps with the rewards 1."""
    for step in range(length):
        cache.add(step, step % ACTIONS, 1.0, done and step == length - 1)


def test_the_example_of_keras_gym() -> None:
    """Four steps, n=2: one is popped, the others are flushed."""
    cache = NStepCache(env_of(), n=2, gamma=0.5)
    fill(cache, 4)
    popped = [x.tolist() for x in cache.pop()]
    assert popped == [[0], one_hot(0), [1.5], [0.25], [2], one_hot(2)]
    flushed = [x.tolist() for x in cache.flush()]
    assert flushed[0] == [1, 2, 3]
    assert flushed[1] == one_hot(1, 2, 3)
    assert flushed[2] == [1.5, 1.5, 1.0]
    assert flushed[3] == [0.25, 0.0, 0.0]
    assert flushed[4] == [3, 2, 3]
    assert flushed[5] == one_hot(3, 2, 3)
    assert len(cache) == 0
    assert not cache


def test_the_example_of_monte_carlo() -> None:
    """Three steps: the last one first."""
    cache = MonteCarloCache(env_of(), gamma=0.5)
    fill(cache, 3)
    S, A, G = cache.flush()
    assert S.tolist() == [2, 1, 0]
    assert A.tolist() == one_hot(2, 1, 0)
    assert G.tolist() == [1.0, 1.5, 1.75]


@given(
    st.integers(1, 6),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.lists(st.tuples(st.integers(1, 12), st.booleans()), min_size=1, max_size=4),
    st.integers(0, 2**32 - 1),
)
def test_transitions_of_n_steps(
    n: int, gamma: float, episodes: list[tuple[int, bool]], seed: int
) -> None:
    """Popped as soon as it can be or flushed later, each step gives what its episode says."""
    rng = np.random.default_rng(seed)
    cache = NStepCache(env_of(), n, gamma)
    for length, done in episodes:
        rewards = rng.integers(-8, 8, length).astype(float)  # their sums are exact
        popped: list[Any] = []
        for step in range(length):
            cache.add([step, 1], step % ACTIONS, rewards[step], done and step == length - 1)
            assert len(cache) == step + 1 - sum(len(batch[0]) for batch in popped)
            assert bool(cache) == (len(cache) > n or (done and step == length - 1))
            if cache and rng.random() < 0.5:
                popped.append(cache.pop() if rng.random() < 0.5 else cache.flush())
        if cache:
            popped.append(cache.flush())
        assert len(cache) == (0 if done else min(n, length))
        count = 0
        for S, A, Rn, In, S_next, A_next in popped:
            for i in range(len(S)):
                after = count + n if count + n < length else count
                assert S[i].tolist() == [count, 1]
                assert A[i].tolist() == one_hot(count)[0]
                assert Rn[i] == sum(gamma**k * r for k, r in enumerate(rewards[count:][:n]))
                assert In[i] == (gamma**n if after > count else 0.0)
                assert S_next[i].tolist() == [after, 1]
                assert A_next[i].tolist() == one_hot(after)[0]
                count += 1
        assert count == (length if done else max(0, length - n))
        if not done:
            cache.reset()


@given(
    st.sampled_from([0.0, 0.5, 1.0]),
    st.lists(st.integers(1, 12), min_size=1, max_size=4),
    st.integers(0, 2**32 - 1),
)
def test_returns(gamma: float, lengths: list[int], seed: int) -> None:
    """Each step gives the sum of the rewards from there on, episode after episode."""
    rng = np.random.default_rng(seed)
    cache = MonteCarloCache(env_of(), gamma)
    for length in lengths:
        rewards = rng.integers(-8, 8, length).astype(float)
        for step in range(length):
            assert not cache
            cache.add(step, step % ACTIONS, rewards[step], step == length - 1)
            assert len(cache) == step + 1
        popped: list[tuple[Any, ...]] = []
        popped += [cache.pop() for _ in range(int(rng.integers(0, length + 1)))]
        if cache:
            popped.append(cache.flush())
        S, A, G = (np.concatenate(column) for column in zip(*popped, strict=True))
        assert S.tolist() == list(range(length))[::-1]
        assert A.tolist() == one_hot(*range(length))[::-1]
        expected = [sum(gamma**k * r for k, r in enumerate(rewards[i:])) for i in range(length)]
        np.testing.assert_allclose(G, expected[::-1], rtol=1e-12)


@pytest.mark.parametrize("cache", [NStepCache(env_of(), 2, 0.9), MonteCarloCache(env_of(), 0.9)])
def test_an_episode_is_taken_out_before_the_next_one(cache: Any) -> None:
    """After its end no step is added until all are popped, or the cache is reset."""
    cache.reset()
    for _ in range(2):
        with pytest.raises(InsufficientCacheError):
            cache.pop()
        with pytest.raises(InsufficientCacheError):
            cache.flush()
        fill(cache, 2)
        with pytest.raises(EpisodeDoneError, match="2 of its steps"):
            cache.add(9, 0, 1.0, False)
        cache.pop()
        with pytest.raises(EpisodeDoneError, match="1 of its steps"):
            cache.add(9, 0, 1.0, False)
        cache.pop()
    fill(cache, 2)
    cache.reset()
    assert (len(cache), bool(cache)) == (0, False)
    cache.add(9, 0, 1.0, False)
    with pytest.raises(InsufficientCacheError):
        cache.flush()


def test_a_return_begins_anew() -> None:
    """An episode that was popped, or half of it, does not count in the next one."""
    cache = MonteCarloCache(env_of(), 1.0)
    for _ in range(2):
        fill(cache, 3)
        assert cache.flush()[2].tolist() == [1.0, 2.0, 3.0]
    fill(cache, 4)
    cache.pop()
    cache.reset()
    fill(cache, 1)
    assert cache.pop()[2].tolist() == [1.0]


@pytest.mark.parametrize("make", [lambda e: NStepCache(e, 1, 0.9), lambda e: MonteCarloCache(e, 1)])
def test_states_are_copied_and_of_any_type(make: Any) -> None:
    """A state that changes after it was added, or after it was popped, changes nothing else."""
    cache = make(env_of(gymnasium.spaces.Box(-1, 1, (2,), np.float32)))
    s, a = np.zeros((2, 2), np.uint8), np.zeros(2, np.float32)
    for step in range(3):
        s[:], a[:] = step, step / 4
        cache.add(s, a, 0.0, step == 2)
    twin = pickle.loads(pickle.dumps(copy.deepcopy(cache)))
    for array in cache.pop():
        array[...] = 99
    cache.flush()
    twin.pop()
    batch = twin.flush()
    assert batch[0].dtype == np.uint8
    assert batch[1].dtype == np.float32
    assert sorted({int(x[0, 0]) for x in batch[0]}) in ([1, 2], [0, 1])
    for number, action in zip(batch[0][:, 0, 0], batch[1], strict=True):
        assert action.tolist() == [number / 4] * 2
    cache.add({"any": "thing"}, [0.5, 0.5], 1.0, True)
    assert cache.pop()[0].tolist() == [{"any": "thing"}]


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ({"a": 3}, ValueError),
        ({"a": 0.5}, TypeError),
        ({"r": "x"}, ValueError),
        ({"r": None}, TypeError),
        ({"done": np.zeros(2)}, ValueError),
        ({"s": [[1], [2, 3]]}, ValueError),
    ],
)
@pytest.mark.parametrize("make", [lambda e: NStepCache(e, 1, 0.9), lambda e: MonteCarloCache(e, 1)])
def test_a_refused_step_changes_nothing(
    make: Any, bad: dict[str, Any], error: type[Exception]
) -> None:
    """A bad value is refused, and the steps before stay what they were."""
    cache = make(env_of())
    fill(cache, 2, done=False)
    before = pickle.dumps(cache)
    with pytest.raises(error):
        cache.add(**({"s": 0, "a": 0, "r": 0.0, "done": True} | bad))
    assert pickle.dumps(cache) == before


def test_bad_parameters() -> None:
    """Parameters that make no sense are refused by name."""
    with pytest.raises(ValueError, match="n: expected at least 1"):
        NStepCache(env_of(), 0, 0.9)
    with pytest.raises(ValueError, match="gamma"):
        NStepCache(env_of(), 1, 1.1)
    with pytest.raises(ValueError, match="gamma"):
        MonteCarloCache(env_of(), -0.1)
    with pytest.raises(ActionSpaceError):
        NStepCache(env_of(gymnasium.spaces.MultiBinary(2)), 1, 0.9)
    cache = NStepCache(env_of(gymnasium.spaces.Box(-1, 1, (2,), np.float32)), 1, 0.9)
    with pytest.raises(ValueError, match="one action, got 3"):
        cache.add(0, np.zeros((3, 2)), 0.0, False)
    with pytest.raises(ValueError, match=r"^r: expected a number, got 'x'"):
        cache.add(0, np.zeros(2), "x", False)  # type: ignore[arg-type]
