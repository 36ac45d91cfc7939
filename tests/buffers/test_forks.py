"""Processes that are forked while threads work: no lock stays behind, and no row is torn."""

from __future__ import annotations

import copy
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forked import SECONDS, outcome, start
from interruptions import Cut
from numpy.random.mtrand import get_bit_generator, set_bit_generator
from scale import LONG, repeats
from threads import eventually

from cpprb_like import PrioritizedReplayBuffer, ReplayBuffer
from cpprb_like._core import Ring
from cpprb_like._machine.forks import BUFFER, tell, watch
from cpprb_like.buffers import ReplayMemory
from cpprb_like.processes import SharedReplay
from cpprb_like.samplers import Prioritized, RankBased, Sampler
from cpprb_like.views import AtMost, Packed, Sequences

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]

FORKS = repeats(40, 12)
FIELDS: dict[str, Any] = {"x": {"shape": (), "dtype": "i8"}, "wide": {"shape": 20}}


@contextmanager
def working(*jobs: Callable[[], object]) -> Iterator[None]:
    """Threads that repeat these jobs as long as the block lasts."""
    stop = threading.Event()
    errors: list[BaseException] = []

    def repeat(job: Callable[[], object]) -> None:
        try:
            while not stop.is_set():
                job()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=repeat, args=[job], daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    assert not errors, errors


def buffer_of(kind: str, capacity: int = 20_000) -> ReplayBuffer:
    """A full buffer whose rows say in each field which row they are."""
    samplers: dict[str, Any] = {
        "uniform": None,
        "prioritized": Prioritized(1.0),
        "ranks": RankBased(1.0),
    }
    sampler = samplers[kind]
    cls = ReplayBuffer if sampler is None else PrioritizedReplayBuffer
    rb = cls(capacity, FIELDS, sampler=sampler, seed=0)
    x = np.arange(capacity)
    rb.add(x=x, wide=np.repeat(x[:, None], 20, axis=1))
    return rb


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["uniform", "prioritized", "ranks"])
def test_children_of_a_busy_process_neither_hang_nor_find_half_of_anything(kind: str) -> None:
    """Processes are forked while threads add, draw, update and read; all of them can go on.

    What another thread held when the process was forked was held in the child for ever.
    """
    rb = buffer_of(kind)
    rng = np.random.default_rng(0)

    def add() -> None:
        x = rng.integers(0, 1000, 50)
        rb.add(x=x, wide=np.repeat(x[:, None], 20, axis=1))

    def draw() -> None:
        batch = rb.sample(6000)  # its ranks are sorted without the interpreter lock
        if isinstance(rb, PrioritizedReplayBuffer):
            rb.update_priorities(batch["indexes"], 1.0 + batch["x"] % 7)

    def few() -> None:
        rb.sample(10)
        rb.rng.random(100_000)

    def read() -> None:
        rb.on_episode_end()
        rb._hold(True, rb.get_all_transitions)

    def go_on() -> None:
        for _ in range(3):
            x = np.arange(10)
            rb.add(x=x, wide=np.repeat(x[:, None], 20, axis=1))
            batch = rb.sample(6000)
            assert (batch["wide"] == batch["x"][:, None]).all()
            if isinstance(rb, PrioritizedReplayBuffer):
                rb.update_priorities(batch["indexes"], np.ones(6000))
        rb.rng.random(10)
        rb.clear()
        rb.add(x=1, wide=np.ones(20))
        rb.check()

    def check() -> None:
        rb.check()
        go_on()

    with working(add, draw, few, read):
        codes = [outcome(check) for _ in range(FORKS)]
        assert codes == [0] * FORKS
    rb.check()
    go_on()


@pytest.mark.slow
def test_generators_of_other_classes_are_free_in_children() -> None:
    """A memory of objects draws from a generator with a lock of its own."""
    memory = ReplayMemory(1000, seed=0)
    for i in range(1000):
        memory.append(i)
    rng: Any = memory.rng
    with working(lambda: memory.sample(1000), lambda: rng.random(200_000)):
        assert [outcome(lambda: memory.sample(10)) for _ in range(FORKS)] == [0] * FORKS


