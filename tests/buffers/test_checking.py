"""``check`` passes what is sound, and sees what is not: memory is broken on purpose, bit by bit."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import Array

from cpprb_like import PrioritizedReplayBuffer, ReplayBuffer
from cpprb_like._core import N_STATE_WORDS, WORD_CLEARS, WORD_EDITS, WORD_EPISODES
from cpprb_like._files.arenas import allocate_floats
from cpprb_like.samplers import Prioritized, RankBased, _prioritized

DEPTH = 3
HEADER = slice(64, 64 + 8 * N_STATE_WORDS)  # the words that every buffer has
FIELDS: dict[str, Any] = {
    "t": {"shape": (), "dtype": "i4"},
    "next_t": {"shape": (), "dtype": "i4"},
    "stack": {"shape": DEPTH, "dtype": "i4"},
    "rew": {"shape": (), "dtype": "f4"},
    "terminated": {"shape": (), "dtype": bool},
    "truncated": {"shape": (), "dtype": bool},
}
CHAINED: dict[str, Any] = {"next_of": "t", "stack_compress": "stack"}
STEPS: dict[str, Any] = {"size": 2, "rew": "rew", "next": "next_t", "discount": True}


class Player:
    """Adds steps that are numbered through within each environment, in episodes of any length."""

    def __init__(self, rb: ReplayBuffer, seed: int = 0) -> None:
        self.rb = rb
        self.rng = np.random.default_rng(seed)
        self.t = np.zeros(rb.n_envs, int)
        self.first = np.zeros(rb.n_envs, int)  # of the episode

    def step(self, present: list[bool] | None = None, end: float = 0.3) -> None:
        """One time step of all environments, or of some."""
        here = np.ones(self.rb.n_envs, bool) if present is None else np.array(present)
        ends = self.rng.random(self.rb.n_envs) < end
        cut_off = self.rng.random(self.rb.n_envs) < 0.5
        stacks = np.maximum(self.t[:, None] - np.arange(DEPTH)[::-1], self.first[:, None])
        values = {
            "t": self.t,
            "next_t": self.t + 1,
            "stack": stacks,
            "rew": self.rng.random(self.rb.n_envs),
            "terminated": ends & ~cut_off,
            "truncated": ends & cut_off,
        }
        values = {name: values[name] for name in self.rb.schema.names}
        if present is None:
            self.rb.add(**values)
        else:
            self.rb.add_where(here, **values)
        self.t = self.t + here
        self.first = np.where(here & ends, self.t, self.first)

    def cut_off(self, env: int) -> None:
        """End an episode from outside."""
        self.rb.on_episode_end(env)
        if self.rb.get_current_episode_len(env) == 0:
            self.first[env] = self.t[env]


def played(capacity: int, steps: int, *, n_envs: int = 1, **options: Any) -> ReplayBuffer:
    """A buffer with episodes of which the last is open."""
    rb = ReplayBuffer(capacity, FIELDS, n_envs=n_envs, seed=0, **options)
    player = Player(rb)
    for _ in range(steps - 1):
        player.step()
    player.step(end=0.0)
    return rb


# ---- sound buffers -----------------------------------------------------------------------


@given(
    capacity=st.integers(1, 30),
    n_envs=st.integers(1, 3),
    chained=st.booleans(),
    size=st.sampled_from([None, 1, 3]),
    seed=st.integers(0, 1000),
    data=st.data(),
)
def test_sound_buffers_pass(
    capacity: int, n_envs: int, chained: bool, size: int | None, seed: int, data: st.DataObject
) -> None:
    """Whatever is added, in whatever way episodes end, there is nothing to find."""
    capacity = max(capacity, n_envs * (size or 1))
    options: dict[str, Any] = CHAINED if chained else {}
    if size is not None:
        options = options | {"Nstep": STEPS | {"size": size}}
    rb = ReplayBuffer(capacity, FIELDS, n_envs=n_envs, seed=0, **options)
    player = Player(rb, seed)
    rb.check()
    for _ in range(data.draw(st.integers(0, 25))):
        action = data.draw(st.sampled_from(["step", "step", "step", "some", "cut", "clear"]))
        if action == "step":
            player.step()
        elif action == "some":
            player.step([data.draw(st.booleans()) for _ in range(n_envs)])
        elif action == "cut":
            player.cut_off(data.draw(st.integers(0, n_envs - 1)))
        else:
            rb.clear()
            player.first = player.t.copy()
        rb.check()
    pickle.loads(pickle.dumps(rb)).check()
    copy.deepcopy(rb).check()


def test_sound_buffers_with_priorities_pass() -> None:
    """Weights of rows that come, go, are absent or get other priorities sum up."""
    rng = np.random.default_rng(0)
    sampler = Prioritized(eps=0.0)
    rb = PrioritizedReplayBuffer(21, {"x": {}}, n_envs=3, sampler=sampler, seed=0)
    for i in range(200):
        rb.add_where(rng.random(3) < 0.8, x=[i] * 3, priorities=rng.random(3))
        if len(rb) > 5:
            batch = rb.sample(8)
            rb.update_priorities(batch["indexes"], 10.0 ** rng.integers(-9, 9, 8))
        if i == 90:
            rb.clear()
        rb.check()


def test_nothing_changes() -> None:
    """A check is a look: the buffer is the same after it, its generator included."""
    rb = played(9, 20, Nstep=STEPS, **CHAINED)
    before = pickle.dumps(rb)
    rb.check()
    assert pickle.dumps(rb) == before


# ---- broken memory -----------------------------------------------------------------------


@pytest.mark.parametrize("n_envs", [1, 3])
def test_every_bit_of_the_header_counts(n_envs: int) -> None:
    """Rows, absent rows, base of handles, lengths of episodes: one wrong bit is seen.

    Clears and updates are numbers without another trace: any that is not negative may be right. Of
    episodes there are no more than of rows, those of an ``add`` that was killed included.
    """
    rb = ReplayBuffer(27, FIELDS, n_envs=n_envs, seed=0)
    player = Player(rb)
    for _ in range(4):
        player.step(end=0.0)
    words = rb._layout.state(rb._arena)
    for number in range(N_STATE_WORDS + n_envs):
        for bit in range(64):
            words[number] ^= np.int64(1) << np.int64(bit)
            may_be = number in (WORD_CLEARS, WORD_EDITS) and bit < 61
            if may_be or (number == WORD_EPISODES and 0 <= words[number] <= 4 * n_envs + 27):
                rb.check()
            else:
                with pytest.raises(AssertionError):
                    rb.check()
            words[number] ^= np.int64(1) << np.int64(bit)
    rb.check()


def test_every_bit_of_the_flags_counts() -> None:
    """A row that would be taken for an end, for no end, or for absent, is named."""
    rb = played(9, 20)
    flags = rb._layout.flags(rb._arena)
    for slot in range(9):
        for bit in range(8):
            flags[slot] ^= 1 << bit
            with pytest.raises(AssertionError, match=f"slot {slot}\\b|absent rows"):
                rb.check()
            flags[slot] ^= 1 << bit


# ---- weights -----------------------------------------------------------------------------


def weighty() -> PrioritizedReplayBuffer:
    """Rows of different weights, some slots unused and some absent."""
    rb = PrioritizedReplayBuffer(40, {"x": {}}, n_envs=2, seed=0, alpha=1.0, eps=0.0)
    for i in range(15):
        rb.add_where([True, i % 4 != 0], x=[i, i], priorities=[1 + i, 2 + i])
    return rb


@pytest.mark.parametrize(
    ("slot", "weight", "words"),
    [(1, 1.0, "slot 1: expected 0"), (30, 1.0, "slot 30: expected 0"), (39, 1e-9, "slot 39")],
)
def test_slots_without_a_step_weigh_nothing(slot: int, weight: float, words: str) -> None:
    """An absent row, or an unused slot, that could be drawn is named."""
    rb = weighty()
    rb.check()
    tree = rb.sampler.rows.tree  # type: ignore[attr-defined]
    tree.set(np.array([slot], np.intp), np.array([weight]))
    with pytest.raises(AssertionError, match=words):
        rb.check()


def test_sums_are_those_of_their_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every number that a search or a draw goes by counts: leaves, sums and least weights."""
    memory: list[Array] = []

    def allocate(n: int) -> Array:
        memory.append(allocate_floats(n))
        return memory[-1]

    monkeypatch.setattr(_prioritized, "allocate_floats", allocate)
    rb = weighty()
    rb.check()
    nodes, minima = memory[:2]  # of the sampler: the check made others
    leaves = nodes[:40]
    assert leaves.tolist() == rb.sampler.rows.get(np.arange(40)).tolist()  # type: ignore[attr-defined]
    places = [(nodes, int(place), nodes[place] / 2) for place in np.flatnonzero(nodes)]
    assert len(places) > np.count_nonzero(leaves)
    assert minima.tolist() == [leaves[leaves > 0].min()]
    for numbers, place, wrong in [*places, (minima, 0, 0.0)]:
        value = numbers[place]
        numbers[place] = wrong
        with pytest.raises(AssertionError):
            rb.check()
        numbers[place] = value
    rb.check()


