"""coax's buffers: draws, weights and updates, against a list of single transitions."""

from __future__ import annotations

import copy
import pickle
import random
from collections import deque
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from helpers import Array
from hypothesis import given
from hypothesis import strategies as st

from cpprb_like import NotEnoughDataError
from cpprb_like.compat.coax import PrioritizedReplayBuffer, SimpleReplayBuffer, TransitionBatch

BUFFERS = [SimpleReplayBuffer, PrioritizedReplayBuffer]


class Pair(NamedTuple):
    """A state of two parts."""

    left: Array
    right: Array


def batch_of(first: int, n: int, **parts: Any) -> TransitionBatch:
    """Transitions ``first`` to ``first + n - 1``, recognised by all their parts."""
    number = np.arange(first, first + n)
    given: dict[str, Any] = {
        "S": np.stack([number, -number], axis=1),
        "A": number % 5,
        "logP": -number.astype(np.float32),
        "Rn": number * 0.5,
        "In": np.full(n, 0.9),
        "S_next": np.stack([number, -number], axis=1) + 1,
    }
    return TransitionBatch(**(given | parts))


def add(buffer: Any, batch: Any, advantages: Any = None) -> None:
    """Add to a buffer of either class; the advantages are the rewards, unless given."""
    if isinstance(buffer, SimpleReplayBuffer):
        buffer.add(batch)
    else:
        buffer.add(batch, np.asarray(batch.Rn) if advantages is None else advantages)


def check(batch: TransitionBatch) -> list[int]:
    """The numbers of transitions, once all parts agree on them."""
    number: Array = batch.S[:, 0]
    expected = batch_of(0, 1 + int(number.max(initial=0)))
    for name in ("S", "A", "logP", "Rn", "In", "S_next"):
        ours, whole = getattr(batch, name), getattr(expected, name)
        assert ours.dtype == whole.dtype
        assert (ours == whole[number]).all()
    assert batch.A_next is batch.logP_next is batch.extra_info is None
    assert batch.batch_size == len(batch.W) == len(batch.idx) == len(number)
    return number.tolist()  # type: ignore[no-any-return]


@given(
    st.integers(1, 20),
    st.lists(st.tuples(st.integers(0, 30), st.booleans()), min_size=1, max_size=8),
    st.integers(0, 1000),
)
def test_simple_draws_are_those_of_random_sample(
    capacity: int, steps: list[tuple[int, bool]], seed: int
) -> None:
    """The same transitions in the same order as ``random.sample`` of a deque gives."""
    buffer, twin = SimpleReplayBuffer(capacity, seed), random.Random(seed)
    kept: deque[int] = deque(maxlen=capacity)
    count = begin = 0
    for n, clear in steps:
        if clear:
            buffer.clear()
            kept.clear()
            begin = count
        add(buffer, batch_of(count, n))
        kept.extend(range(count, count + n))
        count += n
        assert (len(buffer), bool(buffer)) == (len(kept), bool(kept))
        assert [check(one) for one in buffer] == [[number] for number in kept]
        assert [one.idx.tolist() for one in buffer] == [[number - begin] for number in kept]
        for size in {1, len(kept)} - {0}:
            if size <= len(kept):
                drawn = buffer.sample(size)
                assert check(drawn) == twin.sample(list(kept), size)
                assert (drawn.idx == drawn.S[:, 0] - begin).all()
                assert drawn.W.tolist() == [1.0] * size
        with pytest.raises(NotEnoughDataError, match=f"holds {len(kept)}"):
            buffer.sample(len(kept) + 1)


def test_simple_draws_leave_the_module_random_alone() -> None:
    """Neither making a buffer nor drawing from it moves the global generator."""
    before = random.getstate()
    buffer = SimpleReplayBuffer(10, random_seed=3)
    add(buffer, batch_of(0, 10))
    buffer.sample(5)
    assert random.getstate() == before