@pytest.mark.slow
@pytest.mark.parametrize("bits", [np.random.MT19937, np.random.PCG64])
def test_children_of_a_process_that_is_in_numpys_global_generator(bits: Any) -> None:
    """They make buffers, take shards, and draw from ``np.random``, while threads of the parent do.

    The lock of NumPy's global generator was held for ever in a child that was forked while another
    thread drew from it, and what had no seed of its own waited for it.
    """
    before = get_bit_generator()
    set_bit_generator(bits(0))  # whose lock did not exist when the package was imported

    def go_on() -> None:
        ReplayBuffer(10, FIELDS)
        np.random.default_rng(np.random.randint(100))
        with replay.actor() as actor:
            actor.add(x=1, wide=np.zeros(20))

    jobs = [lambda: np.random.random(20_000), lambda: np.random.randint(9, size=20_000)]
    try:
        with SharedReplay(100, FIELDS, writers=1) as replay, working(*jobs):
            for number in range(5000 if LONG else FORKS):
                assert outcome(go_on) == 0, f"child {number}"
    finally:
        set_bit_generator(before)


IN_AN_IMPORT = """
import sys, threading, time
import numpy as np
from forked import outcome
from cpprb_like import ReplayBuffer

class Slow:
    @staticmethod
    def find_spec(name, path, target=None):
        if name == "numpy.ma.core":
            time.sleep(0.5)

ReplayBuffer(10, {"x": {}})
sys.meta_path.insert(0, Slow)
thread = threading.Thread(target=np.unique, args=([1, 1],))
thread.start()
while thread.is_alive() and "numpy.ma" not in sys.modules:
    time.sleep(0.001)
sys.exit(outcome(lambda: np.unique([1, 1]), seconds=10))
"""


def test_a_fork_waits_for_an_import_of_numpys() -> None:
    """Of the module that ``np.unique`` imports when it is first called, as draws by rank do.

    The child waited for the lock of the module, which a thread of the parent held.
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "ignore", "-c", IN_AN_IMPORT]
    assert subprocess.run(command, env=environment, check=False).returncode == 0


def test_a_generator_of_a_buffer_may_be_numpys_global_one() -> None:
    """Its lock is taken once at a fork, although two have to do with it."""
    rb = ReplayBuffer(10, FIELDS, seed=get_bit_generator())
    rb.add(x=1, wide=np.zeros(20))
    begin = time.monotonic()
    assert outcome(lambda: rb.sample(3)) == 0
    assert time.monotonic() - begin < 4


class Forks(Sampler):
    """A sampler that forks in the middle of a draw."""

    codes: list[int]

    def __init__(self) -> None:
        self.codes = []

    def draw(self, ring: Any, n: int, rng: Any, *, replace: bool) -> Any:
        self.codes.append(outcome(ring.present_slots))
        return rng.integers(0, len(ring), n), {}


def test_children_draw_the_same_rows_until_they_reseed() -> None:
    """As the page on processes says; two workers of a learner thus learned from one batch twice."""
    rb = ReplayBuffer(1000, {"t": {"shape": (), "dtype": "i8"}}, seed=0)
    rb.add(t=np.arange(1000))
    drawn: list[list[bytes]] = []
    for seeds in ((None, None), (1, 2)):
        drawn.append([])
        for seed in seeds:
            reader, writer = os.pipe()

            def work(seed: int | None = seed, writer: int = writer) -> None:
                if seed is not None:
                    rb.reseed(seed)
                os.write(writer, rb.sample(8)["t"].tobytes())

            assert outcome(work) == 0
            drawn[-1].append(os.read(reader, 64))
            os.close(reader)
            os.close(writer)
    assert drawn[0][0] == drawn[0][1]
    assert drawn[1][0] != drawn[1][1]


def test_a_draw_may_fork() -> None:
    """The thread that forks may be within a call, and hold the buffer's lock."""
    rb = ReplayBuffer(100, FIELDS, sampler=Forks(), seed=0)
    rb.add(x=range(10), wide=np.zeros((10, 20)))
    rb.sample(5)

    def draw_and_fork() -> None:
        rb.sample(5)
        assert outcome(lambda: (rb.sample(5), rb.add(x=1, wide=np.zeros(20)))) == 0

    rb._hold(True, draw_and_fork)
    rb.add(x=1, wide=np.zeros(20))
    assert rb.sampler.codes == [0] * 2  # type: ignore[attr-defined]


