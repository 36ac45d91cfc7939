"""Which rows of an n-step buffer can be drawn, where users find them, and what they weigh."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpprb_like import PrioritizedReplayBuffer, ReplayBuffer
from cpprb_like._core import FLAG_ABSENT, FLAG_END, Ring
from cpprb_like._rows.row_handles import at_or_before, ordered_at, ordered_slots
from cpprb_like.samplers import LegacyUniform, Prioritized, Reverse
from cpprb_like.typing import NstepSpec
from cpprb_like.views import FrameStacks, Layer, NStep, Sequences

FIELDS: dict[str, Any] = {
    "t": {"shape": (), "dtype": "i8"},
    "rew": {"shape": (), "dtype": "f8"},
    "done": {"shape": (), "dtype": bool},
}


def steps(size: int) -> NstepSpec:
    """Sums over so many steps, of which every digit tells a step."""
    return {"size": size, "gamma": 1.0, "rew": "rew"}


def fill(rb: ReplayBuffer, n: int, first: int = 0) -> list[int | None]:
    """Add n steps one by one; what ``add`` returned."""
    return [rb.add(t=t, rew=1.0, done=False) for t in range(first, first + n)]


# ---- one environment: slots are those of cpprb ---------------------------------------------


def test_incomplete_rows_do_not_count_against_the_size() -> None:
    """While an episode runs, the newest ``size`` complete rows are there.

    The newest rows of an episode took slots from the others, so a program that sends its rows away
    when the buffer is full never did, or lost those that were overwritten.
    """
    rb = ReplayBuffer(8, FIELDS, Nstep=steps(3))
    fill(rb, 20)
    assert (rb.get_stored_size(), rb.get_next_index(), rb.get_buffer_size()) == (8, 2, 8)
    assert (len(rb), rb.capacity) == (8, 8)
    assert rb.get_all_transitions()["t"].tolist() == [16, 17, 10, 11, 12, 13, 14, 15]


@pytest.mark.parametrize("size", [1, 2, 8])
@pytest.mark.parametrize("n", [2, 3, 7])
def test_a_transition_is_in_the_slot_of_its_number(size: int, n: int) -> None:
    """Transition t is in slot ``t % size`` in every call that takes or gives slots, as in cpprb."""
    rb = PrioritizedReplayBuffer(size, FIELDS, Nstep=steps(n), seed=0)
    for t in range(40):
        complete = t - n + 2
        assert rb.add(t=t, rew=1.0, done=False) == (None if complete < 1 else (t - n + 1) % size)
        if complete < 1:
            assert len(rb) == rb.get_next_index() == 0
            continue
        there = range(max(0, complete - size), complete)
        assert len(rb) == len(there)
        assert rb.get_next_index() == complete % size
        slots = np.array([row % size for row in there])
        assert rb[slots]["t"].tolist() == rb._encode_sample(slots)["t"].tolist() == list(there)
        assert rb.stack("t", [slots]).tolist() == [list(there)]
        assert rb[-1]["t"] == rb[len(there) - 1]["t"]
        batch = rb.sample(5)
        assert (batch["indexes"] == batch["t"] % size).all()
        by_slot = sorted(there, key=lambda row: row % size)
        assert rb.get_all_transitions()["t"].tolist() == by_slot
        assert [row["t"] for row in rb] == by_slot
        with pytest.raises(IndexError):
            rb[len(there)]
    rb.update(3 % size, rew=100.0)
    assert rb[3 % size]["rew"] >= 100.0
    rb.check()


def test_rows_older_than_the_newest_of_the_size_are_left_out_when_an_episode_ends() -> None:
    """The rows that the end completes push as many old ones out, and ``len`` stays."""
    rb = ReplayBuffer(8, FIELDS, Nstep=steps(3), seed=0)
    fill(rb, 20)
    rb.on_episode_end()
    assert (len(rb), rb.get_next_index()) == (8, 4)
    assert rb.get_all_transitions()["t"].tolist() == [16, 17, 18, 19, 12, 13, 14, 15]
    assert set(rb.sample(200)["t"].tolist()) == set(range(12, 20))
    assert [rb.episodes.read(0)["t"].tolist()] == [list(range(12, 20))]


def test_an_actor_that_sends_full_buffers_sends_every_row() -> None:
    """Fill, send, clear: all rows that are complete arrive, each once."""
    rb = ReplayBuffer(8, FIELDS, Nstep=steps(3))
    sent: list[int] = []
    for t in range(100):
        rb.add(t=t, rew=1.0, done=t % 10 == 9)
        if rb.get_stored_size() == rb.get_buffer_size():
            sent += rb.get_all_transitions()["t"].tolist()
            rb.clear()
    assert len(set(sent)) == len(sent) >= 70


def test_other_samplers_draw_the_newest_complete_rows() -> None:
    """``Reverse`` starts at the newest complete row; cpprb's own draws hit cpprb's slots."""
    rb = ReplayBuffer(8, FIELDS, Nstep=steps(3), sampler=Reverse(3))
    fill(rb, 20)
    assert rb.sample(4)["t"].tolist() == [17, 14, 11, 16]
    rb = ReplayBuffer(8, FIELDS, Nstep=steps(3), sampler=LegacyUniform())
    fill(rb, 20)
    np.random.seed(1)
    drawn = rb.sample(50)["t"]
    np.random.seed(1)
    assert (drawn % 8 == np.random.randint(0, 8, 50)).all()


def test_a_deleted_row_is_a_hole_in_its_slot() -> None:
    """Rows around a deleted episode keep their slots; its own slots are an ``IndexError``."""
    rb = ReplayBuffer(8, FIELDS, Nstep=steps(3), sampler=LegacyUniform(), seed=0)
    for t in range(20):
        rb.add(t=t, rew=1.0, done=t in (12, 15))
    assert rb.episodes.delete(1) == 3
    assert rb.get_all_transitions()["t"].tolist() == [16, 17, 10, 11, 12]
    assert rb[[0, 1]]["t"].tolist() == [16, 17]
    with pytest.raises(IndexError):
        rb[13 % 8]
    assert rb[2:8]["t"].tolist() == [10, 11, 12]
    assert set(rb.sample(100)["t"].tolist()) == {16, 17, 10, 11, 12}
    rb.check()


def test_rows_that_are_left_out_are_deleted_with_their_episode() -> None:
    """They were still in memory, and seemed to belong to the episode after the deleted one."""
    rb = ReplayBuffer(6, FIELDS, Nstep=steps(4), seed=0)
    for t in range(12):
        rb.add(t=t, rew=1.0, done=t == 8)
    rb.on_episode_end()
    rb.add(t=12, rew=1.0, done=False)
    assert rb.episodes.read(0)["t"].tolist() == [6, 7, 8]
    assert rb.episodes.delete(0) == 3
    assert rb.get_all_transitions()["t"].tolist() == [9, 10, 11]
    rb.check()
    pickle.loads(pickle.dumps(rb)).check()


# ---- several environments ------------------------------------------------------------------


@pytest.mark.parametrize("size", [4, 5, 20])
def test_a_vector_buffer_never_draws_more_than_its_size(size: int) -> None:
    """When episodes end, the rows that are completed count, and the oldest are left out."""
    rng = np.random.default_rng(0)
    rb = ReplayBuffer(size, FIELDS, n_envs=4, Nstep=steps(3), seed=0)
    for t in range(200):
        rb.add(t=[4 * t, 4 * t + 1, 4 * t + 2, 4 * t + 3], rew=np.ones(4), done=rng.random(4) < 0.1)
        assert len(rb) <= size
        if t > 20:
            assert len(rb) == size
            assert rb.get_all_transitions()["t"].min() >= 4 * t - size - 12
        rb.check()


@pytest.mark.parametrize("seed", range(20))
def test_add_returns_the_slot_of_the_first_row_that_the_call_completed(seed: int) -> None:
    """With pauses and blocks that exceed the buffer: the slot could hold another row, or none."""
    rng = np.random.default_rng(seed)
    k, n = int(rng.integers(2, 4)), int(rng.integers(2, 5))
    rb = ReplayBuffer(int(rng.integers(k, 30)), FIELDS, n_envs=k, Nstep=steps(n), seed=0)
    t = 0
    for _ in range(40):
        before = rb.get_all_transitions()["t"]
        times = int(rng.integers(1, 4)) * (10 if rng.random() < 0.2 else 1)
        values = {
            "t": np.arange(t, t + times * k).reshape(times, k),
            "rew": np.ones((times, k)),
            "done": rng.random((times, k)) < 0.15,
        }
        t += times * k
        if rng.random() < 0.5:
            slot = rb.add_where(rng.random((times, k)) < 0.5, **values)
        else:
            slot = rb.add(**values)
        completed = np.setdiff1d(rb.get_all_transitions()["t"], before)
        assert (None if slot is None else rb[[slot]]["t"].tolist()) == (
            None if not len(completed) else [completed.min()]
        )


@pytest.mark.parametrize("n_envs", [2, 300])
def test_the_newest_rows_beside_incomplete_ones_of_any_age(n_envs: int) -> None:
    """Also if an environment paused for 70,000 rows: three bytes tell its rows from the newest."""
    rb = ReplayBuffer(n_envs * 300, FIELDS, n_envs=n_envs, Nstep=steps(4), seed=0)
    rng = np.random.default_rng(0)
    values = {"t": np.zeros(n_envs), "rew": np.zeros(n_envs), "done": np.zeros(n_envs)}
    pauses = rng.integers(0, 250, n_envs)
    for t in range(260):
        rb.add_where((t < 250 - pauses) | (rng.random(n_envs) < 0.1 * (pauses < 100)), **values)
        if t % 20 == 0:
            slots = rb.ring.present_slots()
            slots = slots[np.argsort(rb.ring.row_ids(slots))]
            for n in (1, 50, len(slots)):
                assert rb.ring.newest_slots(n).tolist() == slots[-n:].tolist()
            rb.check()


# ---- weights -------------------------------------------------------------------------------

KINDS = ["add", "add", "add", "where", "given", "end", "update", "delete", "clear", "copy", "draw"]


@settings(deadline=None)
@given(
    n_envs=st.integers(1, 3),
    size=st.integers(1, 4),
    spare=st.integers(0, 9),
    kinds=st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 9999)), max_size=40),
    as_handles=st.booleans(),
)
def test_a_row_weighs_what_it_was_given_once_it_is_complete(
    n_envs: int, size: int, spare: int, kinds: list[tuple[str, int]], as_handles: bool
) -> None:
    """Each row that can be drawn has its weight, whenever it became complete, and no other row any.

    The twin is a dict from what a row holds to its priority.
    """
    rb = PrioritizedReplayBuffer(
        n_envs + spare, FIELDS, n_envs=n_envs, Nstep=steps(size), check_for_update=as_handles,
        alpha=1.0, eps=0.0, seed=0,
    )  # fmt: skip
    weights: dict[int, float] = {}
    greatest, number = 1.0, 0
    for kind, seed in kinds:
        rng = np.random.default_rng(seed)
        given = rng.integers(1, 50, n_envs).astype(float)
        if kind in ("add", "where", "given"):
            there = rng.random(n_envs) < (0.6 if kind == "where" else 2.0)
            rows = np.arange(number, number + n_envs)
            number += n_envs
            values = {"t": rows, "rew": rows, "done": rng.random(n_envs) < 0.2}
            if kind == "given":
                values["priorities"] = given
            if kind == "where":
                rb.add_where(there, **values)
            else:
                rb.add(**values)
            for row, weight in zip(rows.tolist(), given.tolist(), strict=True):
                weights[row] = weight if kind == "given" else greatest
            if kind == "given":
                greatest = max(greatest, *given)
        elif kind == "end":
            rb.on_episode_end(int(rng.integers(n_envs)))
        elif kind == "clear":
            rb.clear()
            greatest = 1.0
        elif kind == "copy":
            rb = pickle.loads(pickle.dumps(rb))
        elif kind == "delete" and len(rb.episodes):
            ended = [
                k for k, one in enumerate(rb.episodes.list()) if one.terminated or one.truncated
            ]
            if ended:
                rb.episodes.delete(int(rng.choice(ended)))
        elif kind in ("update", "draw") and len(rb):
            batch = rb.sample(3)
            if kind == "update":
                new = rng.integers(1, 50, 3).astype(float)
                rb.update_priorities(batch["indexes"], new)
                weights |= dict(zip(batch["t"].tolist(), new.tolist(), strict=True))
                greatest = max(greatest, *new)
        if seed % 3:
            continue
        sampler: Prioritized = rb.sampler  # type: ignore[assignment]
        slots = rb.ring.present_slots()
        found = np.zeros(rb.ring.capacity)
        if len(slots):
            batch = rb.get_all_transitions()
            order = ordered_slots(rb.ring)
            found[order] = [weights[row] for row in batch["t"].tolist()]
        got = sampler.rows.get(np.arange(rb.ring.capacity, dtype=np.intp))
        assert got.tolist() == found.tolist()
        rb.check()
    rb.check()


def histories(seed: int) -> Iterator[ReplayBuffer]:
    """Blocks of steps, pauses, ends, deletions, clears and copies, in buffers of a few rows."""
    rng = np.random.default_rng(seed)
    k, n = int(rng.integers(1, 5)), int(rng.integers(1, 6))
    cls = PrioritizedReplayBuffer if seed % 2 else ReplayBuffer
    size = int(rng.integers(k, 30))
    rb = cls(size, FIELDS, n_envs=k, Nstep=steps(n), seed=0)
    t = 0
    for _ in range(60):
        action = rng.random()
        if action < 0.4:
            times = int(rng.integers(1, 8)) * (10 if rng.random() < 0.2 else 1)
            shape = (times,) if k == 1 else (times, k)
            rows = np.arange(t, t + times * k).reshape(shape)
            t += times * k
            rb.add(t=rows, rew=np.ones(shape), done=rng.random(shape) < 0.15)
        elif action < 0.6:
            rows = np.arange(t, t + k)
            t += k
            rb.add_where(rng.random(k) < 0.5, t=rows, rew=np.ones(k), done=rng.random(k) < 0.2)
        elif action < 0.7:
            rb.on_episode_end(int(rng.integers(k)))
        elif action < 0.8:
            listed = enumerate(rb.episodes.list("rew"))
            ended = [number for number, one in listed if one.terminated or one.truncated]
            if ended:
                rb.episodes.delete(int(rng.choice(ended)))
        elif action < 0.83:
            rb.clear()
        elif action < 0.9:
            rb = pickle.loads(pickle.dumps(rb))
        elif len(rb):
            batch = rb.sample(5)
            if isinstance(rb, PrioritizedReplayBuffer):
                rb.update_priorities(batch["indexes"], rng.random(5))
        yield rb


@pytest.mark.once
@pytest.mark.parametrize("seed", range(30))
def test_any_history_leaves_a_buffer_that_holds_together(seed: int) -> None:
    """All derived state is sound, and all calls that list rows agree.

    Two faults were found so: a deleted episode left rows behind that had been left out, and a copy
    gave an incomplete row's weight to another row when its own had been left out.
    """
    for rb in histories(seed):
        rb.check()
        assert len(rb) <= rb.capacity
        everything = rb.get_all_transitions()["t"].tolist()
        assert len(everything) == len(rb) == len(set(everything))
        assert sorted(row["t"] for row in rb) == sorted(everything)


def incomplete(ring: Ring, first: int) -> set[int]:
    """Rows from ``first`` on that are incomplete by the lengths of open episodes and the flags."""
    flags, found = ring.flags(), set()
    for stream in range(ring.n_envs):
        left = min(ring.lookahead, ring.episode_len(stream))
        newest = (ring.written - 1 - stream) // ring.n_envs * ring.n_envs + stream
        for row in range(newest, first - 1, -ring.n_envs):
            flag = flags[row % ring.capacity]
            if left == 0 or flag & FLAG_END:
                break
            if not flag & FLAG_ABSENT:
                found.add(row)
                left -= 1
    return found


@pytest.mark.parametrize("seed", range(30))
def test_the_lengths_of_open_episodes_say_which_rows_can_be_drawn(seed: int) -> None:
    """Incomplete and left-out rows follow from the header and the flags, whatever came before."""
    for rb in histories(seed):
        ring = rb.ring
        first = ring.written - ring.stored
        while ring.written - first - len(incomplete(ring, first)) > ring.size:
            first += 1
        assert ring.first == first
        open_rows, flags = incomplete(ring, first), ring.flags()
        drawable = {
            row % ring.capacity
            for row in range(first, ring.written)
            if row not in open_rows and not flags[row % ring.capacity] & FLAG_ABSENT
        }
        assert set(ring.present_slots().tolist()) == drawable
        if ring.n_envs == 1:
            assert ring.stop == min(open_rows, default=ring.written)


@pytest.mark.parametrize("seed", range(30))
def test_rows_are_found_by_place_and_by_age_among_those_that_can_be_drawn(seed: int) -> None:
    """The newest rows, rows at places, and the nearest row before a slot are those of the list."""
    for rb in histories(seed):
        ring = rb.ring
        rows, order = np.sort(ring.row_ids(ring.present_slots())), ordered_slots(ring)
        assert len(ring) == len(rows) == len(order)
        assert ordered_at(ring, np.arange(len(order))).tolist() == order.tolist()
        for n in (1, 4, len(rows)):
            assert ring.row_ids(ring.newest_slots(n)).tolist() == rows[-n:].tolist()
        every = np.arange(ring.stored)
        if len(rows):
            nearest = rows[rows.searchsorted(ring.row_ids(every), "right") - 1]
            assert ring.row_ids(at_or_before(ring, every)).tolist() == nearest.tolist()


@pytest.mark.parametrize("n_envs", [1, 2])
def test_a_call_without_rows_completes_none(n_envs: int) -> None:
    """``add`` of no rows returned the slot of a row that an earlier call had completed."""
    rb = ReplayBuffer(20, FIELDS, Nstep=steps(3), n_envs=n_envs)
    shape = (n_envs,) if n_envs > 1 else ()
    for t in range(6):
        rb.add(t=np.full(shape, t), rew=np.ones(shape), done=np.zeros(shape))
    empty = np.empty((0, *shape))
    assert rb.add(t=empty, rew=empty, done=empty) is None


# ---- views -----------------------------------------------------------------------------------

LAYERS: dict[str, tuple[Layer, ...]] = {
    "stacks": (NStep(1), FrameStacks({"t": 2})),
    "stacks of two steps": (NStep(2), FrameStacks({"t": 2})),
    "sequences": (NStep(1), Sequences(2)),
    "across": (NStep(1), Sequences(2, across_episodes=True)),
    "strided": (NStep(1), Sequences(3, stride=2)),
    "its own steps": (FrameStacks({"t": 3}),),
}


@pytest.mark.once
@pytest.mark.parametrize("n_envs", [1, 2])
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("prioritized", [False, True])
def test_views_draw_no_row_that_waits_for_the_buffers_own_steps(
    name: str, n_envs: int, prioritized: bool
) -> None:
    """Rows count, and are drawn, when the buffer's ``Nstep`` is complete, in views too.

    Starts knew what the layers need, and not what the buffer needs; draws by priority had it right.
    A set of starts that has followed the ring is the one that is made anew.
    """
    rng = np.random.default_rng(0)
    kind = PrioritizedReplayBuffer if prioritized else ReplayBuffer
    rb = kind(20 * n_envs, FIELDS, Nstep=steps(4), n_envs=n_envs, seed=0)
    view = rb.view(*LAYERS[name])
    followed = view._now.starts
    assert followed is not None
    drawn = 0
    for t in range(150):
        done = rng.random(n_envs) < 0.2
        full = np.full(n_envs, t)
        rb.add(t=full, rew=full * 0.0, done=done)
        if rng.random() < 0.1:
            rb.on_episode_end()
        if rng.random() < 0.1 and len(rb.episodes) > 3:
            rb.episodes.delete(1)
        if t == 70:
            rb.clear()
        present = rb.ring.present_slots()
        starts = followed.slots()
        fresh = rb.view(*LAYERS[name])._now.starts
        assert fresh is not None
        assert starts.tolist() == fresh.slots().tolist()
        every = np.arange(rb.ring.stored)
        assert starts.tolist() == every[followed.tell(every) == 1].tolist()
        assert set(starts.tolist()) <= set(present.tolist())
        if len(starts):
            drawn += 1
            own = view.sample(8)["t"][:, 0 if "Sequences" in repr(view) else -1]
            assert set(own.tolist()) <= set(rb.get_all_transitions()["t"].tolist())
    assert drawn > 50
