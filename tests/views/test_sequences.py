"""Sequences of rows: each against lists of what was added, and how often each is drawn."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from distributions import chi_square
from episode_cases import FIELDS, History, Step
from helpers import refused, snapshot
from hypothesis import given
from hypothesis import strategies as st
from threads import run_together
from views import sample_sequences, update_sequence_priorities

from cpprb_like import NotEnoughDataError, PrioritizedReplayBuffer, ReplayBuffer
from cpprb_like.processes import SharedReplay
from cpprb_like.samplers import Prioritized, RankBased, Uniform
from cpprb_like.samplers._starts import Starts, choose
from cpprb_like.views import FrameStacks, NStep, Sequences

Array = npt.NDArray[Any]

NUMBERS: dict[str, Any] = {"x": {"shape": (), "dtype": "i8"}, "done": {"shape": (), "dtype": bool}}


def starts_of(
    history: History, rows: int, *, least: int, across: bool, stride: int
) -> dict[int, list[Step]]:
    """Each sequence that there is, by the number of its first step: the slow way."""
    parts = (
        [history.stream(env) for env in range(history.rb.n_envs)] if across else history.episodes()
    )
    found = {}
    for part in parts:
        for k, step in enumerate(part):
            sequence = part[k : k + rows]
            on_stride = step.row // history.rb.n_envs % stride == 0 or history.is_first(step)
            ended = not across and sequence[-1].is_end and len(sequence) >= least
            if on_stride and (len(sequence) == rows or ended):
                found[step.x] = sequence
    return found


def assert_is(history: History, batch: dict[str, Array], k: int, sequence: list[Step]) -> None:
    """The k-th sequence of a batch is this one in every field, and nothing stands behind it."""
    rows = batch["x"].shape[1]
    assert batch["x"][k].tolist() == [step.x for step in sequence] + [0] * (rows - len(sequence))
    for name in ("obs", "next_obs", "rew", "terminated", "truncated"):
        values = batch[name][k]
        for step, value in zip(sequence, values[: len(sequence)], strict=True):
            assert value.tolist() == step.values[name], (name, step)
        assert not values[len(sequence) :].any(), name
    if "mask" in batch:
        assert batch["mask"][k].tolist() == [i < len(sequence) for i in range(rows)]
    else:
        assert batch["is_first"][k].tolist() == [history.is_first(step) for step in sequence]


CASES = st.fixed_dictionaries(
    {
        "capacity": st.integers(1, 40),
        "n_envs": st.integers(1, 4),
        "length": st.integers(1, 12),
        "burn_in": st.sampled_from([0, 0, 1, 3]),
        "stride": st.sampled_from([1, 1, 2, 3, 7, 100]),
        "across": st.booleans(),
        "p_end": st.sampled_from([0.0, 0.05, 0.2, 0.6]),
        "sampler": st.sampled_from([Uniform, Prioritized, RankBased]),
        "seed": st.integers(0, 2**32),
    }
)


@given(CASES)
def test_sequences_are_what_was_added(case: dict[str, Any]) -> None:
    """Every sequence that lists of whole episodes give is drawn, as it was added, and no other."""
    capacity = max(case["capacity"], case["n_envs"])
    length = min(case["length"], capacity // case["n_envs"])
    burn_in = min(case["burn_in"], capacity // case["n_envs"] - length)
    kind = ReplayBuffer if case["sampler"] is Uniform else PrioritizedReplayBuffer
    rb = kind(
        capacity,
        FIELDS,
        n_envs=case["n_envs"],
        next_of="obs",
        sampler=case["sampler"](),
        seed=case["seed"],
    )
    history = History(rb, np.random.default_rng(case["seed"]), case["p_end"])
    shape = {"burn_in": burn_in, "across_episodes": case["across"], "stride": case["stride"]}
    for _ in range(3):
        history.play(int(history.rng.integers(1, 15)))
        expected = starts_of(
            history,
            burn_in + length,
            least=burn_in + 1,
            across=case["across"],
            stride=case["stride"],
        )
        if not expected:
            with pytest.raises(NotEnoughDataError):
                sample_sequences(rb, 1, length, **shape)
            continue
        # A sequence has a share of 0.05 / 40 or more; of ranks, the last is the rarest.
        batch = sample_sequences(rb, 60 * len(expected), length, **shape)
        assert set(batch["x"][:, 0].tolist()) <= set(expected)
        if case["sampler"] is Uniform:
            assert set(batch["x"][:, 0].tolist()) == set(expected)
        for k in range(min(100, len(batch["x"]))):
            assert_is(history, batch, k, expected[int(batch["x"][k, 0])])
        if case["sampler"] is not Uniform:
            slots = (batch["indexes"] % capacity).astype(np.intp)
            assert rb[slots]["x"].tolist() == batch["x"][:, 0].tolist()


@given(CASES)
def test_each_row_is_distinguished(case: dict[str, Any]) -> None:
    """``tell`` and ``slots`` know the same starts; a row that never starts one stays so."""
    capacity = max(case["capacity"], case["n_envs"])
    rb = ReplayBuffer(capacity, FIELDS, n_envs=case["n_envs"], next_of="obs", seed=0)
    history = History(rb, np.random.default_rng(case["seed"]), case["p_end"])
    starts = Starts(
        rb._episodes,
        rows=case["length"] + case["burn_in"],
        least=case["burn_in"] + 1,
        across=case["across"],
        stride=case["stride"],
    )
    never: set[int] = set()
    for _ in range(30):
        history.play(2)
        told = starts.tell(np.arange(rb.ring.stored))
        assert sorted(starts.slots().tolist()) == np.flatnonzero(told == 1).tolist()
        expected = starts_of(
            history,
            starts.rows,
            least=starts.rows if case["across"] else starts.least,
            across=case["across"],
            stride=case["stride"],
        )
        slots = {step.x: step.row % capacity for step in history.alive()}
        assert {slots[x] for x in expected} == set(np.flatnonzero(told == 1).tolist())
        now = {x for x, slot in slots.items() if told[slot] == -1}
        assert never & set(slots) <= now
        never = now


@given(CASES, st.sampled_from([0.1, 0.6]), st.floats(0.05, 1.0))
def test_stored_starts_are_all_there_are(
    case: dict[str, Any], p_absent: float, share: float
) -> None:
    """A set that follows the ring now and then misses no start, whatever was ended or deleted."""
    capacity = max(case["capacity"], case["n_envs"])
    rb = ReplayBuffer(capacity, FIELDS, n_envs=case["n_envs"], next_of="obs", seed=0)
    history = History(rb, np.random.default_rng(case["seed"]), case["p_end"], p_absent)
    rows = min(case["length"] + case["burn_in"], capacity // case["n_envs"])
    least = rows if case["across"] else min(case["burn_in"] + 1, rows)
    shape = {"across": case["across"], "stride": case["stride"]}
    starts = Starts(rb._episodes, rows=rows, least=least, **shape)
    for _ in range(60):
        history.play(1)
        if history.rng.random() > share:
            continue
        expected = starts_of(history, rows, least=least, **shape)
        slots = {step.row % capacity for step in history.alive() if step.x in expected}
        assert set(starts.slots().tolist()) == slots
        if slots:
            assert set(starts.draw(20, history.rng).tolist()) <= slots
        else:
            with pytest.raises(NotEnoughDataError):
                starts.draw(1, history.rng)


@given(CASES, st.integers(1, 3), st.sampled_from([0.1, 0.6]), st.floats(0.05, 1.0))
def test_stored_starts_have_the_rows_before_them(
    case: dict[str, Any], before: int, p_absent: float, share: float
) -> None:
    """Also where these were overwritten or deleted: the set is what a look at each row finds."""
    capacity = max(case["capacity"], case["n_envs"])
    rb = ReplayBuffer(capacity, FIELDS, n_envs=case["n_envs"], next_of="obs", seed=0)
    history = History(rb, np.random.default_rng(case["seed"]), case["p_end"], p_absent)
    rows = min(case["length"], capacity // case["n_envs"])
    starts = Starts(
        rb._episodes, rows=rows, least=1, across=False, stride=case["stride"], before=before
    )
    for _ in range(60):
        history.play(1)
        if history.rng.random() < share:
            told = starts.tell(np.arange(rb.ring.stored))
            assert starts.slots().tolist() == np.flatnonzero(told == 1).tolist()


@pytest.mark.parametrize("across", [False, True])
def test_stored_starts_follow_many_deletions_and_updates(across: bool) -> None:
    """The log of hidden rows has 64 entries; where it lacks some, all rows are looked at."""
    for deletions in (1, 63, 64, 65, 150):
        rb = episodes_of([3] * 200)
        starts = Starts(rb._episodes, rows=3, least=3, across=across, stride=1)
        assert starts.count == (598 if across else 200)
        for _ in range(deletions):
            rb.episodes.delete(len(rb.episodes) // 2)
            rb.update([0], x=[7])
        assert starts.count == (598 - 3 * deletions if across else 200 - deletions)
        told = starts.tell(np.arange(rb.ring.stored))
        assert starts.slots().tolist() == np.flatnonzero(told == 1).tolist()


def test_starts_of_a_learner_follow_rows_that_it_leaves_out() -> None:
    """Rows behind those that are left out lose the rows before them, and are no starts any more."""
    with SharedReplay(400, NUMBERS, writers=1) as replay:
        actor, learner = replay.actor(), replay.learner(seed=0)
        actor.add(x=np.arange(300), done=np.arange(300) % 30 == 29)
        learner.sample(1)
        reader = learner._shards.reader(0)
        kept = [
            reader._starts(rows=2, least=1, across=across, stride=stride, before=before)
            for across, stride, before in ((False, 1, 3), (True, 1, 0), (False, 7, 0))
        ]
        for row in (0, 1, 5, 31, 90):
            reader.follower.leave_out(row)
            for starts in kept:
                told = starts.tell(np.arange(reader.ring.stored))
                assert starts.slots().tolist() == np.flatnonzero(told == 1).tolist(), row


@given(CASES, st.sampled_from([0.0, 0.2]), st.floats(0.05, 1.0))
def test_the_weight_of_all_starts_is_the_sum_of_theirs(
    case: dict[str, Any], p_absent: float, share: float
) -> None:
    """Whatever was added, updated, ended and deleted; where it reads nodes of the tree too."""
    capacity = 8 * max(case["capacity"], case["n_envs"])
    sampler = Prioritized()
    rb = ReplayBuffer(
        capacity, FIELDS, n_envs=case["n_envs"], next_of="obs", sampler=sampler, seed=0
    )
    history = History(rb, np.random.default_rng(case["seed"]), case["p_end"], p_absent)
    starts = Starts(rb._episodes, rows=2, least=1, across=case["across"], stride=1)
    for _ in range(capacity // case["n_envs"]):
        history.add(1)
    for _ in range(30):
        history.play(2)
        if len(rb):
            indexes = rb.sample(5)["indexes"]
            rb.update_priorities(indexes, history.rng.random(5))
        if history.rng.random() < share:
            weights = sampler.row_weights(starts.slots())
            assert starts.weigh(sampler.rows) == pytest.approx(weights.sum())


@pytest.mark.parametrize("sampler", [Uniform, Prioritized])
@pytest.mark.parametrize("layer", [Sequences(9), Sequences(30, stride=7), FrameStacks({"x": 4})])
def test_draws_do_not_depend_on_what_was_asked_before(sampler: Any, layer: Any) -> None:
    """A view that has followed the buffer for long draws what a view of a copy of it draws.

    Where starts are rare and where steps were deleted too.
    """
    options = {} if sampler is Uniform else {"sampler": sampler()}
    rb = episodes_of([3] * 1200 + [40, 9], capacity=4000, **options)
    view = rb.view(layer)
    rng = np.random.default_rng(0)
    for turn in range(60):
        kind = turn % 4
        if kind == 0:
            n = int(rng.choice([1, 3, 12, 50]))
            rb.add(x=np.arange(n), done=np.arange(n) == n - 1)
        elif kind == 1 and turn > 30:
            rb.episodes.delete(int(rng.integers(len(rb.episodes))))
        elif kind == 2:
            next(iter(view.epoch(64, seed=0)))
        copy = pickle.loads(pickle.dumps(view))
        n = int(rng.choice([1, 40, 5000]))
        ours, theirs = view.sample(n), copy.sample(n)
        assert all((ours[name] == theirs[name]).all() for name in ours), (turn, n)


@pytest.mark.parametrize("sampler", [Uniform, Prioritized])
def test_rare_starts_are_equally_likely(sampler: Any) -> None:
    """Where one row in a thousand is a start, all are drawn, old and new, and none that is gone."""
    options = {} if sampler is Uniform else {"sampler": sampler()}
    rb = episodes_of([3] * 2000 + [10, 12, 3, 14], capacity=6039, **options)
    for turn in range(4):
        starts = Starts(rb._episodes, rows=9, least=9, across=False, stride=1)
        among = rb[starts.slots()]["x"]
        assert len(among) == [12, 13, 11, 12][turn]
        drawn = np.concatenate(
            [sample_sequences(rb, 40, 1, burn_in=8)["x"][:, 0] for _ in range(100)]
        )
        counts = np.array([(drawn == x).sum() for x in among])
        assert counts.sum() == len(drawn)
        statistic = chi_square(counts, np.full(len(among), 4000 / len(among)))
        assert statistic < len(among) + 5 * np.sqrt(2 * len(among))
        if turn == 0:  # one more, of an episode that has not ended
            rb.add(x=np.arange(7000, 7009), done=np.zeros(9, bool))
        elif turn == 1:  # the one of ten rows goes
            assert rb.episodes.delete(2000 - 3) == 10
        elif turn == 2:
            rb.add(x=7009, done=True)


def episodes_of(lengths: list[int], **options: Any) -> ReplayBuffer:
    """A buffer of one environment with episodes of these lengths, and the steps 0, 1, 2, ..."""
    capacity = options.pop("capacity", sum(lengths))
    cls = PrioritizedReplayBuffer if "sampler" in options else ReplayBuffer
    rb: ReplayBuffer = cls(capacity, NUMBERS, seed=0, **options)
    done = np.zeros(sum(lengths), bool)
    done[np.cumsum(lengths) - 1] = True
    rb.add(x=np.arange(sum(lengths)), done=done)
    return rb


@pytest.mark.once
@pytest.mark.parametrize("n", [2, 5000])
@pytest.mark.parametrize("stride", [1, 5])
@pytest.mark.parametrize("length", [1, 4, 60])
def test_starts_are_uniform(length: int, stride: int, n: int) -> None:
    """Each start has the same probability: a few are found by tries, many in a list of all."""
    rb = episodes_of([30, 7, 200, 63])
    rb.add(x=np.arange(1000, 1050), done=np.zeros(50, bool))  # wraps, and has not ended
    starts = Starts(rb._episodes, rows=length, least=1, across=False, stride=stride)
    among = rb[starts.slots()]["x"]
    counts = np.zeros(2000)
    times = (60 if n == 2 else 400) * len(among) // n

    for _ in range(times):
        drawn = sample_sequences(rb, n, length, stride=stride)["x"][:, 0]
        np.add.at(counts, drawn, 1)

    expected = np.full(len(among), times * n / len(among))
    statistic = chi_square(counts[among], expected)
    assert abs(statistic - len(among)) < 5 * np.sqrt(2 * len(among))
    assert counts.sum() == counts[among].sum()


@pytest.mark.once
@pytest.mark.parametrize("rare", [False, True])
@pytest.mark.parametrize("stratified", [False, True])
@pytest.mark.parametrize("stride", [1, 4])
def test_starts_are_drawn_by_priority(stride: int, stratified: bool, rare: bool) -> None:
    """P(start) is its weight by the sum of the weights of all starts, and weights correct for it.

    ``rare``: one of the waiting rows has nearly all the weight, so that tries are of no use.
    """
    sampler = Prioritized(1.0, eps=0.0, stratified=stratified)
    rb = episodes_of([30, 7, 20, 3], capacity=70, sampler=sampler)
    assert isinstance(rb, PrioritizedReplayBuffer)
    rb.add(x=[60, 61, 62], done=[False] * 3, priorities=[1.0, 10.0**6 if rare else 20.0, 5.0])
    weights = np.array([1.0 + i % 5 for i in range(63)])
    weights[60:] = [1.0, 10.0**6 if rare else 20.0, 5.0]
    rb.update_priorities(np.arange(60), weights[:60])
    starts = Starts(rb._episodes, rows=6, least=3, across=False, stride=stride)
    among = np.sort(starts.slots())
    counts = np.zeros(63)

    for _ in range(300):
        batch = sample_sequences(rb, 100, 4, burn_in=2, stride=stride, beta=1.0)
        np.add.at(counts, batch["x"][:, 0], 1)
        drawn = weights[batch["x"][:, 0]]
        np.testing.assert_allclose(batch["weights"], drawn.min() / drawn)

    expected = 30000 * weights[among] / weights[among].sum()
    statistic = chi_square(counts[among], expected)
    assert statistic < len(among) + 5 * np.sqrt(2 * len(among))
    assert counts.sum() == counts[among].sum() == 30000


def test_starts_are_drawn_by_rank() -> None:
    """With ranks, a start is drawn in proportion to the weight that its rank among all rows has."""
    sampler = RankBased(1.0)
    rb = episodes_of([10, 10], sampler=sampler)
    assert isinstance(rb, PrioritizedReplayBuffer)
    priorities = np.random.default_rng(0).permutation(20) + 1.0
    rb.update_priorities(np.arange(20), priorities)
    ranks = np.empty(20)
    ranks[np.argsort(-priorities, kind="stable")] = np.arange(1, 21)
    expected = 1 / ranks
    expected[[9, 19]] = 0
    counts = np.zeros(20)

    for _ in range(100):
        np.add.at(counts, sample_sequences(rb, 100, 3, burn_in=1)["x"][:, 0], 1)

    there = expected > 0
    expected = 10000 * expected / expected.sum()
    assert chi_square(counts[there], expected[there]) < 18 + 5 * np.sqrt(36)
    assert counts[~there].sum() == 0


@pytest.mark.parametrize("make", [Prioritized, RankBased])
@pytest.mark.parametrize("nstep", [None, {"size": 3, "rew": "r"}])
def test_drawing_sequences_changes_no_priority(make: Any, nstep: Any) -> None:
    """``sample`` draws what it would draw if no sequence had ever been drawn, or refused.

    Rows at which no sequence starts got the priority 0 when they were drawn in vain, and ``sample``
    of the same buffer hardly ever drew them again.
    """
    buffers = []
    for draws_sequences in (False, True):
        fields = {**NUMBERS, "r": {"shape": ()}}
        rb = PrioritizedReplayBuffer(300, fields, sampler=make(1.0), Nstep=nstep, seed=0)
        for start in range(0, 240, 40):
            x = np.arange(start, start + 40)
            rb.add(x=x, r=x, done=x == start + 39, priorities=1.0 + x % 7)
        rb.add(x=np.arange(240, 250), r=np.ones(10), done=np.zeros(10, bool))
        if draws_sequences:
            for _ in range(50):
                sample_sequences(rb, 16, 20, stride=10)
            for _ in range(3):
                with pytest.raises(NotEnoughDataError):
                    sample_sequences(rb, 16, 41, burn_in=40)
        rb.rng = np.random.default_rng(5)
        buffers.append(rb)
    plain, other = buffers
    for _ in range(20):
        one, two = plain.sample(64), other.sample(64)
        for name in one:
            if name != "weights":  # their exponent may be a schedule of the batches drawn
                np.testing.assert_array_equal(one[name], two[name])
    counts = np.bincount(other.sample(20_000)["x"], minlength=250)
    assert (counts[:240] > 0).all()
    other.check()


@pytest.mark.parametrize("make", [Prioritized, RankBased])
@pytest.mark.parametrize("stride", [1, 50])
def test_starts_that_weigh_little_are_drawn_by_weight(make: Any, stride: int) -> None:
    """Where tries would hardly ever find a start, a list of all gives the same distribution."""
    sampler = make(1.0) if make is RankBased else make(1.0, eps=0.0)
    rb = episodes_of([100] * 10, capacity=1000, sampler=sampler)
    assert isinstance(rb, PrioritizedReplayBuffer)
    priorities = np.full(1000, 1e6)
    starts = np.flatnonzero(np.arange(1000) % 100 % stride == 0)
    starts = starts[(starts % 100) < 2] if stride == 1 else starts
    least = 99 if stride == 1 else 1
    priorities[starts] = np.linspace(1e-3, 3e-3, len(starts))[::-1]
    rb.update_priorities(np.arange(1000), priorities)
    counts = np.zeros(1000)
    for _ in range(30):
        batch = sample_sequences(rb, 200, 100 - least + 1, burn_in=least - 1, stride=stride)
        np.add.at(counts, batch["x"][:, 0], 1)
    weights = priorities.copy()
    if make is RankBased:
        weights[np.argsort(-priorities, kind="stable")] = 1 / np.arange(1, 1001)
    expected = np.zeros(1000)
    expected[starts] = 6000 * weights[starts] / weights[starts].sum()
    there = expected > 0
    assert counts[~there].sum() == 0
    limit = there.sum() + 5 * np.sqrt(2 * there.sum())
    assert chi_square(counts[there], expected[there]) < limit


def test_max_and_mean_of_the_errors_are_mixed() -> None:
    """R2D2, section 2.3: eta * max + (1 - eta) * mean over the rows that are there."""
    rb = episodes_of([5, 5], sampler=Prioritized(1.0, eps=0.0))
    assert isinstance(rb, PrioritizedReplayBuffer)
    errors = np.array([[1.0, -4.0, np.nan], [2.0, 2.0, 2.0], [-3.0, np.inf, -np.inf]])
    mask = np.array([[True, True, False], [True, True, True], [True, False, False]])

    update_sequence_priorities(rb, [0, 3, 7], errors, mask)
    found = rb.sampler.rows.get(np.array([0, 3, 7, 8]))  # type: ignore[attr-defined]
    np.testing.assert_allclose(found, [0.9 * 4 + 0.1 * 2.5, 2.0, 3.0, 1.0])

    update_sequence_priorities(rb, [0, 3], [[1, -4], [2, 0]], eta=0.0)
    found = rb.sampler.rows.get(np.array([0, 3]))  # type: ignore[attr-defined]
    np.testing.assert_allclose(found, [2.5, 1.0])

    update_sequence_priorities(rb, [0], np.array([[-128, 127]], np.int8), eta=1)
    assert rb.get_max_priority() == 128.0


def test_updates_of_overwritten_sequences_are_passed_over() -> None:
    """With ``check_for_update`` the priority of a sequence that is gone reaches no other row."""
    rb = episodes_of([8], sampler=Prioritized(1.0, eps=0.0, check_for_update=True))
    assert isinstance(rb, PrioritizedReplayBuffer)
    batch = sample_sequences(rb, 50, 2)
    rb.add(x=np.arange(8, 12), done=np.zeros(4, bool))
    update_sequence_priorities(rb, batch["indexes"], np.full((50, 2), 7.0))
    weights = rb.sampler.rows.get(np.arange(8))  # type: ignore[attr-defined]
    assert (weights[:4] == 1.0).all()
    assert (weights[4:] == 7.0).all()


def test_stored_state_of_the_first_row() -> None:
    """Fields in ``first_only`` have no axis of time, and are those of the first row."""
    fields = {**NUMBERS, "h": {"shape": (2, 3), "dtype": "f4"}, "c": {"shape": ()}}
    rb = ReplayBuffer(20, fields, seed=0)
    x = np.arange(30)
    rb.add(x=x, done=x % 7 == 6, h=np.broadcast_to(x[:, None, None], (30, 2, 3)), c=-x)
    batch = sample_sequences(rb, 100, 3, burn_in=1, first_only=("h", "c"))
    assert batch["x"].shape == batch["mask"].shape == (100, 4)
    assert batch["h"].shape == (100, 2, 3)
    assert (batch["h"] == batch["x"][:, :1, np.newaxis]).all()
    assert (batch["c"] == -batch["x"][:, 0]).all()
    only = sample_sequences(rb, 5, 3, first_only=list(fields))
    assert {name: values.shape for name, values in only.items()} == {
        "x": (5,),
        "done": (5,),
        "h": (5, 2, 3),
        "c": (5,),
        "mask": (5, 3),
    }
    assert sample_sequences(rb, 5, 3, first_only="c")["c"].shape == (5,)


@pytest.mark.parametrize("n_envs", [1, 2])
def test_states_are_written_back_to_the_rows_of_sequences(n_envs: int) -> None:
    """``row_indexes`` name the rows with ``Nstep`` too.

    With one environment they named those ``Nstep["size"] - 1`` rows later, in silence.
    """
    fields = {**NUMBERS, "rew": {"shape": ()}, "h": {"shape": (), "dtype": "i8"}}
    rb = ReplayBuffer(40, fields, n_envs=n_envs, Nstep={"size": 3}, seed=0)
    for x in range(70 // n_envs):
        each = n_envs * x + np.arange(n_envs)
        rb.add(x=each, h=each, rew=each, done=np.full(n_envs, x % 7 == 6))
    batch = sample_sequences(rb, 5, 4, burn_in=1, indexes=True, fields=["x", "h"])
    there = batch["mask"]
    rb.update(batch["row_indexes"][there], h=-batch["x"][there])
    rows = rb.get_all_transitions(fields=["x", "h"])
    changed = np.isin(rows["x"], batch["x"][there])
    assert (rows["h"] == np.where(changed, -rows["x"], rows["x"])).all()


def test_padding_of_every_dtype() -> None:
    """Behind the end stand zeros of the dtype, and ``None`` for Python objects."""
    fields: dict[str, Any] = {
        "o": {"shape": (), "dtype": "O"},
        "s": {"shape": 2, "dtype": "U3"},
        "r": {"shape": (), "dtype": [("a", "f4"), ("b", "i2")]},
        "t": {"shape": (), "dtype": "M8[s]"},
        "e": {"shape": (0,)},
        "done": {"shape": (), "dtype": bool},
    }
    rb = ReplayBuffer(4, fields, seed=0)
    rb.add(o="text", s=["a", "b"], r=(1.0, 2), t=np.datetime64(5, "s"), e=[], done=True)
    batch = sample_sequences(rb, 2, 3)
    assert batch["o"].tolist() == [["text", None, None]] * 2
    assert batch["s"].tolist() == [[["a", "b"], ["", ""], ["", ""]]] * 2
    assert batch["r"].tolist() == [[(1.0, 2), (0.0, 0), (0.0, 0)]] * 2
    assert batch["t"].astype(int).tolist() == [[5, 0, 0]] * 2
    assert batch["e"].shape == (2, 3, 0)


def test_rows_are_read_as_they_were_added() -> None:
    """Sums over several steps are for ``sample``: sequences have the rewards of single steps."""
    fields = {**NUMBERS, "rew": {"shape": ()}, "obs": {"shape": (3,), "dtype": "i4"}}
    rb = ReplayBuffer(
        50, fields, next_of="obs", stack_compress="obs", Nstep={"size": 4, "rew": "rew"}, seed=0
    )
    for t in range(70):
        obs = [max(t - 2, 0), max(t - 1, 0), t]
        rb.add(x=t, done=t % 9 == 8, rew=t, obs=obs, next_obs=[*obs[1:], t + 1])
    batch = sample_sequences(rb, 200, 2)
    x, mask = batch["x"], batch["mask"]
    assert x[:, 0].max() == 66  # the rows after it wait for others, as in ``sample``
    assert (batch["rew"] == x).all()
    assert (batch["obs"][mask] == x[mask][:, None] + [-2, -1, 0]).all()
    assert (batch["next_obs"][mask] == x[mask][:, None] + [-1, 0, 1]).all()


def test_a_seed_gives_the_same_sequences() -> None:
    """Starts come from the buffer's generator, and are the same on every platform."""
    rb, again = episodes_of([30, 30]), episodes_of([30, 30])
    first = sample_sequences(rb, 6, 5, stride=2)["x"]
    assert first.tolist() == sample_sequences(again, 6, 5, stride=2)["x"].tolist()
    assert first[:, 0].tolist() == [38, 30, 16, 18, 2, 4]
    copied = pickle.loads(pickle.dumps(rb))
    assert sample_sequences(copied, 9, 2)["x"].tolist() == sample_sequences(rb, 9, 2)["x"].tolist()


