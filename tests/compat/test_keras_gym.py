"""keras-gym's buffer: its draws bit by bit where they are sound, and whole episodes everywhere."""

# The parts of a batch have keras-gym's names.
# ruff: noqa: N806

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from helpers import Array
from hypothesis import given
from hypothesis import strategies as st

from cpprb_like import NotEnoughDataError
from cpprb_like.compat.keras_gym import (
    ActionSpaceError,
    ExperienceReplayBuffer,
    InsufficientCacheError,
    KerasGymError,
    NumpyArrayCheckError,
    SpaceError,
)

ACTIONS = 5
FIRST = 1000  # no step has a number that memory holds by chance


def env_of(num_frames: int = 1, space: Any = None) -> Any:
    """Just enough of an environment."""
    space = SimpleNamespace(n=ACTIONS) if space is None else space
    return SimpleNamespace(action_space=space, num_frames=num_frames)


def reward(step: int) -> float:
    """A reward whose sums depend on their order."""
    return float(np.sin(step) * 10.0 ** (step % 7))


@dataclass
class Answer:
    """A transition: numbers of steps in place of states."""

    S: list[int]
    Rn: float
    In: float
    S_next: list[int] | None  # None where In masks it


@dataclass
class History:
    """Every step that was ever added, in lists of episodes, and what is true of a step."""

    n: int
    frames: int
    gamma: float
    episodes: list[list[int]] = field(default_factory=list)
    place: dict[int, tuple[int, int]] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)

    def add(self, step: int, done: bool, *, begins: bool) -> None:
        """Take note of a step."""
        if begins:
            self.episodes.append([])
        self.episodes[-1].append(step)
        self.place[step] = (len(self.episodes) - 1, len(self.episodes[-1]) - 1)
        if done:
            self.done.add(step)

    def stack(self, step: int) -> list[int]:
        """The frames of a state, oldest first."""
        episode, place = self.place[step]
        back = range(self.frames - 1, -1, -1)
        return [self.episodes[episode][max(0, place - k)] for k in back]

    def answer(self, step: int) -> Answer | None:
        """The transition from a step, or None if it has none."""
        episode, place = self.place[step]
        ahead = self.episodes[episode][place:]
        total = 0.0
        for k, there in enumerate(ahead[: self.n]):
            total += self.gamma**k * reward(there)
            if there in self.done:
                return Answer(self.stack(step), total, 0.0, None)
        if len(ahead) <= self.n:
            return None
        return Answer(self.stack(step), total, self.gamma**self.n, self.stack(ahead[self.n]))


class Original:
    """keras-gym's rule with its defects, step by step; None stands for memory never written."""

    def __init__(self, capacity: int, n: int, frames: int, gamma: float, batch: int) -> None:
        self.slots: list[tuple[int, bool, int] | None] = [None] * (capacity + n)
        self.n, self.frames, self.gamma, self.batch = n, frames, gamma, batch
        self.count = self.position = 0

    def add(self, step: int, done: bool, episode: int) -> None:
        self.slots[self.position] = (step, done, episode)
        self.position = (self.position + 1) % len(self.slots)
        self.count = min(self.count + 1, len(self.slots))

    def sample(self, random: np.random.RandomState) -> list[Answer] | None:
        """The transitions, with step -1 where memory was never written; None if it gives up."""
        found: list[Answer] = []
        for _ in range(10 * self.batch):
            answer = self.at(random.randint(self.count))
            if answer is not None:
                found.append(answer)
            if len(found) == self.batch:
                return found
        return None

    def at(self, j: int) -> Answer | None:
        here = self.slots[j]
        assert here is not None
        if any(self.episode(j - i) > here[2] for i in range(self.frames)):
            return None
        total = 0.0
        for k in range(self.n):
            step, done, _ = self.slots[(j + k) % len(self.slots)] or (0, False, 0)
            total += self.gamma**k * (reward(step) if step else 0.0)
            if done:
                return Answer(self.stack(j, here[2]), total, 0.0, None)
        if any(self.episode(j + self.n - i) > here[2] for i in range(self.frames)):
            return None
        after = self.stack(j + self.n, here[2])
        return Answer(self.stack(j, here[2]), total, self.gamma**self.n, after)

    def episode(self, slot: int) -> int:
        there = self.slots[slot % len(self.slots)]
        return -1 if there is None else there[2]

    def stack(self, slot: int, episode: int) -> list[int]:
        slots = [slot - i for i in range(self.frames)]
        for i in range(1, self.frames):
            if self.episode(slots[i]) < episode:
                slots[i] = slots[i - 1]
        steps = [self.slots[slot % len(self.slots)] for slot in reversed(slots)]
        return [-1 if there is None else there[0] for there in steps]