@given(
    st.integers(1, 20),
    st.sampled_from([0.3, 1.0, 2.5]),
    st.sampled_from([0.5, 1.0]),
    st.lists(
        st.tuples(st.sampled_from(["add", "add", "add", "update", "alpha"]), st.integers(0, 30)),
        min_size=1,
        max_size=10,
    ),
    st.integers(0, 1000),
)
def test_prioritized_weights(
    capacity: int, alpha: float, beta: float, steps: list[tuple[str, int]], seed: int
) -> None:
    """W is ``(N * P) ** -beta``, divided by its greatest in the batch, through all changes."""
    rng = np.random.default_rng(seed)
    buffer = PrioritizedReplayBuffer(capacity, alpha, beta, 0.1, seed)
    size: dict[int, float] = {}  # abs(Adv) + epsilon by number
    count = 0
    for step, n in steps:
        if step == "add":
            advantages = rng.normal(size=n)
            add(buffer, batch_of(count, n, W=np.arange(count, count + n) + 1.0), advantages)
            size |= {count + i: abs(x) + 0.1 for i, x in enumerate(advantages)}
            count += n
        elif step == "alpha":
            alpha = [0.3, 1.0, 2.5][n % 3]
            buffer.alpha = alpha
        elif buffer:
            gone = buffer.sample(4).idx
            idx = np.concatenate([gone, np.arange(count)[: n + 1]])  # some were overwritten
            advantages = rng.normal(size=len(idx))
            buffer.update(idx, advantages)
            size |= {int(i): abs(x) + 0.1 for i, x in zip(idx, advantages, strict=True)}
        alive = np.arange(max(0, count - capacity), count)
        assert len(buffer) == len(alive)
        assert [one.idx.tolist() for one in buffer] == [[i] for i in alive]
        if len(alive) == 0:
            continue
        chance = np.array([size[int(i)] for i in alive]) ** alpha
        chance /= chance.sum()
        drawn = buffer.sample(8)
        assert check(drawn) == drawn.idx.tolist()
        assert set(drawn.idx.tolist()) <= set(alive.tolist())
        weights = (len(alive) * chance[drawn.idx - alive[0]]) ** -beta
        expected = (drawn.idx + 1) * weights / weights.max()
        np.testing.assert_allclose(drawn.W, expected, rtol=1e-9)


def test_prioritized_draws_are_in_proportion() -> None:
    """A transition is drawn in proportion to ``(abs(Adv) + epsilon) ** alpha``, each by itself."""
    buffer = PrioritizedReplayBuffer(4, alpha=2.0, epsilon=1.0, random_seed=1)
    add(buffer, batch_of(0, 4), [0.0, 1.0, -2.0, 3.0])
    counts = np.bincount(buffer.sample(30_000).idx, minlength=4)
    np.testing.assert_allclose(counts / 30_000, np.array([1, 4, 9, 16]) / 30, atol=0.015)
    pairs = buffer.sample(30_000).idx.reshape(-1, 2)
    assert (pairs[:, 0] > pairs[:, 1]).any()  # no parts that each give one
    ones = [buffer.sample(1).idx[0] for _ in range(3000)]
    np.testing.assert_allclose(np.bincount(ones) / 3000, np.array([1, 4, 9, 16]) / 30, atol=0.04)


def test_prioritized_seeds() -> None:
    """Buffers of one seed draw alike, those of another do not."""
    drawn = []
    for seed in (5, 5, 6):
        buffer = PrioritizedReplayBuffer(100, random_seed=seed)
        add(buffer, batch_of(0, 100))
        drawn.append(buffer.sample().idx.tolist())
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(drawn[0]) == 32


def test_updates_after_a_clear_hit_nothing() -> None:
    """Numbers of transitions that were cleared stay those of the old ones."""
    buffer = PrioritizedReplayBuffer(4, epsilon=0.5, random_seed=0)
    add(buffer, batch_of(0, 4), [1.0] * 4)
    old = buffer.sample(20).idx
    buffer.clear()
    assert (len(buffer), bool(buffer), list(buffer)) == (0, False, [])
    with pytest.raises(NotEnoughDataError):
        buffer.sample(1)
    buffer.update(old, np.full(20, 1e9))
    add(buffer, batch_of(0, 4), [1.0] * 4)
    buffer.update(old, np.full(20, 1e9))
    assert buffer.sample(20).W.tolist() == [1.0] * 20
    assert not set(buffer.sample(20).idx.tolist()) & set(old.tolist())


