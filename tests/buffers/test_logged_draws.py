"""``log_draws`` and ``replay_draw``: each batch of a run again, as long as its rows are there."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cpprb_like import LoggedDraws, ReplayBuffer
from cpprb_like.samplers import Prioritized, RankBased, Recency
from cpprb_like.views import FrameStacks, Hindsight, NStep, Sequences

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
    "prioritized": lambda: {"sampler": Prioritized()},
    "handles": lambda: {"sampler": Prioritized(check_for_update=True, probabilities=True)},
    "ranks": lambda: {"sampler": RankBased()},
    "recency": lambda: {"sampler": Recency(0.5)},
}


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("kind", SOURCES)
def test_batches_come_again(kind: str, sampler: str, tmp_path: Path) -> None:
    """While rows are added and priorities change in between; the generator is as before."""
    rb = filled(1000, **SAMPLERS[sampler]())
    source = SOURCES[kind](rb)
    batches = []
    with rb.log_draws(tmp_path / "log"):
        for number in range(20):
            batches.append(source.sample(16))
            if rb.has_priorities:
                rb.update_priorities(
                    batches[-1]["indexes"].ravel()[:16], np.arange(16) + 1.0 + number
                )
            add(rb, 200 + 20 * number, 20)  # whole episodes: goals come from their rows
    log = LoggedDraws(tmp_path / "log")
    assert len(log) == 20
    state = rb.rng.bit_generator.state
    for number, batch in enumerate(batches):
        found = source.replay_draw(log, number)
        batch.pop("probabilities", None)
        same(found, {name: batch[name] for name in found})
        assert set(batch) <= {*found}
    assert rb.rng.bit_generator.state == state
    assert rb.stats()["draws"] == 20


def test_what_a_log_says(tmp_path: Path) -> None:
    """Handles, ages, probabilities, weights and versions are those of the draws."""
    rb = filled(sampler=Prioritized(check_for_update=True, probabilities=True))
    states, batches = [], []
    with rb.log_draws(tmp_path / "log") as log:
        for number in range(5):
            states.append(rb.rng.bit_generator.state)
            batches.append(rb.sample(8 + number))
            rb.update_priorities(batches[-1]["indexes"], np.arange(8.0 + number))
        log.flush()
        assert len(LoggedDraws(tmp_path / "log")) == 5
    found = list(LoggedDraws(tmp_path / "log"))
    for one, batch, state in zip(found, batches, states, strict=True):
        np.testing.assert_array_equal(one.handles, batch["indexes"])
        np.testing.assert_array_equal(one.ages, 199 - batch["obs"][:, 0])
        assert one.probabilities is not None
        assert one.weights is not None
        np.testing.assert_allclose(one.probabilities, batch["probabilities"], rtol=1e-6)
        np.testing.assert_array_equal(one.weights, batch["weights"])
        assert one.before == state
        assert (one.written, one.clears) == (200, 0)
    handles = LoggedDraws(tmp_path / "log").handles()
    assert len(handles) == sum(range(8, 13))
    rb.describe(draws=handles)


def test_rows_that_are_gone_or_changed(tmp_path: Path) -> None:
    """Gone rows are an error, changed ones a warning."""
    rb = filled()
    with rb.log_draws(tmp_path / "log"):
        rb.sample(50)
    log = LoggedDraws(tmp_path / "log")
    rb.update(rb.ring.newest_slots(1), rew=7)
    with pytest.warns(UserWarning, match="changed since draw 0"):
        rb.replay_draw(log, 0)
    add(rb, 200, 250)
    with (
        pytest.warns(UserWarning, match="changed since"),
        pytest.raises(LookupError, match="of 50 rows of draw 0 are gone"),
    ):
        rb.replay_draw(log, 0)
    rb.clear()
    with (
        pytest.warns(UserWarning, match="changed since"),
        pytest.raises(LookupError, match="50 of 50"),
    ):
        rb.replay_draw(log, 0)
    with pytest.raises(IndexError):
        rb.replay_draw(log, 1)


def test_large_draws_and_many(tmp_path: Path) -> None:
    """Records longer than what is written together, and many of them."""
    rb = filled()
    sizes = [100_000, 1, 70_000, 0, *[256] * 3000]
    with rb.log_draws(tmp_path / "log"):
        for size in sizes:
            rb.sample(size)
    log = LoggedDraws(tmp_path / "log")
    assert [len(one.handles) for one in log] == sizes
    assert (tmp_path / "log").stat().st_size < 6 * sum(sizes)


def test_a_log_of_a_killed_process(tmp_path: Path) -> None:
    """The last record may be cut anywhere."""
    rb = filled()
    with rb.log_draws(tmp_path / "log"):
        for _ in range(3):
            rb.sample(4)
    data = (tmp_path / "log").read_bytes()
    for cut in range(1, len(data) - data.index(b"\n")):
        (tmp_path / "cut").write_bytes(data[:-cut])
        assert len(LoggedDraws(tmp_path / "cut")) <= 2
    for wrong in (b"", b"x", b"{}\n", b"[]\n", bytes(100)):
        (tmp_path / "cut").write_bytes(wrong)
        with pytest.raises(ValueError, match="expected a log"):
            LoggedDraws(tmp_path / "cut")


def test_one_log_at_a_time(tmp_path: Path) -> None:
    """A second one, and an existing file, are refused, and nothing is logged after the end."""
    rb = filled()
    with rb.log_draws(tmp_path / "log"):
        with pytest.raises(RuntimeError, match="already"):
            rb.log_draws(tmp_path / "other")
        rb.sample(4)
    rb.sample(4)
    assert len(LoggedDraws(tmp_path / "log")) == 1
    with pytest.raises(FileExistsError):
        rb.log_draws(tmp_path / "log")
    rb.sample(4)


def test_threads(tmp_path: Path) -> None:
    """Each draw has a record of its own."""
    rb = filled()

    def draw() -> None:
        for _ in range(500):
            rb.sample(3)

    with rb.log_draws(tmp_path / "log"):
        threads = [threading.Thread(target=draw) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    log = LoggedDraws(tmp_path / "log")
    assert len(log) == 2000
    assert {len(one.handles) for one in log} == {3}


def test_another_generator(tmp_path: Path) -> None:
    """Its states are not known; rows are."""
    rb = ReplayBuffer(100, FIELDS, seed=np.random.Generator(np.random.MT19937(0)))
    add(rb, 0, 50)
    with rb.log_draws(tmp_path / "log"):
        batch = rb.sample(8)
    log = LoggedDraws(tmp_path / "log")
    assert log[0].before is None
    same(rb.replay_draw(log, 0), batch)


def test_a_generator_of_another_kind_later(tmp_path: Path) -> None:
    """Its memory is not read as that of a PCG64."""
    rb = filled()
    with rb.log_draws(tmp_path / "log"):
        rb.sample(4)
        rb.rng = np.random.Generator(np.random.MT19937(0))
        batch = rb.sample(4)
    log = LoggedDraws(tmp_path / "log")
    assert log[0].before is not None
    assert log[1].before is None
    same(rb.replay_draw(log, 1), batch)
    rb.replay_draw(log, 0)


def test_a_long_name_of_a_sampler(tmp_path: Path) -> None:
    """The head of the file is cut, and still read."""

    class Long(Recency):
        """A sampler with a long name."""

        def __repr__(self) -> str:
            return "é" * 5000

    rb = filled(sampler=Long(0.5))
    with rb.log_draws(tmp_path / "log"):
        rb.sample(4)
    assert len(LoggedDraws(tmp_path / "log")) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_ends_the_log(tmp_path: Path) -> None:
    """The draw that fails to be written raises, others go on, and what was written is read."""
    rb = filled()
    log = rb.log_draws(tmp_path / "log")
    rb.sample(4)
    log.flush()
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, log._file.fileno())
    os.close(full)
    with pytest.raises(OSError, match="disk is full"):  # noqa: PT012 (the first or the second)
        rb.sample(100_000)
        rb.sample(4)
    rb.sample(4)
    log.flush()
    log.close()
    assert len(LoggedDraws(tmp_path / "log")) == 1
    rb.log_draws(tmp_path / "other").close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_logs_nothing(tmp_path: Path) -> None:
    """Records of the parent come once."""
    rb = filled()
    with rb.log_draws(tmp_path / "log") as log:
        rb.sample(3)
        child = os.fork()
        if child == 0:
            rb.sample(4)
            log.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        rb.sample(5)
    assert [len(one.handles) for one in LoggedDraws(tmp_path / "log")] == [3, 5]


def test_rows_that_are_written_over_before_the_record(tmp_path: Path) -> None:
    """A record names the rows of the batch, also if other threads write rows or clear."""
    for clears in (False, True):
        rb = filled(60, 60, sampler=Recency(0.9))
        view = rb.view(NStep((1, 3), gamma=0.9))
        path = tmp_path / f"log{clears}"
        handles = []
        note = view._log_draw

        def late(*drawn: Any) -> None:
            """What another thread does between the read and the record."""
            rb.clear() if clears else None  # noqa: B023
            add(rb, 60, 40)  # noqa: B023
            note(*drawn)  # noqa: B023

        view._log_draw = late  # type: ignore[assignment, method-assign]
        with rb.log_draws(path):
            handles.append(view.sample(30, indexes=True)["indexes"])
        np.testing.assert_array_equal(LoggedDraws(path)[0].handles, handles[0])


def test_a_write_that_lets_other_threads_draw_and_add(tmp_path: Path) -> None:
    """No record is lost or mixed up, and large ones do not take the place of others."""
    rb = filled(sampler=Prioritized(check_for_update=True))
    seen: list[list[int]] = [[] for _ in range(4)]

    def draw(number: int) -> None:
        for k in range(60):
            size = 40_000 if k % 5 == number else 2000 + number
            seen[number].append(int(rb.sample(size)["indexes"].sum()))
            add(rb, 0, 20)

    with rb.log_draws(tmp_path / "log"):
        threads = [threading.Thread(target=draw, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    log = LoggedDraws(tmp_path / "log")
    assert len(log) == 240
    assert sorted(int(one.handles.sum()) for one in log) == sorted(sum(seen, []))