def state(step: int, frames: int) -> Array:
    """A state of which only the newest frame says which step it is."""
    if frames == 1:
        return np.array([step, -step])
    stack = np.full((2, 1, frames), 7)
    stack[..., -1] = [[step], [-step]]
    return stack


def answers(buffer: ExperienceReplayBuffer) -> list[Answer]:
    """A batch, once its shapes, its frames and its actions have been looked at."""
    S, A, Rn, In, S_next, A_next = buffer.sample()
    n, frames = buffer.batch_size, buffer.num_frames
    shape = (n, 2) if frames == 1 else (n, 2, 1, frames)
    assert S.shape == S_next.shape == shape
    assert A.shape == A_next.shape == (n, ACTIONS)
    assert Rn.shape == In.shape == (n,)
    assert A.dtype == A_next.dtype == Rn.dtype == In.dtype == np.float64
    found = []
    for i in range(n):
        here, after = (x[i].reshape(2, frames) for x in (S, S_next))
        assert (here[1] == -here[0]).all()
        assert (after[1] == -after[0]).all()
        assert A[i].tolist() == np.eye(ACTIONS)[here[0, -1] % ACTIONS].tolist()
        assert A_next[i].tolist() == np.eye(ACTIONS)[after[0, -1] % ACTIONS].tolist()
        masked = In[i] == 0.0 and buffer.gamma > 0.0
        found.append(Answer(here[0].tolist(), Rn[i], In[i], None if masked else after[0].tolist()))
    return found


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """Parameters, and episodes of steps."""
    lengths = draw(st.sampled_from([4, 15, 60]))
    return {
        "capacity": draw(st.integers(1, 40)),
        "n": draw(st.integers(1, 12)),  # sums of 8 and more may go by pairs
        "frames": draw(st.integers(1, 5)),
        "batch": draw(st.integers(1, 8)),
        "gamma": draw(st.sampled_from([1.0, 0.9, 0.3])),
        "seed": draw(st.integers(0, 2**32 - 1)),
        "episodes": draw(
            st.lists(
                st.tuples(st.integers(1, lengths), st.booleans(), st.sampled_from([0, 0, 0, 1])),
                min_size=1,
                max_size=12,
            )
        ),
    }


def run(case: dict[str, Any], counts: dict[str, int] | None = None) -> None:
    """Add the episodes of a case and draw now and then; compare with the rule and the truth."""
    capacity, n, frames, gamma, batch = (
        case[name] for name in ("capacity", "n", "frames", "gamma", "batch")
    )
    history, original = History(n, frames, gamma), Original(capacity, n, frames, gamma, batch)
    buffer = ExperienceReplayBuffer(env_of(frames), capacity, batch, n, gamma, case["seed"])
    mirror = np.random.RandomState(case["seed"])
    when = np.random.default_rng(case["seed"])
    step, alive = FIRST, 0
    for episode, (length, done, clear) in enumerate(case["episodes"]):
        if clear:
            buffer.clear()
            original = Original(capacity, n, frames, gamma, batch)
            alive = 0
        for place in range(length):
            over = done and place == length - 1
            buffer.add(state(step, frames), step % ACTIONS, reward(step), over, 3 * episode + 1)
            original.add(step, over, 3 * episode + 1)
            history.add(step, over, begins=place == 0)
            step, alive = step + 1, min(alive + 1, capacity + n)
            assert len(buffer) == max(0, alive - n) <= capacity
            if when.random() < 0.15:
                compare(buffer, mirror, original, history, range(step - alive, step), counts)


