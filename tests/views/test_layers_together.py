"""What one layer of a view must not change for another, and draws that have next to nothing."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from cpprb_like import NotEnoughDataError, ReplayBuffer
from cpprb_like._machine.aligned import empty
from cpprb_like.buffers import Mixture
from cpprb_like.samplers import Recency
from cpprb_like.typing import FieldSpec
from cpprb_like.views import FrameStacks, Hindsight, NStep, Sequences
from cpprb_like.views._layer import Layer

FIELDS: dict[str, Any] = {
    "x": {"shape": (2,), "dtype": "i8"},
    "goal": {"shape": (2,), "dtype": "i8"},
    "rew": {"shape": ()},
    "done": {"shape": (), "dtype": bool},
}


def buffer(n: int = 8, **options: Any) -> ReplayBuffer:
    """Rows of one episode, which has not ended."""
    rb = ReplayBuffer(50, FIELDS, seed=0, **options)
    rows = np.arange(n).repeat(2).reshape(n, 2)
    if n:
        rb.add(x=rows, goal=rows - 100, rew=np.ones(n), done=np.zeros(n, bool))
    return rb


@pytest.mark.parametrize("further", [(), (NStep(2),), (Sequences(3),)])
@pytest.mark.parametrize("fields", [None, ("goal", "rew")])
def test_functions_of_new_goals_get_what_was_stored_also_beside_stacks(
    further: tuple[Layer, ...], fields: tuple[str, ...] | None
) -> None:
    """Whatever is read into the batch: values that were achieved are frames, and no stacks."""
    shapes = set()

    def reward(achieved: Any, goal: Any, rows: Mapping[str, Any]) -> Any:
        shapes.add((achieved.shape[1:], goal.shape[1:], rows["x"].shape[1:]))
        assert (achieved == rows["x"]).all()
        return (achieved == goal).all(axis=-1)

    goals = Hindsight(reward, goal="goal", achieved="x", relabel_ratio=1.0)
    view = buffer().view(FrameStacks({"x": 3}), goals, *further)
    for _ in range(2):
        batch = view.sample(5, fields=fields)
        assert fields is not None or batch["x"].shape[-2:] == (2, 3)
    assert shapes == {((2,), (2,), (2,))}


def test_recency_draws_the_newest_start_where_none_of_the_newest_rows_is_one() -> None:
    """The rows of a growing episode that wait for others do not stop a round."""
    rb = buffer(sampler=Recency(1e-9, least=2))
    view = rb.view(NStep(4))
    assert view.sample(3)["x"][:, 0].tolist() == [4, 4, 4]
    assert sorted(view.sample(3, replace=False)["x"][:, 0].tolist()) == [2, 3, 4]


@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("layer", [NStep(3), Sequences(3), FrameStacks({"x": 2})])
def test_recency_over_an_empty_buffer_says_that_there_is_too_little(
    layer: Layer, replace: bool
) -> None:
    """As every sampler does."""
    with pytest.raises(NotEnoughDataError, match="cannot sample"):
        buffer(0, sampler=Recency(least=5)).view(layer).sample(2, replace=replace)


def test_columns_are_in_the_order_of_the_fields_whatever_is_read_of_the_first_row() -> None:
    """With n-step returns as without."""
    rb = buffer()
    order = ["x", "goal", "rew", "done"]
    assert list(rb.view(Sequences(2, first_only="x")).sample(2))[:4] == order
    assert list(rb.view(Sequences(2, first_only="x"), NStep(2)).sample(2))[:4] == order


def test_a_field_called_indexes_is_named_where_sequences_are_to_be_named() -> None:
    """And nothing is said about the sampler."""
    rb = ReplayBuffer(9, {"indexes": {"shape": ()}}, seed=0)
    rb.add(indexes=[1, 2])
    with pytest.raises(ValueError, match="indexes: there is a field of this name"):
        rb.view(Sequences(2)).sample(1, indexes=True)


def test_a_stack_whose_oldest_frames_are_gone_is_why_no_row_can_be_drawn() -> None:
    """The message says that rows before are missing."""
    rb = ReplayBuffer(3, {"x": {"shape": ()}}, seed=0)
    rb.add(x=[1, 2, 3])
    for _ in range(2):
        rb.add_where([False], x=0)
    with pytest.raises(NotEnoughDataError, match="the 2 before them"):
        rb.view(FrameStacks({"x": 3})).sample(1)


def test_a_view_of_n_step_returns_says_what_is_missing_without_a_word_of_sequences() -> None:
    """They were said to be sequences of 3 rows."""
    rb = ReplayBuffer(10, {"rew": {"shape": ()}, "done": {"shape": ()}}, seed=0)
    rb.add(rew=[1, 1], done=[0, 0])
    view = rb.view(NStep(3))
    with pytest.raises(NotEnoughDataError, match="holds 2 rows, of which none begin 3 rows of an"):
        view.sample(1)
    rb.add(rew=1, done=0)
    with pytest.raises(NotEnoughDataError, match="5 distinct rows: the buffer holds 3, of which 1"):
        view.sample(5, replace=False)


def test_a_view_without_a_start_leaves_its_share_to_the_others() -> None:
    """Training begins on demonstrations alone, until a sequence of the agent's own is there."""
    fields: dict[str, FieldSpec] = {"x": {"shape": ()}, "done": {"shape": ()}}
    own, demos = ReplayBuffer(50, fields, seed=0), ReplayBuffer(50, fields, seed=1)
    demos.add(x=np.zeros(20), done=np.zeros(20))
    own.add(x=[1, 1], done=[0, 0])
    views = {name: rb.view(Sequences(4)) for name, rb in {"own": own, "demos": demos}.items()}
    mixture = Mixture(views, {"own": 1, "demos": 1}, seed=2)
    assert mixture.sample(10)["source"].tolist() == [1] * 10
    own.add(x=[1, 1], done=[0, 0])
    assert sorted(mixture.sample(10)["source"].tolist()) == [0] * 5 + [1] * 5
    demos.clear()
    own.clear()
    with pytest.raises(NotEnoughDataError, match="empty"):
        mixture.sample(3)


