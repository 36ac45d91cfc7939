"""Who adds to a shared replay and draws from it: known by file locks."""

from __future__ import annotations

import os
import signal
import sys
import time
from types import FrameType
from typing import Any

import pytest
from children import until
from dying_processes import Child, ended
from forked import outcome
from interruptions import Cut, cut_everywhere
from scale import LONG

from cpprb_like.processes import Member, SharedReplay
from cpprb_like.processes._folder import is_locked

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="nothing is forked there")
FIELDS: dict[str, Any] = {"x": {"shape": 4}}
ROW = [1, 2, 3, 4]


def of(replay: SharedReplay, kind: str) -> list[Member]:
    """The members of a kind."""
    return [member for member in replay.members() if member.kind == kind]


def test_actors_and_learners() -> None:
    """Each with its number, its process, its rows and their age; also when it has ended."""
    with SharedReplay(100, FIELDS, writers=3) as replay:
        assert replay.members() == []
        begun = time.time()
        actor = replay.actor(2)
        (member,) = replay.members()
        assert (member.kind, member.number, member.pid) == ("actor", 2, os.getpid())
        assert (member.alive, member.rows, member.age) == (True, 0, None)
        assert begun - 1 <= member.since <= time.time() + 1
        actor.add(x=[ROW] * 5)
        learner = replay.learner()
        actor_member, learner_member = replay.members()
        assert actor_member.rows == 5
        assert actor_member.age is not None
        assert 0 <= actor_member.age < 5
        assert (learner_member.kind, learner_member.number) == ("learner", 0)
        assert (learner_member.rows, learner_member.age, learner_member.alive) == (0, None, True)
        actor.add(x=[ROW] * 100)
        assert of(replay, "actor")[0].rows == 34  # a third of 100, rounded up
        actor.close()
        del learner
        assert [member.alive for member in replay.members()] == [False, False]


def test_the_age_of_the_last_row() -> None:
    """It is the time since the last one was added, and any process may ask; a draw is no row."""
    with SharedReplay(100, FIELDS, writers=1) as replay:
        actor = replay.actor()
        actor.add(x=ROW)
        time.sleep(0.3)
        replay.learner().sample(3)

        def job() -> None:
            (member, *_) = SharedReplay.attach(replay.name).members()
            assert member.age is not None
            assert 0.25 < member.age < 10

        assert outcome(job) == 0
        actor.add(x=ROW)
        age = of(replay, "actor")[0].age
        assert age is not None
        assert age < 0.25
        actor.close()


def test_right_after_a_fork() -> None:
    """The child has neither its parent's shard nor its learner; both live as long as the parent."""
    with SharedReplay(100, FIELDS, writers=2) as replay:

        def parent(child: Child) -> None:
            actor, learner = replay.actor(), replay.learner()
            pid = os.fork()
            if pid == 0:
                time.sleep(60)
                os._exit(0)
            actor.add(x=ROW)
            learner.sample(1)
            child.beat()
            time.sleep(60)

        child = Child("parent", parent)
        with ended([child]):
            child.wait_for_beats(1)
            assert {(member.pid, member.alive) for member in replay.members()} == {
                (child.pid, True)
            }
            child.kill()
            # The process that it forked lets go of the locks as soon as it runs.
            until(lambda: not any(member.alive for member in replay.members()))
            replay.actor(0).close()


def test_a_process_id_that_is_used_again() -> None:
    """A member is alive by its lock, and not because there is some process of its number."""
    with SharedReplay(100, FIELDS, writers=1) as replay:
        replay.actor().close()
        (member,) = replay.members()
        assert member.pid == os.getpid()  # which lives
        assert not member.alive


