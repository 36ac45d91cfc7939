"""A recorder stores what the same seeded environments produce one by one, across no reset."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import rooms
from hypothesis import given
from hypothesis import strategies as st
from optional import need

from cpprb_like.typing import FieldSpec, NstepSpec

need("dm_env")

import dm_env
from dm_env import specs
from dm_env_cases import (
    FIRST,
    LAST,
    MID,
    ReusingTrail,
    Row,
    SlowRecorder,
    Stacked,
    Trail,
    assert_same_rows,
    attached,
    drawn_actions,
    env_of,
    plain_rows,
    stored_rows,
    take,
)

from cpprb_like import ReplayBuffer
from cpprb_like.integrations.dm_env import DmEnvRecorder

# ---------------------------------------------------------------- one environment


@pytest.mark.parametrize("make", [Trail, ReusingTrail])
def test_single_environment_gives_the_rows_of_a_plain_loop(make: type[Trail]) -> None:
    """Every step is stored as it was, and the step in which the environment resets is not."""
    actions = drawn_actions(80, seed=3)
    env = make()
    recorder, rb = attached(env)
    recorder.reset(env.reset())
    for action in actions:
        recorder.add(action, env.step(action))

    expected = plain_rows(Trail(), actions)

    assert len({(row["terminated"], row["truncated"]) for row in expected}) == 3
    assert 40 < len(expected) < 75
    assert_same_rows(stored_rows(recorder, rb), expected)


def test_loop_that_resets_by_itself() -> None:
    """With ``env.reset`` and ``reset`` after each end, nothing is left out."""
    env = Trail()
    recorder, rb = attached(env)
    ends = []
    for action in drawn_actions(60, seed=3):
        if env.over:
            recorder.reset(env.reset())
        step = env.step(action)
        recorder.add(action, step)
        ends.append(step.last())
    assert len(rb) == 60
    batch = rb.get_all_transitions()
    np.testing.assert_array_equal(batch["terminated"] | batch["truncated"], ends)
    ahead = batch["next_obs.clock"] - batch["obs.clock"]
    np.testing.assert_array_equal(ahead, np.tile([0, 1], (60, 1)))


@pytest.mark.parametrize(
    ("step", "terminated", "truncated", "discount"),
    [
        (dm_env.transition(1.0, [1, 1]), False, False, 1),
        (dm_env.transition(1.0, [1, 1], 0.25), False, False, 0.25),
        (dm_env.transition(1.0, [1, 1], 0.0), False, False, 0),
        (dm_env.termination(1.0, [1, 1]), True, False, 0),
        (dm_env.truncation(1.0, [1, 1]), False, True, 1),
        (dm_env.truncation(1.0, [1, 1], 0.25), False, True, 0.25),
        (dm_env.truncation(1.0, [1, 1], -0.0), True, False, 0),
    ],
)
def test_ends_by_discount(step: Any, terminated: bool, truncated: bool, discount: float) -> None:
    """LAST with discount 0 terminates, LAST with another truncates, and MID ends nothing."""
    recorder, rb = attached(env_of())
    recorder.reset(dm_env.restart([0, 0]))
    assert recorder.add(2, step) == 0
    row = rb[0]
    assert row["terminated"] == terminated
    assert row["truncated"] == truncated
    assert row["discount"] == discount
    assert rb.get_current_episode_len() == (0 if terminated or truncated else 1)


def test_slot_of_each_step() -> None:
    """``add`` returns the slot where the step lies, and None for a reset."""
    recorder, rb = attached(env_of(), size=3)
    recorder.reset(dm_env.restart([0, 0]))
    assert [recorder.add(0, dm_env.transition(0.0, [step, 0])) for step in range(1, 5)] == [
        *(0, 1, 2, 0)
    ]
    assert recorder.add(0, dm_env.termination(0.0, [5, 0])) == 1
    assert recorder.add(0, dm_env.restart([6, 0])) is None
    assert recorder.add(0, dm_env.transition(0.0, [7, 0])) == 2
    assert rb[:]["obs"][:, 0].tolist() == [3, 4, 6]
    assert rb[:]["next_obs"][:, 0].tolist() == [4, 5, 7]


@pytest.mark.parametrize("call", ["reset", "add"])
def test_reset_in_the_middle_truncates(call: str) -> None:
    """An episode that a FIRST or ``reset`` cuts ends there: no sum of rewards goes on."""
    recorder = DmEnvRecorder(env_of())
    n_step: NstepSpec = {"size": 3, "gamma": 0.5, "rew": "rew", "next": ("next_obs", "discount")}
    n_step["discount"] = False  # the field is the environment's
    rb = recorder.attach(ReplayBuffer(100, recorder.env_dict, Nstep=n_step))
    recorder.reset(dm_env.restart([0, 0]))
    recorder.add(0, dm_env.transition(1.0, [1, 0]))
    recorder.add(0, dm_env.transition(1.0, [2, 0]))
    assert rb.get_current_episode_len() == 2
    if call == "reset":
        recorder.reset(dm_env.restart([5, 0]))
    else:
        recorder.add(0, dm_env.restart([5, 0]))
    assert rb.get_current_episode_len() == 0
    recorder.add(0, dm_env.termination(4.0, [6, 0]))
    batch = rb.get_all_transitions()
    assert batch["rew"].tolist() == [1.5, 1, 4]
    assert batch["next_obs"][:, 0].tolist() == [2, 2, 6]
    assert batch["obs"][:, 0].tolist() == [0, 1, 5]


def test_discount_of_n_steps() -> None:
    """Without a field for it, the name is free for the factor of n-step returns."""
    recorder = DmEnvRecorder(env_of())
    fields = recorder.env_dict
    del fields["discount"]
    n_step: NstepSpec = {
        "size": 2,
        "gamma": 0.5,
        "rew": "rew",
        "next": "next_obs",
        "discount": True,
    }
    rb = recorder.attach(ReplayBuffer(100, fields, next_of="obs", Nstep=n_step))
    for end in (dm_env.termination, dm_env.truncation):
        recorder.reset(dm_env.restart([0, 0]))
        recorder.add(0, dm_env.transition(1.0, [1, 0]))
        recorder.add(0, dm_env.transition(1.0, [2, 0]))
        recorder.add(0, end(1.0, [3, 0]))
    batch = rb.get_all_transitions()
    assert batch["discount"].tolist() == [0.25, 0, 0, 0.25, 0.25, 0.5]


# ---------------------------------------------------------------- batched environments


@pytest.mark.parametrize("make", [Trail, ReusingTrail])
@pytest.mark.parametrize("n_envs", [1, 2, 5])
def test_batched_environments_give_the_rows_of_plain_loops(n_envs: int, make: type[Trail]) -> None:
    """Each environment's rows are those of the same environment alone, in order."""
    env = Stacked([make(seed) for seed in range(n_envs)])
    recorder = DmEnvRecorder(env)
    fields: dict[str, FieldSpec] = {**recorder.env_dict, "env": {"shape": (), "dtype": int}}
    rb = recorder.attach(
        ReplayBuffer(1000, fields, n_envs=n_envs, next_of="obs.clock", room=rooms(fields))
    )
    actions = [drawn_actions(60, seed) for seed in range(n_envs)]
    recorder.reset(env.reset())
    for each in zip(*actions, strict=True):
        step = env.step(list(each))
        action = (np.array([one[0] for one in each]), {"push": [one[1]["push"] for one in each]})
        recorder.add(action, step, env=np.arange(n_envs))

    rows = stored_rows(recorder, rb)
    for number in range(n_envs):
        found = [row for row in rows if row["env"] == number]
        assert_same_rows(found, plain_rows(Trail(number), actions[number]))


