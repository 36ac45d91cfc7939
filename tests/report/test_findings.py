"""A report names each planted fault, and nothing of sound data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from optional import need

need("gymnasium", "the data are runs of its environments")
from report_cases import FAULTY, SOUND, filled, rows_of

from cpprb_like import PrioritizedReplayBuffer, ReplayBuffer
from cpprb_like.report import CHECKS


@pytest.mark.once
@pytest.mark.parametrize("name", SOUND)
def test_nothing_is_found_in_sound_data(name: str) -> None:
    """Real environments, with random actions and with a policy."""
    assert SOUND[name]().describe().findings == []


@pytest.mark.once
@pytest.mark.parametrize("name", FAULTY)
def test_a_planted_fault_is_named(name: str) -> None:
    """With its field, in one message, and nothing else is."""
    make, expected = FAULTY[name]
    found = make().describe().findings
    assert {one.name: one.field for one in found} == expected
    assert len(found) == len(expected)
    assert all(one.message and one.look_at for one in found)


def test_each_check_has_a_planted_fault() -> None:
    """No check is there that never finds anything."""
    others = {"constant", "out-of-range"}  # tested below
    assert {name for _, expected in FAULTY.values() for name in expected} | others == set(CHECKS)


def test_a_constant_field_is_named() -> None:
    """But for flags, and for rewards whose episodes differ in length."""
    rows = rows_of("CartPole-v1", 300)
    rows["mass"] = np.full(300, 2.0)
    assert [(one.name, one.field) for one in filled(rows).describe().findings] == [
        ("constant", "mass")
    ]


def test_values_beyond_their_range_are_named() -> None:
    """The caller says the range."""
    rb = filled(rows_of("Pendulum-v1", 300))
    assert rb.describe(ranges={"act": (-2, 2)}).findings == []
    (found,) = rb.describe(ranges={"act": (-1, 1)}).findings
    assert (found.name, found.field) == ("out-of-range", "act")
    with pytest.raises(ValueError, match="ranges: expected fields of numbers, got 'action'"):
        rb.describe(ranges={"action": (0, 1)})


@pytest.mark.parametrize("axis", [0, -1], ids=["channels first", "channels last"])
@pytest.mark.parametrize("n", [1, 3, 4])
def test_axes_of_sound_images_are_not_swapped(axis: int, n: int) -> None:
    """Whatever the order; with bands across, which are alike along one axis."""
    rng = np.random.default_rng(0)
    images = np.zeros((200, 60, 48, n), np.uint8)
    images[:, ::7] = 90
    for image, x, y in zip(images, rng.integers(0, 40, 200), rng.integers(0, 30, 200), strict=True):
        image[x : x + 12, y : y + 9] = rng.integers(50, 250, n)
    moved = np.moveaxis(images, 3, 1) if axis == 0 else images
    rows = {"obs": np.ascontiguousarray(moved), "rew": rng.normal(size=200)}
    assert filled(rows).describe().findings == []


def test_a_part_of_an_observation_may_stay_for_an_episode() -> None:
    """As goals do; a part that stays for longer is frozen, where steps are absent too."""
    rng = np.random.default_rng(0)
    ends = np.arange(4000) % 250 == 249
    goals = np.repeat(rng.normal(size=16), 250)
    rows = {"obs.at": rng.normal(size=4000), "obs.goal": goals, "truncated": ends}
    assert filled(rows).describe().findings == []
    rows["obs.goal"] = np.where(np.arange(4000) < 1000, goals, 3.0)
    assert [(one.name, one.field) for one in filled(rows).describe().findings] == [
        ("frozen", "obs.goal")
    ]


def test_rewards_of_one_environment_of_another_scale_are_named() -> None:
    """The scales of environments are compared."""
    rng = np.random.default_rng(0)
    rewards = rng.normal(size=(1000, 4)) * [1, 1, 1000, 1]
    rb = ReplayBuffer(4000, {"rew": {"shape": ()}}, n_envs=4)
    rb.add(rew=rewards)
    (found,) = rb.describe().findings
    assert (found.name, found.field) == ("reward-scale", "rew")


def test_rare_large_rewards_are_named() -> None:
    """Unless they come at ends, as goals do."""
    rows = rows_of("CartPole-v1", 1000)
    rows["rew"][10] = 1000.0
    (found,) = filled(rows).describe().findings
    assert found.message == "1 rewards are 1,000 times as large as the others"
    rows["rew"][10] = 1.0
    rows["rew"][rows["terminated"]] = 500.0
    assert filled(rows).describe().findings == []


def test_rows_are_found_in_a_ring_that_went_round() -> None:
    """Slots are those of the buffer; episodes that were overwritten in part are no fault."""
    rows = rows_of("CartPole-v1", 3000)
    rb: Any = PrioritizedReplayBuffer(
        1000, {name: {"shape": v.shape[1:], "dtype": v.dtype} for name, v in rows.items()}
    )
    rb.add(**rows)
    assert rb.describe().findings == []
    rows["obs"][2345] = np.inf
    rb.add(**rows)
    (found,) = rb.describe().findings
    assert found.message == f"0 NaN and 4 infinite values; the first in slot {5345 % 1000}"
