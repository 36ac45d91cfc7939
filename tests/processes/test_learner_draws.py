"""A learner is a source as any buffer: its draws, options and views."""

from __future__ import annotations

import gc
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import shared_rows
from distributions import chi_square_limit
from shared_rows import CHAINED, CHAINED_OPTIONS, EACH, EPISODE, FIELDS, chained, ids, plain

import cpprb_like
from cpprb_like import NotEnoughDataError, PrioritizedReplayBuffer, ReplayBuffer
from cpprb_like.buffers import Mixture
from cpprb_like.processes import SharedReplay
from cpprb_like.processes._followers import Followers
from cpprb_like.samplers import (
    LegacyUniform,
    Prioritized,
    PrioritySampler,
    RankBased,
    Recency,
    Reverse,
    Sampler,
    Uniform,
)
from cpprb_like.views import FrameStacks, Hindsight, Layer, NStep, Sequences, Windows

Array = npt.NDArray[Any]
SIZES = (10, 90, 400, 0)  # rows of each shard: uneven, and none
SMALL = {name: FIELDS[name] for name in ("id", "rew", "done")}

SAMPLERS: dict[str, Callable[[], Sampler]] = {
    "Uniform": Uniform,
    "Prioritized": Prioritized,
    "independent": lambda: Prioritized(stratified=False),
    "batch": lambda: Prioritized(weights="batch"),
}
in_every_sampler = pytest.mark.parametrize("name", SAMPLERS)


def filled(
    sizes: tuple[int, ...] = SIZES,
    make: Callable[[Array], dict[str, Array]] = plain,
    capacity: int = 500,
    **options: Any,
) -> SharedReplay:
    """A replay whose shards have so many rows."""
    options.setdefault("env_dict", FIELDS)
    replay = SharedReplay(capacity * len(sizes), writers=len(sizes), **options)
    for number, size in enumerate(sizes):
        with replay.actor(number) as actor:
            for start in range(0, size, 50):
                actor.add(
                    **{
                        name: values
                        for name, values in make(ids(number, start, min(start + 50, size))).items()
                        if name.removeprefix("next_") in options["env_dict"]
                    }
                )
    return replay


@pytest.fixture
def replay() -> Iterator[SharedReplay]:
    """Uneven shards with fields of all kinds."""
    with filled() as found:
        yield found


def all_ids() -> set[int]:
    """Of the rows in ``filled()``."""
    return {int(one) for number, size in enumerate(SIZES) for one in ids(number, 0, size)}


def limit_of(counts: Array, expected: Array) -> None:
    """Counts are those of draws with these expectations, but once in a million times."""
    statistic = float(((counts - expected) ** 2 / expected).sum())
    assert statistic < chi_square_limit(len(counts) - 1)


# ---------------------------------------------------------------------- which rows