def compare(
    buffer: ExperienceReplayBuffer,
    mirror: np.random.RandomState,
    original: Original,
    history: History,
    alive: range,
    counts: dict[str, int] | None,
) -> None:
    """Draw one batch and compare."""
    counts = {} if counts is None else counts
    before = buffer.random.get_state(legacy=False)
    assert repr(before) == repr(mirror.get_state(legacy=False))
    if len(buffer) < buffer.batch_size:
        with pytest.raises(InsufficientCacheError):
            buffer.sample()
        return
    free = buffer.capacity + buffer.bootstrap_n - len(alive)
    oldest = alive[0] + buffer.num_frames - 1 - free
    sound = [step for step in alive if step >= oldest and history.answer(step) is not None]
    if not sound:
        with pytest.raises(InsufficientCacheError, match="no step"):
            buffer.sample()
        mirror.set_state(buffer.random.get_state(legacy=False))
        return
    ours = answers(buffer)
    for answer in ours:
        assert answer.S[-1] in sound
        assert answer == history.answer(answer.S[-1])
        assert answer.S_next is None or answer.S_next[-1] in alive
    theirs = original.sample(mirror)
    if theirs is None:
        mirror.set_state(buffer.random.get_state(legacy=False))
        return
    right = [answer.S[-1] != -1 and answer == history.answer(answer.S[-1]) for answer in theirs]
    until = right.index(False) if False in right else len(right)
    if buffer.num_frames > buffer.capacity + buffer.bootstrap_n:
        until = 0  # a stack goes round the ring and meets its own step: a chance hit
    assert ours[:until] == theirs[:until]
    if until == len(right):
        counts["equal"] = counts.get("equal", 0) + 1
        assert repr(buffer.random.get_state(legacy=False)) == repr(mirror.get_state(legacy=False))
    else:
        counts["garbage"] = counts.get("garbage", 0) + 1
        mirror.set_state(buffer.random.get_state(legacy=False))


@pytest.mark.once
@given(cases())
def test_draws_are_those_of_keras_gym_and_true_to_the_episodes(case: dict[str, Any]) -> None:
    """Whatever is drawn is what the episodes say; where keras-gym's draws are, they are the same.

    States, sums of rewards and factors to the last bit, and the random numbers used up.
    """
    run(case)


@pytest.mark.slow
def test_the_comparison_sees_all_kinds_of_draws() -> None:
    """Over many histories keras-gym's rule often gives sound batches, and often garbage."""
    rng = np.random.default_rng(5)
    counts: dict[str, int] = {}
    for seed in range(60):
        run(
            {
                "capacity": int(rng.integers(1, 40)),
                "n": int(rng.integers(1, 13)),
                "frames": int(rng.integers(1, 6)),
                "batch": int(rng.integers(1, 9)),
                "gamma": 0.9,
                "seed": seed,
                "episodes": [
                    (int(rng.integers(1, 30)), bool(rng.integers(2)), 0) for _ in range(5)
                ],
            },
            counts,
        )
    assert counts["equal"] > 100
    assert counts["garbage"] > 100


# ---- examples ----------------------------------------------------------------------------


def numbered(adds: int, env: Any = None, **options: Any) -> ExperienceReplayBuffer:
    """A buffer of one long episode, whose states are numbers; all rewards are 1."""
    buffer = ExperienceReplayBuffer(env or env_of(), random_seed=0, **options)
    for step in range(adds):
        buffer.add(np.float32(step), 0, 1.0, False, 1)
    return buffer


def test_newest_steps_wait_for_their_next_state() -> None:
    """Of 20 steps the last 3 have no state 3 steps ahead, and are never drawn."""
    buffer = numbered(20, capacity=100, batch_size=17, bootstrap_n=3, gamma=0.9)
    seen = set()
    for _ in range(200):
        S, _, Rn, In, S_next, _ = buffer.sample()
        seen |= set(S.tolist())
        assert (S_next == S + 3).all()
        assert Rn.tolist() == [1.0 + 0.9 + 0.9**2] * 17
        assert In.tolist() == [0.9**3] * 17
    assert seen == set(range(17))


def test_steps_of_a_full_ring_do_not_continue_with_the_oldest() -> None:
    """Of 40 steps in a buffer of 20 and 3, steps 17 to 36 are drawn, each with its own next."""
    buffer = numbered(40, capacity=20, batch_size=20, bootstrap_n=3)
    assert len(buffer) == buffer.capacity == 20
    seen = set()
    for _ in range(200):
        S, _, _, _, S_next, _ = buffer.sample()
        seen |= set(S.tolist())
        assert (S_next == S + 3).all()
    assert seen == set(range(17, 37))