def test_settings_can_be_changed() -> None:
    """Beta counts at once, epsilon for what comes, alpha for all."""
    buffer = PrioritizedReplayBuffer(2, random_seed=0)
    assert (buffer.capacity, buffer.alpha, buffer.beta, buffer.epsilon) == (2, 1.0, 1.0, 1e-4)
    buffer.epsilon = 1.0
    add(buffer, batch_of(0, 2), [0.0, 3.0])
    assert set(buffer.sample(50).W) == {1.0, 0.25}
    buffer.beta = 0.5
    assert set(buffer.sample(50).W) == {1.0, 0.5}
    buffer.alpha = 2.0
    assert set(buffer.sample(50).W) == {1.0, 0.25}
    buffer.epsilon = 3.0
    buffer.update([0], [1.0])
    assert set(buffer.sample(50).W) == {1.0}
    buffer.alpha = 0.5
    add(buffer, batch_of(2, 1), [13.0])
    np.testing.assert_allclose(sorted(set(buffer.sample(50).W)), [0.5**0.5, 1.0], rtol=1e-12)


def test_an_alpha_that_is_too_large_changes_nothing() -> None:
    """Where a priority to the power of alpha has no room, the old alpha stays."""
    buffer = PrioritizedReplayBuffer(2, random_seed=0)
    add(buffer, batch_of(0, 2), [1.0, 1e100])
    with pytest.raises(ValueError, match="too large"):
        buffer.alpha = 100.0
    assert buffer.alpha == 1.0
    buffer.update([1], [1.0])
    assert set(buffer.sample(50).W) == {1.0}


# ---- what a batch is ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", BUFFERS)
def test_states_may_be_trees(kind: Any) -> None:
    """Arrays in dicts, lists, tuples and named tuples come back in the same ones."""

    def tree(first: int, n: int) -> Any:
        x = np.arange(first, first + n)
        return {
            "image": x[:, None, None] + np.zeros((2, 2)),
            3: [x, (x + 1, None)],
            "p": Pair(x, -x),
        }

    buffer = kind(5, random_seed=0)
    for first in range(0, 12, 3):
        parts = {"S": tree(first, 3), "S_next": tree(first + 1, 3), "extra_info": [tree(first, 3)]}
        add(buffer, batch_of(first, 3, A_next=np.arange(3), logP_next=np.zeros(3), **parts))
    for batch in (buffer.sample(4), *buffer):
        number = (batch.Rn * 2).astype(int)
        for state, shift in ((batch.S, 0), (batch.S_next, 1), (batch.extra_info[0], 0)):
            assert list(state) == ["image", 3, "p"]
            assert (state["image"] == (number + shift)[:, None, None]).all()
            assert state["image"].shape == (len(number), 2, 2)
            assert (state[3][0] == number + shift).all()
            assert (state[3][1][0] == number + shift + 1).all()
            assert state[3][1][1] is None
            assert type(state["p"]) is Pair
            assert (state["p"].right == -number - shift).all()
        assert (batch.A_next == number % 3).all()


@pytest.mark.parametrize("kind", BUFFERS)
def test_batches_of_another_class_are_taken_and_given_back(kind: Any) -> None:
    """What is drawn is of the class of what was added first: coax's own, if it was coax's."""

    class Theirs:
        def __init__(self, **parts: Any) -> None:
            self.__dict__.update(parts)

    buffer = kind(10, random_seed=0)
    theirs = Theirs(**batch_of(0, 10)._asdict())
    before = dict(theirs.__dict__)
    add(buffer, theirs)
    add(buffer, batch_of(10, 1))
    assert theirs.__dict__ == before
    drawn = buffer.sample(5)
    assert type(drawn) is Theirs
    check(TransitionBatch(**drawn.__dict__))