@in_every_sampler
def test_every_sampler_draws_whole_rows_of_all_shards(replay: SharedReplay, name: str) -> None:
    """With and without replacement, and fields of all kinds."""
    learner = replay.learner(SAMPLERS[name](), seed=0)
    seen: set[int] = set()
    for turn in range(60):
        batch = learner.sample(40, replace=turn % 2 == 0)
        shared_rows.check(batch)
        seen |= set(batch["id"].tolist())
        assert (turn % 2 == 0) or len(set(batch["id"].tolist())) == 40
    assert {number // EACH for number in seen} == {0, 1, 2}
    assert len(seen) > 450


@pytest.mark.parametrize("name", ["Uniform", "Prioritized"])
def test_all_rows_are_drawn_once_without_replacement(replay: SharedReplay, name: str) -> None:
    """And one more row is one too many."""
    learner = replay.learner(SAMPLERS[name](), seed=0)
    assert set(learner.sample(500, replace=False)["id"].tolist()) == all_ids()
    with pytest.raises(NotEnoughDataError, match="501"):
        learner.sample(501, replace=False)


@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("name", ["Uniform", "Prioritized", "independent"])
def test_draws_over_uneven_shards_are_uniform(
    replay: SharedReplay, name: str, replace: bool
) -> None:
    """Chi-square over the rows of all shards, without priorities or with equal ones."""
    learner = replay.learner(SAMPLERS[name](), seed=3)
    counts: Counter[int] = Counter()
    for _ in range(400):
        counts.update(learner.sample(25, replace=replace, fields="id")["id"].tolist())
    found = np.array([counts[one] for one in sorted(all_ids())])
    assert found.sum() == 10_000
    limit_of(found, np.full(500, 20.0))


@pytest.mark.parametrize("name", ["Prioritized", "independent"])
def test_draws_are_in_proportion_to_priorities(name: str) -> None:
    """Chi-square with priorities that differ from row to row and from shard to shard."""
    with filled((5, 20, 75)) as replay:
        sampler = Prioritized(1.0, eps=0.0, stratified=name != "independent")
        learner = replay.learner(sampler, seed=4)
        batch = learner.sample(100, replace=False)
        priorities = 1.0 + batch["id"] // EACH * 3 + batch["id"] % 5
        learner.update_priorities(batch["indexes"], priorities)
        counts: Counter[int] = Counter()
        for _ in range(400):
            counts.update(learner.sample(25, fields="id")["id"].tolist())
        found = np.array([counts[one] for one in batch["id"].tolist()])
        limit_of(found, 10_000 * priorities / priorities.sum())


@pytest.mark.once
def test_distinct_rows_of_uneven_shards_are_uniform() -> None:
    """Each shard gives rows in proportion to what is left in it."""
    counts, n, trials = [3, 0, 1, 6], 5, 4000
    rng = np.random.default_rng(0)
    group = Followers(4, ReplayBuffer(1, {"x": {}}).ring, 1)
    found = np.zeros(4)

    def draw(number: int, k: int) -> Array:
        return rng.choice(counts[number], k, replace=False, shuffle=False)

    for _ in range(trials):
        rows = group.draw_each(counts, draw, n, rng, False)
        assert len({*rows.tolist()}) == n
        found += np.bincount(rows & 3, minlength=4)
    expected = trials * n * np.array(counts) / sum(counts)
    assert found[1] == 0
    assert np.abs(found - expected).max() < 5 * np.sqrt(trials * n / 4)


@pytest.mark.once
def test_distinct_rows_come_one_after_another_by_weight() -> None:
    """A pair has the probability of drawing its first row, and then its second among the others."""
    with filled((2, 3), env_dict=SMALL) as replay:
        learner = replay.learner(Prioritized(1.0, eps=0.0), seed=5)
        batch = learner.sample(5, replace=False)
        weights = dict(zip(batch["id"].tolist(), [1.0, 2.0, 3.0, 4.0, 5.0], strict=True))
        learner.update_priorities(batch["indexes"], list(weights.values()))
        counts: Counter[tuple[int, int]] = Counter()
        for _ in range(4000):
            one, other = learner.sample(2, replace=False)["id"].tolist()
            counts[one, other] += 1
        pairs = [(one, other) for one in weights for other in weights if one != other]
        total = sum(weights.values())
        expected = [
            4000 * weights[one] / total * weights[other] / (total - weights[one])
            for one, other in pairs
        ]
        limit_of(np.array([counts[pair] for pair in pairs]), np.array(expected))


@pytest.mark.parametrize("name", ["Uniform", "Prioritized", "independent"])
@pytest.mark.parametrize("replace", [True, False])
def test_one_shard_gives_the_batches_of_a_buffer(name: str, replace: bool) -> None:
    """The same rows, in the same order, with the same weights."""
    if name != "Uniform" and not replace:
        pytest.skip("a buffer draws the same distribution with other random numbers")
    with filled((333,), env_dict=SMALL, capacity=300) as replay:
        learner = replay.learner(SAMPLERS[name](), seed=7)
        cls: Any = ReplayBuffer if name == "Uniform" else PrioritizedReplayBuffer
        rb = cls(300, SMALL, sampler=SAMPLERS[name](), seed=7)
        rb.add(**{key: plain(ids(0, 0, 333))[key] for key in SMALL})
        for _ in range(3):
            ours, theirs = learner.sample(32, replace=replace), rb.sample(32, replace=replace)
            for key in set(theirs) - {"indexes"}:
                np.testing.assert_array_equal(ours[key], theirs[key])
            if name != "Uniform":
                learner.update_priorities(ours["indexes"], ours["id"] % 7)
                rb.update_priorities(theirs["indexes"], theirs["id"] % 7)


def test_weights_are_those_of_one_buffer_with_all_rows() -> None:
    """Importance-sampling weights are normalised over all shards."""
    with filled((7, 50, 3)) as replay:
        learner = replay.learner(Prioritized(0.6, probabilities=True), seed=8)
        rb = PrioritizedReplayBuffer(60, SMALL, sampler=Prioritized(0.6, probabilities=True))
        batch = learner.sample(60, replace=False)
        rb.add(**{name: batch[name] for name in SMALL})
        learner.update_priorities(batch["indexes"], batch["id"] % 11)
        rb.update_priorities(np.arange(60), batch["id"] % 11)
        known: dict[int, tuple[float, float]] = {}
        for _ in range(20):
            theirs = rb.sample(60)
            rows = zip(
                theirs["id"].tolist(), theirs["weights"], theirs["probabilities"], strict=True
            )
            known |= {row: (weight, chance) for row, weight, chance in rows}
        ours = learner.sample(60)
        for row, weight, chance in zip(
            ours["id"].tolist(), ours["weights"], ours["probabilities"], strict=True
        ):
            if row in known:
                assert weight == pytest.approx(known[row][0])
                assert chance == pytest.approx(known[row][1])


@in_every_sampler
def test_the_same_seed_and_rows_give_the_same_batches(replay: SharedReplay, name: str) -> None:
    """Also after a reseed, and whatever another learner does."""
    one = replay.learner(SAMPLERS[name](), seed=9)
    first = [one.sample(20)["id"].tolist() for _ in range(3)]
    other = replay.learner(SAMPLERS[name](), seed=9)
    assert [other.sample(20)["id"].tolist() for _ in range(3)] == first
    if name == "Uniform":
        one.reseed(9)
        assert [one.sample(20)["id"].tolist() for _ in range(3)] == first


# ---------------------------------------------------------------------- priorities


def test_a_late_update_is_never_applied_to_another_row() -> None:
    """Of rows that were written over, hidden or cleared since they were drawn."""
    with filled((30, 30), env_dict=SMALL, capacity=30) as replay:
        learner = replay.learner(Prioritized(1.0, eps=0.0, probabilities=True), seed=10)
        batch = learner.sample(60, replace=False)
        with replay.actor(0) as actor:
            actor.add(**{name: plain(ids(0, 30, 60))[name] for name in SMALL})
        with replay.actor(1) as other:
            other.clear()
            other.add(**{name: plain(ids(1, 60, 90))[name] for name in SMALL})
        learner.update_priorities(batch["indexes"], np.full(60, 100.0))
        assert learner.get_max_priority() == 1.0
        assert set(learner.sample(40)["probabilities"].tolist()) == {1 / 60}


@pytest.mark.parametrize("index", [-1, 0, 5, 10**15])
def test_an_index_that_names_no_row_is_refused(index: int) -> None:
    """And nothing has changed."""
    with filled((5, 5), env_dict=SMALL) as replay:
        learner = replay.learner(Prioritized(1.0, eps=0.0, probabilities=True), seed=11)
        good = learner.sample(1)["indexes"].tolist()
        with pytest.raises(IndexError, match="indexes"):
            learner.update_priorities([*good, index], [9.0, 9.0])
        assert learner.get_max_priority() == 1.0


@pytest.mark.parametrize("tries", [1, 2, 4])
def test_a_try_at_rows_that_were_written_over_is_no_draw(tries: int) -> None:
    """The time of a schedule is that of batches, whatever actors overwrite between them."""
    times: list[int] = []
    calls = [0]
    with filled((30,), env_dict=SMALL, capacity=30) as replay, replay.actor(0) as actor:

        def meanwhile() -> None:
            calls[0] += 1
            if calls[0] % tries:
                actor.add(**{name: plain(ids(0, 0, 30))[name] for name in SMALL})

        def beta(time: int) -> float:
            meanwhile()
            times.append(time)
            return 0.5

        schedule: Any = beta
        learner = replay.learner(Prioritized(beta=schedule), seed=3)
        for _ in range(5):
            learner.sample(8)
        assert calls[0] == 5 * tries
        assert learner.sampler.draw_state() == {"draws": 5}
        assert times == [turn for turn in range(5) for _ in range(tries)]


def test_new_rows_have_the_greatest_priority_of_all_shards() -> None:
    """Not only of their own."""
    with filled((4, 4), env_dict=SMALL) as replay:
        sampler = Prioritized(1.0, eps=0.0, probabilities=True)
        learner = replay.learner(sampler, seed=12)
        batch = learner.sample(8, replace=False)
        learner.update_priorities(batch["indexes"], np.where(batch["id"] < EACH, 3.0, 1.0))
        with replay.actor(1) as actor:
            actor.add(**{name: plain(ids(1, 4, 5))[name] for name in SMALL})
        batch = learner.sample(400)
        new = batch["probabilities"][batch["id"] == EACH + 4]
        assert new[0] == pytest.approx(3 / (4 * 3 + 4 + 3))


@pytest.mark.skipif(not hasattr(time, "thread_time"), reason="no clock of a thread's work")
@pytest.mark.parametrize("chained", [False, True])
def test_learners_copy_batches_by_themselves(chained: bool) -> None:
    """Actors need the other cores: a second thread costs processor time, and waits for one."""
    fields: Any = {"image": {"shape": (300, 300), "dtype": "u1"}}
    options: Any = {"next_of": "image"} if chained else {}
    step = {"image": np.ones((100, 300, 300), "u1")}
    step |= {"next_image": step["image"]} if chained else {}
    before = cpprb_like.get_num_threads()
    with SharedReplay(100, fields, writers=1, **options) as replay, replay.actor() as actor:
        actor.add(**step)
        learner = replay.learner(seed=0)
        try:
            for threads, least, most in ((None, -0.05, 0.05), (2, 0.2, 1.0)):
                cpprb_like.set_num_threads(threads)
                learner.sample(256)
                began, own = time.process_time(), time.thread_time()
                for _ in range(10):
                    learner.sample(256)
                both = time.process_time() - began
                share = 1 - (time.thread_time() - own) / both
                assert least <= share <= most, threads
        finally:
            cpprb_like.set_num_threads(None if before != 1 else 1)


def test_learners_have_priorities_of_their_own(replay: SharedReplay) -> None:
    """What one learns changes nothing for another."""
    one = replay.learner(Prioritized(probabilities=True), seed=13)
    other = replay.learner(Prioritized(probabilities=True), seed=13)
    batch = one.sample(100)
    one.update_priorities(batch["indexes"], batch["id"] % 13)
    assert one.get_max_priority() == 12.0
    assert other.get_max_priority() == 1.0
    np.testing.assert_allclose(other.sample(50)["probabilities"], 1 / 500)


def test_what_has_no_priorities_says_so(replay: SharedReplay) -> None:
    """As a buffer does."""
    learner = replay.learner(seed=14)
    assert not hasattr(learner, "update_priorities")
    assert not hasattr(learner, "get_max_priority")
    with pytest.raises(TypeError, match="no priorities"):
        learner.sample(4, beta=0.5)
    with pytest.raises(TypeError, match="Uniform or Prioritized, and with no subclass"):
        replay.learner("uniform")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="another buffer"):
        replay.learner(PrioritizedReplayBuffer(4, SMALL).sampler)