def test_batches_belong_to_the_caller() -> None:
    """A batch stays as it is when others are drawn."""
    rb = ReplayBuffer(3000, {"x": {"shape": 100, "dtype": "i8"}}, seed=0)
    x = np.broadcast_to(np.arange(3000)[:, None], (3000, 100))
    rb.add(x=x)
    batch = sample_sequences(rb, 16, 20)
    kept = batch["x"].copy()
    for _ in range(5):
        sample_sequences(rb, 16, 20)
    assert (batch["x"] == kept).all()
    assert batch["x"].flags.c_contiguous
    assert batch["x"].flags.writeable


@contextmanager
def not_enough(rb: ReplayBuffer, *words: str) -> Iterator[None]:
    """The block finds no sequence, says so, and leaves the rows alone.

    The generator goes on: it was asked for starts, and other threads may have drawn since.
    """
    before = snapshot(rb)
    with pytest.raises(NotEnoughDataError) as caught:
        yield
    assert [word for word in words if word not in str(caught.value)] == []
    assert {**snapshot(rb), "rng": None} == {**before, "rng": None}


def test_not_enough_rows() -> None:
    """Without a sequence that is long enough there is an error, and a batch of none is none."""
    for rb in (
        ReplayBuffer(10, NUMBERS, seed=0),
        PrioritizedReplayBuffer(10, NUMBERS, seed=0),
        PrioritizedReplayBuffer(10, NUMBERS, sampler=RankBased(), seed=0),
    ):
        with not_enough(rb):
            sample_sequences(rb, 3, 2)
        rb.add(x=[1, 2], done=[False, False])
        with not_enough(rb, "3 rows", "holds 2"):
            sample_sequences(rb, 3, 3)
        rb.on_episode_end()
        with not_enough(rb, "4 rows", "at least 3"):
            sample_sequences(rb, 3, 2, burn_in=2)
        with not_enough(rb, "3 rows"):
            sample_sequences(rb, 3, 3, across_episodes=True)
        assert sample_sequences(rb, 0, 3)["x"].shape == (0, 3)
        batch = sample_sequences(rb, 2, 9, burn_in=1)
        assert batch["x"].tolist() == [[1, 2] + [0] * 8] * 2


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"length": 0}, ValueError, ["length", "at least 1"]),
        ({"length": 2.0}, TypeError, ["length", "integer", "2.0"]),
        ({"length": True}, TypeError, ["length"]),
        ({"burn_in": -1}, ValueError, ["burn_in", "at least 0", "-1"]),
        ({"burn_in": 9}, ValueError, ["length", "11 rows", "10 rows"]),
        ({"stride": 0}, ValueError, ["stride", "at least 1"]),
        ({"stride": None}, TypeError, ["stride", "None"]),
        ({"across_episodes": 1}, TypeError, ["across_episodes", "1"]),
        ({"batch_size": -1}, ValueError, ["batch_size"]),
        ({"batch_size": 10**12}, MemoryError, []),
        ({"first_only": "y"}, ValueError, ["first_only", "'y'"]),
        ({"first_only": ["x", 3]}, TypeError, ["first_only", "3"]),
        ({"first_only": 3}, TypeError, ["first_only", "3"]),
        ({"beta": 0.4}, TypeError, ["beta", "no priorities"]),
    ],
)
def test_arguments_that_are_none(
    arguments: dict[str, Any], error: type[Exception], words: list[str]
) -> None:
    """Bad arguments are named at the call, and nothing is drawn."""
    rb = episodes_of([10])
    good: dict[str, Any] = {"batch_size": 3, "length": 2}
    with refused(rb, error, *words):
        sample_sequences(rb, **(good | arguments))


