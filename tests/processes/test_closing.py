"""``close`` while other threads of the process wait, or are in a call: an error that says so."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cpprb_like.limiters import Backlog
from cpprb_like.processes import SharedReplay

LONG = 20.0


def adds_for_ever(replay: SharedReplay) -> None:
    """Add until the limiter makes it wait."""
    actor = replay.actor()
    while True:
        actor.add(x=[1, 2, 3])


def waits_for_weights(replay: SharedReplay) -> None:
    """Wait for a version that never comes."""
    replay.parameters.publish([1.0])
    replay.parameters.wait(2, timeout=LONG)


def for_ever(call: Callable[[SharedReplay], object]) -> Callable[[SharedReplay], None]:
    """A call that is repeated."""

    def job(replay: SharedReplay) -> None:
        while True:
            call(replay)

    return job


LIMITED = {"limiter": Backlog(8, timeout=LONG)}
JOBS: dict[str, tuple[Callable[[SharedReplay], object], dict[str, Any]]] = {
    "sample": (lambda replay: replay.learner().sample(4), LIMITED),
    "add": (adds_for_ever, LIMITED),
    "first weights": (lambda replay: replay.parameters.wait(timeout=LONG), {}),
    "weights": (waits_for_weights, {}),
    "publish": (for_ever(lambda replay: replay.parameters.publish([1.0])), {}),
    "actor": (for_ever(lambda replay: replay.actor().close()), {}),
    "learner": (for_ever(lambda replay: replay.learner()), {}),
    "members": (for_ever(lambda replay: replay.members()), {}),
    "stats": (for_ever(lambda replay: replay.stats()), {}),
}


def in_a_thread(
    job: Callable[..., object], *arguments: Any
) -> tuple[threading.Thread, list[BaseException]]:
    """A thread that does a job, and a list for what the job raises."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            job(*arguments)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, raised


@pytest.mark.parametrize("name", JOBS)
def test_a_call_that_waits_says_that_the_replay_was_closed(name: str) -> None:
    """It raised ``FileNotFoundError`` of an inner path, or waited for its time-out."""
    job, options = JOBS[name]
    for pause in (0.15, 0.05, 0.02):
        replay = SharedReplay(100, {"x": {"shape": ()}}, writers=2, **options)
        thread, raised = in_a_thread(partial(job, replay))
        time.sleep(pause)
        replay.close()
        thread.join(LONG / 2)
        assert not thread.is_alive()
        (error,) = raised
        assert isinstance(error, RuntimeError), repr(error)
        assert "the replay was closed" in str(error)


def test_a_save_while_the_replay_is_closed_keeps_the_saved_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shards that went with their folder are no shards without rows."""
    replay = SharedReplay(100, {"x": {"shape": ()}}, writers=1)
    replay.actor().add(x=range(50))
    replay.save(tmp_path / "saved")
    shards = replay._shards()

    def close() -> list[Path]:
        replay.close()
        return shards

    monkeypatch.setattr(replay, "_shards", close)

    with pytest.raises(RuntimeError, match="the replay was closed"):
        replay.save(tmp_path / "saved")

    with SharedReplay.load(tmp_path / "saved") as loaded:
        assert loaded.stats()["rows"] == 50


def test_a_save_says_that_the_replay_was_closed(tmp_path: Path) -> None:
    """And the error of a folder without a checkpoint differs from that of a replay that is gone."""
    replay = SharedReplay(100, {"x": {"shape": ()}}, writers=1)
    replay.actor().add(x=range(50))
    with pytest.raises(FileNotFoundError, match="there is no checkpoint"):
        replay.restore_learner(tmp_path / "nothing", "main")
    thread, raised = in_a_thread(
        for_ever(lambda replay: replay.save(tmp_path / "saved", sync=False)), replay
    )
    time.sleep(0.1)
    replay.close()
    thread.join(LONG)
    (error,) = raised
    assert isinstance(error, RuntimeError), repr(error)
    with SharedReplay.load(tmp_path / "saved") as loaded:
        assert loaded.stats()["rows"] == 50


def test_a_closed_actor_reads_its_rows_until_the_next_one_adds() -> None:
    """It took the values of ``next_of`` that the next actor had not stored apart for its own."""
    fields: dict[str, Any] = {"x": {"shape": (), "dtype": "i8"}}
    with SharedReplay(40, fields, writers=1, next_of="x") as replay:
        closed = replay.actor()
        for t in range(30):
            closed.add(x=t, next_x=-t)
        closed.close()
        assert closed.get_all_transitions()["next_x"].tolist() == [-t for t in range(30)]
        with replay.actor() as actor:
            for t in range(30, 77):
                actor.add(x=t, next_x=-t)
            with pytest.raises(RuntimeError, match="closed"):
                closed.get_all_transitions()
            with pytest.raises(RuntimeError, match="closed"):
                closed.sample(4)
