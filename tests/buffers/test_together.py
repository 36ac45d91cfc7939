"""Every way of reading beside every way of changing: rows that were in the buffer together."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from beside_writers import FRAME, SIZE, check_together, frames_of
from scale import THOROUGH
from strategies import Array
from threads import run_together
from views import sample_sequences

from cpprb_like import NotEnoughDataError, PrioritizedReplayBuffer, ReplayBuffer
from cpprb_like.buffers import Mixture
from cpprb_like.compat import coax, dqn, keras_gym
from cpprb_like.typing import NstepSpec
from cpprb_like.views import Hindsight

SECONDS = 0.05 if THOROUGH else 0.02
EPISODE = 7  # steps, unless it is ended earlier
STEPS = 4  # of a transition
WIDE = 600  # numbers, so that a batch is copied without the interpreter lock
FIELDS: dict[str, Any] = {
    "x": {"shape": (), "dtype": "i8"},  # counts the steps of an environment, from 1 on
    "last_x": {"shape": (), "dtype": "i8"},  # x, of the last row of a transition
    "rew": {"shape": (), "dtype": "f8"},  # x, or the sum of all x of a transition
    "goal": {"shape": (), "dtype": "i8"},
    "value": {"shape": (), "dtype": "i8"},  # what ``update`` replaces, together with ``copies``
    "copies": {"shape": WIDE, "dtype": "i8"},
    "done": {"shape": (), "dtype": bool},
}
NSTEP: NstepSpec = {"size": STEPS, "gamma": 1.0, "rew": "rew", "next": "last_x"}
N_ENVS = 2


def steps(first: int, n: int) -> dict[str, Any]:
    """Steps ``first`` to ``first + n - 1`` of each environment, by time."""
    x = np.repeat(np.arange(first, first + n), N_ENVS)
    return {
        "x": x,
        "last_x": x,
        "rew": x,
        "goal": x,
        "value": x,
        "copies": np.repeat(x[:, None], WIDE, axis=1),
        "done": x % EPISODE == 0,
        "next_x": x + 1,
    }


def episode_of(x: Array) -> Array:
    """The episodes of steps, by number."""
    return (x - 1) // EPISODE


def check_rows(batch: dict[str, Array]) -> None:
    """Each row is whole, and a transition of several steps lies in one episode."""
    x, last = batch["x"], batch["last_x"]
    assert (batch["copies"] == batch["value"][..., None]).all(), "a torn row"
    assert (batch["next_x"] == x + 1).all(), "a next value of another row"
    assert (x > 0).all(), "a row that nobody added"
    assert (episode_of(x) == episode_of(last)).all(), "steps of two episodes"
    assert ((x <= last) & (last < x + STEPS)).all(), "too many steps"
    assert (batch["rew"] == (x + last) * (last - x + 1) / 2).all(), "a wrong sum"


def check_one(row: dict[str, Any]) -> None:
    """As ``check_rows``, for a lone row."""
    check_rows({name: np.asarray(value)[None] for name, value in row.items()})


def check_in_a_row(batch: dict[str, Array]) -> None:
    """The rows follow one another in one episode."""
    check_rows({**batch, "last_x": batch["x"], "rew": batch["x"]})
    assert (np.diff(batch["x"]) == 1).all(), "a row is missing"
    assert len(set(episode_of(batch["x"]))) <= 1, "rows of two episodes"


def check_sequences(batch: dict[str, Array]) -> None:
    """Sequences in one episode: rows that are there follow one another."""
    for k, mask in enumerate(batch["mask"]):
        check_in_a_row({name: batch[name][k][mask] for name in [*FIELDS, "next_x"]})
        assert not batch["copies"][k][~mask].any()


def check_across(batch: dict[str, Array]) -> None:
    """Sequences over episodes: all rows are there, and only whole episodes may be missing."""
    x = batch["x"]
    assert (x > 0).all(), "a row that is none"
    assert (batch["copies"] == batch["value"][..., None]).all(), "a torn row"
    assert ((np.diff(x) == 1) | (np.diff(episode_of(x)) > 0)).all(), "a row is missing"


def check_goals(batch: dict[str, Array]) -> None:
    """New goals are of the same episode and not earlier."""
    check_rows({**batch, "last_x": batch["x"], "rew": batch["x"]})
    assert (batch["goal"] >= batch["x"]).all(), "an earlier goal"
    assert (episode_of(batch["goal"]) == episode_of(batch["x"])).all(), "a goal of another episode"


class Place:
    """A buffer, and what reads and changes it."""

    def __init__(self, several: bool) -> None:
        options: dict[str, Any] = {"n_envs": N_ENVS, "next_of": "x", "seed": 0}
        if several:
            self.rb: ReplayBuffer = PrioritizedReplayBuffer(120, FIELDS, Nstep=NSTEP, **options)
        else:
            self.rb = ReplayBuffer(120, FIELDS, **options)
            layer = Hindsight(
                lambda achieved, *_: achieved, goal="goal", achieved="last_x", relabel_ratio=0.7
            )
            self.hindsight = self.rb.view(layer)
        self.rng = np.random.default_rng(0)
        self.count = 1
        self.number = -1
        while self.count < 70:
            self.add()

    def empty_batch(self) -> dict[str, Array]:
        rb = self.rb
        return {f.name: np.empty((20, *f.shape), f.dtype) for f in rb.schema.fields}

    # ---- changing

    def add(self) -> None:
        """One time step."""
        self.rb.add(**steps(self.count, 1))
        self.count += 1

    def add_where(self) -> None:
        """Whole episodes, of which some environments have no step in between."""
        self.add()
        self.rb.add_where([False] * N_ENVS, **steps(self.count, 1))

    def clear(self) -> None:
        self.rb.clear()
        self.count += EPISODE - (self.count - 1) % EPISODE
        for _ in range(20):
            self.add()

    def update(self) -> None:
        """New numbers for all rows, two fields at once."""
        self.number -= 1
        slots = np.flatnonzero(~self.rb.ring.absent_at(np.arange(self.rb.ring.stored)))
        n = len(slots)
        copies = np.full((n, WIDE), self.number)
        self.rb.update(slots, value=np.full(n, self.number), copies=copies)

    def delete(self) -> None:
        """An episode somewhere in the middle; new ones come when few are left."""
        episodes = self.rb.episodes
        if len(episodes) < 8:
            for _ in range(2 * EPISODE):
                self.add()
        else:
            ended = [k for k, episode in enumerate(episodes.list()) if episode.terminated]
            episodes.delete(int(self.rng.choice(ended)))

    def end(self) -> None:
        """End the episodes early, and go on with the next ones."""
        self.rb.on_episode_end()
        self.count += EPISODE - (self.count - 1) % EPISODE
        for _ in range(5):
            self.add()

    # ---- reading

    def slots(self) -> Array:
        """Some slots whose rows can be drawn, or could a moment ago."""
        present = self.rb.ring.present_slots()
        if len(present) == 0:
            raise NotEnoughDataError("the buffer was cleared")
        return self.rng.choice(present, 20)

    def read_slots(self) -> None:
        check_rows(self.rb[self.slots()])

    def read_slice(self) -> None:
        check_rows(self.rb[5:40])

    def read_mask(self) -> None:
        rb = self.rb
        check_rows(rb[~rb.ring.absent_at(np.arange(rb.ring.stored))])

    def read_one(self) -> None:
        check_one(self.rb[int(self.slots()[0])])

    def encode(self) -> None:
        check_rows(self.rb._encode_sample(self.slots()))

    def iterate(self) -> None:
        for row in self.rb:
            check_one(row)

    def all_rows(self) -> None:
        check_rows(self.rb.get_all_transitions())

    def all_shuffled(self) -> None:
        check_rows(self.rb.get_all_transitions(shuffle=True))

    def epoch(self) -> None:
        for batch in self.rb.epoch(30):
            check_rows(batch)

    def sample(self) -> None:
        check_rows(self.rb.sample(20))

    def sample_distinct(self) -> None:
        check_rows(self.rb.sample(5, replace=False))

    def sample_out(self) -> None:
        check_rows(self.rb.sample(20, out=self.empty_batch()))

    def sequences(self) -> None:
        check_sequences(sample_sequences(self.rb, 6, 5))

    def sequences_across(self) -> None:
        check_across(sample_sequences(self.rb, 6, 12, across_episodes=True))

    def read_episodes(self) -> None:
        for batch in self.rb.episodes.sample(4, complete=False):
            check_in_a_row(batch)
        check_in_a_row(self.rb.episodes[0])

    def list_returns(self) -> None:
        for episode in self.rb.episodes.list("x"):
            assert episode.return_ is not None
            first = (episode.return_ - (episode.length - 1) * episode.length / 2) / episode.length
            assert first == int(first) > 0, "rows of several episodes"

    def stack(self) -> None:
        stacks = self.rb.stack("copies", self.slots().reshape(5, 4))
        assert (stacks == stacks[:, :1]).all(), "a torn row"

    def mix(self) -> None:
        check_rows(Mixture({"a": self.rb}, {"a": 1.0}).sample(20))

    def relabel(self) -> None:
        check_goals(self.hindsight.sample(20))


CHANGES = (Place.add, Place.add_where, Place.clear, Place.update, Place.delete, Place.end)
READINGS = (
    Place.read_slots,
    Place.read_slice,
    Place.read_mask,
    Place.read_one,
    Place.encode,
    Place.iterate,
    Place.all_rows,
    Place.all_shuffled,
    Place.epoch,
    Place.sample,
    Place.sample_distinct,
    Place.sample_out,
    Place.sequences,
    Place.sequences_across,
    Place.read_episodes,
    Place.list_returns,
    Place.stack,
    Place.mix,
)


@pytest.fixture(autouse=True)
def switch_often() -> Iterator[None]:
    """Let threads take turns a thousand times as often as usual."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.slow