def test_after_a_takeover() -> None:
    """It is the newest one that is named, with the rows of all."""
    with SharedReplay(100, FIELDS, writers=1) as replay:

        def job() -> None:
            actor = replay.actor()
            actor.add(x=[ROW] * 3)
            os.kill(os.getpid(), signal.SIGKILL)

        assert outcome(job) == -signal.SIGKILL
        (dead,) = replay.members()
        assert (dead.alive, dead.rows) == (False, 3)
        with replay.actor() as actor:
            actor.add(x=ROW)
            (member,) = replay.members()
            assert (member.pid, member.alive, member.rows) == (os.getpid(), True, 4)
        first = replay.learner()
        assert [member.number for member in of(replay, "learner")] == [0]
        del first
        second = replay.learner()
        assert [(member.number, member.alive) for member in of(replay, "learner")] == [(0, True)]
        del second


@pytest.mark.once
def test_looking_disturbs_no_process() -> None:
    """Whoever asks for the members takes no shard from others, not even for a moment."""
    with SharedReplay(100, FIELDS, writers=1) as replay:

        def job(child: Child) -> None:
            while True:
                replay.members()
                child.beat()

        children = [Child("reader", job) for _ in range(2)]
        with ended(children):
            for child in children:
                child.wait_for_beat()
            for _ in range(300):
                replay.actor(0).close()


def test_all_learners() -> None:
    """There are 64, and no more; one that goes makes room."""
    with SharedReplay(10, FIELDS, writers=1) as replay:
        learners = [replay.learner() for _ in range(64)]
        assert [member.number for member in of(replay, "learner")] == list(range(64))
        with pytest.raises(BlockingIOError, match="64 learners"):
            replay.learner()
        learners.pop(17)
        assert replay.learner().number == 17


@pytest.mark.slow
def test_signals_at_a_fork_leave_the_parent_its_shard() -> None:
    """A child that signals interrupt from its first moment on closes everything: nothing of it is.

    A handler that raised in a hook of the fork left the child the parent's locks, and it gave them
    back: two processes wrote to one shard.
    """

    def job() -> None:
        os.setpgid(0, 0)  # whom the signals are for
        parent = os.getpid()

        def handle(_: int, frame: FrameType | None) -> None:
            # Not in the loop below, where it could end the loop and not a call of the package, nor
            # in this function, which may have been called there.
            ours = job.__code__, handle.__code__
            if os.getpid() != parent and frame is not None and frame.f_code not in ours:
                raise Cut

        sys.unraisablehook = lambda _: None  # exceptions of handlers in the hooks of forks
        signal.signal(signal.SIGUSR1, handle)
        sender = os.fork()
        if sender == 0:
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
            while os.getppid() == parent:
                os.killpg(0, signal.SIGUSR1)
                time.sleep(2e-5)
            os._exit(0)
        with SharedReplay(100, FIELDS, writers=1) as replay:
            actor = replay.actor()
            for number in range(10_000 if LONG else 100):
                pid = os.fork()
                while pid == 0:
                    try:
                        actor.close()
                        replay.close()
                        os._exit(0)
                    except Cut:  # noqa: PERF203
                        continue
                assert os.waitpid(pid, 0)[1] == 0
                assert is_locked(replay._lock_path(0)), f"the shard is free after fork {number}"
                assert replay.folder.exists()
            actor.add(x=ROW)
        os.kill(sender, signal.SIGKILL)

    assert outcome(job, seconds=600 if LONG else 60) == 0


@pytest.mark.parametrize("kind", ["actor", "learner", "replay"])
def test_a_close_that_is_interrupted_can_be_called_again(kind: str) -> None:
    """The second call gives back what the first one had not: no lock stays with the process.

    A lock was taken out of its object before it was given back, and a finalizer out of its list.
    """

    def make() -> tuple[SharedReplay, Any]:
        replay = SharedReplay(10, FIELDS, writers=1)
        return replay, replay if kind == "replay" else getattr(replay, kind)()

    def look(made: tuple[SharedReplay, Any]) -> object:
        replay, end = made
        end.close()
        if kind == "replay":
            assert not replay.folder.exists()
        else:
            paths = {"actor": replay._lock_path(0), "learner": replay._learner_lock_path(0)}
            assert not is_locked(paths[kind])
            replay.close()
        return None

    assert cut_everywhere(make, lambda made: made[1].close(), look) > 3
