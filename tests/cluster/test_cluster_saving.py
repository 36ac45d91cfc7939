"""What a save of a cluster has besides its rows: learners, counts of the limiter, parameters."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
from cluster_cases import ELSEWHERE, UNEVEN, cluster, fill, steps, until

from cpprb_like import ReplayBuffer
from cpprb_like.checkpoint import copy, describe, inspect, open_beside, states, verify
from cpprb_like.errors import DamagedError
from cpprb_like.limiters import Backlog, SampleToInsertRatio
from cpprb_like.processes import SharedReplay
from cpprb_like.ray import ClusterReplay
from cpprb_like.ray._connection import Connection
from cpprb_like.ray._saving import SavedCluster, SavedLearner
from cpprb_like.samplers import Prioritized
from cpprb_like.schedules import Linear


def filled(replay: ClusterReplay) -> None:
    """Rows of three hosts."""
    first = 0
    for number, n in enumerate(UNEVEN[3]):
        fill(replay, number, steps(first, n))
        first += n


def test_a_restored_learner_draws_what_the_saved_one_draws(tmp_path: Path, where: str) -> None:
    """With the same priorities, weights, sampler and generator, at each host."""
    sampler = Prioritized(alpha=0.7, beta=Linear(0.4, 1.0, 10), probabilities=True)
    with cluster(3) as replay:
        filled(replay)
        learner = replay.learner(sampler, seed=3, ahead=0)
        for _ in range(4):
            batch = learner.sample(64)
            learner.update_priorities(batch["indexes"], batch["id"] % 5 + 0.5)
        replay.save(tmp_path, learners={"main": learner})
        expected = [learner.sample(32) for _ in range(3)]
        assert expected[0].keys() >= {"weights", "probabilities"}
    with ClusterReplay.load(tmp_path) as again:
        restored = again.restore_learner(tmp_path, "main", ahead=0)
        assert restored.draws == 4
        for wanted in expected:
            found = restored.sample(32)
            for name in wanted.keys() - {"indexes"}:
                assert (found[name] == wanted[name]).all(), name
        assert restored.get_max_priority() == 4.5


def test_priorities_come_back_where_other_hosts_are_near(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A learner that drew on the node of the hosts goes on at another one."""
    with cluster(3) as replay:
        filled(replay)
        learner = replay.learner(Prioritized(alpha=1.0, eps=0.0), seed=3, ahead=0)
        batch = learner.sample(2000)
        learner.update_priorities(batch["indexes"], np.where(batch["id"] % 2, 3.0, 0.0))
        replay.save(tmp_path, learners={"main": learner})
    monkeypatch.setattr(Connection, "node", lambda _: ELSEWHERE)
    with ClusterReplay.load(tmp_path) as again:
        restored = again.restore_learner(tmp_path, "main", ahead=0)
        assert (restored.sample(500)["id"] % 2 == 1).all()
        with pytest.raises(ValueError, match=r"learner 'other': expected one of \['main'\]"):
            again.restore_learner(tmp_path, "other")


@pytest.mark.parametrize("first", ["add", "sample"])
def test_after_a_load_blocks_and_batches_as_large_as_the_range_go_on(
    first: str, tmp_path: Path
) -> None:
    """The counts of a save may leave no room for either side, which then waited for ever."""
    with cluster(limiter=Backlog(64, timeout=5.0)) as replay:
        learner = replay.learner(seed=0, ahead=0)
        fill(replay, 0, steps(0, 64))
        until(lambda: replay.stats()["inserts"] == 64)
        learner.sample(32)
        replay.save(tmp_path)
    with ClusterReplay.load(tmp_path) as again:
        learner = again.learner(seed=0, ahead=0)
        if first == "sample":
            learner.sample(64)
        for turn in range(3):
            fill(again, 0, steps(64 + 64 * turn, 64))
            learner.sample(64)
        assert again.stats()["samples"] == 32 + 64 * (3 + (first == "sample"))


def test_counts_of_the_limiter_and_parameters_come_back(tmp_path: Path, where: str) -> None:
    """Else actors wait for samples that were drawn before the save."""
    limiter = SampleToInsertRatio(1.0, 10, 50.0, timeout=5.0)
    with cluster(limiter=limiter) as replay:
        learner = replay.learner(seed=0, ahead=0)
        for first in range(0, 200, 20):
            fill(replay, 0, steps(first, 20))
            until(lambda expected=first + 20: replay.stats()["inserts"] == expected)
            learner.sample(20)
        replay.parameters.publish({"w": np.arange(3.0)})
        replay.save(tmp_path)
    with ClusterReplay.load(tmp_path) as again:
        until(lambda: again.stats()["inserts"] == 200)
        assert again.stats()["samples"] == 200
        fill(again, 0, steps(200, 20))
        version, values = again.parameters.wait()
        assert version == 1
        assert (values["w"] == np.arange(3.0)).all()


def test_learners_of_others_are_refused(tmp_path: Path) -> None:
    """And nothing is saved."""
    with cluster() as replay, cluster() as other:
        with pytest.raises(TypeError, match=r"learners\['main'\]: expected a learner of"):
            replay.save(tmp_path, learners={"main": other.learner(seed=0)})
        assert not (tmp_path / "cluster").exists()


