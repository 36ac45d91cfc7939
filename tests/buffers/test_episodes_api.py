"""Whole episodes, as ``rb.episodes`` gives them, against lists of what was added."""

from __future__ import annotations

import pickle
from contextlib import nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from distributions import chi_square
from episode_cases import FIELDS, History, Step
from helpers import refused
from hypothesis import given
from hypothesis import strategies as st
from threads import run_together
from views import sample_sequences

from cpprb_like import NotEnoughDataError, PrioritizedReplayBuffer, ReplayBuffer
from cpprb_like.buffers import Episode
from cpprb_like.samplers import Prioritized, RankBased, Recency, Uniform
from cpprb_like.typing import FieldSpec

Array = npt.NDArray[Any]

NUMBERS: dict[str, Any] = {
    "x": {"shape": (), "dtype": "i8"},
    "rew": {},
    "done": {"shape": (), "dtype": bool},
}


def assert_is(batch: dict[str, Array], steps: list[Step]) -> None:
    """The rows of a batch are these, in every field."""
    for name, values in batch.items():
        assert values.tolist() == [step.values[name] for step in steps], name


@given(
    capacity=st.integers(1, 40),
    n_envs=st.integers(1, 4),
    p_end=st.sampled_from([0.0, 0.1, 0.3, 0.7]),
    kind=st.sampled_from([Uniform, Recency, Prioritized, RankBased]),
    seed=st.integers(0, 2**32),
)
def test_episodes_are_what_was_added(
    capacity: int, n_envs: int, p_end: float, kind: Any, seed: int
) -> None:
    """List, rows, deletions and draws agree with plain lists, whatever happens to the buffer."""
    cls = PrioritizedReplayBuffer if kind in (Prioritized, RankBased) else ReplayBuffer
    rb = cls(max(capacity, n_envs), FIELDS, n_envs=n_envs, next_of="obs", sampler=kind(), seed=seed)
    history = History(rb, np.random.default_rng(seed), p_end)
    for _ in range(6):
        history.play(int(history.rng.integers(1, 8)))
        expected = history.episodes()
        assert len(rb.episodes) == len(expected)
        listed = rb.episodes.list(reward="rew")
        for number, steps in enumerate(expected):
            last = steps[-1]
            assert listed[number] == Episode(
                env=steps[0].env,
                slot=steps[0].row % rb.capacity,
                length=len(steps),
                terminated=last.terminated,
                truncated=last.truncated,
                complete=last.is_end and history.is_first(steps[0]),
                return_=sum(step.values["rew"][0] for step in steps),
            )
            whole = rb.episodes.read(number)
            assert list(whole) == [column.name for column in rb.ring.columns]
            assert_is(whole, steps)
            some = [name for name in whole if history.rng.random() < 0.4] or ["x"]
            part = rb.episodes.read(number, fields=some[::-1])
            assert list(part) == some
            assert_is(part, steps)
            assert_is(rb.episodes[number - len(expected)], steps)
        assert len(rb) == len(history.alive())
        there = {step.x for step in history.alive()}
        if expected:
            for batch in rb.episodes.sample(3, complete=False, fields=["x", "rew"]):
                assert list(batch) == ["x", "rew"]
                (steps,) = [steps for steps in expected if steps[0].x == batch["x"][0]]
                assert_is(batch, steps)
        if there:
            assert set(rb.sample(200)["x"].tolist()) <= there
            assert set(rb.get_all_transitions()["x"].tolist()) == there
        assert [batch["x"].tolist() for batch in rb.episodes] == [
            [step.x for step in steps] for steps in expected
        ]


def filled(lengths: list[int], **options: Any) -> ReplayBuffer:
    """A buffer with episodes of these lengths, of which the last has not ended."""
    rb = ReplayBuffer(options.pop("capacity", sum(lengths)), NUMBERS, seed=0, **options)
    done = np.zeros(sum(lengths), bool)
    done[np.cumsum(lengths[:-1], dtype=int) - 1] = True
    x = np.arange(sum(lengths))
    rb.add(x=x, rew=x, done=done)
    return rb


def test_ends_of_every_kind() -> None:
    """An episode is terminated, truncated, both, or has not ended; each is listed as such."""
    fields: dict[str, Any] = {"x": {}, "terminated": {}, "truncated": {}}
    rb = ReplayBuffer(10, fields)
    rb.add(x=[0] * 4, terminated=[1, 0, 1, 0], truncated=[0, 1, 1, 0])
    ends = [(e.terminated, e.truncated, e.complete) for e in rb.episodes.list()]
    assert ends == [
        (True, False, True),
        (False, True, True),
        (True, True, True),
        (False, False, False),
    ]
    rb.on_episode_end()
    last = rb.episodes.list()[-1]
    assert (last.terminated, last.truncated, last.complete) == (False, True, True)


