"""Every way of reading beside every way of changing: rows that were in the buffer together."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from strategies import Array
from test_threads import run_together

from cpprb_like import NotEnoughDataError, PrioritizedReplayBuffer, ReplayBuffer
from cpprb_like.hindsight import Hindsight
from cpprb_like.mixture import Mixture

SECONDS = 0.05
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
NSTEP = {"size": STEPS, "gamma": 1.0, "rew": "rew", "next": "last_x"}
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
            self.hindsight = Hindsight(
                self.rb, lambda achieved, *_: achieved, goal="goal", achieved="last_x", share=0.7
            )
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

    def batches(self) -> None:
        for batch in self.rb.batches(30):
            check_rows(batch)

    def sample(self) -> None:
        check_rows(self.rb.sample(20))

    def sample_distinct(self) -> None:
        check_rows(self.rb.sample(5, replace=False))

    def sample_out(self) -> None:
        check_rows(self.rb.sample(20, out=self.empty_batch()))

    def sequences(self) -> None:
        check_sequences(self.rb.sample_sequences(6, 5))

    def sequences_across(self) -> None:
        check_across(self.rb.sample_sequences(6, 12, across_episodes=True))

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
    Place.batches,
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