def test_number_of_environments_by_argument() -> None:
    """``n_envs`` says how long the leading axis is where the environment does not; also for 1."""
    for n_envs in (1, 2):
        recorder, rb = attached(env_of(), n_envs=n_envs)
        recorder.reset(dm_env.TimeStep(np.full(n_envs, FIRST), None, None, np.zeros((n_envs, 2))))
        step = dm_env.TimeStep(
            np.full(n_envs, MID), np.ones(n_envs), np.ones(n_envs), np.ones((n_envs, 2))
        )
        recorder.add(np.zeros(n_envs, int), step)
        assert (rb.n_envs, len(rb)) == (n_envs, n_envs)


def test_nothing_is_written_when_all_environments_reset() -> None:
    """A time step in which no environment has a step takes no slots."""
    recorder, rb = attached(env_of(), n_envs=2)
    seen = np.zeros((2, 2))
    ends = dm_env.TimeStep([LAST, LAST], [1.0, 1.0], [0.0, 1.0], seen)
    begins = dm_env.TimeStep([FIRST, FIRST], None, None, seen)
    recorder.reset(begins)
    assert recorder.add([0, 0], ends) == 0
    assert recorder.add(None, begins) is None
    assert recorder.add([0, 0], ends) == 2
    assert rb.get_next_index() == 4
    assert len(rb) == 4


