"""One program on the replay of one machine and on that of a cluster."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cluster_cases import FIELDS, steps, until

from cpprb_like.limiters import MinSize
from cpprb_like.processes import Actor, Learner, Parameters, SharedReplay
from cpprb_like.ray import ClusterActor, ClusterLearner, ClusterReplay
from cpprb_like.ray._parameters import ClusterParameters
from cpprb_like.samplers import Prioritized
from cpprb_like.views import NStep, Packed

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cluster.md"
COUNTS = ("inserts", "rows", "left_for_room")
RAGGED: dict[str, Any] = {
    **FIELDS,
    "ids": {"shape": ("T",), "dtype": np.int32},
    "logp": {"shape": ("T",)},
    "text": {"dtype": str},
}
# Of the rows 0 to 24 of a writer the first five leave, as all have 50 items.
ROOM = {"T": 2 * 40, "text": 1000}
# Public names of one side that the other lacks, and parameters of methods that differ. The page
# names all of them, but for the methods of a buffer that ``ClusterActor`` lacks.
ONLY: dict[type, tuple[set[str], set[str]]] = {
    SharedReplay: ({"attach", "folder", "rewind", "rows"}, {"hosts", "losses"}),
    Learner: (
        {"FOLLOWED", "consistently", "late_updates", "mass", "raise_max_priority"},
        {"flush"},
    ),
    Parameters: ({"version"}, set()),
}
PARAMETERS: dict[str, tuple[set[str], set[str]]] = {
    "actor": ({"writer"}, {"host", "timeout"}),
    "learner": (set(), {"ahead", "batches", "nbytes", "timeout"}),
    "save": ({"keep", "codec", "level", "sync"}, {"timeout"}),
    "load": (
        {"capacity", "room", "writers"},
        {"hosts", "checkpoints", "checkpoint_seconds", "resources"},
    ),
    "restore_learner": (
        {"replace", "classes"},
        {"ahead", "batches", "nbytes", "timeout"},
    ),
}
PAIRS: list[tuple[type, type]] = [
    (SharedReplay, ClusterReplay),
    (Learner, ClusterLearner),
    (Parameters, ClusterParameters),
]


def shared(**options: Any) -> SharedReplay:
    """A replay of this machine."""
    return SharedReplay(1000, RAGGED, room=ROOM, writers=2, **options)


def of_cluster(**options: Any) -> ClusterReplay:
    """A replay of a cluster with one host."""
    return ClusterReplay(1000, RAGGED, room=ROOM, writers=2, hosts=1, **options)


def rollouts(first: int, n: int) -> dict[str, Any]:
    """Steps with tokens, whose number and values follow from the number of the step."""
    ids = [np.full(k % 5, k, np.int32) for k in range(first, first + n)]
    texts = ["é" * (k % 3) for k in range(first, first + n)]
    return steps(first, n) | {"ids": ids, "logp": [-0.5 * one for one in ids], "text": texts}


def check_tokens(batch: Any) -> None:
    """Each row of a packed batch has its tokens."""
    offsets, ids = batch["T_offsets"], batch["id"]
    np.testing.assert_array_equal(np.diff(offsets), ids % 5)
    np.testing.assert_array_equal(batch["ids"], np.repeat(ids, ids % 5))
    np.testing.assert_array_equal(batch["logp"], -0.5 * batch["ids"])
    assert batch["text"].tolist() == ["é" * (k % 3) for k in ids.tolist()]


def publish(parameters: Any) -> list[Any]:
    """Publish two versions, and read them in each way."""
    found: list[Any] = [parameters.latest()]
    with pytest.raises(TimeoutError, match=r"^waited 0.05 s for version 1 of the parameters: noth"):
        parameters.wait(timeout=0.05)
    with pytest.raises(ValueError, match="version"):
        parameters.wait(0)
    found.append(parameters.publish({"w": np.arange(3.0)}))
    found += [parameters.wait()[0], parameters.wait(1)[1]["w"].tolist()]
    with pytest.raises(TimeoutError, match=r"^waited 0.05 s for version 2 of the parameters: "):
        parameters.wait(2, timeout=0.05)
    found.append(parameters.publish({"w": np.ones(3)}))
    found += [parameters.wait(2)[1]["w"].tolist(), parameters.wait(1)[0]]
    return [*found, parameters.latest(after=2), parameters.latest(after=1)[0]]


def draw(learner: Any) -> list[Any]:
    """Draw, set priorities, and draw again: what does not depend on random numbers."""
    batch = learner.sample(400, beta=0.5)
    found: list[Any] = [len(learner), sorted(batch), sorted(set(batch["id"].tolist()))]
    found += [{name: (one.dtype, one.shape) for name, one in batch.items()}]
    learner.update_priorities(batch["indexes"], np.where(batch["id"] < 12, 2.0, 0.0))
    out, ids = {"id": np.empty(400, np.int64)}, np.empty(400, np.int32)
    again = learner.sample(400, fields=("id",), out=out)
    found += [again is out, sorted(set(out["id"].tolist())), sorted(again)]
    found += [learner.has_priorities, learner.get_max_priority()]
    view = learner.view(NStep(3, gamma=1.0, rew="rew"))
    some = view.sample(50)
    found += [sorted(some), bool((some["rew"] >= some["id"] % 7).all())]
    packed = learner.view(Packed(segments=True))
    check_tokens(packed.sample(50))
    found += [sorted(packed.sample(4)), sorted(packed.sample(4, fields=("logp",)))]
    arrays = packed.sample(4, fields=("id", "ids"), out={"id": out["id"][:4], "ids": ids})
    found += [np.shares_memory(arrays["ids"], ids), arrays["T_segments"].dtype]
    with pytest.raises(ValueError, match="none"):
        learner.sample(2, fields=("none",))
    return found


def program(replay: Any, folder: Path, load: Callable[..., Any]) -> dict[str, Any]:
    """What a program sees of a replay, but for random numbers."""
    found: dict[str, Any] = {"capacity": replay.capacity, "parameters": publish(replay.parameters)}
    with replay.actor() as one, replay.actor() as other:
        one.add(**rollouts(0, 20))
        one.add(**rollouts(20, 5), priorities=np.ones(5))
        for row in range(30, 34):
            other.add(**{name: values[0] for name, values in rollouts(row, 1).items()})
        other.on_episode_end()
        one.flush()
        other.flush()
        with pytest.raises(BlockingIOError):
            replay.actor()
        with pytest.raises(TypeError):
            one.add(id=1)
        for name, wrong in ("ids", np.zeros(41, np.int32)), ("logp", np.zeros(7)), ("text", b"a"):
            last = {field: values[0] for field, values in rollouts(34, 1).items()}
            with pytest.raises(ValueError, match=name):
                one.add(**last | {name: wrong})
    learner = replay.learner(Prioritized(alpha=1.0, eps=0.0), seed=0)
    found["draws"] = draw(learner)
    until(lambda: replay.stats()["inserts"] == 29)
    found["stats"] = {name: replay.stats()[name] for name in COUNTS}
    described = replay.describe(reward="rew")
    buffers = described.to_dict()["buffers"]
    found["described"] = type(described), sum(one["rows"] for one in buffers)
    replay.save(folder, learners={"main": learner})
    with load(folder) as again:
        restored = again.restore_learner(folder, "main")
        found["restored"] = sorted(set(restored.sample(400)["id"].tolist())), len(restored)
        check_tokens(restored.view(Packed()).sample(50))
        with pytest.raises(ValueError, match="other"):
            again.restore_learner(folder, "other")
        found["parameters again"] = again.parameters.latest() is not None
    learner.close()
    replay.close()
    with pytest.raises(RuntimeError):
        replay.learner()
    return found


def test_one_program_runs_on_one_machine_and_on_a_cluster(tmp_path: Path, where: str) -> None:
    """All that it sees is equal; parameters are saved with a cluster only."""
    limiter = MinSize(10, timeout=20.0)
    here = program(shared(limiter=limiter), tmp_path / "here", SharedReplay.load)
    there = program(of_cluster(limiter=limiter), tmp_path / "there", ClusterReplay.load)
    assert (here.pop("parameters again"), there.pop("parameters again")) == (False, True)
    assert here == there


def public(cls: type) -> set[str]:
    """The public names of a class."""
    return {name for name in dir(cls) if not name.startswith("_")}


def parameters_of(method: Any) -> set[str]:
    """The names of the parameters of a method."""
    return set(inspect.signature(method).parameters)


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_names_and_parameters_differ_where_the_page_says_so(one: type, other: type) -> None:
    """The page of clusters lists what only one side has."""
    page = PAGE.read_text(encoding="utf-8").partition("\n## Beside `SharedReplay`\n")[2]
    lacks, further = ONLY[one]
    assert (public(one) - public(other), public(other) - public(one)) == (lacks, further)
    told = {name for names in (lacks, further) for name in names} - {"FOLLOWED"}
    for name in public(one) & public(other):
        methods = getattr(one, name), getattr(other, name)
        if all(map(callable, methods)):
            of_one, of_other = map(parameters_of, methods)
            known = PARAMETERS if one is SharedReplay else {}
            lacks, further = known.get(name, (set(), set()))
            assert (of_one - of_other, of_other - of_one) == (lacks, further), name
            told |= lacks | further
    assert {name for name in told if f"`{name}" not in page} == set()


def test_an_actor_of_another_node_has_methods_of_actors_alone() -> None:
    """With the same parameters."""
    assert public(ClusterActor) <= public(Actor) | {"lost", "number"}
    assert {"add", "add_where", "on_episode_end", "flush", "stats", "close"} <= public(ClusterActor)