def test_names_that_do_not_go_with_sequences() -> None:
    """A field under the name of a further column is refused."""
    for name, across in (("mask", False), ("is_first", True)):
        rb = ReplayBuffer(10, {name: {}, "done": {}}, seed=0)
        rb.add(**{name: 1, "done": 1})
        with refused(rb, ValueError, repr(name)):
            sample_sequences(rb, 1, 1, across_episodes=across)
        sample_sequences(rb, 1, 1, across_episodes=not across)
    with pytest.raises(ValueError, match=r"\['indexes'\] are names of columns"):
        ReplayBuffer(10, {"indexes": {}, "done": {}}, sampler=Prioritized(), seed=0)
    with pytest.raises(ValueError, match="stride"):
        Starts(rb._episodes, rows=1, least=1, across=False, stride=0)
    with pytest.raises(ValueError, match="among"):
        choose(1, 0, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"td_errors": [1.0, 2.0]}, ValueError, ["td_errors", "(2,)"]),
        ({"td_errors": np.zeros((2, 0))}, ValueError, ["td_errors", "(2, 0)"]),
        ({"td_errors": [["a"], ["b"]]}, TypeError, ["td_errors"]),
        ({"td_errors": [[1.0], [np.nan]]}, ValueError, ["td_errors[1, 0]", "nan"]),
        ({"td_errors": [[1.0], [-np.inf]]}, ValueError, ["td_errors[1, 0]", "inf"]),
        ({"td_errors": [[1.0]]}, ValueError, ["1 for 2"]),
        ({"mask": [[True], [False]]}, ValueError, ["mask[1]"]),
        ({"mask": [[1], [1]]}, TypeError, ["mask", "int"]),
        ({"mask": [[True, True]]}, ValueError, ["mask", "(2, 1)", "(1, 2)"]),
        ({"eta": 1.5}, ValueError, ["eta", "1.5"]),
        ({"eta": "x"}, TypeError, ["eta", "'x'"]),
        ({"eta": float}, TypeError, ["eta"]),
        ({"indexes": [0, 99]}, IndexError, ["99"]),
        ({"indexes": [0.5, 1.0]}, TypeError, ["indexes"]),
    ],
)
def test_bad_updates_change_nothing(
    arguments: dict[str, Any], error: type[Exception], words: list[str]
) -> None:
    """What is wrong is named, and all priorities stay."""
    rb = episodes_of([10], sampler=Prioritized())
    assert isinstance(rb, PrioritizedReplayBuffer)
    good: dict[str, Any] = {"indexes": [0, 1], "td_errors": [[9.0], [8.0]]}
    with refused(rb, error, *words):
        update_sequence_priorities(rb, **(good | arguments))


