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
from cpprb_like._core import N_STATE_WORDS, WORD_CLEARS, WORD_EDITS
from cpprb_like._files.arenas import allocate_floats
from cpprb_like.samplers import Prioritized, RankBased, _prioritized, _rank_based

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


def picture(rb: ReplayBuffer) -> dict[str, Any]:
    """What anybody can see, but for what only one place knows.

    That are rewards, whether an episode was cut off by a field or from outside, and when an episode
    began of which not all rows are there.
    """
    everything = rb.get_all_transitions() if len(rb) else {}
    alone = ("rew", "truncated")
    rows = {name: values.tolist() for name, values in everything.items() if name not in alone}
    full = {"len": len(rb), "next": rb.get_next_index(), "rows": rows}
    if rb.ring.written <= rb.capacity:
        return full | {"lengths": [rb.get_current_episode_len(env) for env in range(rb.n_envs)]}
    ids = rb.ring.row_ids(rb.ring.ordered_slots())
    later = ids >= ids.min() + rb.n_envs
    rows["stack"] = everything["stack"][later].tolist()
    return full


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
    names: dict[str, str] = {"step_id": "t", "stack": "stack"}
    rb.check(**names)
    for _ in range(data.draw(st.integers(0, 25))):
        action = data.draw(st.sampled_from(["step", "step", "step", "some", "cut", "clear"]))
        if action == "step":
            player.step()
        elif action == "some":
            player.step([data.draw(st.booleans()) for _ in range(n_envs)])
            names.pop("stack", None)  # frames of absent rows are in the stacks behind them
        elif action == "cut":
            player.cut_off(data.draw(st.integers(0, n_envs - 1)))
        else:
            rb.clear()
            player.first = player.t.copy()
        rb.check(**names)
    pickle.loads(pickle.dumps(rb)).check(**names)
    copy.deepcopy(rb).check(**names)


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
    rb.check("t", stack="stack")
    assert pickle.dumps(rb) == before


# ---- broken memory -----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{}, CHAINED, {"Nstep": STEPS}, CHAINED | {"Nstep": STEPS}, CHAINED | {"n_envs": 3}],
    ids=["plain", "chained", "steps", "chained, steps", "chained, 3 environments"],
)
@pytest.mark.parametrize("steps", [4, 20])
def test_a_buffer_that_passes_reads_as_it_should(options: dict[str, Any], steps: int) -> None:
    """Whatever bit of the memory is turned: it is seen, or nobody can see a difference."""
    rb = played(9, steps, **options)
    before = picture(rb)
    arena = rb._arena
    passed = []
    for place in range(HEADER.start, len(arena)):
        for bit in range(8):
            arena[place] ^= 1 << bit
            try:
                rb.check("t", stack="stack")
                passed.append((place, bit))
            except AssertionError:
                pass
            else:
                assert picture(rb) == before, f"bit {bit} of byte {place} went unseen"
            arena[place] ^= 1 << bit
    rb.check("t", stack="stack")
    seen = 8 * (len(arena) - HEADER.start) - len(passed)
    assert seen > 8 * 8 * min(9, steps * rb.n_envs)  # ids, ends and flags of every row


@pytest.mark.parametrize("n_envs", [1, 3])
def test_every_bit_of_the_header_counts(n_envs: int) -> None:
    """Rows, absent rows, base of handles, lengths of episodes: one wrong bit is seen.

    Clears and updates are numbers without another trace: any that is not negative may be right.
    """
    rb = ReplayBuffer(27, FIELDS, n_envs=n_envs, seed=0)
    player = Player(rb)
    for _ in range(4):
        player.step(end=0.0)
    words = rb._layout.state(rb._arena)
    for number in range(N_STATE_WORDS + n_envs):
        for bit in range(64):
            words[number] ^= np.int64(1) << np.int64(bit)
            if number in (WORD_CLEARS, WORD_EDITS) and bit < 61:
                rb.check("t")
            else:
                with pytest.raises(AssertionError):
                    rb.check("t")
            words[number] ^= np.int64(1) << np.int64(bit)
    rb.check("t")


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


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("t", "row 15 .slot 6, environment 0.: field 't': expected 15, got 22"),
        ("next_t", "row 15 .slot 6, environment 0.: field 'next_t': expected 16, got 22"),
        ("stack", "row 15 .slot 6, environment 0.: field 'stack': expected .13 14 15., got .22 "),
    ],
)
def test_the_message_names_row_and_values(field: str, words: str) -> None:
    """Which row, which field, what was expected, what came."""
    rb = ReplayBuffer(9, FIELDS, seed=0)
    player = Player(rb)
    for _ in range(20):
        player.step(end=0.0)
    number = rb.schema.names.index(field)
    rb._layout.rows(rb._arena, number)[6, 0] = 22
    with pytest.raises(AssertionError, match=words):
        rb.check("t", stack="stack")


# ---- wrong steps -------------------------------------------------------------------------


def test_steps_that_were_added_in_a_wrong_order() -> None:
    """A step that is left out, repeated, or belongs to another episode is seen when it is drawn."""
    for wrong in ([0, 2], [0, 0], [1, 0]):
        rb = ReplayBuffer(9, {"t": {"shape": (), "dtype": "i8"}})
        rb.add(t=wrong)
        rb.check()
        with pytest.raises(AssertionError, match="row 1"):
            rb.check("t")


def test_numbers_may_start_anew_with_an_episode() -> None:
    """Steps are numbered within an episode, or through all of them."""
    rb = ReplayBuffer(9, {"t": {}, "done": {}})
    rb.add(t=[0, 1, 2, 0, 1, 7, 8], done=[0, 0, 1, 0, 1, 0, 0])
    rb.check("t")


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


# ---- refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"step_id": "x"}, ValueError, "step_id: expected one of"),
        ({"step_id": 3}, TypeError, "step_id: expected the name"),
        ({"step_id": "stack"}, ValueError, "'stack'"),
        ({"step_id": "terminated"}, ValueError, "'terminated', bool"),
        ({"stack": "stack"}, ValueError, "expected step_id"),
        ({"step_id": "t", "stack": "t"}, ValueError, "stack: expected"),
        ({"step_id": "t", "stack": "x"}, ValueError, "stack: expected one of"),
    ],
)
def test_fields_that_are_no_ids(
    arguments: dict[str, Any], error: type[Exception], words: str
) -> None:
    """The message says which argument is wrong, and why."""
    with pytest.raises(error, match=words):
        played(9, 5).check(**arguments)


def test_ranks_that_do_not_fit_the_weights_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot that weighs something has a priority, is counted in its group, and others are not."""
    memory: dict[str, Any] = {}
    monkeypatch.setattr(
        _rank_based, "memory_of", lambda _, name, n: memory.setdefault(name, np.zeros(n))
    )
    sampler = RankBased(1.0)
    rb = PrioritizedReplayBuffer(9, {"x": {"shape": ()}}, sampler=sampler)
    rb.add(x=range(5), priorities=range(5))
    rb.sample(1)
    rb.check()
    for name, slot, wrong in (("priorities", 2, np.nan), ("weights", 3, 0.0)):
        right = memory[name][slot]
        memory[name][slot] = wrong
        with pytest.raises(AssertionError, match=f"priority of slot {slot}"):
            rb.check()
        memory[name][slot] = right
        rb.check()
    counted = memory["priorities"][2]
    memory["priorities"][2] = 4.0
    with pytest.raises(AssertionError, match="slots of each group"):
        rb.check()
    memory["priorities"][2] = counted
    rb.check()