@pytest.mark.parametrize("kind", BUFFERS)
@pytest.mark.parametrize("way", ["pickle", "deepcopy"])
def test_copies_go_on_alike(kind: Any, way: str) -> None:
    """A copy holds the same transitions and draws the same ones."""
    buffer = kind(10, random_seed=0)
    add(buffer, batch_of(0, 14))
    twin = pickle.loads(pickle.dumps(buffer)) if way == "pickle" else copy.deepcopy(buffer)
    for _ in range(3):
        assert buffer.sample(4) == twin.sample(4)
        for one in (buffer, twin):
            add(one, batch_of(14, 1))
            if isinstance(one, PrioritizedReplayBuffer):
                one.alpha = 0.5
    assert all(a == b for a, b in zip(buffer, twin, strict=True))


def test_a_single_transition() -> None:
    """``from_single`` puts an axis in front of everything, and a 0 into In where it is over."""
    batch = TransitionBatch.from_single(
        {"x": [1.0, 2.0]}, np.int8(1), -0.5, 2.0, False, 0.9, {"x": [3.0, 4.0]}, 0, -1.0, 2, 7, (1,)
    )
    assert batch.batch_size == 1
    assert batch.S["x"].tolist() == [[1.0, 2.0]]
    assert (batch.A.dtype, batch.A.tolist()) == (np.int8, [1])
    assert [batch.logP[0], batch.Rn[0], batch.In[0], batch.W[0]] == [-0.5, 2.0, 0.9, 2.0]
    assert [batch.A_next[0], batch.logP_next[0], batch.idx[0]] == [0, -1.0, 7]
    assert batch.extra_info[0].tolist() == [1]
    over = TransitionBatch.from_single(0, 0, 0.0, 1.0, True, 0.9)
    assert over.In.tolist() == [0.0]
    assert over.S_next is None
    assert over.idx.tolist() == [0]


@pytest.mark.parametrize(
    ("bad", "error", "words"),
    [
        ({"logp": 0.5}, ValueError, "logp: expected at most 0, got 0.5"),
        ({"logp_next": 0.5}, ValueError, "logp_next"),
        ({"gamma": 2}, ValueError, "gamma"),
        ({"gamma": "x"}, TypeError, "gamma"),
        ({"w": 0}, ValueError, "w"),
        ({"w": "x"}, TypeError, "w"),
    ],
)
def test_single_transitions_that_make_no_sense(
    bad: dict[str, Any], error: type[Exception], words: str
) -> None:
    """Probabilities above 1, weights of 0 and the like are refused by name."""
    with pytest.raises(error, match=words):
        TransitionBatch.from_single(
            **({"s": 0, "a": 0, "logp": 0.0, "r": 0.0, "done": False, "gamma": 1.0} | bad)
        )


@pytest.mark.parametrize("reward", [None, 1.0])
def test_a_batch_has_an_axis_of_transitions(reward: Any) -> None:
    """Numbers in place of arrays are refused when the batch is made."""
    with pytest.raises(TypeError, match="Rn"):
        TransitionBatch(0, 0, 0, reward, 0, 0)


def test_a_batch_is_a_row_of_named_parts() -> None:
    """It can be iterated over, indexed, split, copied and compared."""
    batch = batch_of(3, 4)
    assert [name for name, _ in batch.items()] == list(TransitionBatch.__slots__)
    assert list(batch._asdict()) == list(TransitionBatch.__slots__)
    assert batch[0] is batch.S
    assert batch[1:3] == (batch.A, batch.logP)
    assert len(list(batch)) == 11
    assert (batch.W.tolist(), batch.idx.tolist()) == ([1.0] * 4, [0, 1, 2, 3])
    singles = list(batch.to_singles())
    assert [check(one) for one in singles] == [[3], [4], [5], [6]]
    assert [one.idx.tolist() for one in singles] == [[0], [1], [2], [3]]
    assert batch == batch_of(3, 4)
    assert batch != batch_of(4, 4)
    assert batch != batch_of(3, 4, A_next=np.zeros(4))
    assert batch != "batch"
    shallow, deep = batch.copy(), batch.copy(deep=True)
    batch.S[0] = 99
    assert shallow == batch != deep
    assert "Rn=array([1.5, 2. , 2.5, 3. ])" in repr(batch)
    with pytest.raises(AttributeError):
        batch.reward = 1.0  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", BUFFERS)