@pytest.mark.once
@pytest.mark.parametrize("sampler", [Uniform, Prioritized, RankBased])
@pytest.mark.parametrize("across", [False, True])
def test_threads_add_while_sequences_are_drawn(across: bool, sampler: Any) -> None:
    """Every sequence is one of rows that were there together, whatever is overwritten."""
    cls = ReplayBuffer if sampler is Uniform else PrioritizedReplayBuffer
    fields = {**NUMBERS, "copies": {"shape": 500, "dtype": "i8"}}
    rb = cls(100, fields, sampler=sampler(), seed=0)
    count = 0

    def add() -> None:
        nonlocal count
        x = np.arange(count, count + 13)
        rb.add(x=x, done=x % 17 == 16, copies=np.repeat(x[:, None], 500, axis=1))
        count += 13

    def draw() -> None:
        batch = sample_sequences(rb, 8, 6, across_episodes=across)
        x = batch["x"]
        mask = np.ones(x.shape, bool) if across else batch["mask"]
        assert (batch["copies"] == x[:, :, None]).all()
        assert (np.where(mask, x - np.arange(6), x[:, :1]) == x[:, :1]).all()
        assert np.ptp(x[:, 0]) < 100
        if across:
            assert ((x % 17 == 0) == batch["is_first"])[:, 1:].all()
        else:
            assert (mask.sum(axis=1) == np.minimum(6, 17 - x[:, 0] % 17)).all()

    add()
    run_together(add, draw, draw)


