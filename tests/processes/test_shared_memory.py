"""The memory of a shared replay: reserved when made, found by name, gone with the last process."""

from __future__ import annotations

import errno
import gc
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from dying_processes import Child, ended, shared_memory, taken
from forked import outcome
from interruptions import cut_at, killed_everywhere

from cpprb_like._files import file_maps
from cpprb_like._machine import file_systems
from cpprb_like.processes import SharedReplay, _folder, _shards

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="folders in use are not renamed there, and nothing is forked"
)
linux = pytest.mark.skipif(
    not Path("/dev/shm").is_dir(), reason="there is no file system in memory"
)
FIELDS: dict[str, Any] = {"x": {"shape": 4}}
METHODS = ("fork", "forkserver", "spawn")


@pytest.fixture(autouse=True)
def _nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Each test has shared memory of its own: what other tests still hold is not there."""
    with tempfile.TemporaryDirectory(dir=os.environ["CPPRB_LIKE_SHARED_MEMORY"]) as folder:
        monkeypatch.setenv("CPPRB_LIKE_SHARED_MEMORY", folder)
        yield
        assert not shared_memory()


def add(replay: SharedReplay, value: float) -> int:
    """A task of another process: add a row, and say how many there are."""
    with replay.actor() as actor:
        actor.add(x=[value] * 4)
        return len(actor)


def test_it_is_gone_when_it_is_closed() -> None:
    """The folder, and the folder of all replays of this user if there is no other."""
    replay = SharedReplay(10, FIELDS, writers=1)
    folder = replay.folder
    assert folder.is_dir()
    replay.close()
    replay.close()
    assert not folder.exists()
    with pytest.raises(RuntimeError, match="closed"):
        replay.actor()
    with pytest.raises(FileNotFoundError, match="no replay of this name"):
        SharedReplay.attach(replay.name)


def test_an_actor_keeps_it() -> None:
    """The memory is there as long as an actor or a learner is, whoever else forgets it."""
    actor = SharedReplay(10, FIELDS, writers=1).actor()
    (folder,) = shared_memory()
    actor.add(x=[1, 2, 3, 4])
    assert Path(folder).is_dir()
    actor.close()
    del actor


@linux
def test_memory_is_reserved() -> None:
    """A replay for which there is no room is refused when it is made, and the message helps."""
    total = shutil.disk_usage("/dev/shm").total
    rows = total // 1_000_000 + 10
    with pytest.raises(MemoryError, match=r"enlarge it .*remount.*--shm-size"):
        SharedReplay(rows, {"x": {"shape": 1_000_000, "dtype": "u1"}}, writers=1)
    assert not shared_memory()
    replay = SharedReplay(1000, {"x": {"shape": 1_000, "dtype": "u1"}}, writers=1)
    used = sum(path.stat().st_blocks * 512 for path in replay.folder.glob("*/*"))
    assert used > 1_000_000  # although nobody has written to it
    replay.close()


def test_memory_that_runs_out_for_a_later_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shards before it are given back; a writer that reserves later says it, too."""
    calls = 0
    reserve = os.posix_fallocate

    def fail(file: int, offset: int, nbytes: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        reserve(file, offset, nbytes)

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", fail)
        with pytest.raises(MemoryError, match="enlarge"):
            SharedReplay(100, FIELDS, writers=4)
        assert calls == 2
        assert not shared_memory()
        calls = 0
        replay = SharedReplay(100, FIELDS, writers=2, reserve=False)
        replay.actor(0).close()
        with pytest.raises(MemoryError, match="enlarge"):
            replay.actor(1)
    replay.actor(1).close()  # there is room again
    replay.close()


@pytest.mark.once
def test_an_actor_that_is_killed_while_it_makes_its_shard() -> None:
    """Before whichever line: the next one has it, and no warning says that rows are lost.

    The file had its name before it said when the machine was started.
    """

    def make(line: int) -> SharedReplay:
        del line
        return SharedReplay(100, FIELDS, writers=1, reserve=False)

    def look(replay: SharedReplay) -> None:
        with replay, warnings.catch_warnings():
            warnings.simplefilter("error")
            learner = replay.learner(seed=0)
            assert len(learner) == 0
            with taken(replay) as actor:
                actor.add(x=[1, 2, 3, 4])
            assert len(learner) == 1
            assert not list((replay.folder / "shard-0").glob("*.new"))

    files = file_maps.Files
    functions = files._create, files.keep, file_systems.name_new, _shards.ShardFiles.keep
    assert killed_everywhere(functions, make, lambda replay: replay.actor, look) > 25


@pytest.mark.parametrize("name", ["", "a/b", "..", "a b", "é", "a.b", "x\0y"])
def test_names_with_strange_characters(name: str) -> None:
    """They are refused, as a name is that of a folder."""
    with pytest.raises(ValueError, match="name: expected letters"):
        SharedReplay(10, FIELDS, writers=1, name=name)


@pytest.mark.parametrize("name", ["nobody-made-this", "..", "a/b", ".", ""])
def test_attaching_to_nothing(name: str) -> None:
    """It says that there is none."""
    with pytest.raises((FileNotFoundError, ValueError), match="name"):
        SharedReplay.attach(name)


def test_two_programs_of_one_name() -> None:
    """One makes it, and the other ones get an error; whoever is first."""
    results: list[object] = []
    barrier = threading.Barrier(4)

    def make() -> None:
        barrier.wait()
        try:
            results.append(SharedReplay(10, FIELDS, writers=1, name="twice"))
        except FileExistsError as error:
            results.append(error)

    for _ in range(10):
        results.clear()
        threads = [threading.Thread(target=make) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        made = [result for result in results if isinstance(result, SharedReplay)]
        errors = [str(result) for result in results if isinstance(result, FileExistsError)]
        assert (len(made), len(errors)) == (1, 3)
        assert all("'twice'" in error for error in errors)
        made[0].close()


def test_programs_of_one_name_as_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for processes, which end at once: what one leaves is no obstacle for the next."""

    def job(child: Child) -> None:
        while True:
            try:
                with SharedReplay(10, FIELDS, writers=1, name="often") as replay:
                    add(replay, 1)
            except FileExistsError:
                pass
            child.beat()

    children = [Child("program", job) for _ in range(3)]
    with ended(children):
        for child in children:
            child.wait_for_beat(20)
    monkeypatch.setattr(_folder, "YOUNG", 0.0)
    SharedReplay(10, FIELDS, writers=1, name="often").close()


def test_what_killed_processes_left() -> None:
    """It is removed when the next replay is made, and only then."""

    def job(child: Child) -> None:
        replay = SharedReplay(10, FIELDS, writers=1, name="left")
        add(replay, 1)
        child.beat()
        time.sleep(100)

    child = Child("program", job)
    with ended([child]):
        child.wait_for_beats(1)
        child.kill()
    (left,) = shared_memory()
    assert left.endswith("left")
    with pytest.raises(FileNotFoundError, match="all its processes ended"):
        SharedReplay.attach("left")
    with SharedReplay(10, FIELDS, writers=1, name="left") as replay:
        assert add(replay, 1) == 1
        assert len(shared_memory()) == 1


def test_folders_that_were_never_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a process left that was killed while it made or removed one goes, too."""
    base = tmp_path / "base"
    base.mkdir()
    for name in ("a.1.new", "b.2.gone", "c.3.new"):
        (base / name).mkdir()
    (base / "c.3.new" / "life").touch()
    os.utime(base / "a.1.new", (0, 0))
    (base / "d.4.new").mkdir()  # this one is just being made
    _folder.remove_stale(base)
    assert [path.name for path in base.iterdir()] == ["d.4.new"]


@pytest.mark.parametrize("method", METHODS)
def test_children_of_all_kinds(method: str) -> None:
    """It is handed to a process by pickling, to daemons as well, and through pools."""
    context: Any = multiprocessing.get_context(method)
    with SharedReplay(100, FIELDS, writers=4) as replay:
        for daemon in (False, True):
            process = context.Process(target=add, args=(replay, 1.0), daemon=daemon)
            process.start()
            process.join(30)
            assert process.exitcode == 0
        with context.Pool(2) as pool:
            assert sum(pool.starmap(add, [(replay, 2.0)] * 4)) > 0
        with ProcessPoolExecutor(2, mp_context=context) as executor:
            assert all(executor.map(add, [replay] * 4, [3.0] * 4))
        learner = replay.learner(seed=0)
        assert len(learner) == 10
        assert set(learner.sample(100)["x"][:, 0]) == {1.0, 2.0, 3.0}


SCRIPT = """
import multiprocessing, os, sys, time, warnings
from cpprb_like.processes import SharedReplay

def add(replay, keeps=False, how=None):
    actor = replay.actor()
    actor.add(x=[1, 2, 3, 4])
    if how == "nested":
        child = context.Process(target=add, args=(replay,))
        child.start()
        child.join()
    if how == "os._exit":
        os._exit(0)
    if how == "exception":
        raise RuntimeError("on purpose")
    if keeps:
        print("ready", flush=True)
        time.sleep(keeps)
    if how == "outlives":
        actor.add(x=[1, 2, 3, 4])

context = multiprocessing.get_context(sys.argv[1])
if __name__ == "__main__":
    how = sys.argv[2]
    replay = SharedReplay(100, {"x": {"shape": 4}}, writers=4)
    learner = replay.learner(seed=0)
    if how == "daemon":
        child = context.Process(target=add, args=(replay, 100), daemon=True)
        child.start()
        while len(learner) == 0:
            time.sleep(0.01)
    elif how == "raw fork":
        if os.fork() == 0:
            add(replay)
            sys.exit()
        os.wait()
    elif how == "outlives":
        if os.fork() == 0:
            if os.fork() == 0:
                add(replay, 1, how)
                sys.exit()
            os._exit(0)
        os.wait()
        os._exit(0)
    else:
        child = context.Process(target=add, args=(replay, False, how))
        child.start()
        child.join()
    assert len(learner) == (2 if how == "nested" else 1), len(learner)
"""


@pytest.mark.parametrize(
    ("how", "method"),
    [
        *[(how, "fork") for how in ("plain", "daemon", "nested", "os._exit", "exception")],
        *[(how, "spawn") for how in ("daemon", "nested", "os._exit", "exception")],
        ("nested", "forkserver"),
        ("raw fork", "fork"),
        ("outlives", "fork"),
    ],
)
def test_ends_of_programs(tmp_path: Path, method: str, how: str) -> None:
    """However a program and its children end: nothing is left, and nothing is printed."""
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(SCRIPT))
    before = shared_memory()
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script), method, how],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        # Python warns of a fork beside threads, and counts those that OpenBLAS has just ended.
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OPENBLAS_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    if how == "exception":
        assert "on purpose" in done.stderr
        # CPython 3.15 warns of something else when it shows where a spawned child failed.
        for word in ("ResourceWarning", "resource_tracker", "leaked"):
            assert word not in done.stderr
    else:
        assert done.stderr == ""
    until = time.monotonic() + 20
    while shared_memory() - before and time.monotonic() < until:
        time.sleep(0.02)
    assert not shared_memory() - before