@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize("further", [(), (NStep(2, discount=True),), (FrameStacks({"x": 3}),)])
@pytest.mark.parametrize("first_only", [(), ("goal", "nothing")])
def test_goals_in_sequences_of_any_length_beside_a_value_without_elements(
    length: int, further: tuple[Layer, ...], first_only: tuple[str, ...]
) -> None:
    """A sequence of one row was taken for a lone row, and a size of 0 left -1 of a shape open."""

    def reward(achieved: Any, goal: Any, rows: Mapping[str, Any]) -> Any:
        assert rows["nothing"].shape == (len(goal), 0)
        return (achieved == goal).all(axis=-1)

    fields: dict[str, FieldSpec] = {**FIELDS, "nothing": {"shape": (0,)}}
    rb = ReplayBuffer(50, fields, next_of="x", seed=0)
    rows = np.arange(8).repeat(2).reshape(8, 2)
    for first in (0, 20, 40):
        values = {"x": rows + first, "goal": rows - 100, "rew": np.zeros(8), "done": np.zeros(8)}
        rb.add(**values, next_x=rows + first + 1, nothing=np.empty((8, 0)))
        rb.on_episode_end()
    goals = Hindsight(
        reward, goal="goal", achieved="next_x", relabel_ratio=1.0, strategy="final", relabelled=True
    )
    sequences = Sequences(length, first_only=first_only)
    batch = rb.view(sequences, goals, *further).sample(16)
    assert batch["nothing"].shape == ((16, 0) if first_only else (16, length, 0))
    assert batch["relabelled"].shape == batch["mask"].shape == (16, length)
    assert (batch["relabelled"] == batch["mask"]).all()
    achieved = batch["x"].reshape(16, -1)[:, :1] // 20 * 20 + 8  # at the end of the episode
    found = batch["goal"] if first_only else batch["goal"][:, 0]
    assert (found == achieved).all()


@pytest.mark.parametrize("offset", [0, 8])
def test_stacks_that_new_goals_cut_are_in_the_arrays_of_the_caller(offset: int) -> None:
    """Those at any address: next stacks are written again where an n-step return ends earlier."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 3, (41, 2))
    rb = ReplayBuffer(50, FIELDS, next_of="x", seed=0)
    rb.add(x=x[:-1], next_x=x[1:], goal=x[:-1] - 9, rew=np.ones(40), done=np.arange(40) % 10 == 9)

    def reached(achieved: Any, goal: Any, rows: Mapping[str, Any]) -> Any:
        del rows
        return (achieved == goal).all(axis=-1)

    goals = Hindsight(
        reached,
        goal="goal",
        achieved="next_x",
        terminated_func=reached,
        terminated="done",
        relabel_ratio=1.0,
    )
    view = rb.view(FrameStacks({"x": 3}), NStep(4), goals)
    twin = copy.deepcopy(view)
    expected, out = view.sample(32), {}
    for name, spec in view.columns.items():
        nbytes = 32 * spec.dtype.itemsize * math.prod(spec.shape)
        memory = empty((nbytes + offset,), np.dtype(np.uint8))[offset:]
        out[name] = memory.view(spec.dtype).reshape(32, *spec.shape)
    found = twin.sample(32, out=dict(out))
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)
        if name in out:
            np.testing.assert_array_equal(out[name], values)


@pytest.mark.parametrize("padding", [np.zeros(2), "last", None])
def test_frame_stacks_of_a_file_are_checked(padding: Any) -> None:
    """As those of the constructor: a forged padding failed when it was used."""
    stacks = FrameStacks({"x": 2})
    with pytest.raises(ValueError, match="padding: expected 'first' or 'zeros'"):
        stacks.__setstate__(vars(stacks) | {"padding": padding})
