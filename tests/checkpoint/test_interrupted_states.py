"""Ctrl-C in ``restore``, ``load``, ``save_async``: the old state or the new one, and no lock."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from interruptions import Cut, cut_at
from scale import LONG

from cpprb_like import Mixture, PrioritizedReplayBuffer, ReplayBuffer, ReplayMemory
from cpprb_like.checkpoint import load
from cpprb_like.compat import coax, dqn, keras_gym
from cpprb_like.limiters import Backlog, RateLimited
from cpprb_like.samplers import Prioritized, RankBased, Recency
from cpprb_like.views import NStep

FIELDS: dict[str, Any] = {"x": {"shape": ()}, "done": {"shape": (), "dtype": bool}}
CUTS = 400 if LONG else 40  # of each test, at lines that are chosen by a seed

# A cut between the call that opens a file and the 'with' that closes it leaves the file to Python.
pytestmark = [pytest.mark.once, pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")]


def filled(first: int, sampler: Any = None, **options: Any) -> ReplayBuffer:
    """A buffer whose rows, priorities and generator follow from ``first``."""
    rb = ReplayBuffer(50, FIELDS, sampler=sampler or Prioritized(), seed=first, **options)
    x = first + np.arange(24.0)
    given: dict[str, Any] = {"next_x": x + 1} if "next_of" in options else {}
    if rb.has_priorities:
        given["priorities"] = np.full(24, 1.0 + first)
    rb.add(x=x, done=np.arange(24) % 5 == 4, **given)
    return rb


def look_at(rb: ReplayBuffer) -> Any:
    """Rows, weights, attributes of the sampler and state of the generator of a buffer."""
    rb.check()
    rows = {name: column.tolist() for name, column in rb.get_all_transitions().items()}
    sampler: Any = rb.sampler
    simple = {k: v for k, v in vars(sampler).items() if isinstance(v, (bool, int, float, str))}
    weights = sampler.row_priorities(rb.ring.newest_slots(len(rb.ring)))
    weights = None if weights is None else weights.tolist()
    return rows, simple, weights, str(rb.rng.bit_generator.state), rb.capacity


def look_at_mixture(mixture: Any) -> Any:
    """All of its buffers, and what it has for itself."""
    parts = [look_at(getattr(part, "buffer", part)) for part in mixture.sources.values()]
    return parts, mixture.draws, str(mixture.rng.bit_generator.state)


def mixture_of(first: int) -> Any:
    """Two buffers, one of them behind a view, and batches that were drawn."""
    one, two = filled(first), filled(first + 1, RankBased())
    mixture = Mixture(
        {"a": one, "b": two.view(NStep(2, 0.5, rew="x"))}, {"a": 1, "b": 1}, seed=first
    )
    for _ in range(first % 7):
        mixture.sample(4)
    return mixture


def limited_of(first: int) -> Any:
    """A buffer with a limiter."""
    rb = RateLimited(filled(first), Backlog(30, timeout=0.0))
    rb.sample(1 + first % 7)
    return rb


def memory_of(first: int) -> Any:
    """A memory of objects."""
    memory = ReplayMemory(10, seed=first)
    for number in range(first % 7, 9):
        memory.append(number)
    return memory


def frames_of(first: int) -> Any:
    """Berkeley's buffer."""
    buffer = dqn.ReplayBuffer(30, 2, seed=first)
    for t in range(8 + first % 7):
        frame = np.full((4, 4, 1), (first + t) % 256, np.uint8)
        buffer.store_effect(buffer.store_frame(frame), t % 3, float(first), t % 5 == 4)
    return buffer