# ---------------------------------------------------------------------- options


@pytest.mark.parametrize(("width", "tries"), [(4, 1), (5000, 2)])
def test_newest_next_values_stay_during_a_long_read(width: int, tries: int) -> None:
    """Small ones are copied at once; others are read again if two steps came before the read.

    One draw of all rows beside a fast actor took 30 seconds, and mostly ended with an error.
    """
    fields: Any = {"x": {"shape": width}, "done": {"shape": ()}}

    def add(row: int) -> None:
        actor.add(x=np.full(width, row), next_x=np.full(width, row + 0.5), done=0)

    class Slow(Layer):
        tries = 0

        def columns(self, fields: Any) -> Any:
            return {"next": ("f4", (width,))}

        def fill(self, windows: Windows, wanted: Any) -> Any:
            self.tries += 1
            for row in range(10, 12) if self.tries == 1 else ():
                add(row)
            values = windows.take(windows.slots, ["next_x"])["next_x"]
            for row in range(12, 14) if self.tries == 1 else ():
                add(row)
            return {"next": values}

    with SharedReplay(20, fields, writers=1, next_of="x") as replay, replay.actor() as actor:
        for row in range(10):
            add(row)
        slow = Slow()
        view = replay.learner(seed=0).view(slow)
        for size in (200, 300):
            batch = view.sample(size, fields=["x"])
            assert {9.0, 13.0} & set(batch["x"][:, 0])
            np.testing.assert_array_equal(batch["next"], batch["x"] + 0.5)
        assert slow.tries == tries + 1


