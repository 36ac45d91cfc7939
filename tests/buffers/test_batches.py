"""``batches`` and ``epoch``: batches without end, and each row once."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest
from batch_cases import FIELDS, SOURCES, filled, goals, listed, mixture
from helpers import refused
from hypothesis import given
from hypothesis import strategies as st

from cpprb_like import (
    NotEnoughDataError,
    PrioritizedReplayBuffer,
    ReplayBuffer,
    ReplayMemory,
    ReverseReplayBuffer,
)
from cpprb_like.buffers import Mixture, Source
from cpprb_like.compat.cpprb import HindsightReplayBuffer, SelectiveReplayBuffer
from cpprb_like.limiters import Backlog, RateLimited
from cpprb_like.processes import SharedReplay
from cpprb_like.samplers import Prioritized, RankBased
from cpprb_like.views import NStep


@pytest.mark.parametrize("name", SOURCES)
def test_batches_are_what_sample_gives(name: str) -> None:
    """``batches`` draws as repeated calls of ``sample`` do, with the same options."""
    one, other = SOURCES[name](), SOURCES[name]()
    options: dict[str, Any] = {"replace": False, "fields": iter(["x", "rew"]), "indexes": True}
    if one.has_priorities:
        options["beta"] = 0.7
    found = [listed(batch) for batch in islice(one.batches(4, **options), 5)]
    options["fields"] = ["x", "rew"]
    assert found == [listed(other.sample(4, **options)) for _ in range(5)]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"batch_size": 0}, "batch_size: expected at least 1, got 0"),
        ({"batch_size": -1}, "batch_size"),
        ({"batch_size": 2.5}, "batch_size"),
        ({"batch_size": 4, "fields": "y"}, "y"),
        ({"batch_size": 4, "beta": 0.5}, "beta: expected no value"),
        ({"batch_size": 4, "beta": -0.5}, "beta"),
    ],
    ids=repr,
)
def test_wrong_options_are_refused_at_once(arguments: dict[str, Any], error: str) -> None:
    """What cannot be drawn is said when the iterator is made, and not at its first batch."""
    rb = filled()
    with refused(rb, (TypeError, ValueError), error):
        rb.batches(**arguments)
    if "beta" not in arguments:
        with refused(rb, (TypeError, ValueError), error):
            rb.epoch(**arguments)


def limited(**options: Any) -> RateLimited:
    """A buffer behind a limiter."""
    return RateLimited(filled(**options), Backlog(10))


def hindsight() -> HindsightReplayBuffer:
    """Cpprb's class by priority. Without, it has the methods and raises, as cpprb's does."""
    fields: dict[str, Any] = {"obs": {}, "act": {}, "next_obs": {}}
    return HindsightReplayBuffer(10, fields, 5, max)


KINDS: dict[str, tuple[Callable[[], Any], bool]] = {
    "plain": (filled, False),
    "reverse": (lambda: filled(ReverseReplayBuffer), False),
    "prioritized": (lambda: filled(PrioritizedReplayBuffer), True),
    "by the sampler": (lambda: filled(sampler=Prioritized()), True),
    "view": (lambda: filled().view(NStep(3)), False),
    "prioritized view": (lambda: filled(sampler=RankBased()).view(NStep(3)), True),
    "mixture": (lambda: Mixture({"a": filled()}, {"a": 1.0}), False),
    "prioritized mixture": (mixture, True),
    "limited": (limited, False),
    "limited by priority": (lambda: limited(sampler=Prioritized()), True),
    "limited view": (lambda: limited().view(NStep(2)), False),
    "hindsight by priority": (hindsight, True),
}


@pytest.mark.parametrize("name", KINDS)
def test_only_what_has_priorities_can_set_them(name: str) -> None:
    """``hasattr`` is right: every source had ``update_priorities``, and most of them raised."""
    make, expected = KINDS[name]
    source = make()
    assert source.has_priorities is expected
    assert hasattr(source, "update_priorities") is expected
    if not expected:
        assert not hasattr(source, "get_max_priority")
        with pytest.raises(AttributeError, match=f"'{type(source).__name__}' object has no attr"):
            source.update_priorities([0], [1.0])


def test_only_learners_with_priorities_can_set_them() -> None:
    """A learner and its views have ``update_priorities`` if its sampler keeps priorities."""
    with SharedReplay(10, FIELDS, writers=1) as replay:
        for sampler, expected in ((None, False), (Prioritized(), True)):
            learner = replay.learner(sampler)
            for source in (learner, learner.view(NStep(2))):
                assert hasattr(source, "update_priorities") is expected


@pytest.mark.parametrize("name", SOURCES)
def test_beta_is_refused_alike(name: str) -> None:
    """Where there are no priorities, and where it is no exponent, whatever is drawn from."""
    source, twin = SOURCES[name](), SOURCES[name]()
    wrong: list[Any] = [-0.5, "1", float("nan")]
    for beta in wrong:
        for call in (source.sample, source.batches):
            with pytest.raises((TypeError, ValueError), match="beta: expected"):
                call(4, beta=beta)
    if not source.has_priorities:
        for call in (source.sample, source.batches):
            with pytest.raises(TypeError, match=r"beta: expected no value, .* importance"):
                call(4, beta=0.5)
    assert listed(source.sample(4)) == listed(twin.sample(4))


@pytest.mark.parametrize(
    "make",
    [
        lambda: filled(n=0),
        lambda: filled(n=0).view(NStep(3)),
        lambda: Mixture({"a": filled(n=0)}, {"a": 1.0}),
        lambda: RateLimited(filled(n=0), Backlog(3)),
        lambda: ReplayMemory(3),
        lambda: SelectiveReplayBuffer(3),
    ],
)
def test_what_is_empty_is_true(make: Callable[[], Any]) -> None:
    """``if buffer`` asks whether there is one, and not whether it has rows."""
    source = make()
    assert len(source) == 0
    assert bool(source)


def test_an_empty_buffer_is_an_error_that_passes() -> None:
    """``next`` says that there are no rows, and goes on when there are."""
    rb = filled(n=0)
    batches = rb.batches(3)
    for _ in range(2):
        with pytest.raises(NotEnoughDataError):
            next(batches)
    rb.add(x=7, rew=0, done=False)
    assert next(batches)["x"].tolist() == [7, 7, 7]
    assert list(filled(n=0).epoch(3)) == []


def test_closed_batches_end() -> None:
    """After ``close``, or the end of a ``with`` statement, there are no more batches."""
    rb = filled()
    with rb.batches(3) as batches:
        next(batches)
    assert list(batches) == []
    epoch = rb.epoch(3)
    next(epoch)
    epoch.close()
    epoch.close()
    assert list(epoch) == []


def test_batches_are_not_copied() -> None:
    """An iterator has a place in a program, which no copy of it would have."""
    for act in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="make them anew"):
            act(filled().batches(3))


@given(
    n=st.integers(0, 50),
    batch_size=st.integers(1, 12),
    k=st.integers(1, 5),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
    steps=st.sampled_from([0, 3]),
)
def test_the_parts_of_an_epoch_are_an_epoch(
    n: int, batch_size: int, k: int, shuffle: bool, drop_last: bool, steps: int
) -> None:
    """Parts with the same seed are disjoint: each has every k-th item of the whole."""
    rb = filled(n=n)
    source: Source = rb.view(NStep(steps)) if steps else rb
    options: Any = {"shuffle": shuffle, "seed": 5}
    # So many slots are taken at a time, of which the order depends.
    whole = [x for batch in source.epoch(batch_size * k, **options) for x in batch["x"].tolist()]
    before = rb.rng.bit_generator.state
    for i in range(k):
        epoch = source.epoch(batch_size, shard=(i, k), drop_last=drop_last, **options)
        batches = [batch["x"].tolist() for batch in epoch]
        expected = whole[i::k]
        if drop_last:
            expected = whole[: len(whole) // (batch_size * k) * (batch_size * k)][i::k]
        assert [x for batch in batches for x in batch] == expected
        assert all(len(batch) == batch_size for batch in batches[:-1])
    assert rb.rng.bit_generator.state == before
    complete = n if steps == 0 or n % 10 == 0 else max(n // 10 * 10, n - steps + 1)
    assert sorted(whole) == list(range(complete))


@pytest.mark.parametrize(("n", "k", "expected"), [(47, 2, 2), (48, 2, 3), (7, 1, 0), (23, 3, 0)])
def test_all_parts_have_as_many_whole_batches(n: int, k: int, expected: int) -> None:
    """One had 3 and the other 2: processes that learn together waited for ever for the third."""
    parts = [
        [len(batch["x"]) for batch in filled(n=n).epoch(8, drop_last=True, shard=(i, k), seed=1)]
        for i in range(k)
    ]
    assert parts == [[8] * expected] * k


@pytest.mark.parametrize("ahead", [0, 1, 3, 9])
@pytest.mark.parametrize("error", [ZeroDivisionError("the second"), KeyboardInterrupt()], ids=repr)
def test_an_epoch_goes_on_after_an_error(ahead: int, error: BaseException) -> None:
    """An error of a view's function ended the epoch, with most of its rows left out."""
    view, _ = goals(2, error)
    whole = [x for batch in goals(0, error)[0].epoch(10) for x in batch["achieved_goal"].tolist()]
    with view.epoch(10, prefetch=ahead) as epoch:
        found = next(epoch)["achieved_goal"].tolist()
        with pytest.raises(type(error)):
            next(epoch)
        found += [x for batch in epoch for x in batch["achieved_goal"].tolist()]
        assert list(epoch) == []
    assert found == whole[:10] + whole[20:]