def test_an_episode_whose_beginning_is_gone_is_not_complete() -> None:
    """In a ring that wrapped, the oldest is known to be whole only if a row before it tells."""
    rb = filled([5, 5, 1], capacity=9)
    assert [(e.length, e.complete) for e in rb.episodes.list()] == [
        (3, False),
        (5, True),
        (1, False),
    ]
    rb = filled([5, 4, 1], capacity=5)  # the rows before are gone, which would tell
    assert [(e.length, e.complete) for e in rb.episodes.list()] == [(4, False), (1, False)]


def test_episodes_are_drawn_uniformly() -> None:
    """Each complete episode has the same probability, however long; the others by request."""
    rb = filled([1, 2, 30, 5, 7])
    counts = np.zeros(5)
    for batch in rb.episodes.sample(8000):
        counts[[0, 1, 3, 33, 38].index(int(batch["x"][0]))] += 1
    assert counts[4] == 0
    assert chi_square(counts[:4], np.full(4, 2000.0)) < 20
    drawn = {len(batch["x"]) for batch in rb.episodes.sample(300, complete=False)}
    assert drawn == {1, 2, 30, 5, 7}
    assert rb.episodes.sample(0) == []


def test_the_same_seed_draws_the_same_episodes() -> None:
    """Draws of episodes come from the buffer's generator, also of a copy."""
    rb = filled([1, 2, 30, 5, 7])
    copied = pickle.loads(pickle.dumps(rb))
    first = [batch["x"].tolist() for batch in rb.episodes.sample(20)]
    assert first == [batch["x"].tolist() for batch in copied.episodes.sample(20)]
    assert first != [batch["x"].tolist() for batch in rb.episodes.sample(20)]


@pytest.mark.parametrize("kind", [Prioritized, RankBased])
def test_deleted_rows_are_gone_for_good(kind: Any) -> None:
    """They are not drawn, not counted, not in a copy, and their slots serve new rows again."""
    rb = PrioritizedReplayBuffer(20, NUMBERS, sampler=kind(), seed=0)
    done = np.arange(20) % 5 == 4
    rb.add(x=np.arange(20), rew=np.zeros(20), done=done)
    rb.update_priorities(np.arange(5, 10), [1000.0] * 5)
    assert rb.episodes.delete(1) == 5
    for buffer in (rb, pickle.loads(pickle.dumps(rb))):
        assert len(buffer) == 15
        assert not set(range(5, 10)) & set(buffer.sample(500)["x"].tolist())
        assert not set(range(5, 10)) & set(sample_sequences(buffer, 500, 3)["x"].ravel().tolist())
        assert set(buffer.get_all_transitions()["x"].tolist()) == {*range(5), *range(10, 20)}
        with refused(buffer, IndexError):
            buffer[5]
        buffer.add(x=np.arange(20, 28), rew=np.zeros(8), done=np.zeros(8, bool))
        assert len(buffer) == 18
        assert {*range(20, 28)} <= set(buffer.sample(3000)["x"].tolist())
    assert rb.episodes.delete(1) == 5
    rb.add(x=np.arange(28, 60), rew=np.zeros(32), done=np.zeros(32, bool))
    assert (len(rb), rb.ring.absent) == (20, 0)
    assert set(rb.sample(3000)["x"].tolist()) == set(range(40, 60))


def test_updates_of_deleted_rows() -> None:
    """They are skipped by their handles, and refused by their slots."""
    for cls, options in (
        (ReplayBuffer, {"sampler": Prioritized()}),
        (PrioritizedReplayBuffer, {"check_for_update": True}),
        (PrioritizedReplayBuffer, {}),
    ):
        rb: Any = cls(20, {"x": {"shape": ()}, "done": {"shape": ()}}, seed=0, **options)
        rb.add(x=np.arange(20), done=np.arange(20) % 5 == 4)
        indexes = rb.sample(20)["indexes"]
        rb.episodes.delete(1)
        takes_slots = cls is PrioritizedReplayBuffer and not options
        with pytest.raises(IndexError, match="that holds") if takes_slots else nullcontext():
            rb.update_priorities(indexes, np.ones(20))
        with pytest.raises(IndexError, match="that holds") if takes_slots else nullcontext():
            rb.update(indexes, x=np.ones(20))