def test_stacks_do_not_reach_over_the_write_head() -> None:
    """In an episode longer than the ring, stacks of the oldest steps are not drawn."""
    buffer = ExperienceReplayBuffer(env_of(3), 8, 5, 1, random_seed=0)
    for step in range(20):
        buffer.add(state(step, 3), 0, 1.0, False, 1)
    seen = set()
    for _ in range(100):
        S, _, _, _, S_next, _ = buffer.sample()
        newest = S[:, 0, 0, -1]
        seen |= set(newest.tolist())
        assert (S[:, 0, 0] == newest[:, np.newaxis] + [-2, -1, 0]).all()
        assert (S_next[:, 0, 0] == newest[:, np.newaxis] + [-1, 0, 1]).all()
    assert seen == {13, 14, 15, 16, 17, 18}


@pytest.mark.once
@pytest.mark.parametrize("frames", [1, 3])
def test_every_sound_step_is_drawn_equally_often(frames: int) -> None:
    """Rejection favours no step; nor does the look at all rows where most are rejected."""
    for n, episode, few in ((1, 10, False), (9, 10, True)):
        buffer = ExperienceReplayBuffer(env_of(frames), 40, 20, n, random_seed=3)
        for step in range(40 + n):
            buffer.add(state(step, frames), 0, 1.0, False, step // episode)
        batches = [buffer.sample()[0].reshape(20, 2, frames) for _ in range(200)]
        seen = np.concatenate([batch[:, 0, -1] for batch in batches])
        first = frames - 1
        sound = [x for x in range(first, 40 + n) if x % episode + n < episode and x + n < 40 + n]
        steps, counts = np.unique(seen, return_counts=True)
        assert (len(sound) < 10) == few
        assert steps.tolist() == sound
        expected = 4000 / len(sound)
        assert np.abs(counts - expected).max() < 6 * expected**0.5


def test_batches_are_found_where_few_steps_are_sound() -> None:
    """One sound step of a hundred is found at once, and nothing is invented if there is none."""
    buffer = ExperienceReplayBuffer(env_of(), 200, 1, bootstrap_n=99, random_seed=0)
    for step in range(99):
        buffer.add(np.float64(step), 0, 1.0, False, 1)
    buffer.add(np.float64(-1), 0, 1.0, False, 2)
    with pytest.raises(InsufficientCacheError, match="no step"):
        buffer.sample()
    for step in range(100):
        buffer.add(np.float64(1000 + step), 0, 1.0, False, 3)
    for _ in range(50):
        S, _, _, _, S_next, _ = buffer.sample()
        assert (S.tolist(), S_next.tolist()) == ([1000.0], [1099.0])


def test_the_newest_step_is_found_among_many() -> None:
    """Where only the newest step is sound, because it is done, it is what is drawn."""
    buffer = ExperienceReplayBuffer(env_of(), 5000, 2, random_seed=0)
    for step in range(5000):
        buffer.add(np.float64(step), 0, 1.0, step == 4999, step)
    for _ in range(5):
        assert buffer.sample()[0].tolist() == [4999.0] * 2


def test_rewards_of_the_next_episode_do_not_count() -> None:
    """A done of the next episode ends no transition of one that was cut off before."""
    buffer = ExperienceReplayBuffer(env_of(), 10, 1, bootstrap_n=3, random_seed=0)
    for step in range(3):
        buffer.add(np.float64(step), 0, 1.0, False, 1)
    for step in range(3, 5):
        buffer.add(np.float64(step), 0, 100.0, step == 4, 2)
    for _ in range(50):
        S, _, Rn, In, _, _ = buffer.sample()
        assert (S[0], In[0]) in {(3.0, 0.0), (4.0, 0.0)}
        assert Rn[0] >= 100.0


@pytest.mark.parametrize(
    "ids", [[3, 1, 2], ["b", "a", "c"], [(2, 0), (1, 5), (2, 0)], [None, 0, None], [2**40, -1, 5]]
)
def test_any_change_of_the_id_begins_an_episode(ids: list[Any]) -> None:
    """Ids may be any hashables, and need not grow; the same one later is another episode."""
    buffer = ExperienceReplayBuffer(env_of(2), 50, 20, 1, random_seed=0)
    for place, episode in enumerate(ids):
        for step in range(10):
            buffer.add(state(100 * place + step, 2), 0, 1.0, False, episode)
    for _ in range(20):
        S, _, _, _, S_next, _ = buffer.sample()
        older, newest = S[:, 0, 0].T
        assert (older == np.where(newest % 100 == 0, newest, newest - 1)).all()
        assert (S_next[:, 0, 0, -1] == newest + 1).all()
        assert (newest % 100 < 9).all()


def test_masked_next_states_repeat_the_last_frame() -> None:
    """Where In is 0 the next state is made of frames of the same episode, up to its last."""
    buffer = ExperienceReplayBuffer(env_of(3), 10, 1, 4, random_seed=0)
    for step in range(1, 4):
        buffer.add(state(step, 3), step, 1.0, step == 3, 1)
    buffer.add(state(9, 3), 0, 1.0, False, 2)
    buffer.add(state(10, 3), 0, 1.0, False, 2)
    seen = {}
    for _ in range(100):
        S, _, _, In, S_next, A_next = buffer.sample()
        assert In.tolist() == [0.0]
        seen[int(S[0, 0, 0, -1])] = (S_next[0, 0, 0].tolist(), int(A_next[0].argmax()))
    assert seen == {1: ([3, 3, 3], 3), 2: ([3, 3, 3], 3), 3: ([3, 3, 3], 3)}


@pytest.mark.parametrize("shape", [(4,), (3, 4)])
def test_states_of_one_or_two_axes_are_stored_whole(shape: tuple[int, ...]) -> None:
    """As in keras-gym, stacks of such states are stacked once more."""
    buffer = ExperienceReplayBuffer(env_of(4), 20, 6, random_seed=0)
    for step in range(20):
        buffer.add(np.full(shape, step, np.float32), 0, 1.0, False, 1)
    S, _, _, _, S_next, _ = buffer.sample()
    assert S.shape == S_next.shape == (6, *shape, 4)
    assert S.dtype == np.float32
    newest = S[..., -1].reshape(6, -1)[:, 0]
    assert (S[..., 0].reshape(6, -1)[:, 0] == np.maximum(newest - 3, 0)).all()


@pytest.mark.parametrize("shape", [(5, 6, 3), (5, 6, 2, 3), (2, 3, 2, 2, 3)])
def test_of_three_axes_and_more_the_newest_frame_is_stored(shape: tuple[int, ...]) -> None:
    """The last axis is that of the frames, whatever the number of the others; bytes stay bytes."""
    frames = np.random.default_rng(0).integers(0, 256, (*shape[:-1], 40), np.uint8)
    buffer = ExperienceReplayBuffer(env_of(3), 40, 8, random_seed=0)
    for step in range(38):
        buffer.add(frames[..., step : step + 3], 0, float(step), False, 1)
    padded = np.concatenate([frames[..., 2:3]] * 2 + [frames[..., 2:]], axis=-1)
    S, _, Rn, _, S_next, _ = buffer.sample()
    assert S.dtype == np.uint8
    for i, step in enumerate(Rn.astype(int)):
        assert (S[i] == padded[..., step : step + 3]).all()
        assert (S_next[i] == padded[..., step + 1 : step + 4]).all()


# ---- sizes, seeds, copies ----------------------------------------------------------------


def test_sizes() -> None:
    """It is empty before the first step and after clear; the newest steps do not count."""
    buffer = ExperienceReplayBuffer(env_of(), 5, 2, 3)
    sizes = []
    for step in range(12):
        sizes.append((len(buffer), bool(buffer)))
        buffer.add(np.float64(step), 0, 0.0, False, 1)
    assert [size for size, _ in sizes] == [0, 0, 0, 0, 1, 2, 3, 4, 5, 5, 5, 5]
    assert all(there == (size > 0) for size, there in sizes)
    buffer.clear()
    assert (len(buffer), bool(buffer)) == (0, False)
    with pytest.raises(InsufficientCacheError, match="holds 0"):
        buffer.sample()


def test_a_full_buffer_can_be_drawn_from_and_cleared_again_and_again() -> None:
    """The loop of an on-policy agent: fill up, draw, clear; nothing of before comes back."""
    buffer = ExperienceReplayBuffer(env_of(), 8, 4, random_seed=0)
    step = 0
    for _ in range(4):
        first = step
        while len(buffer) < buffer.capacity:
            buffer.add(np.float64(step), 0, 0.0, False, 1)
            step += 1
        for _ in range(8):
            assert (buffer.sample()[0] >= first).all()
        buffer.clear()


def test_errors_have_the_old_and_the_new_classes() -> None:
    """Too few steps: keras-gym's error, which is also that of every other buffer here."""
    buffer = numbered(3, capacity=10, batch_size=3)
    for error in (KerasGymError, NotEnoughDataError, ValueError, RuntimeError):
        with pytest.raises(error, match="cannot sample 3 transitions: the buffer holds 2"):
            buffer.sample()


def test_a_seed_starts_the_draws_anew() -> None:
    """Setting the same seed gives the same batch again, another one does not."""
    buffer = numbered(100, capacity=200)
    assert buffer.random_seed == 0
    first = buffer.sample()[0]
    buffer.random_seed = 0
    assert (buffer.sample()[0] == first).all()
    buffer.random_seed = 1
    assert (buffer.sample()[0] != first).any()


def test_a_deleted_seed_leaves_the_draws_to_chance() -> None:
    """Without a seed no batch comes again."""
    buffer = numbered(100, capacity=200)
    del buffer.random_seed
    assert buffer.random_seed is None
    first = buffer.sample()[0]
    del buffer.random_seed
    assert (buffer.sample()[0] != first).any()


@pytest.mark.parametrize("way", ["pickle", "deepcopy"])
def test_copies_go_on_alike(way: str) -> None:
    """A copy holds the same steps, draws the same, and goes on in the same episode."""
    buffer = numbered(30, capacity=20)
    twin = pickle.loads(pickle.dumps(buffer)) if way == "pickle" else copy.deepcopy(buffer)
    for step in range(30, 40):
        for one in (buffer, twin):
            one.add(np.float32(step), 0, 1.0, False, 1)
    buffer.batch_size = twin.batch_size = 20
    for ours, theirs in zip(buffer.sample(), twin.sample(), strict=True):
        assert (ours == theirs).all()


def test_batches_belong_to_the_caller() -> None:
    """What is done to a batch, or to an array after it was added, changes no later batch."""
    buffer = ExperienceReplayBuffer(env_of(), 10, 4, random_seed=0)
    s = np.zeros(3)
    for step in range(10):
        s[:] = step
        buffer.add(s, 0, 1.0, False, 1)
    kept = [array.copy() for array in buffer.sample()]
    for array in buffer.sample():
        array[...] = 77
    buffer.random_seed = 0
    for array, before in zip(buffer.sample(), kept, strict=True):
        assert (array == before).all()


def test_from_value_function() -> None:
    """Environment, steps and discount come from the value function."""
    function = SimpleNamespace(env=env_of(4), gamma=0.5, bootstrap_n=3)
    buffer = ExperienceReplayBuffer.from_value_function(function, 1e2, 16)
    assert (buffer.env, buffer.capacity, buffer.batch_size) == (function.env, 100, 16)
    assert (buffer.gamma, buffer.bootstrap_n, buffer.num_frames) == (0.5, 3, 4)
    assert buffer.random_seed is None
    seeded = ExperienceReplayBuffer.from_value_function(function, 100, random_seed=7)
    assert (seeded.batch_size, seeded.random_seed) == (32, 7)


# ---- environments and actions ------------------------------------------------------------


def test_number_of_frames_is_found_inside_wrappers() -> None:
    """The outermost environment that has it counts; without any it is 1."""
    bare = SimpleNamespace(action_space=SimpleNamespace(n=2))
    assert ExperienceReplayBuffer(bare, 10).num_frames == 1
    inner = env_of(4)
    outer = SimpleNamespace(action_space=inner.action_space, env=SimpleNamespace(env=inner))
    assert ExperienceReplayBuffer(outer, 10).num_frames == 4
    outer.num_frames = 2
    assert ExperienceReplayBuffer(outer, 10).num_frames == 2


class Space:
    """gym's base class, as far as it matters."""


class Discrete(Space):
    """gym's space of this name."""

    def __init__(self, n: int) -> None:
        self.n, self.shape, self.dtype = n, (), np.dtype(np.int64)


class MultiBinary(Space):
    """gym's space of this name."""

    n, shape, dtype = 3, (3,), np.dtype(np.int8)


class Mine(gymnasium.spaces.Box):
    """A Box by another name."""


@pytest.mark.parametrize(
    "space", [gymnasium.spaces.Discrete(3), Discrete(3), SimpleNamespace(n=3)], ids=repr
)
def test_discrete_actions(space: Any) -> None:
    """Spaces of Gymnasium, of gym and mocks; a number becomes one-hot, weights stay."""
    buffer = ExperienceReplayBuffer(env_of(space=space), 10, 1, random_seed=0)
    assert (buffer.action_space_is_discrete, buffer.action_space_is_box) == (True, False)
    assert buffer.num_actions == 3
    with pytest.raises(ActionSpaceError, match="actions_ndim"):
        _ = buffer.actions_ndim
    buffer.add(np.float64(0), 2, 0.0, False, 1)
    buffer.add(np.float64(1), [0.2, 0.3, 0.5], 0.0, False, 1)
    _, A, _, _, _, A_next = buffer.sample()
    assert (A.tolist(), A_next.tolist()) == ([[0, 0, 1]], [[0.2, 0.3, 0.5]])
    for a in (np.int8(1), np.uint64(1), np.array(1)):
        buffer.add(np.float64(2), a, 0.0, True, 1)


def test_discrete_actions_that_do_not_begin_at_0() -> None:
    """Gymnasium's Discrete may start at any number, which is then the first one."""
    space = gymnasium.spaces.Discrete(3, start=-1)
    buffer = ExperienceReplayBuffer(env_of(space=space), 10, 1)
    buffer.add(np.float64(0), -1, 0.0, True, 1)
    buffer.add(np.float64(0), 1, 0.0, True, 1)
    assert {tuple(buffer.sample()[1][0]) for _ in range(50)} == {(1, 0, 0), (0, 0, 1)}
    with pytest.raises(ValueError, match="expected -1 to 1, got 2"):
        buffer.add(np.float64(0), 2, 0.0, True, 1)


@pytest.mark.parametrize(
    "space",
    [
        gymnasium.spaces.Box(-1, 1, (2,), np.float32),
        Mine(-1, 1, (2,), np.float32),
        SimpleNamespace(shape=(2,), dtype=np.float32),
    ],
    ids=repr,
)
def test_box_actions(space: Any) -> None:
    """Actions have the shape and dtype of the Box."""
    buffer = ExperienceReplayBuffer(env_of(space=space), 10, 1, random_seed=0)
    assert (buffer.action_space_is_discrete, buffer.action_space_is_box) == (False, True)
    assert buffer.actions_ndim == 1
    with pytest.raises(ActionSpaceError, match="num_actions"):
        _ = buffer.num_actions
    for step in range(2):
        buffer.add(np.float64(step), [step, 0.5], 0.0, False, 1)
    _, A, _, _, _, A_next = buffer.sample()
    assert A.dtype == A_next.dtype == np.float32
    assert (A.tolist(), A_next.tolist()) == ([[0, 0.5]], [[1, 0.5]])


@pytest.mark.parametrize(
    "space",
    [
        gymnasium.spaces.MultiDiscrete([2, 3]),
        gymnasium.spaces.MultiBinary(3),
        gymnasium.spaces.Tuple([gymnasium.spaces.Discrete(2)]),
        MultiBinary(),
        SimpleNamespace(),
    ],
    ids=repr,
)
def test_other_action_spaces_are_refused_at_once(space: Any) -> None:
    """What is neither Discrete nor a Box is refused when the buffer is made."""
    with pytest.raises(SpaceError, match="expected Discrete or Box"):
        ExperienceReplayBuffer(env_of(space=space), 10)


# ---- bad input ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"capacity": 0}, ValueError, "capacity: expected at least 1"),
        ({"capacity": 2.5}, TypeError, "capacity"),
        ({"capacity": None}, TypeError, "capacity"),
        ({"capacity": float("inf")}, TypeError, "capacity"),
        ({"batch_size": 0}, ValueError, "batch_size"),
        ({"bootstrap_n": 0}, ValueError, "bootstrap_n"),
        ({"gamma": 1.5}, ValueError, "gamma"),
        ({"gamma": "1"}, TypeError, "gamma"),
        ({"random_seed": -1}, ValueError, "random_seed"),
        ({"env": env_of(0)}, ValueError, "num_frames"),
        ({"env": env_of(space=SimpleNamespace(n=0))}, ValueError, r"action_space\.n"),
    ],
)
def test_bad_parameters(options: dict[str, Any], error: type[Exception], words: str) -> None:
    """A parameter that makes no sense is refused by name."""
    with pytest.raises(error, match=words):
        ExperienceReplayBuffer(**({"env": env_of(), "capacity": 10} | options))