@pytest.mark.parametrize(
    "shard", [(1, 1), (-1, 2), (0, 0), (0, 1, 2), 3, None, (0.5, 2), (True, 2)], ids=repr
)
def test_parts_that_are_none_are_refused(shard: Any) -> None:
    """A part has a number below that of parts."""
    rb = filled()
    with refused(rb, (TypeError, ValueError), "shard"):
        rb.epoch(4, shard=shard)


@pytest.mark.parametrize("k", [2**61, 2**63 - 1, 2**70])
def test_more_parts_than_the_machine_counts_have_a_row_each(k: int) -> None:
    """An ``OverflowError`` of C came from the first batch, which named no argument."""
    whole = [x for batch in filled(n=7).epoch(3, shuffle=False) for x in batch["x"].tolist()]
    parts = [list(filled(n=7).epoch(3, shuffle=False, shard=(i, k))) for i in (0, 6, 7, k - 1)]
    assert [[x for batch in part for x in batch["x"].tolist()] for part in parts] == [
        [whole[0]],
        [whole[6]],
        [],
        [],
    ]


def test_a_mixture_has_no_epoch() -> None:
    """Each row once would leave no shares to choose."""
    with pytest.raises(TypeError, match="a mixture has no epoch"):
        mixture().epoch(4)


