"""``stats``: counts of rows and draws, ages at the draw, and rows that were never drawn."""

from __future__ import annotations

import copy
import math
import threading
from functools import partial
from typing import Any

import numpy as np
import pytest
from timing import ratio

from cpprb_like import Mixture, ReplayBuffer
from cpprb_like.limiters import MinSize, RateLimited
from cpprb_like.processes import SharedReplay
from cpprb_like.samplers import Prioritized, Recency, Sampler, Uniform
from cpprb_like.views import Among, FrameStacks, NStep, Sequences

FIELDS: dict[str, Any] = {
    "t": {"shape": (), "dtype": np.int64},
    "rew": {"shape": ()},
    "done": {"shape": (), "dtype": bool},
}


def steps(first: int, n: int, length: int = 50) -> dict[str, Any]:
    """Rows ``first`` to ``first + n``; an episode ends after each ``length`` rows."""
    t = np.arange(first, first + n)
    return {"t": t, "rew": np.ones(n), "done": t % length == length - 1}


class Newest(Sampler):
    """Draws the newest row."""

    def draw(
        self, ring: Any, n: int, rng: np.random.Generator, *, replace: bool
    ) -> tuple[Any, dict[str, Any]]:
        """See ``Sampler.draw``."""
        return np.repeat(ring.newest_slots(1), n), {}


def test_what_an_empty_buffer_has() -> None:
    """No age and no share: there was no draw."""
    rb = ReplayBuffer(100, FIELDS, terminated="done")
    assert rb.stats() == {
        "rows": 0,
        "capacity": 100,
        "bytes": rb.nbytes,
        "adds": 0,
        "episodes": 0,
        "draws": 0,
        "samples": 0,
    }


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("at_once", [1, 7, 200])
def test_rows_and_episodes_are_counted(n_envs: int, at_once: int) -> None:
    """One by one, in blocks, and in blocks of more rows than there are slots."""
    rb = ReplayBuffer(90, FIELDS, n_envs=n_envs, terminated="done")
    written = episodes = 0
    for first in range(0, 1200, at_once):
        rows = steps(first, at_once, 11)
        episodes += n_envs * int(rows["done"].sum())
        written += n_envs * at_once
        rb.add(
            **{
                name: np.repeat(one[:, None], n_envs, 1) if n_envs > 1 else one
                for name, one in rows.items()
            }
        )
        found = rb.stats()
        assert (found["adds"], found["episodes"]) == (written, episodes)
        assert found["rows"] == len(rb)
    rb.on_episode_end()
    open_ones = 0 if rows["done"][-1] else n_envs
    assert rb.stats()["episodes"] == episodes + open_ones
    rb.clear()
    assert rb.stats()["adds"] == rb.stats()["episodes"] == 0


def test_absent_environments_end_no_episode() -> None:
    """A row without a step has flags that are no end."""
    rb = ReplayBuffer(90, FIELDS, n_envs=2, terminated="done")
    for t in range(100):
        rb.add_where([True, t % 3 == 0], t=[t, t], rew=[0, 0], done=[t % 10 == 9, t % 30 == 27])
    assert rb.stats()["episodes"] == 10 + 3
    assert rb.stats()["rows"] == len(rb)


@pytest.mark.parametrize("sampler", [Uniform, Prioritized, lambda: Recency(0.5)])
@pytest.mark.parametrize("size", [1, 8, 100])
def test_ages_are_those_of_drawn_rows(sampler: Any, size: int) -> None:
    """Mean and quantiles of one row of each batch are those of all drawn rows."""
    rb = ReplayBuffer(1000, FIELDS, sampler=sampler(), seed=0)
    ages: list[Any] = []
    for first in range(0, 8000, 2):
        rb.add(**steps(first, 2))
        ages.append(first + 1 - rb.sample(size)["t"])
    recent = np.concatenate(ages[-1952:])
    found = rb.stats()
    assert (found["draws"], found["samples"]) == (4000, 4000 * size)
    assert found["age_at_draw_mean"] == pytest.approx(recent.mean(), rel=0.1, abs=2)
    for name, quantile in {"p50": 0.5, "p90": 0.9, "p99": 0.99}.items():
        wanted = np.quantile(recent, quantile)
        assert found[f"age_at_draw_{name}"] == pytest.approx(wanted, rel=0.2, abs=2)
    assert found["age_at_draw_max"] <= 999