def test_the_discount_of_the_first_row_alone() -> None:
    """Chunks of actions have one reward and one discount: those of their first step."""
    fields: Any = {"x": {"shape": ()}, "rew": {"shape": ()}, "done": {"shape": (), "dtype": bool}}
    rb = ReplayBuffer(40, fields, seed=0)
    for t in range(10):
        rb.add(x=t, rew=1.0, done=t == 9)
    nstep = NStep(3, gamma=0.5, discount=True)
    for names in (("rew", "discount"), "discount"):
        view = rb.view(Sequences(4, first_only=names), nstep)
        batch = view.sample(50)
        assert batch["discount"].shape == (50,)
        assert view.columns["discount"].shape == ()
        assert batch["x"].shape == (50, 4)
        assert batch["rew"].shape == ((50,) if isinstance(names, tuple) else (50, 4))
        expected = np.where(batch["x"][:, 0] <= 6, 0.125, 0.0)
        np.testing.assert_array_equal(expected, batch["discount"])
        part = view.sample(5, fields="x")
        assert part["discount"].shape == (5,)
        out = {"x": np.empty((5, 4), np.float32)}
        assert view.sample(5, fields="x", out=out)["discount"].shape == (5,)
    with pytest.raises(ValueError, match="first_only"):
        rb.view(Sequences(4, first_only="discount"))
