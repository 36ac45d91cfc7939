"""``HindsightReplayBuffer``: what it stores of each episode, row by row, and its names."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from distributions import chi_square, chi_square_limit
from hypothesis import given
from hypothesis import strategies as st

from cpprb_like import NotEnoughDataError
from cpprb_like.compat.cpprb._hindsight import HindsightReplayBuffer
from cpprb_like.typing import FieldSpec

Array = npt.NDArray[Any]

STRATEGIES = ["future", "episode", "final", "random"]
STATE: FieldSpec = {"shape": 2, "dtype": "f8"}
FIELDS: dict[str, FieldSpec] = {
    "obs": STATE,
    "act": {"dtype": "i8"},
    "next_obs": STATE,
    "done": {"dtype": bool},
}
OWN_GOAL = [-1.0, -2.0]


def reward(next_state: Array, action: Array, goal: Array) -> Array:
    """Tells which step and which goal it was asked about."""
    found: Array = next_state[:, 0] + 100.0 * action[:, 0] + goal[:, 1] / 8
    return found


def step(number: int, *, done: bool = False) -> dict[str, Any]:
    """The step of a number; its next state is ``[number + 1, number + 1]``."""
    return {"obs": [number] * 2, "act": number % 7, "next_obs": [number + 1] * 2, "done": done}


def make(size: int = 1000, max_episode_len: int = 50, **options: Any) -> HindsightReplayBuffer:
    """A buffer for the steps of this file."""
    defaults: dict[str, Any] = {"reward_func": reward, "seed": 0}
    return HindsightReplayBuffer(size, FIELDS, max_episode_len, **(defaults | options))


def play(rb: HindsightReplayBuffer, first: int, n: int) -> None:
    """An episode of n steps."""
    for number in range(first, first + n):
        rb.add(**step(number, done=number == first + n - 1))
    rb.on_episode_end(OWN_GOAL)


@contextmanager
def refused(rb: HindsightReplayBuffer, error: type[Exception], *words: str) -> Iterator[None]:
    """The block raises ``error`` with all ``words``, and leaves ``rb`` alone but for its dice."""
    before = contents(rb)
    with pytest.raises(error) as caught:
        yield
    for word in words:
        assert word in str(caught.value)
    assert contents(rb) == before


def contents(rb: HindsightReplayBuffer) -> list[Any]:
    """What is stored, and what is held of the open episode."""
    return [
        {name: values.tolist() for name, values in rows.get_all_transitions().items()}
        for rows in (rb, rb._episode)
    ]


# ---- rows ----------------------------------------------------------------------------------


@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize(
    ("strategy", "additional_goals", "rows"),
    [
        ("future", 4, 20),
        ("episode", 4, 20),
        ("random", 4, 20),
        ("final", 4, 8),
        ("future", 1, 8),
        ("future", 0, 4),
        ("final", 0, 8),
    ],
)
def test_number_of_rows(prioritized: bool, strategy: Any, additional_goals: int, rows: int) -> None:
    """Each step is stored once, and once more for each additional goal; final has one of these."""
    rb = make(strategy=strategy, additional_goals=additional_goals, prioritized=prioritized)
    assert rb.additional_goals == (1 if strategy == "final" else additional_goals)
    for number in range(4):
        rb.add(**step(number))
        assert rb.get_stored_size() == 0
        with pytest.raises(NotEnoughDataError):
            rb.sample(1)
    rb.on_episode_end(OWN_GOAL)
    assert rb.get_stored_size() == len(rb) == rows
    rb.on_episode_end(OWN_GOAL)
    assert rb.get_stored_size() == rows
    play(rb, 4, 3)
    assert rb.get_stored_size() == rows + rows // 4 * 3


@given(
    size=st.integers(1, 100),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    strategy=st.sampled_from(STRATEGIES),
    goals=st.integers(0, 5),
    prioritized=st.booleans(),
    chained=st.booleans(),
)
def test_rows_are_those_of_the_paper(
    size: int, lengths: list[int], strategy: Any, goals: int, prioritized: bool, chained: bool
) -> None:
    """The episode with its own goal, then copies whose goals are next states of the right steps."""
    fields: dict[str, FieldSpec] = {
        name: spec for name, spec in FIELDS.items() if not (chained and name == "next_obs")
    }
    rb = HindsightReplayBuffer(
        size,
        fields,
        9,
        reward,
        strategy=strategy,
        additional_goals=goals,
        prioritized=prioritized,
        seed=0,
        next_of="obs" if chained else None,
    )
    expected: list[tuple[int, int, int]] = []  # number of a step, and the range of goals
    first = 0
    for length in lengths:
        play(rb, first, length)
        last = first + length
        expected += [(number, -1, -1) for number in range(first, last)]
        for _ in range(1 if strategy == "final" else goals):
            for number in range(first, last):
                from_where = {"future": number, "episode": first, "final": last - 1, "random": 0}
                expected.append((number, from_where[strategy] + 1, last))
        first = last
    batch = rb.get_all_transitions()
    assert len(rb) == min(size, len(expected))
    for row_id in range(len(expected) - len(rb), len(expected)):
        number, least, most = expected[row_id]
        row = {name: values[row_id % size] for name, values in batch.items()}
        done = number + 1 in np.cumsum(lengths)
        for name, value in step(number, done=done).items():
            np.testing.assert_array_equal(row[name].ravel(), value)
        if least < 0:
            np.testing.assert_array_equal(row["goal"], OWN_GOAL)
        else:
            assert row["goal"][0] == row["goal"][1] in range(least, most + 1)
        assert row["rew"] == np.float32(number + 1 + 100 * (number % 7) + row["goal"][1] / 8)
    assert batch["rew"].dtype == np.float32
    assert batch["rew"].shape == (len(rb), 1)


@pytest.mark.once
@pytest.mark.parametrize("strategy", ["future", "episode", "random"])
def test_goals_are_equally_likely(strategy: Any) -> None:
    """Each step that may give the goal does so equally often."""
    rb = make(100_000, strategy=strategy, additional_goals=4000)
    play(rb, 0, 5)
    batch = rb.get_all_transitions()
    other = batch["goal"][:, 0] > 0
    statistic = 0.0
    freedom = 0
    for number in range(5):
        goals = batch["goal"][other & (batch["obs"][:, 0] == number), 0]
        among = np.arange(number if strategy == "future" else 0, 5) + 1
        counts = np.array([(goals == goal).sum() for goal in among])
        assert counts.sum() == 4000
        statistic += chi_square(counts, 4000 / len(among))
        freedom += len(among) - 1
    assert statistic < chi_square_limit(freedom)


@pytest.mark.once
def test_random_goals_come_from_earlier_episodes_too() -> None:
    """With random, goals come from all rows stored before, copies counted, and from the episode."""
    rb = make(100_000, strategy="random", additional_goals=1)
    play(rb, 0, 5)
    rb.additional_goals = 4000
    play(rb, 5, 2)
    batch = rb.get_all_transitions()
    goals = batch["goal"][12:, 0]
    counts = np.bincount(goals.astype(int), minlength=8)[1:]
    weights = np.array([2, 2, 2, 2, 2, 1, 1]) / 12  # ten rows were stored, and two came
    assert ((counts - 8000 * weights) ** 2 / (8000 * weights)).sum() < chi_square_limit(6)


def test_goals_of_another_shape() -> None:
    """goal_func and goal_shape make goals that are no states; one scalar stands for shape (1,)."""
    rb = make(
        goal_shape=1,
        goal_func=lambda state: 10 * state[:, :1],
        reward_func=lambda state, action, goal: goal,
        strategy="final",
    )
    for number in range(3):
        rb.add(**step(number))
    rb.on_episode_end(7)
    batch = rb.get_all_transitions()
    assert batch["goal"].tolist() == [[7]] * 3 + [[30]] * 3
    np.testing.assert_array_equal(batch["rew"], batch["goal"])
    assert batch["goal"].dtype == np.float64


def test_names_of_fields() -> None:
    """State, action and next state may have other names, and other fields are carried along."""
    fields: dict[str, FieldSpec] = {"s": {}, "a": {}, "s2": {}, "note": {"dtype": "U5"}}
    rb = HindsightReplayBuffer(
        100,
        fields,
        5,
        lambda state, action, goal: state + action,
        state="s",
        action="a",
        next_state="s2",
        seed=0,
    )
    rb.add(s=[1, 2], a=[3, 4], s2=[5, 6], note=["one", "two"])
    rb.on_episode_end([9])
    batch = rb.get_all_transitions()
    assert sorted(set(batch["note"].ravel().tolist())) == ["one", "two"]
    assert batch["rew"][:2].tolist() == [[8], [10]]
    assert set(batch["goal"].ravel().tolist()) == {9, 5, 6}


def test_nstep_sums_stay_within_a_copy() -> None:
    """With Nstep each copy ends as an episode does: no sum runs on into the next copy."""
    rb = make(strategy="final", Nstep={"size": 3, "gamma": 1.0, "rew": "rew"})
    for number in range(4):
        rb.add(**step(number))  # truncated: no step is done
    rb.on_episode_end(OWN_GOAL)
    batch = rb.get_all_transitions()
    single = np.array([number + 1 + 100.0 * number for number in range(4)])
    for copied, goal in enumerate([-2.0, 4.0]):
        rewards = single + goal / 8
        sums = [rewards[k : k + 3].sum() for k in range(4)]
        np.testing.assert_allclose(batch["rew"][4 * copied : 4 * copied + 4, 0], sums)


# ---- drawing -----------------------------------------------------------------------------


def test_drawing_by_priority() -> None:
    """A prioritized buffer takes beta, gives weights and indexes, and takes priorities."""
    rb = make()
    play(rb, 0, 4)
    batch = rb.sample(32, beta=0.4)
    assert set(batch) == {*FIELDS, "rew", "goal", "weights", "indexes"}
    rb.update_priorities(batch["indexes"], np.full(32, 3.0))
    assert rb.get_max_priority() == 3.0
    rb.clear()
    assert rb.get_max_priority() == 1.0


def test_drawing_without_priorities() -> None:
    """Without priorities, what belongs to them raises the errors that cpprb raises."""
    rb = make(prioritized=False)
    play(rb, 0, 4)
    assert set(rb.sample(32)) == {*FIELDS, "rew", "goal"}
    with refused(rb, TypeError, "beta"):
        rb.sample(32, beta=0.4)
    with refused(rb, ValueError, "update_priorities: expected a buffer with prioritized=True"):
        rb.update_priorities([0], [1.0])
    with refused(rb, ValueError, "get_max_priority: expected a buffer with prioritized=True"):
        rb.get_max_priority()


def test_sizes_clear_and_repr() -> None:
    """Sizes count copies, clear forgets the open episode as well, and the repr says what it is."""
    rb = make(30)
    play(rb, 0, 4)
    rb.add(**step(4))
    assert rb.get_buffer_size() == 30
    assert repr(rb) == (
        "HindsightReplayBuffer(size=30, stored=20, strategy='future', additional_goals=4)"
    )
    rb.clear()
    assert len(rb) == 0
    assert rb
    rb.on_episode_end(OWN_GOAL)
    assert rb.get_stored_size() == 0
    assert len(rb.get_all_transitions(shuffle=True)["obs"]) == 0


def test_a_seed_gives_the_same_goals_and_batches() -> None:
    """One seed settles goals and draws, also after pickling and copying; another gives others."""
    buffers = [make(seed=seed) for seed in (1, 1, 2)]
    for rb in buffers:
        play(rb, 0, 20)
        rb.add(**step(20))
    buffers += [pickle.loads(pickle.dumps(buffers[0])), copy.deepcopy(buffers[0])]
    goals = []
    for rb in buffers:
        rb.on_episode_end(OWN_GOAL)
        goals.append((rb.get_all_transitions()["goal"].tolist(), rb.sample(50)["obs"].tolist()))
    assert goals[0] == goals[1] == goals[3] == goals[4]
    assert goals[0] != goals[2]


def test_the_global_generator_seeds_it() -> None:
    """Without a seed, np.random.seed controls goals and draws, as in every buffer."""
    goals = []
    for _ in range(2):
        np.random.seed(5)
        rb = make(seed=None)
        play(rb, 0, 20)
        goals.append((rb.get_all_transitions()["goal"].tolist(), rb.sample(50)["obs"].tolist()))
    assert goals[0] == goals[1]


# ---- misuse ------------------------------------------------------------------------------


def test_episodes_that_are_too_long() -> None:
    """A step more than max_episode_len is refused, whether it comes alone or with others."""
    rb = make(max_episode_len=3)
    rb.add(**step(0))
    several = {name: np.array([step(k)[name] for k in range(3)]) for name in FIELDS}
    with refused(rb, ValueError, "max_episode_len=3", "there are 1, and 3 came"):
        rb.add(**several)
    rb.add(**{name: values[:2] for name, values in several.items()})
    with refused(rb, ValueError, "max_episode_len=3", "on_episode_end"):
        rb.add(**step(3))
    with refused(rb, ValueError, "max_episode_len=3", "there are 3, and 1 came"):
        rb.add(**{name: np.array(value) for name, value in step(3).items()})
    rb.on_episode_end(OWN_GOAL)
    rb.add(**several)


def test_steps_that_do_not_fit() -> None:
    """Steps with missing or unknown fields, rewards or goals among them, are refused."""
    rb = make()
    rb.add(**step(0))
    with refused(rb, TypeError, "missing", "'act'"):
        rb.add(**{name: value for name, value in step(1).items() if name != "act"})
    with refused(rb, TypeError, "unknown", "'rew'"):
        rb.add(**step(1), rew=1)
    with refused(rb, TypeError, "missing", "'act'"):
        rb.add(obs=np.zeros(2), next_obs=np.zeros(2), done=False)
    with refused(rb, ValueError, "'act'"):
        rb.add(**(step(1) | {"act": 0.5}))
    with refused(rb, ValueError, "act"):
        rb.add(**(step(1) | {"act": [1, 2]}))


@pytest.mark.parametrize(
    ("options", "goal", "words"),
    [
        ({}, [1.0], ("goal", "(2,)")),
        ({}, [[1.0, 2.0]] * 2, ("goal", "(2,)", "2")),
        ({}, ["a", "b"], ("goal",)),
        ({"reward_func": lambda s, a, g: g}, OWN_GOAL, ("reward_func", "(4,)", "(4, 2)")),
        ({"reward_func": lambda s, a, g: s[1:, 0]}, OWN_GOAL, ("reward_func", "(3,)")),
        ({"reward_func": lambda s, a, g: s[:, 0] / 0}, OWN_GOAL, ("reward_func", "finite")),
        ({"goal_func": lambda s: s[:, :1]}, OWN_GOAL, ("goal_func", "(4, 2)", "(4, 1)")),
    ],
)
def test_bad_ends_leave_the_episode_open(
    options: dict[str, Any], goal: Any, words: tuple[str, ...]
) -> None:
    """A goal or a function that is wrong is named, nothing is stored, and the episode stays."""
    rb = make(**options)
    for number in range(4):
        rb.add(**step(number))
    with refused(rb, ValueError, *words), np.errstate(divide="ignore"):
        rb.on_episode_end(goal)
    assert len(rb._episode) == 4


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"env_dict": FIELDS | {"rew": {}}}, ValueError, ("env_dict", "'rew'")),
        ({"env_dict": FIELDS | {"goal": {}}}, ValueError, ("env_dict", "'goal'")),
        ({"env_dict": None}, TypeError, ("env_dict", "NoneType")),
        ({"max_episode_len": 0}, ValueError, ("max_episode_len", "1")),
        ({"max_episode_len": 2.5}, TypeError, ("max_episode_len", "2.5")),
        ({"reward_func": None}, TypeError, ("reward_func", "None")),
        ({"goal_func": 3}, TypeError, ("goal_func", "3")),
        ({"goal_shape": 3}, ValueError, ("goal_func", "(3,)", "(2,)")),
        ({"state": "s"}, ValueError, ("state", "'s'", "'obs'")),
        ({"action": "a"}, ValueError, ("action", "'a'")),
        ({"next_state": "rew"}, ValueError, ("next_state", "'rew'")),
        ({"strategy": "best"}, ValueError, ("strategy", "'final'", "'best'")),
        ({"additional_goals": -1}, ValueError, ("additional_goals", "0", "-1")),
        ({"additional_goals": 1.5}, TypeError, ("additional_goals", "1.5")),
        ({"n_envs": 2}, ValueError, ("n_envs", "Hindsight")),
        ({"Nstep": {"size": 2, "rew": "rew"}}, ValueError, ("Nstep", "'final'")),
        ({"prioritized": False, "alpha": 0.5}, TypeError, ("alpha",)),
        ({"colour": "red"}, TypeError, ("colour",)),
        ({"size": 0}, ValueError, ("size",)),
    ],
)
def test_bad_options_are_refused(
    options: dict[str, Any], error: type[Exception], words: tuple[str, ...]
) -> None:
    """A wrong option is refused when the buffer is made, by a message that names it."""
    good: dict[str, Any] = {
        "size": 100,
        "env_dict": FIELDS,
        "max_episode_len": 10,
        "reward_func": reward,
    }
    with pytest.raises(error) as caught:
        HindsightReplayBuffer(**(good | options))
    for word in words:
        assert word in str(caught.value)


def test_declarations_are_not_written_to() -> None:
    """The dicts that were passed stay as they are."""
    fields: dict[str, FieldSpec] = copy.deepcopy(FIELDS)
    HindsightReplayBuffer(10, fields, 5, reward, seed=0, goal_shape=2)
    assert fields == FIELDS


@pytest.mark.parametrize("name", ["next_goal", "desired_goal", "obs.desired_goal"])
def test_goals_that_copies_would_keep_are_refused(name: str) -> None:
    """A field of the goal besides ``goal`` would be the old one in every copy with another goal."""
    fields: dict[str, FieldSpec] = {
        "obs": {"shape": 2},
        "act": {},
        "next_obs": {"shape": 2},
        name: {"shape": 2},
    }
    with pytest.raises(ValueError, match="would keep the old goal in copies"):
        HindsightReplayBuffer(100, fields, 50, lambda state, act, goal: np.zeros(len(goal)))