def keras_of(first: int) -> Any:
    """keras-gym's buffer."""
    buffer = keras_gym.ExperienceReplayBuffer(ENV, 50, bootstrap_n=2, random_seed=first)
    for t in range(10 + first % 7):
        buffer.add(np.full(4, first + t), t % 2, float(first), t % 5 == 4, episode_id=t // 5)
    return buffer


def coax_of(first: int) -> Any:
    """A buffer of coax."""
    buffer = coax.SimpleReplayBuffer(20, random_seed=first)
    for t in range(8 + first % 7):
        buffer.add(
            coax.TransitionBatch.from_single(
                s=np.full(4, first + t), a=t % 2, logp=0.0, r=1.0, done=False, gamma=0.9,
                s_next=np.full(4, first), a_next=0, logp_next=0.0,
            )
        )  # fmt: skip
    return buffer


ENV = gymnasium.make("CartPole-v1")
# By name: an object made of a number, and all that a caller can see of it.
THINGS: dict[str, tuple[Callable[[int], Any], Callable[[Any], Any]]] = {
    "buffer": (filled, look_at),
    "next_of": (lambda first: filled(first, Recency(), next_of="x"), look_at),
    "mixture": (mixture_of, look_at_mixture),
    "limited": (limited_of, lambda rb: (look_at(rb.buffer), rb.stats()["rows"])),
    "memory": (memory_of, lambda memory: (list(memory), str(memory.rng.bit_generator.state))),
    "dqn": (frames_of, lambda b: (look_at(b._rows), b._pending, str(b._rng.bit_generator.state))),
    "keras_gym": (keras_of, lambda b: (b.random.get_state()[1].tolist(), len(b), b._begun)),
    "coax": (coax_of, lambda b: (look_at(b._rows), b._random.getstate())),
}


def lines_of(call: Callable[[], object], last: int) -> list[int]:
    """Some lines that a call runs, and most of its ``last`` lines."""
    with cut_at(-1) as count:
        call()
    rng = np.random.default_rng(count[0])
    lines = rng.choice(count[0], min(CUTS // 4, count[0]), replace=False) + 1
    ends = np.arange(max(1, count[0] - last), count[0] + 1)
    ends = rng.choice(ends, min(CUTS - CUTS // 4, len(ends)), replace=False)
    return sorted({*lines.tolist(), *ends.tolist()})


@pytest.mark.parametrize("name", THINGS)
def test_a_restore_that_is_cut_anywhere_changes_all_or_nothing(name: str, tmp_path: Path) -> None:
    """Parts got their state one after the other; a sampler had no attributes in between."""
    make, look = THINGS[name]
    options: dict[str, Any] = {"encode": lambda n: bytes([n])} if name == "memory" else {}
    back: dict[str, Any] = {"decode": lambda data: data[0]} if name == "memory" else {}
    saved = make(1004)
    saved.save(tmp_path, **options)
    new, old = look(saved), look(make(1))
    assert new != old
    kinds = set()
    for line in lines_of(lambda: make(1).restore(tmp_path, **back), 500):
        thing = make(1)
        with contextlib.suppress(Cut), cut_at(line):
            thing.restore(tmp_path, **back)
        found = look(thing)
        assert found in (old, new), f"cut at line {line}"
        kinds.add(found == new)
    thing.restore(tmp_path, **back)
    assert look(thing) == new
    assert False in kinds


def test_a_reseed_that_is_cut_anywhere_sets_all_generators_or_none() -> None:
    """The generators of a mixture were set one after the other."""

    def look(mixture: Any) -> list[str]:
        parts = [getattr(part, "buffer", part) for part in mixture.sources.values()]
        return [str(one.rng.bit_generator.state) for one in (mixture, *parts)]

    def reseeded() -> Any:
        mixture = mixture_of(1)
        mixture.reseed(7)
        return mixture

    old, new = look(mixture_of(1)), look(reseeded())
    for line in lines_of(lambda: mixture_of(1).reseed(7), 300):
        mixture = mixture_of(1)
        with contextlib.suppress(Cut), cut_at(line):
            mixture.reseed(7)
        assert look(mixture) in (old, new)


def test_parts_keep_their_identity_and_their_threads_go_on(tmp_path: Path) -> None:
    """A view of a limited buffer counts draws at the gate that its actors see, also afterwards."""
    rb = limited_of(1)
    view, gate, sampler, rng = rb.view(), rb._gate, rb.buffer.sampler, rb.buffer.rng
    rb.save(tmp_path)
    rb.buffer.clear()
    rb.restore(tmp_path)
    assert (rb._gate, view._gate, rb.buffer.sampler, rb.buffer.rng) == (gate, gate, sampler, rng)
    assert len(rb) == 24
    before = rb.stats()["samples"]
    view.sample(3)
    assert rb.stats()["samples"] == before + 3


def threads_of_saves() -> list[threading.Thread]:
    """Threads of saves that run. A start that was cut may leave one that never runs."""
    return [one for one in threading.enumerate() if one.name == "save" and one.is_alive()]


def with_a_save(folder: Path, first: int) -> PrioritizedReplayBuffer:
    """A buffer that was saved, and has changed since."""
    rb = PrioritizedReplayBuffer(100, FIELDS, seed=0)
    rb.add(x=first + np.arange(20), done=np.zeros(20))
    rb.save(folder, sync=False)
    rb.add(x=first - 1, done=0)
    rb.update([3], x=[first - 2])
    return rb


def check_folder(rb: ReplayBuffer, folder: Path, first: int) -> None:
    """The folder has the old state or the new one, and a new save leaves the present one."""
    old = [*np.arange(first, first + 20).tolist()]
    new = [*old, first - 1]
    new[3] = first - 2
    assert load(folder).get_all_transitions()["x"].tolist() in (old, new)
    rb.update([4], x=[first - 3])
    rb.save(folder, sync=False)
    new[4] = first - 3
    assert load(folder).get_all_transitions()["x"].tolist() == new
    gc.collect()
    rb.save(folder, sync=False)
    assert len(rb._saves._running) == 0


def test_save_async_that_is_cut_anywhere_leaves_no_lock(tmp_path: Path) -> None:
    """The lock was given back while the thread went on, or a thread that never ran held it."""
    folders = iter(range(10**6))

    def prepared() -> tuple[PrioritizedReplayBuffer, Path]:
        folder = tmp_path / str(next(folders))
        return with_a_save(folder, 1), folder

    def run(line: int) -> None:
        rb, folder = prepared()
        with contextlib.suppress(Cut), cut_at(line):
            rb.save_async(folder, sync=False)
        for thread in threads_of_saves():  # of a call that was cut when it had begun the save
            thread.join()
        check_folder(rb, folder, 1)

    rb, folder = prepared()
    for line in lines_of(lambda: rb.save_async(folder, sync=False).result(), 300):
        run(line)


@pytest.mark.parametrize("moment", ["before", "waiting", "after"])
def test_no_save_runs_beside_one_whose_start_was_interrupted(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``Thread.start`` waits for the thread, and signal handlers run there."""
    rb = with_a_save(tmp_path, 1)
    start, create_thread = threading.Thread.start, threading.Thread._bootstrap  # type: ignore[attr-defined]
    late = threading.Event()

    def interrupted(thread: threading.Thread) -> None:
        if moment == "waiting":  # the thread exists, and has not begun
            monkeypatch.setattr(thread, "_bootstrap", lambda: (late.wait(5), create_thread(thread)))
            monkeypatch.setattr(thread._started, "wait", lambda: None)  # type: ignore[attr-defined]
        if moment != "before":
            start(thread)
        raise Cut

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(Cut):
        rb.save_async(tmp_path, sync=False)
    monkeypatch.setattr(threading.Thread, "start", start)
    assert moment == "waiting" or not threads_of_saves()
    check_folder(rb, tmp_path, 1)
    late.set()
    until = time.monotonic() + 5
    while threads_of_saves() and time.monotonic() < until:
        time.sleep(0.001)
    assert load(tmp_path).get_all_transitions()["x"].tolist()[4] == -2


PROCESS = """
import atexit, multiprocessing, os, signal, sys, threading, time
import numpy as np
from cpprb_like import ReplayBuffer
from cpprb_like.checkpoint import _save

def save():
    rb = ReplayBuffer(100, {"x": {"shape": ()}})
    rb.add(x=np.arange(20))
    write = _save.Snapshot.write
    _save.Snapshot.write = lambda snapshot: (time.sleep(0.3), write(snapshot))
    rb.save_async(sys.argv[2], sync=False)

def late_thread():
    save_soon = lambda: (threading.main_thread().join(), time.sleep(0.1), save())
    threading.Thread(target=save_soon).start()

def late_signal():
    signal.signal(signal.SIGTERM, lambda *_: save())
    kill = lambda: (threading.main_thread().join(), time.sleep(0.1), os.kill(os.getpid(), 15))
    threading.Thread(target=kill).start()

def late_start():
    begin = threading.Thread.run
    threading.Thread.run = lambda thread: (time.sleep(0.3), begin(thread))
    save()

def at_exit():
    del sys.modules["cpprb_like.checkpoint._save"]  # as before a first save
    rb = ReplayBuffer(100, {"x": {"shape": ()}})
    rb.add(x=np.arange(20))
    atexit.register(lambda: rb.save(sys.argv[2], sync=False))

def never_begins():
    rb = ReplayBuffer(100, {"x": {"shape": ()}})
    enter, begin, taken = threading.Condition.__enter__, threading.Thread._bootstrap, []

    def interrupted(condition):
        enter(condition)
        if sys._getframe(2).f_code is threading.Thread.start.__code__:
            taken.append(condition)  # the lock of a condition stays taken
            raise KeyboardInterrupt

    def late(thread):
        while not taken:
            time.sleep(0.01)
        begin(thread)

    threading.Condition.__enter__, threading.Thread._bootstrap = interrupted, late
    try:
        rb.save_async(sys.argv[2], sync=False)
    except KeyboardInterrupt:
        time.sleep(0.3)  # by now the thread waits for the lock
        rb.save(sys.argv[2], sync=False)

if sys.argv[1] == "forked":
    process = multiprocessing.get_context("fork").Process(target=save)
    process.start()
    process.join()
    sys.exit(process.exitcode)
globals()[sys.argv[1]]()
"""


@pytest.mark.parametrize(
    ("how", "n"),
    [
        ("save", 20),
        ("late_thread", 20),
        pytest.param(
            "late_signal",
            20,
            marks=pytest.mark.skipif(sys.platform == "win32", reason="there are no signals here"),
        ),
        ("late_start", 20),
        ("at_exit", 20),
        pytest.param(
            "forked",
            20,
            marks=pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here"),
        ),
        ("never_begins", 0),
    ],
)
def test_a_process_ends_when_its_saves_have(how: str, n: int, tmp_path: Path) -> None:
    """It waits for a save that was started, and not for one whose start was interrupted.

    Other threads and signal handlers may start saves when the main thread has ended, and a function
    of ``atexit`` may start the first one.
    """
    command = [sys.executable, "-c", PROCESS, how, str(tmp_path / "rb")]
    subprocess.run(command, check=True, timeout=30)
    assert len(load(tmp_path / "rb")) == n


def test_a_load_that_is_cut_anywhere_can_be_repeated(tmp_path: Path) -> None:
    """Nothing of it is left: no file is open, and the folder is as it was."""
    saved = mixture_of(1004)
    saved.save(tmp_path)
    new, names = look_at_mixture(saved), sorted(path.name for path in tmp_path.iterdir())
    for line in lines_of(lambda: load(tmp_path), 500):
        with contextlib.suppress(Cut), cut_at(line):
            load(tmp_path)
    assert look_at_mixture(load(tmp_path)) == new
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def cut_after(seconds: float, call: Callable[[], object]) -> None:
    """Make a call, in which a signal handler raises ``Cut`` after so many seconds."""
    is_armed = [True]

    def handle(*_: object) -> None:
        if is_armed[0]:
            is_armed[0] = False
            raise Cut

    before = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        call()
        is_armed[0] = False
    except Cut:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="there are no such signals here")
def test_signals_at_any_moment(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As above, by signals in place of lines, in all three calls."""
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # errors end in finalizers
    saved = mixture_of(1004)
    saved.save(tmp_path / "mixture")
    new, old = look_at_mixture(saved), look_at_mixture(mixture_of(1))
    thing = mixture_of(1)
    began = time.perf_counter()
    thing.restore(tmp_path / "mixture")
    lasts = time.perf_counter() - began
    seen = {"old": 0, "new": 0}
    for _ in range(500 if LONG else 60):
        thing = mixture_of(1)
        cut_after(
            rng.uniform(0.0, 1.6) * lasts + 1e-6, partial(thing.restore, tmp_path / "mixture")
        )
        found = look_at_mixture(thing)
        assert found in (old, new)
        seen["new" if found == new else "old"] += 1
        cut_after(rng.uniform(0.0, 1.6) * lasts + 1e-6, lambda: load(tmp_path / "mixture"))
    print(f"signals in restore left {seen}")
    assert seen["old"] > 0
    folder = tmp_path / "rb"
    rb = with_a_save(folder, 1)
    for turn in range(300 if LONG else 40):
        rb.update([5], x=[turn])
        cut_after(rng.uniform(0.0, 3e-3) + 1e-6, lambda: rb.save_async(folder, sync=False))
        load(folder).check()
        for thread in threads_of_saves():
            thread.join()
        load(folder).check()
    rb.save(folder, sync=False)
    assert (
        load(folder).get_all_transitions()["x"].tolist() == rb.get_all_transitions()["x"].tolist()
    )