def test_small_ages_are_exact() -> None:
    """Of the newest row always 0, of the third newest 2."""
    rb = ReplayBuffer(100, FIELDS, sampler=Newest())
    rb.add(**steps(0, 10))
    for _ in range(5):
        rb.sample(4)
    found = rb.stats()
    assert {found[f"age_at_draw_{name}"] for name in ("mean", "p50", "p90", "p99", "max")} == {0}


def test_old_ages_are_forgotten() -> None:
    """After 2,048 further draws at the latest."""
    rb = ReplayBuffer(10_000, FIELDS, seed=0)
    rb.add(**steps(0, 10_000))
    for _ in range(1100):
        rb.sample(1)
    assert rb.stats()["age_at_draw_mean"] > 4000
    rb.sampler = Newest()
    for _ in range(2048):
        rb.sample(1)
    assert rb.stats()["age_at_draw_max"] == 0


@pytest.mark.parametrize("sampler", [Prioritized, lambda: Prioritized(stratified=False)])
def test_ages_of_draws_that_move_on_with_the_write_head(sampler: Any) -> None:
    """A stratum of 32 rows, and 32 new rows before each draw: the noted row is not always new.

    The noted places were 0, 1, 2, ... in turn, and strata are in the order of slots: so the noted
    row moved on like the write head, and its age was 2 rows on average in place of 500.
    """
    rb = ReplayBuffer(1024, FIELDS, sampler=sampler(), seed=0)
    for first in range(0, 32 * 1500, 32):
        rb.add(**steps(first, 32))
        rb.sample(32)
    found = rb.stats()
    assert found["age_at_draw_mean"] == pytest.approx(511.5, rel=0.1)
    assert found["age_at_draw_p50"] == pytest.approx(511.5, rel=0.2)


