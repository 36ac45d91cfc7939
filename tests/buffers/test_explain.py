"""``explain``: what a row is, what is read of it, and why it can or cannot be drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cpprb_like import ReplayBuffer
from cpprb_like.samplers import Prioritized
from cpprb_like.views import Among, FrameStacks, Hindsight, NStep, Sequences

FIELDS: dict[str, Any] = {
    "obs": {"shape": 2},
    "rew": {"shape": ()},
    "done": {"shape": (), "dtype": bool},
}


def buffer(size: int = 100, n: int = 30, **options: Any) -> ReplayBuffer:
    """``n`` rows; an episode ends after rows 9, 19, ..."""
    rb = ReplayBuffer(size, FIELDS, terminated="done", seed=0, **options)
    for t in range(n):
        nexts = {"next_obs": np.full(2, t + 1)} if "next_of" in options else {}
        rb.add(obs=np.full(2, t), rew=t, done=t % 10 == 9, **nexts)
    return rb


def test_a_row_of_a_plain_buffer() -> None:
    """By its slot, its handle, and from the newest row on back."""
    rb = buffer(25, next_of="obs")
    found = rb.explain(3)  # row 28
    assert rb.explain(found["index"]) == found
    assert rb.explain(-2) == found
    assert (found["row"], found["slot"], found["age"]) == (28, 3, 1)
    assert (found["episode"], found["step_of_episode"]) == ("rows 20 to 29", 8)
    assert found["end"] == "terminated 1 rows later"
    assert found["reads"][1].startswith("next_obs: obs of row 29, or")
    assert rb.explain(-1)["reads"][1] == "next_obs: a value stored beside the rows", "no row 30"
    assert found["probability"] == 1 / 25
    assert found["can_be_drawn"]
    assert "row" in str(found)


def test_a_row_that_is_gone() -> None:
    """Its handle still names it; a slot without a row is an error."""
    rb = buffer()
    index = rb.explain(5)["index"]
    rb.clear()
    found = rb.explain(index)
    assert not found["can_be_drawn"]
    assert found["reasons"] == ["the row is gone: the buffer was cleared"]
    for t in range(30):
        rb.add(obs=[t, t], rew=t, done=False)
    index = rb.explain(0)["index"]
    for t in range(100):
        rb.add(obs=[t, t], rew=t, done=False)
    assert rb.explain(index)["reasons"] == ["the row is gone: a later row was written over it"]
    rb.clear()
    for wrong in (0, -1, -99, 99):
        with pytest.raises(IndexError, match="expected a slot"):
            rb.explain(wrong)
    with pytest.raises(TypeError, match="index"):
        rb.explain(1.5)  # type: ignore[arg-type]


def test_absent_and_deleted_rows() -> None:
    """An environment without a step, and rows of an episode that was deleted."""
    rb = ReplayBuffer(100, FIELDS, n_envs=2, terminated="done")
    for t in range(10):
        rb.add_where([True, t % 2 == 0], obs=np.full((2, 2), t), rew=[t, t], done=[t == 4, t == 9])
    assert "absent" in rb.explain(3)["reasons"][0]
    assert rb.explain(4)["can_be_drawn"]
    rb.episodes.delete(0)
    assert "deleted" in rb.explain(0)["reasons"][0]
    assert not rb.explain(0)["can_be_drawn"]


def test_a_deleted_row_by_its_index() -> None:
    """It was said to be written over."""
    rb = buffer()
    batch = rb.sample(200, indexes=True)
    index = int(batch["indexes"][batch["rew"] == 13][0])
    assert rb.explain(index)["row"] == 13
    rb.episodes.delete(1)
    found = rb.explain(index)
    assert (found["row"], found["can_be_drawn"]) == (13, False)
    assert found["reasons"] == ["it was deleted with its episode, or rewind() forgot it"]


def test_a_row_that_a_buffer_with_nstep_leaves_out() -> None:
    """Its slot is there for windows only: no window is incomplete."""
    rb = buffer(size=20, n=50, Nstep={"size": 3, "rew": "rew", "gamma": 0.9})
    first = rb.ring.first
    assert first > rb.ring.written - rb.ring.stored
    found = rb.explain(rb.ring.handle_base + rb.ring.span + first - 1)
    assert found["row"] == first - 1
    assert found["reasons"] == ["it is left out: the buffer draws from its newest 20 rows"]


def test_rows_of_environments_that_do_not_divide_the_capacity() -> None:
    """The longest episode has a row more than the others: all of its rows are listed."""
    rb = ReplayBuffer(10, FIELDS, n_envs=4, terminated="done", seed=0)
    for t in range(7):
        rb.add(obs=np.full((4, 2), t), rew=np.full(4, t), done=np.zeros(4))
    for age in (1, 2):
        found = rb.explain(-age)  # of environments 3 and 2, which have three rows in the ring
        assert found["episode"] == f"rows {20 - age} to {28 - age}"
        assert found["step_of_episode"] == 2


def test_incomplete_windows() -> None:
    """Of n-step returns, in a buffer and in a view."""
    rb = buffer(n=28, Nstep={"size": 3, "rew": "rew", "gamma": 0.9})
    found = rb.explain(rb.ring.span + rb.ring.written - 1)
    assert not found["can_be_drawn"]
    assert "3-step window is incomplete: 0 of 2" in found["reasons"][0]
    assert "3-step returns: rows 5 to 7" in rb.explain(5)["reads"]
    view = buffer(n=28).view(NStep(3, gamma=0.9))
    assert view.explain(26)["reasons"] == ["the view needs 2 rows behind it; 1 follow so far"]
    assert view.explain(25)["can_be_drawn"]
    assert view.explain(8)["can_be_drawn"], "its episode has ended"


@pytest.mark.parametrize(
    "layers",
    [
        [Sequences(4)],
        [Sequences(4, stride=2)],
        [FrameStacks({"obs": 3})],
        [NStep(3, gamma=0.9)],
        [Sequences(3), FrameStacks({"obs": 2})],
        [Among("done")],
    ],
)
def test_it_agrees_with_draws(layers: list[Any]) -> None:
    """A row can be drawn if and only if a view draws it."""
    view = buffer(25, n=38).view(*layers)
    drawn = set()
    for _ in range(60):
        batch = view.sample(20, indexes=True)
        drawn |= {int(one) % view.buffer.ring.span for one in batch["indexes"].ravel()}
        if "row_indexes" in batch:
            break
    for slot in range(25):
        found = view.explain(slot)
        if not any(type(layer) is Sequences for layer in layers):
            assert found["can_be_drawn"] == (slot in drawn), slot
        assert found["reasons"]
        assert found["can_be_drawn"] == (found["probability"] > 0)


def test_priorities() -> None:
    """Weight and probability are those of the sampler; a priority of 0 is a reason."""
    rb = buffer(n=4, sampler=Prioritized(alpha=1.0, eps=0.0))
    rb.update_priorities([0, 1, 2, 3], [1, 3, 0, 4])
    found = rb.explain(1)
    assert found["priority"] == pytest.approx(3)
    assert found["probability"] == pytest.approx(3 / 8)
    assert rb.explain(2)["reasons"] == ["its priority is 0"]


@pytest.mark.parametrize("layers", [[Sequences(4)], [NStep(3, gamma=0.9)], [Among("done")]])
def test_priorities_among_the_rows_of_a_view(layers: list[Any]) -> None:
    """The probability was that of the buffer, as if the view could draw all rows."""
    sampler = Prioritized(alpha=1.0, eps=0.0, probabilities=True)
    rb = buffer(25, n=38, sampler=sampler)
    rb.update_priorities(np.arange(25), 1.0 + np.arange(25))
    view = rb.view(*layers)
    batch = view.sample(20)
    for index, probability in zip(batch["indexes"], batch["probabilities"], strict=True):
        assert view.explain(int(index))["probability"] == pytest.approx(probability)
    every = [view.explain(slot) for slot in range(25)]
    assert sum(found["probability"] for found in every) == pytest.approx(1)
    for found in every:
        assert found["can_be_drawn"] == (found["probability"] > 0)


def test_the_reason_is_the_one_that_holds() -> None:
    """Of a condition, of the rows before a row, and of places that are no start."""
    rb = buffer(25, n=38)  # row 13 is the oldest, and row 20 begins an episode
    oldest = rb.ring.written - 25
    base = rb.ring.handle_base + rb.ring.span
    cases: list[tuple[list[Any], int, str]] = [
        ([Among("done")], 22, "Among leaves it out"),
        ([Among("done"), Sequences(3)], 36, "the view needs 2 rows behind it; 1 follow so far"),
        ([FrameStacks({"obs": 3})], oldest + 1, "needs 2 rows before it; 1 are left"),
        ([Sequences(3, stride=4), FrameStacks({"obs": 3})], 21, "start at each 4th row"),
        ([Sequences(3, across_episodes=True)], 36, "needs 2 rows of its environment behind it"),
        ([Sequences(1, burn_in=4)], 28, "sequences have at least 5 rows; 2 are left from here"),
    ]
    for layers, row, reason in cases:
        found = rb.view(*layers).explain(base + row)
        assert found["row"] == row
        assert len(found["reasons"]) == 1
        assert reason in found["reasons"][0], layers


def test_changed_columns() -> None:
    """A layer that changes columns says which."""
    rb = ReplayBuffer(
        50,
        {
            "goal": {"shape": 2},
            "achieved": {"shape": 2},
            "rew": {"shape": ()},
            "done": {"shape": ()},
        },
        seed=0,
    )
    for t in range(10):
        rb.add(goal=[1, 1], achieved=[t, t], rew=0, done=t == 9)
    view = rb.view(
        Hindsight(
            lambda achieved, goal, _: (achieved == goal).all(1).astype(float),
            goal="goal",
            achieved="achieved",
        )
    )
    assert "Hindsight: changes goal, rew in each draw" in view.explain(3)["reads"]