def test_forks_beside_threads_that_attach() -> None:
    """A child has none of its parent's locks, whenever it was forked."""
    replay = SharedReplay(100, FIELDS, writers=2)
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            replay.members()
            replay.actor(0).close()

    thread = threading.Thread(target=look)
    thread.start()
    pids = []
    try:
        for _ in range(30):
            pid = os.fork()
            if pid == 0:
                time.sleep(60)
                os._exit(0)
            pids.append(pid)
    finally:
        stop.set()
        thread.join()
        replay.actor(0).close()  # no child has it
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    replay.close()


def test_a_fork_while_another_thread_adds() -> None:
    """The child can read and refuses to write, the parent goes on."""
    with SharedReplay(100, FIELDS, writers=2) as replay:
        actor = replay.actor()
        stop = threading.Event()

        def add_rows() -> None:
            while not stop.is_set():
                actor.add(x=[1, 1, 1, 1])

        thread = threading.Thread(target=add_rows)
        thread.start()

        def job() -> None:
            with pytest.raises(RuntimeError, match="parent process"):
                actor.add(x=[2, 2, 2, 2])
            with replay.actor() as own:
                assert own.number == 1
                own.add(x=[3, 3, 3, 3])
            members = {member.number: member for member in replay.members()}
            assert members[0].pid == os.getppid()
            assert members[0].alive

        try:
            codes = [outcome(job) for _ in range(5)]
        finally:
            stop.set()
            thread.join()
        assert codes == [0] * 5
        actor.close()