@pytest.mark.parametrize("change", [lambda b: add(b, batch_of(9, 1)), lambda b: b.clear()])
def test_an_iteration_is_over_what_was_there(kind: Any, change: Any) -> None:
    """Transitions are not skipped in silence when a full buffer moves on, as with coax's deque."""
    buffer = kind(3)
    add(buffer, batch_of(0, 3))
    transitions = iter(buffer)
    assert check(next(transitions)) == [0]
    change(buffer)
    assert [check(one) for one in transitions] == [[1], [2]]


@pytest.mark.parametrize("kind", BUFFERS)
def test_an_iteration_gives_batches_of_the_class_that_was_added(kind: Any) -> None:
    """A class needs the parts of a ``TransitionBatch`` alone, and none of its methods."""
    buffer = kind(3)
    add(buffer, SimpleNamespace(**batch_of(0, 3)._asdict()))
    found = list(buffer)
    assert {type(one) for one in found} == {SimpleNamespace}
    assert [one.S.tolist() for one in found] == [[[0, 0]], [[1, -1]], [[2, -2]]]
    assert [one.idx.tolist() for one in found] == [[0], [1], [2]]


@pytest.mark.parametrize("kind", BUFFERS)
@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.bool_])
def test_whole_rewards_may_be_followed_by_others(kind: Any, dtype: Any) -> None:
    """The first rewards, such as 0 before a goal is reached, do not make all of them integers."""
    buffer = kind(10, random_seed=0)
    whole = {name: np.array([0, 1], dtype) for name in ("logP", "Rn", "In", "logP_next", "W")}
    add(buffer, batch_of(0, 2, **whole), [0.1, 0.4])
    real = {name: np.array([-0.5, 0.25]) for name in whole}
    add(buffer, batch_of(2, 2, **real), [0.2, 0.3])
    for one in buffer:
        number = int(one.S[0, 0])
        expected = (whole if number < 2 else real)["Rn"][number % 2]
        assert one.logP == one.Rn == one.In == one.logP_next == one.W == expected


def test_whole_weights_are_not_cut_off() -> None:
    """Weights of 1 by default for whole rewards become what corrects for the draws, not 0."""
    buffer = PrioritizedReplayBuffer(2, random_seed=0)
    buffer.add(batch_of(0, 2, Rn=np.array([1, 2])), Adv=[1.0, 4.0])
    batch = buffer.sample(100)
    rare = batch.S[:, 0] == 0
    assert 0 < rare.sum() < 100
    assert batch.W[rare].tolist() == [1.0] * int(rare.sum())
    assert batch.W[~rare] == pytest.approx(0.25, rel=1e-3)


# ---- bad input ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", BUFFERS)
@pytest.mark.parametrize("first", [True, False], ids=["first", "later"])
@pytest.mark.parametrize(
    ("bad", "error", "words"),
    [
        ({"Rn": None, "W": np.ones(2), "idx": np.arange(2)}, TypeError, "Rn"),
        ({"A": np.zeros(3)}, ValueError, "A: expected 2 transitions"),
        ({"A": np.float64(1)}, ValueError, "A: expected 2 transitions"),
        ({"S": {"x": np.zeros((1, 2))}}, ValueError, "S.'x'.: expected 2"),
    ],
)
def test_a_refused_batch_changes_nothing(
    kind: Any, first: bool, bad: dict[str, Any], error: type[Exception], words: str
) -> None:
    """Parts that do not fit together are refused by name, also as the first batch."""
    buffer, twin = kind(10, random_seed=0), kind(10, random_seed=0)
    for one in [] if first else [buffer, twin]:
        add(one, batch_of(0, 3))
    with pytest.raises(error, match=words):
        add(buffer, batch_of(0, 2, **bad), [0.0, 0.0])
    for one in (buffer, twin):
        add(one, batch_of(3, 3))
    assert buffer.sample(3) == twin.sample(3)


@pytest.mark.parametrize("kind", BUFFERS)
@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"A_next": np.zeros(2)}, "as in the first one"),
        ({"S": {"x": np.zeros((2, 2))}}, "as in the first one"),
        ({"S": np.zeros((2, 3))}, "expected shape"),
        ({"A": np.array([0.5, 1.5])}, "'A'"),
    ],
)
def test_later_batches_are_like_the_first(kind: Any, bad: dict[str, Any], words: str) -> None:
    """Other parts, shapes, or values that the dtype cannot hold are refused."""
    buffer = kind(10)
    add(buffer, batch_of(0, 2))
    with pytest.raises(ValueError, match=words):
        add(buffer, batch_of(2, 2, **bad))
    assert len(buffer) == 2