# ---- reseed ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SOURCES)
def test_draws_follow_from_the_seed_of_reseed(name: str) -> None:
    """Sources that drew different numbers of batches before draw the same ones after it."""
    one = SOURCES[name]()
    other = copy.deepcopy(one)
    if name != "recency":  # whose place moves with each batch
        other.sample(7)
    for source in (one, other):
        source.reseed(11)
    assert listed(one.sample(16)) == listed(other.sample(16))
    other.reseed(12)
    assert listed(one.sample(16)) != listed(other.sample(16))


def test_a_reseeded_buffer_draws_as_a_new_one() -> None:
    """Of one generator it is the seed itself, as ``seed=`` takes it."""
    rb = filled()
    rb.sample(3)
    rb.reseed(3)
    assert listed(rb.sample(9)) == listed(filled().sample(9))
    rb.reseed(np.random.SeedSequence([1, 2]))
    twin = np.random.default_rng([1, 2])
    assert rb.rng.integers(0, 1 << 40, 5).tolist() == twin.integers(0, 1 << 40, 5).tolist()


def test_reseed_leaves_the_seed_of_the_caller_as_it_is() -> None:
    """A mixture spawned from it: the same seed gave other draws the second time."""
    source = mixture()
    seed = np.random.SeedSequence(7)
    seed.spawn(3)
    draws = []
    for _ in range(2):
        source.reseed(seed)
        draws.append(listed(source.sample(16)))
    assert draws[0] == draws[1]
    assert seed.n_children_spawned == 3


def test_reseed_keeps_the_kind_of_generator() -> None:
    """The state of another bit generator is its own."""
    rb = filled()
    rb.rng = np.random.Generator(np.random.MT19937(0))
    rb.reseed(5)
    twin = np.random.Generator(np.random.MT19937(np.random.SeedSequence(5)))
    assert rb.rng.integers(0, 99, 5).tolist() == twin.integers(0, 99, 5).tolist()


@pytest.mark.parametrize("seed", [-1, 1.5, "1", None, True])
def test_wrong_seeds_of_reseed_are_refused(seed: Any) -> None:
    """And nothing has changed then."""
    rb, twin = filled(), filled()
    with refused(rb, (TypeError, ValueError), "seed"):
        rb.reseed(seed)
    assert listed(rb.sample(9)) == listed(twin.sample(9))


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("source", ["buffer", "Nstep"])
def test_an_epoch_has_no_row_of_a_slot_that_was_empty_when_it_began(
    source: str, shuffle: bool
) -> None:
    """A row that came into the slot of an absent one was given, in addition to those there were."""
    fields: dict[str, Any] = {"x": {"shape": (), "dtype": "i8"}, "r": {}, "done": {}}
    options: dict[str, Any] = {"n_envs": 2}
    if source == "Nstep":
        options["Nstep"] = {"size": 2, "rew": "r", "next": []}

    def fill(rb: Any) -> None:
        for t in range(8):
            x = np.array([2 * t, 2 * t + 1])
            rb.add_where([True, t % 2 == 0], x=x, r=x * 0.0, done=[True, True])

    rb = ReplayBuffer(16, fields, seed=0, **options)
    fill(rb)
    before = len(rb)
    assert before == 12
    batches = rb.epoch(3, shuffle=shuffle)
    found = next(batches)["x"].tolist()
    for t in range(8):  # over all slots
        x = np.array([100 + 2 * t, 100 + 2 * t + 1])
        rb.add(x=x, r=x * 0.0, done=[True, True])
    for batch in batches:
        found += batch["x"].tolist()
    empty = {100 + k for k in range(16) if (16 + k) % rb.ring.capacity in (3, 7, 11, 15)}
    assert len(empty) > 2
    assert empty.isdisjoint(found)
    assert len(found) == before or (source == "Nstep" and len(found) < before)