def test_the_stream_goes_on_over_a_deleted_episode() -> None:
    """Sequences that run over ends pass a deleted episode, and know that an episode begins."""
    rb = filled([4, 3, 4, 1])
    rb.episodes.delete(1)
    batch = sample_sequences(rb, 100, 6, across_episodes=True)
    x = batch["x"]
    assert {tuple(row) for row in x.tolist()} == {
        (0, 1, 2, 3, 7, 8),
        (1, 2, 3, 7, 8, 9),
        (2, 3, 7, 8, 9, 10),
        (3, 7, 8, 9, 10, 11),
    }
    assert (batch["is_first"] == np.isin(x, [0, 7, 11])).all()


def test_a_row_before_a_deleted_episode_keeps_its_next_value() -> None:
    """What follows the last row of an episode is what was added, though the rows after it go."""
    fields: dict[str, FieldSpec] = {
        "obs": {"shape": (), "dtype": "i8"},
        "done": {"shape": (), "dtype": bool},
    }
    rb = ReplayBuffer(6, fields, next_of="obs")
    rb.add(obs=[0, 1, 10, 11], next_obs=[1, 2, 11, 12], done=[0, 1, 0, 1])
    rb.episodes.delete(1)
    for obs in (20, 21, 22):
        rb.add(obs=obs, next_obs=obs + 1, done=False)
        batch = rb.get_all_transitions()
        assert (batch["next_obs"] == batch["obs"] + 1).all()


def test_numbers_that_are_none() -> None:
    """A number that no episode has, or a field that is no reward, is refused by name."""
    rb = filled([3, 3])
    for number in (2, -3):
        with refused(rb, IndexError, "number", "-2 to 1", str(number)):
            rb.episodes.read(number)
        with refused(rb, IndexError, "number"):
            rb.episodes.delete(number)
    with refused(rb, TypeError, "number", "0.5"):
        rb.episodes.read(0.5)  # type: ignore[arg-type]
    with refused(rb, ValueError, "episode -1", "on_episode_end"):
        rb.episodes.delete(-1)
    with refused(rb, ValueError, "n: expected at least 0", "-1"):
        rb.episodes.sample(-1)
    with refused(rb, ValueError, "reward", "'y'"):
        rb.episodes.list(reward="y")
    with refused(rb, TypeError, "reward", "3"):
        rb.episodes.list(reward=3)  # type: ignore[arg-type]
    wide = ReplayBuffer(3, {"rew": {"shape": 2}, "done": {}})
    with refused(wide, ValueError, "reward", "(2,)"):
        wide.episodes.list(reward="rew")
    for empty in (ReplayBuffer(3, NUMBERS), filled([3])):
        with refused(empty, NotEnoughDataError, "complete"):
            empty.episodes.sample(1)
    nothing = ReplayBuffer(3, NUMBERS).episodes
    assert (len(nothing), nothing.list("rew"), repr(nothing)) == (0, [], "Episodes(0)")


def test_reading_goes_on_only_while_nothing_changes() -> None:
    """Episodes that are read one by one are those of one moment, or there is an error."""
    rb = filled([3, 3, 3], capacity=20)
    for change in ("add", "delete"):
        reading = iter(rb.episodes)
        next(reading)
        if change == "add":
            rb.add(x=9, rew=9, done=False)
        else:
            rb.episodes.delete(0)
        with pytest.raises(RuntimeError, match="changed"):
            next(reading)


@pytest.mark.parametrize("kind", [Uniform, Prioritized, RankBased])
def test_threads_add_while_episodes_are_read_and_deleted(kind: Any) -> None:
    """Every episode that is read is whole, and no row is deleted that was added during the call."""
    cls = ReplayBuffer if kind is Uniform else PrioritizedReplayBuffer
    fields = {**NUMBERS, "copies": {"shape": 300, "dtype": "i8"}}
    rb = cls(120, fields, sampler=kind(), seed=0)
    count = 0

    def add() -> None:
        nonlocal count
        x = np.arange(count, count + 7)
        copies = np.repeat(x[:, None], 300, axis=1)
        rb.add(x=x, rew=x, done=x % 11 == 10, copies=copies)
        count += 7

    def read() -> None:
        for batch in rb.episodes.sample(3):
            x = batch["x"]
            assert x.tolist() == list(range(x[0], x[0] + 11))
            assert (batch["copies"] == x[:, None]).all()

    def delete() -> None:
        episodes = rb.episodes.list()
        assert all(episode.length <= 11 for episode in episodes)
        if len(episodes) > 5:  # so that the one is one that has ended
            assert rb.episodes.delete(1) <= 11

    for _ in range(10):
        add()
    run_together(add, read, delete)

    for _ in range(40):  # all rows are new: none of them is missing
        add()
    assert len(rb) == 120
    assert rb.ring.absent == 0