@pytest.mark.parametrize("options", [{}, {"next_of": "frames", "stack_compress": {"frames": 0}}])
def test_batches_go_where_they_are_asked_to(options: dict[str, Any]) -> None:
    """Into arrays of the caller, of some fields, with handles, and as ``columns`` says."""
    make = chained if options else plain
    env_dict = shared_rows.CHAINED if options else FIELDS
    with filled((20, 30), make, env_dict=env_dict, **options) as replay:
        learner = replay.learner(seed=15)
        out = {
            name: np.empty((16, *spec.shape), spec.dtype) for name, spec in learner.columns.items()
        }
        arrays = dict(out)
        batch = learner.sample(16, out=out, indexes=True)
        assert batch is out
        assert all(batch[name] is values for name, values in arrays.items())
        shared_rows.check(batch, make)
        assert batch["indexes"].dtype == np.int64
        assert list(learner.sample(3, fields=["rew", "id"])) == ["id", "rew"]
        none = learner.sample(0)
        assert {name: values.shape[1:] for name, values in none.items()} == {
            name: spec.shape for name, spec in learner.columns.items()
        }
        with pytest.raises(ValueError, match="'rew'"):
            learner.sample(16, out=out | {"rew": np.empty(15)})
        with pytest.raises(ValueError, match="fields: expected"):
            learner.sample(16, fields="none")
        with pytest.raises(ValueError, match="batch_size"):
            learner.sample(-1)