def test_priorities_may_change_during_a_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights, sums and least weight are compared as of one moment: other threads set priorities.

    ``update_priorities`` takes no lock, so a sum was compared with the leaves of another moment.
    """
    rb = weighty()

    def allocate(n: int) -> Array:
        rb.update_priorities([0, 2, 4], np.random.default_rng(n).uniform(0.01, 100.0, 3))
        return allocate_floats(n)

    monkeypatch.setattr(_prioritized, "allocate_floats", allocate)
    for _ in range(3):
        rb.check()
    assert rb.stats()["updates"] == 18


def test_groups_of_ranks_that_do_not_fit_the_priorities_are_seen() -> None:
    """A slot is in the group of its priority, and a group counts its slots."""
    sampler = RankBased(1.0)
    rb = PrioritizedReplayBuffer(9, {"x": {"shape": ()}}, sampler=sampler)
    rb.add(x=range(5), priorities=range(5))
    rb.sample(1)
    rb.check()
    ranks = sampler._ranks
    assert ranks is not None
    ranks.groups[2] += 1
    with pytest.raises(AssertionError, match="group of slot"):
        rb.check()
    ranks.groups[2] -= 1
    rb.check()
    ranks.counts[:2] += [1, -1]
    with pytest.raises(AssertionError, match="slots of groups"):
        rb.check()


@pytest.mark.parametrize("n", [1, 2, 10**6])
def test_ranks_may_change_during_a_check(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups are compared as of one moment, or not at all if priorities change."""
    rb = PrioritizedReplayBuffer(40, {"x": {}}, sampler=RankBased(), seed=0)
    rb.add(x=np.arange(40), priorities=np.arange(40) + 1.0)
    rb.sample(1)  # sorts by rank
    follow, left = RankBased._follow, [n]

    def changing(sampler: RankBased, n: int = 0) -> None:
        follow(sampler, n)
        if left[0]:
            left[0] -= 1
            priorities = 10.0 ** (left[0] % 2 * np.linspace(-3, 3, 40))
            sampler.update_priorities(np.arange(40), priorities)

    monkeypatch.setattr(RankBased, "_follow", changing)
    for _ in range(3):
        rb.check()