def test_what_a_reset_gives_besides_the_observation_is_not_looked_at() -> None:
    """Actions, rewards and discounts of environments that reset may be anything."""
    recorder, rb = attached(env_of(), n_envs=2)
    recorder.reset(dm_env.TimeStep([FIRST, FIRST], None, None, np.zeros((2, 2))))
    recorder.add([0, 0], dm_env.TimeStep([MID, LAST], [1.0, 2.0], [1.0, 0.0], np.ones((2, 2))))
    nan = float("nan")
    recorder.add(
        [2, None], dm_env.TimeStep([MID, FIRST], [3.0, nan], [0.5, nan], np.full((2, 2), 2.0))
    )
    recorder.add(
        np.array([None, 2]),
        dm_env.TimeStep(
            np.array([FIRST, MID]), [None, 4.0], np.array([None, 0.25]), np.full((2, 2), 3.0)
        ),
    )
    batch = rb.get_all_transitions()
    assert batch["rew"].tolist() == [1, 2, 3, 4]
    assert batch["discount"].tolist() == [1, 0, 0.5, 0.25]
    assert batch["act"].tolist() == [0, 0, 2, 2]
    assert batch["obs"][:, 0].tolist() == [0, 0, 1, 2]
    assert batch["next_obs"][:, 0].tolist() == [1, 1, 2, 3]


# ---------------------------------------------------------------- random histories

SPEC = {"id": specs.Array((), np.int64), "more": [specs.Array((2,), np.int32)]}
STEP_TYPES = {"F": FIRST, "M": MID, "m": MID, "T": LAST, "L": LAST}
DISCOUNTS = {"F": 1.0, "M": 1.0, "m": 0.5, "T": 0.0, "L": 0.75}
calls = st.lists(
    st.tuples(
        st.sampled_from(["add"] * 12 + ["reset", "clear", "fail", "stuck"]),
        st.lists(st.sampled_from("MMMmmTLF"), min_size=4, max_size=4),
    ),
    max_size=60,
)


def seen(numbers: list[int], batched: bool) -> Any:
    """Observations with these numbers."""
    values = np.array(numbers)
    nest = {"id": values, "more": [np.stack([values, -values], 1)]}
    return nest if batched else take(nest, 0)


def n_step_row(window: list[Row]) -> Row:
    """What a row of several steps is to be."""
    last = window[-1]
    ahead = {name: last[name] for name in ("next_obs", "discount", "terminated")}
    return {**window[0], **ahead, "rew": sum(0.5**i * row["rew"] for i, row in enumerate(window))}


def assert_same_row(found: dict[str, Any], row: dict[str, Any]) -> None:
    """A row of the buffer is what the twin says."""
    assert found["obs.more.0"].tolist() == [row["obs"], -row["obs"]]
    assert found["next_obs.more.0"].tolist() == [row["next_obs"], -row["next_obs"]]
    names = ("act", "rew", "discount", "terminated")
    assert [found["obs.id"], found["next_obs.id"], *(found[name] for name in names)] == [
        row["obs"],
        row["next_obs"],
        *(row[name] for name in names),
    ]