def test_handles_name_rows_of_all_shards(replay: SharedReplay) -> None:
    """Each row has one, and no two the same."""
    batch = replay.learner(seed=16).sample(500, replace=False, indexes=True)
    assert len(set(batch["indexes"].tolist())) == 500


@pytest.mark.parametrize("prefetch", [0, 2])
def test_batches_are_those_of_sample(replay: SharedReplay, prefetch: int) -> None:
    """Drawn ahead or not, with updates in between."""
    learner = replay.learner(Prioritized(), seed=17)
    with learner.batches(30, beta=0.7, to="numpy", prefetch=prefetch) as batches:
        for _, batch in zip(range(20), batches, strict=False):
            shared_rows.check(batch)
            learner.update_priorities(batch.indexes, batch.rew % 3)


def test_a_learner_has_no_epoch(replay: SharedReplay) -> None:
    """Neither have its views: the rows are others by the end of one."""
    learner = replay.learner(seed=18)
    for source in (learner, learner.view(Sequences(2))):
        with pytest.raises(TypeError, match="a learner has no epoch"):
            source.epoch(64)


def test_a_learner_goes_into_a_mixture(replay: SharedReplay) -> None:
    """Beside a buffer, and updates find their way back."""
    learner = replay.learner(Prioritized(), seed=20)
    demos = ReplayBuffer(10, FIELDS, seed=21)
    demos.add(**plain(ids(9, 0, 10)))
    mixture = Mixture({"online": learner, "demos": demos}, {"online": 0.75, "demos": 0.25}, seed=1)
    batch = mixture.sample(40)
    shared_rows.check(batch)
    assert np.bincount(batch["source"]).tolist() == [30, 10]
    mixture.update_priorities(batch["indexes"], np.full(40, 6.0))
    assert learner.get_max_priority() == 6.0
    with pytest.raises(IndexError, match="online"):
        mixture.update_priorities([2], [1.0])


# ---------------------------------------------------------------------- views


def reaches(achieved: Array, goal: Array, rows: Any) -> Array:
    """A reward that says which rows it was asked for."""
    found: Array = achieved * 1000.0 + goal + rows["id"] * 0.0
    return found


