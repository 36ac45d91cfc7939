"""``LoggedDraws`` and ``DrawLog``: each batch of a run again, as long as its rows are there."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cpprb_like import DrawLog, LoggedDraws, Mixture, ReplayBuffer
from cpprb_like.limiters import MinSize, RateLimited
from cpprb_like.processes import SharedReplay
from cpprb_like.samplers import Prioritized, Recency
from cpprb_like.views import FrameStacks, Hindsight, NStep, Packed, Sequences

FIELDS: dict[str, Any] = {
    "obs": {"shape": 2},
    "goal": {"shape": 2},
    "rew": {"shape": ()},
    "done": {"shape": (), "dtype": bool},
}


def filled(size: int = 300, n: int = 200, **options: Any) -> ReplayBuffer:
    """A buffer with rows; an episode ends after each 20 rows."""
    rb = ReplayBuffer(size, FIELDS, terminated="done", seed=0, **options)
    add(rb, 0, n)
    return rb


def add(rb: ReplayBuffer, first: int, n: int) -> None:
    """Rows ``first`` to ``first + n``."""
    t = np.arange(first, first + n)
    obs = np.stack([t, -t], 1)
    rb.add(obs=obs, goal=obs + 1, rew=t, done=t % 20 == 19)


def same(one: Any, other: Any) -> None:
    """All columns are equal, in dtype and bit by bit."""
    assert list(one) == list(other)
    for name, values in one.items():
        assert values.dtype == other[name].dtype
        np.testing.assert_array_equal(values, other[name], err_msg=name)


def sparse(achieved: Any, goal: Any, _: Any) -> Any:
    """The reward of a reached goal."""
    return (achieved == goal).all(1).astype(np.float32)


SOURCES = {
    "plain": lambda rb: rb,
    "n-step": lambda rb: rb.view(NStep(3, gamma=0.9)),
    "random n": lambda rb: rb.view(NStep((1, 4), gamma=0.9)),
    "sequences": lambda rb: rb.view(Sequences(5)),
    "stacks": lambda rb: rb.view(FrameStacks({"obs": 3})),
    "hindsight": lambda rb: rb.view(
        Hindsight(sparse, goal="goal", achieved="obs", terminated="done")
    ),
}
SAMPLERS: dict[str, Callable[[], dict[str, Any]]] = {
    "uniform": dict,
    "prioritized": lambda: {"sampler": Prioritized(probabilities=True)},
    "float64": lambda: {"sampler": Prioritized(weights_dtype=np.float64)},
    "recency": lambda: {"sampler": Recency(0.5)},
}
RANDOM = ("random n", "hindsight")  # their layers choose anew


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("kind", SOURCES)
def test_batches_come_again(kind: str, sampler: str, tmp_path: Path) -> None:
    """While rows are added and priorities change in between; the generator is as before."""
    rb = filled(1000, **SAMPLERS[sampler]())
    source = SOURCES[kind](rb)
    batches = []
    with LoggedDraws(source, tmp_path / "log") as logged:
        for number in range(20):
            batches.append(logged.sample(16))
            if rb.has_priorities:
                logged.update_priorities(batches[-1]["indexes"], np.arange(16) + 1.0 + number)
            add(rb, 200 + 20 * number, 20)  # whole episodes: goals come from their rows
    log = DrawLog(tmp_path / "log")
    assert len(log) == 20
    state = rb.rng.bit_generator.state
    for number, batch in enumerate(batches):
        found = log.replay(number, source)
        if kind in RANDOM:
            assert set(found) == set(batch)
            same({"obs": found["obs"]}, {"obs": batch["obs"]})
        else:
            same({name: found[name] for name in batch}, batch)
            assert len(found) == len(batch)
    assert rb.rng.bit_generator.state == state
    assert rb.stats()["draws"] == 20


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("kind", SOURCES)
def test_batches_are_those_of_the_source(kind: str, sampler: str, tmp_path: Path) -> None:
    """With every option of ``sample``, and from ``batches`` and ``epoch``."""
    rb, other = (filled(1000, **SAMPLERS[sampler]()) for _ in range(2))
    source = SOURCES[kind](rb)
    out, into = ({name: np.zeros_like(v) for name, v in source.sample(8).items()} for _ in range(2))
    twin = SOURCES[kind](other)
    twin.sample(8)
    twin.sample(8)
    options: list[dict[str, Any]] = [{}, {"indexes": True}, {"replace": False}, {"fields": "rew"}]
    if rb.has_priorities:
        options.append({"beta": 0.7})
    with LoggedDraws(source, tmp_path / "log") as logged:
        for option in options:
            same(logged.sample(8, **option), twin.sample(8, **option))
        assert logged.sample(8, out=into) is into
        same(into, twin.sample(8, out=out))
        same(next(logged.batches(8)), next(twin.batches(8)))
        same(next(logged.epoch(8)), next(twin.epoch(8)))
        assert logged.columns == twin.columns
        assert (len(logged), logged.fields) == (len(twin), twin.fields)
        assert logged.stats().keys() == twin.stats().keys()
    assert len(DrawLog(tmp_path / "log")) == len(options) + 2


def test_packed_rows_go_into_parts_of_arrays(tmp_path: Path) -> None:
    """The arrays of the caller stay as long as they are, for the next draw."""
    rb = ReplayBuffer(8, {"x": {"shape": ("T",), "dtype": "i4"}}, room={"T": 99}, seed=0)
    rb.add(x=[np.arange(n) for n in range(8)])
    out = {"x": np.zeros(99, "i4")}
    given = out["x"]
    with LoggedDraws(rb.view(Packed()), tmp_path / "log") as logged:
        for _ in range(3):
            batch = logged.sample(4, out=out)
            assert out["x"] is given
            assert np.shares_memory(batch["x"], given)
            assert len(batch["x"]) == batch["T_offsets"][-1]


def test_what_a_log_says(tmp_path: Path) -> None:
    """Handles, ages, probabilities, weights, versions and states are those of the draws."""
    rb = filled(sampler=Prioritized(probabilities=True))
    states, batches = [rb.rng.bit_generator.state], []
    with LoggedDraws(rb, tmp_path / "log") as logged:
        for number in range(5):
            batches.append(logged.sample(8 + number))
            states.append(rb.rng.bit_generator.state)
            rb.update_priorities(batches[-1]["indexes"], np.arange(8.0 + number))
            assert len(DrawLog(tmp_path / "log")) == number + 1
    log = DrawLog(tmp_path / "log")
    for k, batch in enumerate(batches):
        draw = log[k]
        np.testing.assert_array_equal(draw.handles, batch["indexes"])
        np.testing.assert_array_equal(draw.ages, 199 - batch["obs"][:, 0])
        np.testing.assert_array_equal(draw.probabilities, batch["probabilities"])
        np.testing.assert_array_equal(draw.weights, batch["weights"])
        assert (draw.before, draw.after, draw.written) == (states[k], states[k + 1], 200)
    handles = log.handles()
    assert len(handles) == sum(range(8, 13))
    rb.describe(draws=handles)


@pytest.mark.parametrize("kind", SOURCES)
def test_the_state_before_a_draw_repeats_it(kind: str, tmp_path: Path) -> None:
    """While rows and priorities stay as they were, also with layers that choose at random."""
    rb = filled(sampler=Prioritized())
    source = SOURCES[kind](rb)
    with LoggedDraws(source, tmp_path / "log") as logged:
        batches = [logged.sample(8) for _ in range(3)]
    rb.rng.bit_generator.state = DrawLog(tmp_path / "log")[1].before
    same(source.sample(8), batches[1])


@pytest.mark.parametrize("kind", [np.random.MT19937, np.random.Philox, np.random.SFC64])
def test_generators_of_every_kind(kind: Any, tmp_path: Path) -> None:
    """A state that has arrays is written and read."""
    rb = ReplayBuffer(100, FIELDS, seed=np.random.Generator(kind(0)))
    add(rb, 0, 50)
    with LoggedDraws(rb, tmp_path / "log") as logged:
        batches = [logged.sample(8) for _ in range(2)]
    log = DrawLog(tmp_path / "log")
    rb.rng.bit_generator.state = log[1].before
    same(rb.sample(8), batches[1])
    same(log.replay(1, rb), batches[1])


def test_what_cannot_be_logged(tmp_path: Path) -> None:
    """Sources of several rings, and slots in place of handles; no file is left."""
    path = tmp_path / "log"
    rb = filled(sampler=Prioritized(check_for_update=False))
    with pytest.raises(ValueError, match="without check_for_update they are slots"):
        LoggedDraws(rb, path)
    with SharedReplay(100, FIELDS, writers=1) as replay:
        for source in (
            replay.learner(),
            replay.learner().view(NStep(2)),
            Mixture({"a": rb}, {"a": 1}),
        ):
            with pytest.raises(TypeError, match="source: expected a ReplayBuffer, a view of one"):
                LoggedDraws(source, path)
    assert not path.exists()


def test_parts_of_a_mixture_and_limited_sources(tmp_path: Path) -> None:
    """A mixture of logged sources, and a limiter inside."""
    rb, limited = filled(), RateLimited(filled(), MinSize(10))
    view = limited.view(NStep(3, gamma=0.9))
    with (
        LoggedDraws(rb, tmp_path / "one") as one,
        LoggedDraws(limited, tmp_path / "two") as two,
        LoggedDraws(view, tmp_path / "three") as three,
    ):
        mixture = Mixture({"one": one, "two": two}, {"one": 1, "two": 1}, seed=0)
        mixture.sample(10)
        batch = three.sample(4)
    assert [len(DrawLog(tmp_path / name)[0].handles) for name in ("one", "two")] == [5, 5]
    same(DrawLog(tmp_path / "three").replay(0, view), batch)
    assert limited.stats()["samples"] == 9


def test_a_log_is_not_saved_or_pickled(tmp_path: Path) -> None:
    """Its source is; the error is a ``TypeError``."""
    rb = filled()
    with LoggedDraws(rb, tmp_path / "log") as logged:
        with pytest.raises(TypeError):
            pickle.dumps(logged)
        with pytest.raises(TypeError):
            logged.save(tmp_path / "saved")
        batch = logged.sample(4)
        rb.save(tmp_path / "saved")
    same(DrawLog(tmp_path / "log").replay(0, ReplayBuffer.load(tmp_path / "saved")), batch)


def test_rows_that_are_gone_or_changed(tmp_path: Path) -> None:
    """Gone rows are an error, changed ones a warning."""
    rb = filled()
    with LoggedDraws(rb, tmp_path / "log") as logged:
        logged.sample(50)
    log = DrawLog(tmp_path / "log")
    rb.update(rb.ring.newest_slots(1), rew=7)
    with pytest.warns(UserWarning, match="changed since draw 0"):
        log.replay(0, rb)
    add(rb, 200, 250)
    with pytest.raises(LookupError, match="of 50 rows of draw 0 are gone"):
        log.replay(0, rb)
    rb.clear()
    with pytest.raises(LookupError, match="50 of 50"):
        log.replay(0, rb)
    for number in (1, 99, -2):
        with pytest.raises(IndexError, match=f"the log has 1 draws, .* got {number}"):
            log.replay(number, rb)


def test_large_draws_and_many(tmp_path: Path) -> None:
    """Each is a record, of 8 bytes a row and half a kilobyte."""
    rb = filled()
    sizes = [100_000, 1, 70_000, 0, *[256] * 3000]
    with LoggedDraws(rb, tmp_path / "log") as logged:
        for size in sizes:
            logged.sample(size)
    log = DrawLog(tmp_path / "log")
    assert [len(one.handles) for one in log] == sizes
    assert (tmp_path / "log").stat().st_size < 8 * sum(sizes) + 512 * len(sizes)


def test_a_log_of_a_killed_process(tmp_path: Path) -> None:
    """The last record may be cut anywhere."""
    rb = filled()
    with LoggedDraws(rb, tmp_path / "log") as logged:
        for _ in range(3):
            logged.sample(4)
    data = (tmp_path / "log").read_bytes()
    for cut in range(1, len(data) - data.index(b"\n")):
        (tmp_path / "cut").write_bytes(data[:-cut])
        assert len(DrawLog(tmp_path / "cut")) <= 2
    for wrong in (b"", b"x", b"{}\n", b"[]\n", bytes(100)):
        (tmp_path / "cut").write_bytes(wrong)
        with pytest.raises(ValueError, match="expected a log"):
            DrawLog(tmp_path / "cut")


def test_an_existing_file_stays(tmp_path: Path) -> None:
    """It is refused, and nothing is logged after the end."""
    rb = filled()
    with LoggedDraws(rb, tmp_path / "log") as logged:
        logged.sample(4)
    logged.sample(4)
    assert len(DrawLog(tmp_path / "log")) == 1
    with pytest.raises(FileExistsError):
        LoggedDraws(rb, tmp_path / "log")
    assert len(DrawLog(tmp_path / "log")) == 1


def test_threads(tmp_path: Path) -> None:
    """Each draw has a record of its own."""
    rb = filled()

    def draw(logged: LoggedDraws) -> None:
        for _ in range(500):
            logged.sample(3)

    with LoggedDraws(rb, tmp_path / "log") as logged:
        threads = [threading.Thread(target=draw, args=(logged,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    log = DrawLog(tmp_path / "log")
    assert len(log) == 2000
    assert {len(one.handles) for one in log} == {3}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_ends_the_log(tmp_path: Path) -> None:
    """The draw that fails to be written raises, others go on, and what was written is read."""
    rb = filled()
    logged = LoggedDraws(rb, tmp_path / "log")
    logged.sample(4)
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, logged._file.fileno())
    os.close(full)
    with pytest.raises(OSError, match="disk is full"):
        logged.sample(4)
    logged.sample(4)
    logged.close()
    assert len(DrawLog(tmp_path / "log")) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_logs_nothing(tmp_path: Path) -> None:
    """Records of the parent come once."""
    rb = filled()
    with LoggedDraws(rb, tmp_path / "log") as logged:
        logged.sample(3)
        child = os.fork()
        if child == 0:
            logged.sample(4)
            logged.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        logged.sample(5)
    assert [len(one.handles) for one in DrawLog(tmp_path / "log")] == [3, 5]


def test_a_write_that_lets_other_threads_draw_and_add(tmp_path: Path) -> None:
    """No record is lost or mixed up, and large ones do not take the place of others."""
    rb = filled(sampler=Prioritized())
    seen: list[list[int]] = [[] for _ in range(4)]

    def draw(logged: LoggedDraws, number: int) -> None:
        for k in range(60):
            size = 40_000 if k % 5 == number else 2000 + number
            seen[number].append(int(logged.sample(size)["indexes"].sum()))
            add(rb, 0, 20)

    with LoggedDraws(rb, tmp_path / "log") as logged:
        threads = [threading.Thread(target=draw, args=(logged, number)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    log = DrawLog(tmp_path / "log")
    assert len(log) == 240
    assert sorted(int(one.handles.sum()) for one in log) == sorted(sum(seen, []))