@pytest.mark.parametrize("several", [False, True], ids=["one step", "several steps"])
@pytest.mark.parametrize("read", [*READINGS, Place.relabel], ids=lambda read: read.__name__)
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_rows_that_were_there_together(
    change: Callable[[Place], None], read: Callable[[Place], None], several: bool
) -> None:
    """What is read is what was in the buffer at one moment, whatever another thread changes.

    Reading looked only for rows that were overwritten, and not for those that were deleted between
    the choice of slots and the copy: sums of several steps then ran into the next episode, and
    sequences over episodes had rows of zeros.
    """
    if several and read is Place.relabel:
        return
    place = Place(several)

    def reading() -> None:
        try:
            read(place)
        except (NotEnoughDataError, IndexError):
            pass  # slots of the caller, or all rows, are gone
        except RuntimeError as error:
            if "cleared" not in str(error) and "episodes changed" not in str(error):
                raise

    run_together(lambda: change(place), reading, reading, seconds=SECONDS)
    place.rb.check()


# ---------------------------------------------------------------------- fronts

DEPTH = 3  # frames of a view
GAMMA = 0.5


def check_views(views: Array, x: Array, oldest: int | None = None) -> None:
    """Views show steps up to ``x``, and for those before the episode its first one again.

    Or zeros, for these and all before the oldest step that is there.
    """
    numbers = views[..., 0, 0, :]
    assert (views == numbers[..., None, None, :]).all(), "a torn frame"
    wanted = x[:, None] + np.arange(1 - DEPTH, 1)
    first = ((x - 1) // EPISODE * EPISODE + 1)[:, None]
    if oldest is None:
        expected = np.maximum(wanted, first)
    else:
        expected = np.where(wanted < np.maximum(first, oldest), 0, wanted)
    assert (numbers == expected).all(), "a frame of another step"


def find_oldest(*views: Array) -> int:
    """The oldest step of which some view has a frame."""
    return min(int(frames[frames > 0].min()) for frames in views)


class Berkeley:
    """Berkeley's buffer of frames: a step is a frame with its number, which is the reward too."""

    def __init__(self) -> None:
        self.rb = dqn.ReplayBuffer(SIZE, DEPTH, seed=0)
        self.x = 0
        for _ in range(SIZE + 5):
            self.step()

    def step(self) -> None:
        """A frame, its view, its effect."""
        self.x += 1
        idx = self.rb.store_frame(np.full((*FRAME, 1), self.x))
        check_views(self.rb.encode_recent_observation()[None], np.array([self.x]), 0)
        self.rb.store_effect(idx, self.x, self.x, self.x % EPISODE == 0)

    def hear_late(self) -> None:
        """The effect of an older step, counted again with another number."""
        idx = int(np.random.default_rng(self.x).integers(self.rb.num_in_buffer - 1))
        slot = (self.rb.next_idx + idx) % SIZE
        assert self.rb.obs is not None
        x = int(self.rb.obs[slot][0, 0, 0])
        self.rb.store_effect(slot, -self.x, -self.x, x % EPISODE == 0)
        self.step()

    def sample(self) -> None:
        batch = self.rb.sample(20)
        x = batch.obs[:, 0, 0, -1]
        oldest = find_oldest(batch.obs, batch.next_obs)
        check_views(batch.obs, x, oldest)
        check_views(batch.next_obs, x + 1, oldest)
        assert len(set(x.tolist())) == 20, "a step twice"
        assert (batch.action == batch.reward).all(), "an effect in part"
        assert ((batch.action == x) | (batch.action < 0)).all(), "an effect of another step"
        assert (batch.done_mask == (x % EPISODE == 0)).all(), "an end of another step"

    def can_sample(self) -> None:
        assert self.rb.can_sample(SIZE - 1), "a step without a next one"

    def fields(self) -> None:
        """What is stored, by slot: steps that follow one another but where the newest is."""
        for stored in (self.rb.obs, self.rb.action, self.rb.reward):
            assert stored is not None
            x = np.asarray(stored).reshape(SIZE, -1)[:, 0]
            whole = (x > 0).all()
            turns = (np.diff(np.append(x, x[0])) != 1).sum()
            assert not whole or turns == 1, "steps of several moments"


class KerasGym:
    """keras-gym's buffer; every second episode is cut off, the others are done."""

    def __init__(self) -> None:
        space = SimpleNamespace(shape=(1,), low=np.zeros(1), high=np.full(1, 1e9), dtype="f8")
        env = SimpleNamespace(action_space=space, num_frames=DEPTH)
        self.rb = keras_gym.ExperienceReplayBuffer(env, SIZE, 20, STEPS, GAMMA, random_seed=0)
        self.x = 0
        self.fill()

    def fill(self) -> None:
        while len(self.rb) < SIZE // 2 + 5:
            self.add()

    def add(self) -> None:
        self.x += 1
        episode = (self.x - 1) // EPISODE
        numbers = np.maximum(self.x + np.arange(1 - DEPTH, 1), episode * EPISODE + 1)
        done = self.x % EPISODE == 0 and episode % 2 == 0
        state = np.moveaxis(frames_of(numbers), 0, -1)
        self.rb.add(state, np.array([float(self.x)]), float(self.x), done, episode)

    def clear(self) -> None:
        self.rb.clear()
        self.x += EPISODE - self.x % EPISODE
        self.fill()

    def sample(self) -> None:
        states, actions, returns, factors, following, after = self.rb.sample()
        x = states[:, 0, 0, -1]
        check_views(states, x)
        assert (actions[:, 0] == x).all(), "an action of another step"
        episode, left = (x - 1) // EPISODE, EPISODE - (x - 1) % EPISODE
        steps = np.minimum(STEPS, left)
        ended = (episode % 2 == 0) & (left <= STEPS)
        assert (factors == np.where(ended, 0.0, GAMMA**STEPS)).all(), "another end"
        sums = [
            (GAMMA ** np.arange(k) * (first + np.arange(k))).sum()
            for first, k in zip(x, steps, strict=True)
        ]
        assert np.allclose(returns, sums), "a wrong sum"
        check_views(following[~ended], (x + STEPS)[~ended])
        assert (after[~ended, 0] == (x + STEPS)[~ended]).all(), "an action of another step"


class Coax:
    """coax's buffer: ``idx`` goes with the number of the transition."""

    def __init__(self) -> None:
        self.rb: Any = self.make()
        self.x = 0
        for _ in range(SIZE // 2):
            self.add()

    def make(self) -> Any:
        return coax.SimpleReplayBuffer(SIZE, random_seed=0)

    def batch(self) -> Any:
        """The next two transitions."""
        x = self.x + np.arange(1.0, 3.0)
        self.x += 2
        wide = np.repeat(x[:, None], WIDE, axis=1)
        return coax.TransitionBatch(S=wide, A=x, logP=-x, Rn=x, In=x, S_next=wide + 1)

    def add(self) -> None:
        self.rb.add(self.batch())

    def clear(self) -> None:
        self.rb.clear()
        for _ in range(SIZE // 2):
            self.add()

    def check(self, drawn: Any) -> None:
        x = drawn.Rn
        for column in (drawn.S, drawn.S_next - 1, drawn.A[:, None]):
            assert (column == x[:, None]).all(), "a torn transition"
        assert len(set((x - drawn.idx).tolist())) == 1, "an idx of another transition"

    def sample(self) -> None:
        self.check(self.rb.sample(20))

    def iterate(self) -> None:
        offsets = set()
        for one in self.rb:
            self.check(one)
            offsets.add((one.Rn - one.idx).item())
        assert len(offsets) <= 1, "transitions from before and after"


class CoaxByPriority(Coax):
    """The same, drawn by priority."""

    def make(self) -> Any:
        return coax.PrioritizedReplayBuffer(SIZE, random_seed=0)

    def add(self) -> None:
        batch = self.batch()
        self.rb.add(batch, Adv=batch.Rn)

    def update(self) -> None:
        idx = self.rb.sample(20).idx
        self.rb.update(idx, Adv=idx + 1.0)


FRONTS: list[tuple[Any, Any, Any]] = [
    (place, change, read)
    for place, changes, readings in [
        (
            Berkeley,
            (Berkeley.step, Berkeley.hear_late),
            (Berkeley.sample, Berkeley.can_sample, Berkeley.fields),
        ),
        (KerasGym, (KerasGym.add, KerasGym.clear), (KerasGym.sample,)),
        (Coax, (Coax.add, Coax.clear), (Coax.sample, Coax.iterate)),
        (
            CoaxByPriority,
            (CoaxByPriority.add, CoaxByPriority.clear, CoaxByPriority.update),
            (CoaxByPriority.sample, CoaxByPriority.iterate),
        ),
    ]
    for change in changes
    for read in readings
]


@pytest.mark.once
@pytest.mark.parametrize(
    ("place", "change", "read"),
    FRONTS,
    ids=[f"{place.__name__}-{change.__name__}-{read.__name__}" for place, change, read in FRONTS],
)
def test_what_a_front_reads_was_there_together(place: Any, change: Any, read: Any) -> None:
    """The same of the fronts: they read field by field, and counted their rows by themselves.

    So a batch had frames of one moment and actions of another, and rows of the write head.
    """
    check_together(place(), change, read, 0.3)