VIEWS: dict[str, tuple[Layer, ...]] = {
    "n-step": (NStep(3, 0.5),),
    "sequences": (Sequences(4),),
    "across": (Sequences(5, across_episodes=True),),
    "strided": (Sequences(3, stride=2),),
    "stacks": (FrameStacks({"obs": 3}),),
    "all": (Sequences(3), NStep(2, 0.5), FrameStacks({"obs": 2})),
    "goals": (Hindsight(reaches, goal="goal", achieved="achieved", reward="rew"),),
}
VIEW_FIELDS = SMALL | {
    "obs": {"shape": (), "dtype": "f8"},
    "achieved": {"shape": (), "dtype": "f8"},
    "goal": {"shape": (), "dtype": "f8"},
}


def viewed(numbers: Array) -> dict[str, Array]:
    """Rows of ``VIEW_FIELDS``."""
    found = {name: plain(numbers)[name] for name in SMALL}
    number = numbers.astype(np.float64)
    return found | {"obs": number, "achieved": number, "goal": -number}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("sampler", [Uniform, Prioritized])
def test_views_stay_within_a_stream_of_a_shard(name: str, sampler: Callable[[], Sampler]) -> None:
    """Every item is made of rows that follow one another in one episode of one actor."""
    with filled((33, 75, 0), viewed, env_dict=VIEW_FIELDS, capacity=50) as replay:
        view = replay.learner(sampler(), seed=22).view(*VIEWS[name])
        for _ in range(30):
            batch = view.sample(20, indexes=True)
            check_item(name, batch)
            for column, spec in view.columns.items():
                assert batch[column].shape[1:] == spec.shape, column
                assert batch[column].dtype == spec.dtype, column