def test_a_lock_that_never_comes_does_not_stop_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made anew in the child, and stays with who has it in the parent."""
    monkeypatch.setattr("cpprb_like._machine.forks.TIMEOUT", 0.2)
    rb = buffer_of("uniform", 100)
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        entered.set()
        leave.wait(60)

    thread = threading.Thread(target=rb._hold, args=(True, hold))
    thread.start()
    entered.wait(60)
    begin = time.monotonic()
    assert outcome(rb.clear) == 0
    assert time.monotonic() - begin < SECONDS
    leave.set()
    thread.join()
    rb.check()
    rb.clear()


def test_an_interrupt_while_a_watched_lock_dies_is_raised() -> None:
    """A signal handler that ran in the callback of a weak reference lost its exception there."""
    lock = threading.RLock()
    watch(lock, BUFFER)
    held = [lock]
    del lock

    def handle(*_: object) -> None:
        raise Cut

    before = signal.signal(signal.SIGALRM, handle)
    # The signal comes during the sum, and its handler cannot run before the lock has died.
    calls = partial(sum, range(20_000_000)), held.clear, partial(time.sleep, 1)
    run: Callable[[], object] = partial(list, map(methodcaller("__call__"), calls))
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-3)
        with pytest.raises(Cut):
            run()  # the handler runs in ``sleep`` at the latest
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert held == []


def test_a_child_reads_the_file_of_its_parent_and_does_not_write(tmp_path: Path) -> None:
    """Both would write to one memory, and neither could keep the other out."""
    rb = ReplayBuffer(100, FIELDS, mmap_prefix=tmp_path / "rows", seed=0)
    rb.add(x=range(50), wide=np.zeros((50, 20)))

    def refused(call: Callable[[], object]) -> None:
        with pytest.raises(RuntimeError, match="forked process can only read"):
            call()

    def child() -> None:
        assert rb.sample(20)["x"].max() < 50
        assert len(rb.get_all_transitions()["x"]) == 50
        refused(lambda: rb.add(x=1, wide=np.zeros(20)))
        refused(lambda: rb.add(x=1, wide=[0.0] * 20))
        refused(lambda: rb.add_where([True], x=[1], wide=np.zeros((1, 20))))
        refused(lambda: rb.update([0], x=[7]))
        refused(rb.clear)
        refused(rb.on_episode_end)

    def copied() -> None:
        own = copy.deepcopy(rb)
        own.add(x=1, wide=np.zeros(20))
        own.check()

    def opened() -> None:
        with pytest.raises(BlockingIOError):
            ReplayBuffer(100, FIELDS, mmap_prefix=tmp_path / "rows", mmap_mode="r+")

    for job in (child, copied, opened):
        assert outcome(job) == 0
    rb.add(x=1, wide=np.zeros(20))
    rb.check()


class Gate:
    """The caller of ``wait`` waits until another process has opened the gate."""

    def __init__(self) -> None:
        self._ends = os.pipe()
        self._is_passed = False

    def wait(self) -> None:
        """Wait; the caller and its children pass the gate only once."""
        if not self._is_passed:
            assert select.select(self._ends[:1], [], [], 10.0)[0], "nobody has opened the gate"
            os.read(self._ends[0], 1)
        self._is_passed = True

    def open(self) -> None:
        """Let one process pass."""
        os.write(self._ends[1], b"x")


WRITES: dict[str, Callable[[ReplayBuffer], object]] = {
    "add": lambda rb: rb.add(**step_of(30)),
    "many": lambda rb: [rb.add(**step_of(t)) for t in range(30, 80)],
    "update": lambda rb: rb.update([2], mark=rb[2]["mark"]),
    "end": lambda rb: rb.on_episode_end(),
    "delete": lambda rb: rb.episodes.delete(0),
    "clear": lambda rb: rb.clear(),
}


def step_of(t: int) -> dict[str, Any]:
    """A step whose next values mostly are those of the next step."""
    stack, is_last = np.tile([t - 1, t], (3, 1)), t % 3 == 0
    following = {"next_x": -t, "next_stack": -stack}
    if not is_last:
        following = {"next_x": t + 1, "next_stack": stack + 1}
    return {"mark": t, "x": t, "stack": stack} | following


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("write", list(WRITES))
def test_a_child_reads_the_file_until_the_parent_writes(
    tmp_path: Path, write: str, is_late: bool
) -> None:
    """Afterwards each read is an error that names the file and a way out.

    Derived state of the child is of the fork. So it read a next value from the next row, and found
    rows that had become absent.
    """
    path = tmp_path / "rows"
    begun, read, written = Gate(), Gate(), Gate()
    tell(begun.wait)  # before the buffer: the parent may write before the child does anything
    number = {"shape": (), "dtype": "i8"}
    stacks = {"shape": (3, 2), "dtype": "i8"}
    fields: dict[str, Any] = {"mark": number, "x": number, "stack": stacks}
    options: dict[str, Any] = {"next_of": ["x", "stack"], "stack_compress": {"stack": 1}}
    rb = ReplayBuffer(20, fields, mmap_prefix=path, **options)
    for t in range(30):
        rb.add(**step_of(t))
        if t in (12, 15):
            rb.on_episode_end()

    def check(batch: dict[str, Any]) -> None:
        for number, t in enumerate(batch["x"]):
            for name, value in step_of(int(t)).items():
                np.testing.assert_array_equal(value, batch[name][number], err_msg=name)

    def child() -> None:
        if not is_late:
            check(rb.get_all_transitions())
            assert outcome(lambda: check(rb.sample(50))) == 0
            read.open()
            written.wait()
        reads: list[Callable[[], object]] = [
            lambda: rb.sample(5),
            lambda: rb[:3],
            rb.get_all_transitions,
            lambda: list(rb.episodes),
            lambda: copy.deepcopy(rb),
            lambda: rb.view(Sequences(2)).sample(5),
        ]
        for call in reads:
            with pytest.raises(RuntimeError, match=r"rows\.dat: .*parent writes again.*mode='r'"):
                call()
        assert outcome(lambda: rb.sample(5)) == 1
        reader = ReplayBuffer(20, fields, mmap_prefix=path, mmap_mode="r", **options)
        check(reader.get_all_transitions())

    process = start(child)
    if not is_late:
        begun.open()
        read.wait()
    WRITES[write](rb)
    (begun if is_late else written).open()
    assert os.waitpid(process, 0)[1] == 0
    check(rb.get_all_transitions())
    rb.check()


def test_priorities_of_a_child_are_its_own(tmp_path: Path) -> None:
    """Its draws and updates change no priority of the parent, and end when the parent writes.

    A first draw in the child wrote the weights of new rows into the file of the parent, over those
    that the parent had set meanwhile.
    """
    updated, drawn, written = Gate(), Gate(), Gate()
    fields: dict[str, Any] = {"x": {"shape": (), "dtype": "i8"}}
    sampler = Prioritized(alpha=1.0, eps=0.0, check_for_update=False)
    rb = PrioritizedReplayBuffer(16, fields, sampler=sampler, mmap_prefix=tmp_path / "rows")
    rb.add(x=range(8))
    rb.sample(4)
    rb.add(x=[8, 9])

    def child() -> None:
        updated.wait()
        rb.update_priorities(rb.sample(40)["indexes"], np.full(40, 7.0))
        rb.sample(5, replace=False)
        drawn.open()
        written.wait()
        reads: list[Callable[[], object]] = [
            lambda: rb.sample(5),
            lambda: rb.sample(5, replace=False),
            lambda: rb.view(Sequences(2)).sample(5),
        ]
        for call in reads:
            with pytest.raises(RuntimeError, match=r"rows\.dat: .*parent writes again"):
                call()

    process = start(child)
    rb.update_priorities([8, 9], [50.0, 60.0])
    updated.open()
    drawn.wait()
    np.testing.assert_array_equal(sampler.rows.get(np.arange(10)), [1] * 8 + [50, 60])
    rb.add(x=range(10, 15))
    rb.sample(5)
    written.open()
    assert os.waitpid(process, 0)[1] == 0
    np.testing.assert_array_equal(sampler.rows.get(np.arange(15)), [1] * 8 + [50] + [60] * 6)
    rb.check()


class Remembers(Sampler):
    """A sampler with state of its own, which begins with the ring."""

    draws: int

    def open(self, ring: Ring) -> None:
        self.draws = 0

    def draw(self, ring: Any, n: int, rng: Any, *, replace: bool) -> Any:
        self.draws += 1
        return rng.integers(0, len(ring), n), {}


def test_a_sampler_without_a_file_keeps_its_state_in_a_child(tmp_path: Path) -> None:
    """Only what lies in the file of the parent is copied, and opened again."""
    sampler = Remembers()
    rb = ReplayBuffer(10, {"x": {}}, sampler=sampler, mmap_prefix=tmp_path / "rows")
    rb.add(x=1)
    rb.sample(1)

    def child() -> None:
        rb.sample(1)
        assert sampler.draws == 2

    assert outcome(child) == 0


def test_a_child_that_outlives_a_killed_parent(tmp_path: Path) -> None:
    """It has the file open until it ends: the error says so, and the file can be read meanwhile."""
    forked, looked, read = Gate(), Gate(), Gate()
    fields: dict[str, Any] = {"x": {"shape": ()}}

    def opened(mode: Any) -> ReplayBuffer:
        prefix = tmp_path / "rows"
        return ReplayBuffer(10, fields, next_of="x", mmap_prefix=prefix, mmap_mode=mode)

    def child(rb: ReplayBuffer) -> None:
        looked.wait()
        assert rb.get_all_transitions()["next_x"].tolist() == [5]
        read.open()

    def parent() -> None:
        rb = opened("x")
        rb.add(x=1, next_x=5)
        start(partial(child, rb))
        forked.open()
        signal.pause()

    process = start(parent)
    forked.wait()
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    with pytest.raises(BlockingIOError, match="forked from a writer"):
        opened("r+")
    assert opened("r").get_all_transitions()["next_x"].tolist() == [5]
    looked.open()
    read.wait()
    until = time.monotonic() + SECONDS
    while True:
        try:
            rb = opened("r+")
            break
        except BlockingIOError:
            assert time.monotonic() < until
            time.sleep(0.01)
    assert rb.get_all_transitions()["next_x"].tolist() == [5]


class InFile(Sampler):
    """A sampler that counts the draws of each slot in the file, and may fail to open."""

    fails = False
    counts: Any

    def open_in_file(self, ring: Ring, memory: Any) -> None:
        if self.fails:
            raise ValueError("not here")
        self.counts = memory("draws", {"counts": ring.capacity})[0]["counts"]

    def draw(self, ring: Any, n: int, rng: Any, *, replace: bool) -> Any:
        slots = rng.integers(0, len(ring), n)
        np.add.at(self.counts, slots, 1)
        return slots, {}


@pytest.mark.parametrize("cause", ["open_in_file", "memory"])
def test_a_sampler_that_cannot_be_opened_in_a_child(
    cause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its draws say so and leave the file of the parent as it is; rows can be read.

    The sampler went on to write to the file of the parent. Other buffers were not told of the fork,
    and signals stayed blocked.
    """
    lost: list[Any] = []
    written = Gate()
    sampler = InFile()
    rb = ReplayBuffer(10, {"x": {}}, sampler=sampler, mmap_prefix=tmp_path / "rows")
    other = ReplayBuffer(10, {"x": {}}, mmap_prefix=tmp_path / "other")
    view = rb.view()
    rb.add(x=1)
    other.add(x=1)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())

    def child() -> None:
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == mask
        calls: list[Callable[[], object]] = [
            lambda: rb.sample(3),
            lambda: view.sample(3),
            lambda: rb.sample(1, replace=False),
            lambda: rb.update_priorities([0], [1.0]),
        ]
        for call in calls:
            with pytest.raises(
                RuntimeError, match=r"rows\.dat: .*InFile.* not be opened .*mmap_mo"
            ):
                call()
        assert rb.get_all_transitions()["x"].tolist() == [[1]]
        written.wait()
        with pytest.raises(RuntimeError, match=r"other\.dat"):
            other.get_all_transitions()

    with monkeypatch.context() as patch:
        patch.setattr(sys, "unraisablehook", lost.append)
        if cause == "memory":
            patch.setattr(rb._files, "_sampler", object())  # whose values cannot be copied
        else:
            patch.setattr(sampler, "fails", True)
        process = start(child)
    assert len(lost) == (cause == "memory")
    other.add(x=2)
    written.open()
    assert os.waitpid(process, 0)[1] == 0
    assert not sampler.counts.any()
    rb.sample(3)
    assert sampler.counts.sum() == 3