@pytest.mark.parametrize(("capacity", "each"), [(50, 1), (1000, 3), (5000, 40), (5000, 7000)])
def test_rows_that_were_never_drawn(capacity: int, each: int) -> None:
    """The share is that of a list of all rows."""
    rb = ReplayBuffer(capacity, FIELDS, seed=0)
    drawn: set[int] = set()
    written = 0
    for number in range(300 if each > 1 else 600):
        rb.add(**steps(written, each))
        written += each
        for _ in range(number % 4):
            drawn.update(rb.sample(max(1, each // 2))["t"].tolist())
        if number % 50 == 49:
            there = range(max(0, written - capacity), written)
            wanted = 1 - len(drawn.intersection(there)) / len(there)
            noise = 5 * math.sqrt(0.25 / min(len(there), 4096))
            assert rb.stats()["never_drawn"] == pytest.approx(wanted, abs=noise + 0.02)
    rb.clear()
    rb.add(**steps(0, 10))
    assert rb.stats()["never_drawn"] == 1.0


class Halved(Uniform):
    """Draws the first half only."""

    def draw(self, ring: Any, n: int, rng: Any, *, replace: bool) -> Any:
        """See ``Sampler.draw``."""
        return rng.integers(0, ring.stored // 2, n).astype(np.intp), {}


@pytest.mark.parametrize("sampler", [Halved, Prioritized, lambda: Recency(0.9)])
def test_the_share_is_unknown_unless_draws_are_uniform(sampler: Any) -> None:
    """Also of a subclass of ``Uniform``, as it may draw in another way."""
    rb = ReplayBuffer(1000, FIELDS, sampler=sampler(), seed=0)
    rb.add(**steps(0, 1000))
    rb.sample(256)
    assert "never_drawn" not in rb.stats()


@pytest.mark.parametrize("layer", [Sequences(40), NStep(3, gamma=0.9), Among("done")])
def test_the_share_is_unknown_beside_views_that_leave_rows_out(layer: Any) -> None:
    """Draws of a view counted as draws from all rows, of which most can never be drawn."""
    rb = ReplayBuffer(1000, FIELDS, terminated="done", seed=0)
    rb.add(**steps(0, 1000))
    rb.sample(4)
    rb.view().sample(4)
    assert rb.stats()["never_drawn"] == pytest.approx(0.992, abs=0.001)
    rb.view(layer).sample(4)
    assert "never_drawn" not in rb.stats()
    rb.sample(4)
    assert "never_drawn" not in rb.stats()


def test_views_count_at_their_buffer() -> None:
    """An epoch does not count, as each row is read once anyway."""
    rb = ReplayBuffer(200, FIELDS, terminated="done", seed=0)
    rb.add(**steps(0, 200))
    for layers in ([Sequences(5)], [NStep(3, gamma=0.9)], [FrameStacks({"rew": 4})]):
        rb.view(*layers).sample(7)
    list(rb.view(Sequences(5)).epoch(10))
    list(rb.epoch(10))
    assert rb.view(Sequences(5)).stats() == rb.stats()
    assert (rb.stats()["draws"], rb.stats()["samples"]) == (3, 21)


def test_a_draw_that_fails_does_not_count() -> None:
    """Nor does a batch of no items tell an age."""
    rb = ReplayBuffer(10, FIELDS)
    with pytest.raises(ValueError, match="empty"):
        rb.sample(4)
    rb.add(**steps(0, 3))
    with pytest.raises(ValueError, match="distinct"):
        rb.sample(4, replace=False)
    rb.sample(0)
    found = rb.stats()
    assert (found["draws"], found["samples"]) == (1, 0)
    assert "age_at_draw_mean" not in found


def test_updates_and_late_ones() -> None:
    """Of rows that were written over since they were drawn."""
    rb = ReplayBuffer(10, FIELDS, sampler=Prioritized(check_for_update=True), seed=0)
    rb.add(**steps(0, 10))
    batch = rb.sample(8)
    rb.update_priorities(batch["indexes"], np.ones(8))
    rb.add(**steps(10, 10))
    rb.update_priorities(batch["indexes"], np.ones(8))
    assert (rb.stats()["updates"], rb.stats()["late_updates"]) == (16, 8)


def test_a_mixture_has_the_entries_of_its_sources() -> None:
    """After the name of each."""
    one, other = (ReplayBuffer(10, FIELDS, seed=0) for _ in range(2))
    one.add(**steps(0, 5))
    other.add(**steps(0, 3))
    mixture = Mixture({"demos": one, "own": other}, shares={"demos": 0.5, "own": 0.5}, seed=0)
    mixture.sample(8)
    found = mixture.stats()
    assert (found["rows"], found["draws"]) == (8, 1)
    assert (found["demos.rows"], found["own.rows"]) == (5, 3)
    assert found["demos.samples"] + found["own.samples"] == 8


def test_a_limiter_adds_its_entries() -> None:
    """And ages are those of the buffer."""
    rb = RateLimited(ReplayBuffer(10, FIELDS, seed=0), MinSize(3))
    rb.add(**steps(0, 5))
    rb.view(Sequences(2)).sample(4)
    found = rb.stats()
    assert (found["inserts"], found["samples"], found["draws"]) == (5, 4, 1)
    assert found["age_at_draw_max"] <= 4
    assert found["seconds_waiting_for_inserts"] == 0


@pytest.mark.parametrize("sampler", [Uniform, Prioritized])
def test_learners_and_the_replay(sampler: Any) -> None:
    """A learner has its own draws, the replay those of all, in any process that attached."""
    with SharedReplay(2000, FIELDS, writers=2, terminated="done") as replay:
        learners = [replay.learner(sampler(), seed=seed) for seed in range(2)]
        with replay.actor() as one, replay.actor() as other:
            one.add(**steps(0, 600))
            other.add(**steps(0, 600))
            for _ in range(1100):
                learners[0].sample(4)
            learners[1].view(Sequences(3)).sample(5)
            own, all_ = learners[0].stats(), SharedReplay.attach(replay.name).stats()
            assert (own["rows"], own["adds"], own["episodes"]) == (1200, 1200, 24)
            assert (all_["rows"], all_["adds"], all_["episodes"]) == (1200, 1200, 24)
            assert own["capacity"] == all_["capacity"] == 2000
            assert (own["draws"], own["samples"]) == (1100, 4400)
            assert (all_["draws"], all_["samples"]) == (1101, 4405)
            assert own["age_at_draw_mean"] == pytest.approx(299.5, rel=0.1)
            for found in (own, all_):  # the other learner draws with a view
                share = found.get("never_drawn")
                wanted = pytest.approx(math.exp(-4400 / 1200), abs=0.03)
                assert share == (wanted if sampler is Uniform else None)
            assert "never_drawn" not in learners[1].stats()
            one.add(**steps(600, 1))
            other.clear()
            assert (replay.stats()["rows"], learners[1].stats()["rows"]) == (601, 601)


def test_counts_are_those_of_an_object() -> None:
    """A copy and a loaded buffer begin with none; their rows and episodes are there."""
    rb = ReplayBuffer(100, FIELDS, terminated="done", seed=0)
    rb.add(**steps(0, 150, 20))
    rb.sample(4)
    other = copy.deepcopy(rb).stats()
    assert (other["rows"], other["adds"], other["draws"]) == (100, 150, 0)


def test_episodes_of_a_loaded_buffer(tmp_path: Any) -> None:
    """Those in the rows."""
    rb = ReplayBuffer(100, FIELDS, terminated="done", seed=0)
    rb.add(**steps(0, 150, 20))
    rb.save(tmp_path / "saved")
    assert rb.stats()["episodes"] == 7
    loaded = ReplayBuffer.load(tmp_path / "saved")
    assert loaded.stats()["episodes"] == 5
    loaded.add(**steps(150, 50, 20))
    assert loaded.stats()["episodes"] == 8


def test_threads_lose_no_draw() -> None:
    """A draw is counted while no other thread runs."""
    rb = ReplayBuffer(100, FIELDS, seed=0)
    rb.add(**steps(0, 100))

    def draw() -> None:
        for _ in range(2000):
            rb.sample(2)
            rb.stats()

    threads = [threading.Thread(target=draw) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (rb.stats()["draws"], rb.stats()["samples"]) == (8000, 16_000)


def test_it_is_cheap() -> None:
    """The stats of a million rows cost what those of a thousand do: fewer than two small draws."""
    few, many = (
        ReplayBuffer(rows, FIELDS, sampler=Prioritized(), seed=0) for rows in (1000, 10**6)
    )
    for rb in (few, many):
        rb.add(**steps(0, rb.capacity))
        rb.sample(256)
    assert ratio(few.stats, many.stats, number=100) < 2
    assert ratio(partial(few.sample, 1), many.stats, number=100) < 2


def test_more_draws_than_a_float_can_tell() -> None:
    """A row that was drawn 3,000 times is drawn; rows that come later are not."""
    rb = ReplayBuffer(100, FIELDS, seed=0)
    rb.add(**steps(0, 1))
    rb.sample(3000)
    assert rb.stats()["never_drawn"] == pytest.approx(0, abs=1e-6)
    rb.add(**steps(1, 50))
    assert rb.stats()["never_drawn"] == pytest.approx(50 / 51, abs=0.03)


def test_rows_before_the_first_draw() -> None:
    """The ring was overwritten twice before, and no block of rows begins with its oldest row."""
    rb = ReplayBuffer(1000, FIELDS, seed=0)
    rb.add(**steps(0, 2537))
    for _ in range(100):
        rb.sample(100)
    assert rb.stats()["never_drawn"] < 0.01


def test_absent_rows_are_no_rows_that_were_never_drawn() -> None:
    """Of two environments one has no step."""
    rb = ReplayBuffer(1000, FIELDS, n_envs=2, seed=0)
    for t in range(500):
        rb.add_where([True, False], t=[t, t], rew=[0, 0], done=[False, False])
    rb.sample(0)
    assert rb.stats()["never_drawn"] == 1
    for _ in range(50):
        rb.sample(256)
    assert rb.stats()["never_drawn"] < 1e-6


def test_a_sampler_that_was_set_later() -> None:
    """Its draws are not taken for uniform ones, nor are later uniform draws for all."""
    rb = ReplayBuffer(1000, FIELDS, seed=0)
    rb.add(**steps(0, 1000))
    for sampler in (Newest(), Uniform()):
        rb.sampler = sampler
        rb.sample(256)
        assert "never_drawn" not in rb.stats()


def test_a_learner_with_the_number_of_another() -> None:
    """It has no draws of that one."""
    with SharedReplay(100, FIELDS, writers=1, terminated="done") as replay:
        with replay.actor() as actor:
            actor.add(**steps(0, 50))
        first = replay.learner(seed=0)
        first.sample(4)
        first.close()
        other = replay.learner(seed=0)
        assert other.number == first.number
        assert other.stats()["draws"] == replay.stats()["draws"] == 0