def check_item(name: str, batch: dict[str, Array]) -> None:
    """An item of a view has the values that its rows give it."""
    step = batch["id"] % EACH
    if name in ("sequences", "strided", "all"):
        there = batch["mask"]
        wanted = step[:, :1] + np.arange(step.shape[1])
        np.testing.assert_array_equal(step[there], wanted[there])
        assert (batch["id"][:, :1] // EACH == batch["id"] // EACH)[there].all()
        assert ((step // EPISODE == step[:, :1] // EPISODE) | ~there).all()
        assert (batch["row_indexes"][~there] == -1).all()
        assert (batch["row_indexes"][:, 0] == batch["indexes"]).all()
    elif name == "across":
        assert (np.diff(batch["id"], axis=1) == 1).all()
    elif name == "n-step":
        shared_rows.check_returns(batch, 3)
    elif name == "stacks":
        first = step - step % EPISODE
        frames = np.maximum(step[:, None] + np.arange(-2, 1), first[:, None])
        np.testing.assert_array_equal(batch["obs"], batch["id"][:, None] // EACH * EACH + frames)
    else:
        goals = np.where(batch["goal"] < 0, -batch["goal"], batch["goal"])
        assert (goals // EACH == batch["id"] // EACH).all()
        relabelled = batch["goal"] > 0
        np.testing.assert_array_equal(
            batch["rew"][relabelled], (batch["id"] * 1000.0 + batch["goal"])[relabelled]
        )


def can_start(step: int, size: int) -> bool:
    """Whether four rows follow, or at least three up to the end of the episode."""
    last = step - step % EPISODE + EPISODE - 1
    return last - step + 1 >= 3 if last < size else step + 3 < size


@in_every_sampler
def test_a_batch_of_no_sequences_has_the_columns_of_any_batch(
    replay: SharedReplay, name: str
) -> None:
    """Names of their rows among them, if these are wanted."""
    view = replay.learner(SAMPLERS[name](), seed=0).view(Sequences(3))
    for options in ({}, {"indexes": True}, {"fields": "id", "indexes": True}):
        none, some = view.sample(0, **options), view.sample(2, **options)
        kinds = [
            [(key, values.dtype, values.shape[1:]) for key, values in batch.items()]
            for batch in (none, some)
        ]
        assert kinds[0] == kinds[1]


@pytest.mark.parametrize("sampler", [Uniform, Prioritized])
@pytest.mark.parametrize("replace", [True, False])
def test_starts_of_sequences_are_uniform_over_shards(
    sampler: Callable[[], Sampler], replace: bool
) -> None:
    """Each row that can begin one has the same probability, in however small a shard."""
    with filled((8, 30, 90), env_dict=SMALL) as replay:
        view = replay.learner(sampler(), seed=23).view(Sequences(2, burn_in=2))
        counts: Counter[int] = Counter()
        for _ in range(300):
            counts.update(view.sample(20, replace=replace)["id"][:, 0].tolist())
        starts = [
            one
            for number, size in enumerate((8, 30, 90))
            for one in ids(number, 0, size).tolist()
            if can_start(one % EACH, size)
        ]
        assert set(counts) == set(starts)
        limit_of(
            np.array([counts[one] for one in starts]), np.full(len(starts), 6000 / len(starts))
        )


def test_priorities_of_sequences_are_those_of_their_first_rows() -> None:
    """A view updates the learner's."""
    with filled((20, 20), env_dict=SMALL) as replay:
        learner = replay.learner(Prioritized(1.0, eps=0.0, probabilities=True), seed=24)
        view = learner.view(Sequences(3))
        batch = view.sample(10)
        view.update_priorities(batch["indexes"], np.full(10, 4.0))
        rows = set(batch["id"][:, 0].tolist())
        drawn = learner.sample(200)
        first = np.isin(drawn["id"], list(rows))
        assert first.any()
        assert (drawn["probabilities"][first] > drawn["probabilities"][~first].max()).all()


class Named(Layer):
    """A layer with a column of Python objects, of which each batch has fresh ones."""

    def reads(self, fields: Mapping[str, Any]) -> list[str]:
        return ["id"]

    def columns(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        return {"name": (object, ())}

    def fill(self, windows: Windows, wanted: Mapping[str, Any]) -> dict[str, Array]:
        return {"name": np.array([f"row {row}" for row in windows.read("id").ravel()], object)}


def test_objects_that_a_layer_makes_are_those_of_their_rows(replay: SharedReplay) -> None:
    """They are copied with their counts of references."""
    view = replay.learner(seed=0).view(Named())
    for _ in range(20):
        batch = view.sample(50)
        assert batch["name"].tolist() == [f"row {row}" for row in batch["id"]]


class Drawing(Layer):
    """A layer that has rows written over, and draws from the same learner, in ``fill``."""

    def __init__(self, write: Callable[[], None], draw: Callable[[], object]) -> None:
        self.write, self.draw = write, draw
        self.calls = 0

    def reads(self, fields: Mapping[str, Any]) -> list[str]:
        return ["id"]

    def columns(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        return {"copy": (fields["id"].dtype, ())}

    def fill(self, windows: Windows, wanted: Mapping[str, Any]) -> dict[str, Array]:
        self.calls += 1
        if self.calls % 4 == 1:
            self.write()
            self.draw()
        return {"copy": windows.read("id").reshape(-1)}


@pytest.mark.parametrize(
    ("rows", "options"), [(plain, {}), (chained, {"env_dict": CHAINED, **CHAINED_OPTIONS})]
)
def test_a_layer_may_draw_from_its_own_learner(
    rows: Callable[[Array], dict[str, Array]], options: dict[str, Any]
) -> None:
    """Its draw follows newer rows; rows that were written over are drawn again all the same."""
    replay = filled((50, 50), rows, capacity=50, **options)
    with replay, replay.actor(0) as one, replay.actor(1) as other:
        count = 50

        def write() -> None:
            nonlocal count
            for number, actor in enumerate((one, other)):
                actor.add(**rows(ids(number, count, count + 28)))
            count += 28

        learner = replay.learner(seed=0)
        view = learner.view(Drawing(write, lambda: learner.sample(1)))
        for _ in range(30):
            batch = view.sample(20)
            found = batch.pop("copy")
            assert batch["id"].tolist() == found.tolist()
            shared_rows.check(batch, rows)


class Adding(Layer):
    """A layer that reads the row before each row, and has a row added while it does."""

    def __init__(self, add: Callable[[], object]) -> None:
        self.add = add
        self.calls = 0

    def around(self, fields: Mapping[str, Any]) -> tuple[int, int]:
        return 1, 0

    def columns(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        return {"zero": (np.float32, ())}

    def fill(self, windows: Windows, wanted: Mapping[str, Any]) -> dict[str, Array]:
        self.calls += 1
        self.add()
        return {"zero": np.zeros(len(windows.read("id")), np.float32)}


@pytest.mark.parametrize("nstep", [1, 3])
def test_a_view_passes_over_rows_that_an_actor_is_at(nstep: int) -> None:
    """Large batches of a small shard are drawn, although each try at one costs the oldest row.

    Over n-step returns no try passed over the oldest rows, and after ten seconds there was an
    error.
    """
    options: dict[str, Any] = {}
    if nstep > 1:
        options["Nstep"] = {"size": nstep, "gamma": 0.9, "rew": "rew", "next": []}
    with filled((80,), env_dict=SMALL, capacity=64, **options) as replay, replay.actor(0) as actor:
        layer = Adding(lambda: actor.add(**{name: plain(ids(0, 0, 1))[name] for name in SMALL}))
        view = replay.learner(Prioritized(), seed=3).view(layer)
        for _ in range(5):
            view.sample(256)
        assert layer.calls <= 20


def test_layers_that_do_not_fit_are_refused(replay: SharedReplay) -> None:
    """When the view is made, as by a buffer."""
    learner = replay.learner(seed=26)
    with pytest.raises(TypeError, match="expected NStep"):
        learner.view("sequences")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="more"):
        learner.view(Sequences(2), Sequences(3))
    with pytest.raises(ValueError, match="501"):
        learner.view(Sequences(501))
    assert learner.view(Sequences(500)) is not None


@pytest.mark.parametrize("sampler", [Uniform, Prioritized])
def test_episodes_that_an_actor_deletes_are_not_drawn(sampler: type[Sampler]) -> None:
    """Also when no row has come since; the first that is deleted, and each after it."""
    fields: dict[str, Any] = {"x": {"shape": ()}, "done": {"shape": (), "dtype": bool}}
    with SharedReplay(20, fields, writers=1) as replay, replay.actor() as actor:
        learner = replay.learner(sampler(), seed=0)
        actor.add(x=np.arange(6), done=[0, 1, 0, 1, 0, 1])
        assert set(learner.sample(100)["x"].tolist()) == {0, 1, 2, 3, 4, 5}
        actor.episodes.delete(0)
        assert set(learner.sample(100)["x"].tolist()) == {2, 3, 4, 5}
        actor.episodes.delete(1)
        assert set(learner.sample(100)["x"].tolist()) == {2, 3}
        assert len(learner) == 2


class Own(Prioritized):
    """A sampler of a user."""


@pytest.mark.parametrize(
    "make",
    [
        LegacyUniform,
        RankBased,
        lambda: Recency(least=500),
        lambda: Reverse(3),
        Own,
        PrioritySampler,
        Sampler,
    ],
)
def test_samplers_of_other_classes_are_refused(make: Callable[[], Sampler]) -> None:
    """The rows of several processes have no common order of age; the error says what is taken."""
    with filled((3, 3), env_dict=SMALL) as replay:
        for _ in range(2):
            with pytest.raises(TypeError, match="Uniform or Prioritized, and with no subclass"):
                replay.learner(make())
        assert [one.kind for one in replay.members() if one.kind == "learner"] == []
        assert len(replay.learner(seed=0)) == 6


@pytest.mark.parametrize("writers", [2, 3])  # one shard more than there are rows in
@pytest.mark.parametrize("name", ["Uniform", "Prioritized"])
def test_a_learner_and_its_views_are_freed_at_once(name: str, writers: int) -> None:
    """No cycle of references holds them, so files and locks do not wait for a collection."""
    gc.disable()
    try:
        with SharedReplay(300, SMALL, writers=writers) as replay:
            for number in range(2):
                with replay.actor(number) as actor:
                    actor.add(**{key: plain(ids(number, 0, 40))[key] for key in SMALL})
            learner = replay.learner(SAMPLERS[name](), seed=0)
            views = [learner.view(Sequences(3)), learner.view(NStep(3, gamma=0.5))]
            for source in (learner, *views):
                source.sample(4)
                source.sample(3, replace=False)
            refs = [weakref.ref(one) for one in (learner, learner._shards, *views)]
            del learner, views, source
            assert [one() for one in refs] == [None] * 4
    finally:
        gc.enable()
