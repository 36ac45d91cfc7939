"""Rules of views of learners, while actors write between the moment of a draw and its reads."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from dying_processes import Child, ended

from cpprb_like import NotEnoughDataError
from cpprb_like._core import stop_at
from cpprb_like.processes import SharedReplay
from cpprb_like.processes._draws import MassesTogether
from cpprb_like.processes._shards import Reader
from cpprb_like.samplers import Prioritized, Uniform
from cpprb_like.views import Among, AtMost, Groups, Sequences

FIELDS: dict[str, Any] = {
    "key": {"shape": (), "dtype": "i8"},
    "tag": {"shape": (), "dtype": "i8"},
    "done": {"shape": (), "dtype": bool},
}
SAY = FIELDS | {"say": {"dtype": str}}


def add(actor: Any, *keys: int) -> None:
    """Add a row of each key."""
    for key in keys:
        said = {"say": f"key {key}"} if "say" in actor.schema.names else {}
        actor.add(key=key, tag=1, done=True, **said)


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], None]:
    """Have a function called once, after a learner followed the rows and before rules read them."""
    calls: list[Callable[[], Any]] = []
    edits = Reader.edits

    def hooked(reader: Reader) -> Any:
        if calls:
            calls.pop()()
        return edits(reader)

    monkeypatch.setattr(Reader, "edits", hooked)
    return calls.append


def drawn(view: Any, groups: int) -> list[list[int]]:
    """The keys of so many distinct groups of two rows."""
    keys = view.sample(2 * groups, replace=False)["key"].reshape(-1, 2)
    return sorted(keys.tolist())


@pytest.mark.parametrize("sampler", [Uniform, Prioritized])
def test_a_row_that_is_overwritten_joins_no_group(
    sampler: Any, meanwhile: Callable[[Callable[[], Any]], None]
) -> None:
    """It was told with the key of the row that replaced it, and broke the group of that key."""
    with SharedReplay(8, FIELDS, writers=2) as replay:
        actor, other = replay.actor(0), replay.actor(1)
        add(actor, 1, 1, 2, 2)
        add(other, 7)
        view = replay.learner(sampler(), seed=0).view(Groups("key", 2))
        assert drawn(view, 2) == [[1, 1], [2, 2]]
        actor.update([3], tag=[5])  # so that all rows are read once more
        meanwhile(lambda: add(actor, 7))
        assert drawn(view, 2) == [[2, 2], [7, 7]]


def test_rows_that_are_all_overwritten_are_drawn_anew(
    meanwhile: Callable[[Callable[[], Any]], None],
) -> None:
    """A rule is told of no row then, and the draw finds those in their place: it is no error."""

    def tagged(rows: Any) -> Any:
        return rows["tag"] >= rows["tag"].min()  # raises ``ValueError`` for no row

    with SharedReplay(4, FIELDS, writers=1) as replay:
        actor = replay.actor(0)
        add(actor, 1, 2, 3, 4)
        view = replay.learner(Uniform(), seed=0).view(Among(tagged, "tag"))
        meanwhile(lambda: add(actor, 5, 6, 7, 8))
        assert set(view.sample(40)["key"].tolist()) == {5, 6, 7, 8}


def test_a_row_that_a_killed_actor_was_writing_joins_no_group() -> None:
    """A learner that came before the next actor broke the group of the row that was half there."""

    def job(child: Child) -> None:
        actor = replay.actor(0)
        add(actor, 1, 1, 2, 2)
        child.beat()
        stop_at("written", signal.SIGKILL)
        add(actor, 7)

    with SharedReplay(8, FIELDS, writers=2) as replay:
        add(replay.actor(1), 7)
        child = Child("writer", job)
        with ended([child]):
            assert child.end() == -signal.SIGKILL
        view = replay.learner(Uniform(), seed=0).view(Groups("key", 2))
        assert drawn(view, 1) == [[2, 2]]
        with replay.actor(0) as actor:
            add(actor, 7)
            assert drawn(view, 2) == [[2, 2], [7, 7]]


def test_a_text_that_is_not_whole_is_no_key(
    meanwhile: Callable[[Callable[[], Any]], None],
) -> None:
    """All rows were grouped as if their text were empty, for good, where an episode ended."""
    with SharedReplay(20, SAY, writers=2, room={"say": 400}) as replay:
        actor, other = replay.actor(0), replay.actor(1)
        view = replay.learner(Uniform(), seed=0).view(Groups("say", 2))
        add(actor, 1, 2, 1, 2)
        add(other, 3, 3)
        actor.add(key=4, tag=1, done=False, say="key 4")
        meanwhile(actor.on_episode_end)
        assert drawn(view, 3) == [[1, 1], [2, 2], [3, 3]]


@pytest.mark.parametrize("replace", [True, False])
def test_an_edit_amid_a_draw_is_no_error(monkeypatch: pytest.MonkeyPatch, replace: bool) -> None:
    """``ValueError: negative dimensions`` was raised, as masses changed between two tries."""
    with SharedReplay(200, FIELDS, writers=1) as replay:
        actor = replay.actor(0)
        actor.add(key=range(150), tag=np.ones(150), done=np.zeros(150))
        learner = replay.learner(Prioritized(), seed=0)
        view = learner.view(Among("tag"), Sequences(2, stride=200))  # of which there is one
        draw = MassesTogether.draw
        calls = [lambda: actor.update(np.arange(150), tag=np.zeros(150))]

        def hooked(masses: MassesTogether, *arguments: Any) -> Any:
            found = draw(masses, *arguments)
            if calls and len(arguments) == 6 and arguments[-1] is not None:
                calls.pop()()
            return found

        monkeypatch.setattr(MassesTogether, "draw", hooked)
        with pytest.raises(NotEnoughDataError):
            view.sample(8, replace=replace)
        assert not calls


@pytest.mark.parametrize("sampler", [Uniform, Prioritized])
def test_groups_of_other_shards_are_drawn_while_one_is_edited(sampler: Any) -> None:
    """A group with a row of that shard was drawn too, until ``RuntimeError``: after 10 seconds."""

    def job(child: Child) -> None:
        actor = replay.actor(0)
        add(actor, *range(20))
        child.beat()
        while child.beats < 2:
            time.sleep(0.001)
        stop_at("editing", signal.SIGSTOP)
        actor.update([3], tag=[5])

    with SharedReplay(80, FIELDS, writers=2) as replay:
        child = Child("writer", job)
        with ended([child]):
            child.wait_for_beats(1)
            add(replay.actor(1), *range(20), *np.repeat(range(20, 28), 2).tolist())
            view = replay.learner(sampler(), seed=0).view(Groups("key", 2), AtMost(9))
            assert len(drawn(view, 28)) == 28
            child.beat()
            child.wait_until_stopped()
            begun = time.monotonic()
            assert drawn(view, 8) == [[key, key] for key in range(20, 28)]
            assert time.monotonic() - begun < 8
