"""Columns of the same name mean the same, and have the same dtype, wherever they come from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cpprb_like import LaBERlazy, LaBERmax, LaBERmean, PrioritizedReplayBuffer, ReplayBuffer
from cpprb_like.buffers import Mixture
from cpprb_like.samplers import Prioritized, RankBased
from cpprb_like.typing import FieldSpec
from cpprb_like.views import Sequences

NUMBER: dict[str, FieldSpec] = {"x": {"shape": (), "dtype": "i8"}}


def wrapped(sampler: Any = None, size: int = 10, **options: Any) -> Any:
    """A buffer that lost its first rows: x counts the rows from 0."""
    rb: ReplayBuffer = ReplayBuffer(size, NUMBER, seed=0)
    if sampler is not None or options:
        rb = PrioritizedReplayBuffer(size, NUMBER, sampler=sampler, seed=0, **options)
    rb.add(x=np.arange(size + 3))
    return rb


def large_batch(kind: Any, **options: Any) -> Any:
    """What LaBER makes of priorities in float64."""
    return kind(4, m=2, seed=0, **options)(priorities=np.arange(8.0))


BATCHES = {
    "buffer": lambda: wrapped(alpha=0.6).sample(4),
    "Prioritized": lambda: wrapped(Prioritized()).sample(4),
    "RankBased": lambda: wrapped(RankBased()).sample(4),
    "sequences": lambda: wrapped(Prioritized()).view(Sequences(2)).sample(4),
    "Mixture": lambda: Mixture(
        {"a": wrapped(), "b": wrapped(RankBased())}, {"a": 1, "b": 1}
    ).sample(4),
    "LaBERmean": lambda: large_batch(LaBERmean),
    "LaBERlazy": lambda: large_batch(LaBERlazy),
    "LaBERmax": lambda: large_batch(LaBERmax),
}


@pytest.mark.parametrize("make", BATCHES.values(), ids=BATCHES)
def test_weights_are_single(make: Any) -> None:
    """Importance-sampling weights are float32 wherever they come from, unless asked otherwise."""
    assert make()["weights"].dtype == np.float32


DOUBLES = {
    "Prioritized": lambda: wrapped(Prioritized(weights_dtype=np.float64)).sample(4),
    "RankBased": lambda: wrapped(RankBased(weights_dtype=np.float64)).sample(4),
    "Mixture": lambda: Mixture({"a": wrapped(RankBased(weights_dtype="f8"))}, {"a": 1}).sample(4),
    "LaBERmean": lambda: large_batch(LaBERmean, weights_dtype=np.float64),
}


@pytest.mark.parametrize("make", DOUBLES.values(), ids=DOUBLES)
def test_weights_are_double_where_that_is_asked_for(make: Any) -> None:
    """``weights_dtype=float64`` of the sampler; of a mixture, of the sampler of one buffer."""
    assert make()["weights"].dtype == np.float64


HANDLES = {
    "uniform": lambda: (wrapped(), {"indexes": True}),
    "prioritized": lambda: (wrapped(check_for_update=True), {}),
    "by rank": lambda: (wrapped(RankBased(check_for_update=True)), {}),
}


@pytest.mark.parametrize("make", HANDLES.values(), ids=HANDLES)
def test_indexes_are_handles_and_modulo_the_capacity_slots(make: Any) -> None:
    """They name a row for ever: never another one, also after it was overwritten."""
    rb, options = make()
    batch = rb.sample(50, **options)
    assert batch["indexes"].dtype == np.int64
    assert (batch["indexes"] % rb.capacity == batch["x"] % rb.capacity).all()
    assert (batch["indexes"] >= rb.capacity).all()  # no slots
    rb.add(x=np.arange(100, 110))
    rb.update(batch["indexes"], x=np.full(50, -1))
    assert (rb.get_all_transitions()["x"] >= 100).all()


def test_indexes_are_slots_where_cpprb_has_slots() -> None:
    """``PrioritizedReplayBuffer`` without ``check_for_update``: whatever is in the slot now."""
    rb = wrapped(alpha=0.6)
    batch = rb.sample(50)
    assert (batch["indexes"] == batch["x"] % 10).all()
    with pytest.raises(ValueError, match="indexes: without check_for_update they are slots"):
        rb.sample(50, indexes=True)


def test_indexes_of_a_mixture_say_which_buffer_too() -> None:
    """The low bits of an index are the number of its buffer; above them is the index in that."""
    a, b = wrapped(check_for_update=True), wrapped(check_for_update=True)
    batch = Mixture({"a": a, "b": b}, {"a": 1, "b": 1}).sample(50)
    index, source = np.divmod(batch["indexes"], 2)
    assert (source == batch["source"]).all()
    assert (index % 10 == batch["x"] % 10).all()


def test_indexes_of_a_large_batch_are_positions_unless_they_are_passed() -> None:
    """LaBER's are cpprb's positions; passed ones go through to ``update_priorities``."""
    rb = wrapped(check_for_update=True)
    large = rb.sample(8)
    passed = LaBERmean(4, m=2, seed=0)(priorities=np.arange(8.0), **large)
    del large["indexes"]
    alone = LaBERmean(4, m=2, seed=0)(priorities=np.arange(8.0), **large)
    assert (large["x"][alone["indexes"]] == alone["x"]).all()
    assert (passed["indexes"] % 10 == passed["x"] % 10).all()