@given(
    n_envs=st.sampled_from([None, 1, 2, 3, 4]),
    room=st.integers(0, 40),
    n=st.integers(1, 3),
    next_of=st.sampled_from([None, ["obs.id", "obs.more.0"]]),
    calls=calls,
)
def test_any_pattern_of_ends_and_resets(
    n_envs: int | None, room: int, n: int, next_of: Any, calls: list[tuple[str, list[str]]]
) -> None:
    """Rows, counts and n-step sums are those of lists of episodes; refused calls change nothing."""
    batched, k = n_envs is not None, n_envs or 1
    recorder = DmEnvRecorder(env_of(SPEC), n_envs=n_envs)
    n_step: NstepSpec | None = None if n == 1 else {"size": n, "gamma": 0.5, "rew": "rew"}
    if n_step is not None:
        n_step["next"] = ["next_obs.id", "next_obs.more.0", "discount"]
        n_step["discount"] = False
    capacity = k * n + room
    rb = ReplayBuffer(capacity, recorder.env_dict, n_envs=k, next_of=next_of, Nstep=n_step)
    recorder.attach(rb)
    twin = SlowRecorder(capacity, k)
    numbers = iter(range(1, 10**6))
    waiting = [False] * k

    def time_step(kinds: list[str], ids: list[int]) -> Any:
        rewards = [2.0 * number for number in ids]
        parts: list[Any] = [
            [STEP_TYPES[kind] for kind in kinds],
            rewards,
            [DISCOUNTS[kind] for kind in kinds],
        ]
        if not batched:
            parts = [column[0] for column in parts]
        return dm_env.TimeStep(*parts, seen(ids, batched))

    def begin() -> None:
        ids = [next(numbers) for _ in range(k)]
        recorder.reset(time_step(["F"] * k, ids))
        twin.reset(ids)
        waiting[:] = [False] * k

    begin()
    for call, letters in calls:
        kinds = ["F" if waiting[env] else letters[env] for env in range(k)]
        ids = [next(numbers) for _ in range(k)]
        actions = [number % 3 for number in ids]
        action = actions if batched else actions[0]
        if call == "reset":
            begin()
        elif call == "clear":
            rb.clear()
            twin.clear()
        elif call == "fail":
            broken, bad_action = time_step(kinds, ids), np.array(action, float)
            if ids[0] % 3 == 0 or set(kinds) == {"F"}:
                broken = broken._replace(observation={"id": 1})
            elif ids[0] % 3 == 1:
                broken = broken._replace(reward=["x"] * k if batched else "x")
            else:
                bad_action += 0.5
            with pytest.raises(ValueError, match=r"field '(next_)?obs'|field 'rew'|field 'act'"):
                recorder.add(bad_action, broken)
        elif call == "stuck" and any(waiting):
            with pytest.raises(RuntimeError, match="has ended"):
                recorder.add(action, time_step(["M"] * k, ids))
        else:
            recorder.add(action, time_step(kinds, ids))
            steps = [
                (STEP_TYPES[kind], 2.0 * number, DISCOUNTS[kind], number)
                for kind, number in zip(kinds, ids, strict=True)
            ]
            twin.add(actions, steps)
            waiting = [kind in "TL" for kind in kinds]

        windows = {slot: twin.window(row, n) for slot, row in twin.living(n).items()}
        expected = {slot: n_step_row(window) for slot, window in windows.items() if window}
        assert len(rb) == len(expected)
        assert [rb.get_current_episode_len(env) for env in range(k)] == [
            twin.episode_len(env) for env in range(k)
        ]
        for slot, row in expected.items():
            assert_same_row(rb[slot], row)
            assert n > 1 or rb[slot]["truncated"] == row["truncated"]