def test_a_method_that_raises_in_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python prints the error. All other methods are called, and no signal stays blocked."""

    class Told:
        calls = 0

        def raises(self) -> None:
            self.calls += 1
            raise ValueError("in a child")

    told = [Told(), Told()]
    for one in told:
        tell(one.raises)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    lost: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lost.append)

    def child() -> None:
        assert [one.calls for one in told] == [1, 1]
        assert len(lost) == 1
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == mask

    assert outcome(child) == 0


def test_rows_that_wait_for_a_budget_are_dropped_in_a_child_too() -> None:
    """A clear there forgets them, as in the process that began to draw."""
    fields: dict[str, Any] = {"x": {"shape": (), "dtype": "i8"}, "ids": {"shape": ("T",)}}
    rb = ReplayBuffer(100, fields, room={"T": 500}, seed=0)
    for x in range(60):
        rb.add(x=x, ids=np.zeros(x % 4 + 1))
    batches = rb.view(Packed()).batches(items={"T": 20})
    for _ in range(4):
        next(batches)

    def job() -> None:
        rb.clear()
        rb.add(x=[100], ids=[[0, 0]])
        assert set(next(batches)["x"].tolist()) == {100}

    assert outcome(job) == 0
    assert next(batches)["x"].max() < 60


@pytest.mark.parametrize("options", [{"batch_size": 4}, {"items": {"T": 20}}])
def test_rows_of_batches_ahead_are_as_not_drawn_in_a_child(options: dict[str, Any]) -> None:
    """As in any copy of a view: the batches stay in the process that began to draw."""
    fields: dict[str, Any] = {"x": {"shape": (), "dtype": "i8"}, "ids": {"shape": ("T",)}}
    rb = ReplayBuffer(100, fields, room={"T": 500}, seed=0)
    for x in range(60):
        rb.add(x=x, ids=np.zeros(x % 4 + 1))
    view = rb.view(AtMost(1), Packed())
    with view.batches(**options, prefetch=2) as batches:
        returned = [x for _ in range(3) for x in next(batches)["x"].tolist()]
        eventually(lambda: view.stats()["rows_left"] < 60 - len(returned))

        def job() -> None:
            rest = view.sample(60 - len(returned))["x"].tolist()
            assert sorted([*returned, *rest]) == list(range(60))

        assert outcome(job) == 0
        returned += next(batches)["x"].tolist()
    rest = view.sample(60 - len(returned))["x"].tolist()
    assert sorted([*returned, *rest]) == list(range(60))