def test_a_save_that_was_changed_is_an_error(tmp_path: Path) -> None:
    """Each file has a checksum; those of the parameters and the learners had none."""
    rng, values = np.random.default_rng(0), {"w": np.arange(1000.0)}
    learner = SavedLearner("name", 3, 5, rng, Prioritized(beta=0.5))
    counts = {"samples": 1, "gone_before": 0}
    saved = SavedCluster({"writers": 1}, "a", {"host-0": 1}, {"main": learner}, counts, values)
    saved.save(tmp_path / "cluster")
    again = SavedCluster.read(tmp_path)
    assert (again.parameters["w"] == values["w"]).all()
    assert again.learner("main").rng.random() == np.random.default_rng(0).random()
    for file in (path for path in tmp_path.rglob("*") if path.stat().st_size and path.is_file()):
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 8
        file.write_bytes(content)
        with pytest.raises(DamagedError):
            SavedCluster.read(tmp_path)
        content[len(content) // 2] ^= 8
        file.write_bytes(content)
    assert SavedCluster.read(tmp_path).hosts == {"host-0": 1}


def test_files_beside_come_back(tmp_path: Path) -> None:
    """They are of the state that names the states of the hosts; an error leaves those before."""
    with cluster(2) as replay:
        fill(replay, 0, steps(0, 10))
        replay.save(tmp_path, beside={"model": lambda file: file.write(b"old"), "env": b"1"})
        fill(replay, 1, steps(10, 10))
        with pytest.raises(ZeroDivisionError):
            replay.save(tmp_path, beside={"model": lambda _: 1 / 0})
        with pytest.raises(ValueError, match="beside: expected names of"):
            replay.save(tmp_path, beside={"../model": b""})
        with ClusterReplay.load(tmp_path) as again, open_beside(tmp_path, "model") as file:
            until(lambda: again.stats()["rows"] == 10)
            assert file.read() == b"old"
        replay.save(tmp_path, beside={"model": b"new"})
        with ClusterReplay.load(tmp_path) as again, open_beside(tmp_path, "model") as file:
            until(lambda: again.stats()["rows"] == 20)
            assert file.read() == b"new"
        with pytest.raises(ValueError, match=r"one of the files \['model'\]"):
            open_beside(tmp_path, "env")
        (state,) = states(tmp_path)
        assert inspect(tmp_path).rows == ((10, 0), (10, 0))
        assert verify(tmp_path)[0].is_in_order
        with pytest.raises(FileNotFoundError, match=f"there is no state {state - 1}, only"):
            ClusterReplay.load(tmp_path, state=state - 1)

        def adds(file: BinaryIO) -> None:
            fill(again, 0, steps(20, 5))
            file.write(b"1")

        with ClusterReplay.load(tmp_path, state=state) as again:
            again.save(tmp_path, beside={"model": adds})
        assert sum(map(sum, inspect(tmp_path).rows)) == 25


HOST_FIELDS: Any = {"x": {"shape": ()}, "rew": {"shape": ()}, "done": {"shape": ()}}


def saved_cluster(folder: Path) -> None:
    """What a ``ClusterReplay`` of two hosts saves."""
    for host in range(2):
        with SharedReplay(100, HOST_FIELDS, writers=2) as replay, replay.actor(1) as actor:
            actor.add(x=np.arange(5), rew=np.zeros(5), done=np.zeros(5))
            for _ in range(1 + host):
                actor.add(x=9, rew=0, done=False)
                replay.save(folder / "a" / f"host-{host}")
    hosts = {"host-0": 1, "host-1": 2}
    saved = SavedCluster({"writers": 2}, "a", hosts, {}, {"samples": 0}, None)
    saved.save(folder / "cluster", beside={"model": b"1" * 3000})


def test_the_folder_of_a_cluster_is_a_checkpoint(tmp_path: Path) -> None:
    """A program that asks whether there is one does not begin anew; hosts are read, too."""
    folder = tmp_path / "runs"
    assert states(folder) == []
    saved_cluster(folder)
    assert states(folder) == [1]
    saved = inspect(folder)
    assert (saved.state, saved.rows, saved.beside) == (1, ((0, 6), (0, 7)), {"model": 3000})
    with open_beside(folder, "model", state=saved.state) as file:
        assert file.read() == b"1" * 3000
    found = describe(folder, state=1)
    assert [(one["path"], one["rows"]) for one in found["buffers"] if one["rows"]] == [
        ("host-0.shards.1", 6),
        ("host-1.shards.1", 7),
    ]
    (verdict,) = verify(folder)
    assert verdict.is_in_order
    assert (verdict.files, verdict.nbytes) == (found["files"], found["nbytes"])
    with pytest.raises(ValueError, match="a saved ClusterReplay is copied as a folder"):
        copy(folder, tmp_path / "new")
    with pytest.raises(FileNotFoundError, match=r"no checkpoint; ClusterReplay.load\(\) loads"):
        ReplayBuffer.load(folder)
    with pytest.raises(TypeError, match=r"has a ray.SavedCluster, no SharedReplay"):
        SharedReplay.load(folder)

    path = next((folder / "a" / "host-1").glob("*.npy"))
    path.write_bytes(path.read_bytes()[:-1])
    (verdict,) = verify(folder)
    assert [one.name for one in verdict.damage] == [f"host-1/{path.name}"]
    assert verdict.lost == {0: (7, 7)}
    shutil.rmtree(folder / "a" / "host-1")
    (verdict,) = verify(folder)
    assert verdict.fatal == "host-1: there is no checkpoint"


@pytest.mark.parametrize("host", ["../../a", "host-", "/host-0"])
def test_a_forged_cluster_names_no_other_folders(host: str, tmp_path: Path) -> None:
    """The names are parts of paths."""
    SavedCluster({}, "a", {host: 1}, {}, {}, None).save(tmp_path / "cluster")
    for read in (inspect, describe):
        with pytest.raises(DamagedError, match="the manifest names a folder"):
            read(tmp_path)
    assert "names a folder" in verify(tmp_path)[0].fatal