def test_pickles() -> None:
    """Twice in one process is the same folder; what belongs to a process is not pickled."""
    with SharedReplay(10, FIELDS, writers=1, name="pickled") as replay:
        again = pickle.loads(pickle.dumps(replay))
        assert (again.name, again.writers, again.capacity) == ("pickled", 1, 10)
        for end in (replay.actor(), replay.learner()):
            with pytest.raises(TypeError, match="belongs to its process"):
                pickle.dumps(end)


DAEMONS = """
    import multiprocessing
    import sys
    from cpprb_like.processes import SharedReplay

    def act(replay, there):
        actor = replay.actor()
        there.release()
        while True:
            actor.add(x=[1, 2, 3, 4])

    if __name__ == "__main__":
        context = multiprocessing.get_context(sys.argv[1])
        there = context.Semaphore(0)
        with SharedReplay(1000, {"x": {"shape": 4}}, writers=2) as replay:
            for _ in range(2):
                context.Process(target=act, args=(replay, there), daemon=True).start()
            for _ in range(2):
                there.acquire()
        print(replay.folder.exists())
"""


@pytest.mark.parametrize("method", METHODS)
def test_daemons_that_outlive_the_block_leave_nothing(method: str, tmp_path: Path) -> None:
    """At the end of the program, which ends them, the memory is gone.

    The program had let go of the memory before, and its daemons are ended by a signal, after which
    they remove nothing.
    """
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(DAEMONS))
    done = subprocess.run(
        [sys.executable, str(script), method], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == ("True\n", "", 0)
    assert not shared_memory()


def test_replays_that_live_cost_others_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """One is made, attached and closed without a sleep beside others that live.

    Each lock of a replay that lived was tried for 15 ms, to see whether its replay was left.
    """
    living = [SharedReplay(10, FIELDS, writers=1) for _ in range(3)]

    def refuse(seconds: float) -> None:
        raise AssertionError(f"slept {seconds} s")

    def child() -> None:
        monkeypatch.setattr(time, "sleep", refuse)
        _folder._open_folders.clear()  # as in a process that has none of them
        attached = SharedReplay.attach(living[0].name)
        made = SharedReplay(10, FIELDS, writers=1)
        made.close()
        attached.close()

    assert outcome(child) == 0
    for replay in living:
        replay.close()


@pytest.mark.parametrize("name", ["write_bytes", "write_text"])
def test_full_memory_says_so_for_each_file(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line, whichever file finds no room: it was the system's error with a path."""

    def fail(path: Path, *_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, name, fail)
        with pytest.raises(MemoryError, match=r"^.* needs .* bytes of shared memory.*enlarge it"):
            SharedReplay(10, FIELDS, writers=1, reserve=False)
    assert not shared_memory()


def test_full_memory_says_so_for_each_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks of actors and learners are small files, which find no room either."""
    replay = SharedReplay(10, FIELDS, writers=1)

    def full(lock: Any, *_: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(lock.path))

    with monkeypatch.context() as patch:
        patch.setattr(_folder.FileLock, "_try_once", full)
        for make in (replay.actor, lambda: replay.actor(0), replay.learner):
            with pytest.raises(MemoryError, match="enlarge it"):
                make()
    replay.actor().close()
    replay.close()


@pytest.mark.parametrize("is_in_a_cycle", [False, True])
def test_no_interrupt_is_lost_where_a_lock_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_in_a_cycle: bool
) -> None:
    """An interrupt in ``__del__`` was printed and lost, and its traceback held the lock."""
    lost: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lost.append)
    gc.collect()
    before = len(_folder._closing)
    locks: list[Any] = [_folder.FileLock(tmp_path / "lock")]
    assert locks[0].take(create=True)
    if is_in_a_cycle:
        locks[0].itself = locks
    with cut_at(1) as lines:
        del locks
        gc.collect()
    assert (lines, lost) == ([0], [])
    assert not _folder.is_locked(tmp_path / "lock")
    assert len(_folder._closing) == before


@pytest.mark.parametrize("options", [{}, {"next_of": "x"}])
def test_a_closed_replay_says_so(options: Any) -> None:
    """In each call: parameters waited for a minute, and other calls did not find a file."""
    replay = SharedReplay(10, FIELDS, writers=2, **options)
    actor, parameters = replay.actor(), replay.parameters
    replay.close()
    for call in (
        replay.actor,
        replay.learner,
        replay.stats,
        replay.members,
        lambda: replay.parameters,
        lambda: replay.save("nowhere"),
        lambda: parameters.publish([1.0]),
        parameters.latest,
        parameters.wait,
    ):
        with pytest.raises(RuntimeError, match="the replay was closed in this process"):
            call()
    further = {"next_x": [1, 2, 3, 4]} if options else {}
    with pytest.raises(RuntimeError, match="the replay was closed, and its memory is gone"):
        actor.add(x=[1, 2, 3, 4], priorities=1.0, **further)


def test_a_pickle_opens_the_replay_that_was_pickled_and_no_later_one() -> None:
    """It opened any replay with the name, so rows went into the memory of another one."""
    with SharedReplay(10, FIELDS, writers=2, name="named") as replay:
        pickled = pickle.dumps(replay)
        assert pickle.loads(pickled).name == "named"
    with SharedReplay(10, FIELDS, writers=2, name="named") as other:
        with pytest.raises(FileNotFoundError, match="another one has its name"):
            pickle.loads(pickled)
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=spawn) as executor:  # which opens it first
            assert executor.submit(is_refused, pickled).result()
        assert pickle.loads(pickle.dumps(other)).stats()["adds"] == 0


def is_refused(pickled: bytes) -> bool:
    """Whether a pickle opens no replay."""
    try:
        pickle.loads(pickled)
    except FileNotFoundError:
        return True
    return False


def test_memory_of_a_process_outlives_the_last_one() -> None:
    """Until it comes back, or the time is over; then any new replay removes the memory."""
    SharedReplay(10, FIELDS, writers=1, name="kept").close()
    assert not shared_memory()
    replay = SharedReplay(10, FIELDS, writers=1, name="kept")
    add(replay, 1.0)
    replay._folder.keep_until(time.time() + 60.0)
    assert not _folder.is_any_awaited(_folder.memory_path())
    replay.close()
    assert _folder.is_any_awaited(_folder.memory_path())
    SharedReplay(10, FIELDS, writers=1).close()  # looks for memory that nobody has open
    again = SharedReplay.attach("kept")
    assert len(again.learner()) == 1
    again._folder.keep_until(time.time() + 0.2)
    again.close()
    assert len(shared_memory()) == 1
    time.sleep(0.3)
    SharedReplay(10, FIELDS, writers=1).close()
    assert not shared_memory()