@pytest.mark.parametrize("kind", BUFFERS)
def test_what_is_no_batch_is_refused(kind: Any) -> None:
    """An object without the parts is refused with their names."""
    with pytest.raises(TypeError, match="expected a TransitionBatch, got SimpleReplayBuffer"):
        kind(10).add(*[SimpleReplayBuffer(3), []][: 1 + (kind is PrioritizedReplayBuffer)])
    with pytest.raises(ValueError, match="capacity"):
        kind(0)
    with pytest.raises(TypeError, match="capacity"):
        kind("10")
    with pytest.raises(TypeError, match=r"^random_seed: "):
        kind(10, random_seed=[None])
    buffer = kind(10)
    add(buffer, batch_of(0, 3))
    for size, error in ((0, ValueError), (-1, ValueError), (1.5, TypeError)):
        with pytest.raises(error, match="batch_size"):
            buffer.sample(size)


@pytest.mark.parametrize(
    ("advantages", "error", "words"),
    [
        ([1.0], ValueError, r"Adv: expected shape \(2,\), got \(1,\)"),
        ([[1.0], [2.0]], ValueError, "Adv: expected shape"),
        (1.0, ValueError, "Adv: expected shape"),
        ([1.0, np.nan], ValueError, "Adv: expected finite"),
        ([1.0, np.inf], ValueError, "Adv: expected finite"),
        (["a", "b"], TypeError, "Adv: expected numbers"),
        (None, TypeError, "Adv: expected numbers"),
    ],
)
def test_advantages_are_finite_numbers(advantages: Any, error: type[Exception], words: str) -> None:
    """Advantages that are none are refused in ``add`` and ``update``, and nothing changes."""
    buffer = PrioritizedReplayBuffer(10, random_seed=0)
    add(buffer, batch_of(0, 2), [1.0, 1.0])
    with pytest.raises(error, match=words):
        buffer.add(batch_of(2, 2), advantages)
    with pytest.raises(error, match=words):
        buffer.update([0, 1], advantages)
    assert len(buffer) == 2
    assert buffer.sample(20).W.tolist() == [1.0] * 20


@pytest.mark.parametrize(
    ("idx", "error"),
    [
        ([0, 2], IndexError),
        ([0, -1], IndexError),
        ([1, -10], IndexError),
        ([0.0, 1.0], TypeError),
        ([[0, 1]], TypeError),
        ("ab", TypeError),
        (np.array([0, 2**64 - 10], np.uint64), IndexError),
        ([0, 2**63 - 1], IndexError),
    ],
)
def test_updates_name_transitions(idx: Any, error: type[Exception]) -> None:
    """Numbers that no transition ever had are refused, and nothing changes."""
    buffer = PrioritizedReplayBuffer(10, random_seed=0)
    with pytest.raises(IndexError):
        buffer.update([0], [1.0])
    buffer.update([], [])
    add(buffer, batch_of(0, 2), [1.0, 1.0])
    with pytest.raises(error, match=r"^idx: "):
        buffer.update(idx, [9.0, 9.0])
    assert buffer.sample(20).W.tolist() == [1.0] * 20


@pytest.mark.parametrize("name", ["alpha", "beta", "epsilon"])
@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf"), "1", None, abs])
def test_settings_are_numbers_above_0(name: str, value: Any) -> None:
    """Bad settings are refused by name, in the constructor, and later or by the next use."""
    with pytest.raises((TypeError, ValueError), match=name):
        PrioritizedReplayBuffer(10, **{name: value})
    buffer = PrioritizedReplayBuffer(10)
    add(buffer, batch_of(0, 2), [1.0, 1.0])

    def use() -> None:
        setattr(buffer, name, value)
        buffer.sample(2)
        buffer.update([0], [1.0])

    with pytest.raises((TypeError, ValueError), match=name):
        use()