@pytest.mark.parametrize(("size", "error"), [(0, ValueError), (2.5, TypeError)])
def test_a_batch_size_that_is_set_later_is_looked_at(size: Any, error: type[Exception]) -> None:
    """The attribute may be set at any time; nonsense is refused by the next draw."""
    buffer = numbered(10, capacity=10)
    buffer.batch_size = size
    with pytest.raises(error, match="batch_size"):
        buffer.sample()


FRAME = np.zeros((2, 2, 3), np.float32)
GOOD: dict[str, Any] = {"s": FRAME, "a": 0, "r": 0.0, "done": False, "episode_id": 1}


@pytest.mark.parametrize("first", [True, False], ids=["first", "later"])
@pytest.mark.parametrize(
    ("bad", "error", "words"),
    [
        ({"s": FRAME[..., :2]}, NumpyArrayCheckError, "3 frames"),
        ({"s": np.float32(1)}, NumpyArrayCheckError, "3 frames"),
        ({"s": {"x": FRAME}}, NumpyArrayCheckError, "expected an array"),
        ({"s": [[1.0], [2.0, 3.0]]}, NumpyArrayCheckError, "^s: "),
        ({"a": 5}, ValueError, "a: expected 0 to 4, got 5"),
        ({"a": -1}, ValueError, "a: expected 0 to 4, got -1"),
        ({"a": 1.0}, TypeError, "a: expected the number"),
        ({"a": "1"}, TypeError, "a: expected the number"),
        ({"a": [0, 1]}, TypeError, r"shape \(5,\)"),
        ({"a": [[1], [2, 3]]}, ValueError, "a: "),
        ({"a": np.zeros((3, 5))}, TypeError, r"shape \(5,\)"),
        ({"r": "much"}, ValueError, "'r'"),
        ({"r": [1.0, 2.0]}, ValueError, "r"),
        ({"done": 0.5}, ValueError, "'done'"),
        ({"episode_id": [1]}, TypeError, "episode_id"),
    ],
)
def test_a_refused_step_changes_nothing(
    bad: dict[str, Any], error: type[Exception], words: str, first: bool
) -> None:
    """A bad value is refused by name; the buffer then goes on as if nothing had happened."""
    buffer, twin = (ExperienceReplayBuffer(env_of(3), 10, 2, random_seed=0) for _ in range(2))
    for step in range(0 if first else 5):
        for one in (buffer, twin):
            one.add(FRAME + step, 0, 1.0, False, 1)
    with pytest.raises(error, match=words):
        buffer.add(**(GOOD | bad))
    for step in range(5, 12):
        for one in (buffer, twin):
            one.add(FRAME + step, 1, 2.0, False, 1)
    for ours, theirs in zip(buffer.sample(), twin.sample(), strict=True):
        assert (ours == theirs).all()


@pytest.mark.parametrize(
    ("s", "words"),
    [
        (np.zeros((2, 3, 3), np.float32), "expected shape"),
        (np.zeros((2, 3), np.float32), "expected shape"),
        (np.full((2, 2, 3), 1e300), "1e"),
    ],
)
def test_later_states_are_like_the_first(s: Array, words: str) -> None:
    """A state of another shape, or that the dtype cannot hold, is refused and not broadcast."""
    buffer = ExperienceReplayBuffer(env_of(3), 10, 2, random_seed=0)
    buffer.add(**GOOD)
    with pytest.raises(ValueError, match=words):
        buffer.add(**(GOOD | {"s": s}))
    assert len(buffer) == 0
    buffer.add(**GOOD)
    assert len(buffer) == 1
