"""A cluster attaches to its own memory, checkpoints and name, and to those of no other cluster."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cluster_cases import cluster, fill, pid_of, steps, until, wipe
from local_ray import ray

from cpprb_like.processes import SharedReplay
from cpprb_like.ray import ClusterReplay


def ids_of(replay: ClusterReplay) -> set[int]:
    """The numbers of the rows of the first host."""
    about = replay.hosts[0].call("about", timeout=60.0)
    with replay._connection.opened(about).learner() as learner:
        n = len(learner)
        return set(learner.sample(n, replace=False)["id"].tolist()) if n else set()


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoints of a cluster that has ended, for all tests: a cluster takes seconds."""
    folder = tmp_path_factory.mktemp("ended") / "old"
    with cluster(checkpoints=folder, checkpoint_seconds=0.2) as replay:
        fill(replay, 0, steps(0, 100))
        until(lambda: bool(list(folder.glob("host-0/*"))))
        time.sleep(1.0)  # a save that begins after the rows were added
    with SharedReplay.load(folder / "host-0") as shared, shared.learner() as learner:
        assert len(learner) == 100
    return folder


@pytest.fixture
def old(ended: Path, tmp_path: Path) -> Path:
    """The checkpoints of a cluster that has ended: rows 0 to 99."""
    return Path(shutil.copytree(ended, tmp_path / "old"))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved cluster with rows 5000 to 5049, which is only read."""
    folder = tmp_path_factory.mktemp("saved")
    with cluster() as replay:
        fill(replay, 0, steps(5000, 50))
        replay.save(folder)
    return folder


def test_rows_of_a_killed_host_outlive_the_last_process_of_its_node() -> None:
    """This process removed the memory at its end, before Ray had started the host again."""

    class Player:  # here, as processes of Ray do not import this module
        def play(self, replay: ClusterReplay, rows: dict[str, Any], host: int) -> None:
            with replay.actor() as actor:
                actor.add(**rows)
                os.kill(host, signal.SIGKILL)

    with cluster() as replay:
        pid = pid_of(replay.hosts[0])
        player = ray.remote(num_cpus=0)(Player).remote()
        ray.get(player.play.remote(replay, steps(0, 100), pid))
        del player  # its process ends regularly
        until(lambda: pid_of(replay.hosts[0]) != pid, 60.0)
        assert ids_of(replay) == set(range(100))
        assert replay.losses() == []


def test_memory_of_a_host_that_is_down_is_freed_with_its_cluster() -> None:
    """It stays for the host, but not after ``close``."""
    base = Path(os.environ["CPPRB_LIKE_SHARED_MEMORY"])
    with cluster() as replay:
        pid = pid_of(replay.hosts[0])
        os.kill(pid, signal.SIGKILL)
    until(lambda: not list(base.glob("*/cluster-*")), 5.0)


def test_a_loaded_cluster_has_the_saved_rows_beside_old_checkpoints(old: Path, saved: Path) -> None:
    """Its hosts loaded the newest checkpoint of the folder, of whichever cluster it was."""
    with ClusterReplay.load(saved, checkpoints=old, checkpoint_seconds=3600.0) as replay:
        assert ids_of(replay) == set(range(5000, 5050))
        about = replay.hosts[0].call("about", timeout=60.0)
        wipe(replay, about)  # before the first checkpoint of this cluster
        until(lambda: replay.losses() != [], 60.0)
        assert ids_of(replay) == set(range(5000, 5050))


def test_checkpoints_of_a_loaded_cluster_take_the_place_of_old_ones(old: Path, saved: Path) -> None:
    """After the death of a node its host goes on from them."""
    with ClusterReplay.load(saved, checkpoints=old, checkpoint_seconds=0.3) as replay:
        fill(replay, 0, steps(6000, 20))
        time.sleep(1.5)
        wipe(replay, replay.hosts[0].call("about", timeout=60.0))
        until(lambda: replay.losses() != [], 60.0)
        assert ids_of(replay) == {*range(5000, 5050), *range(6000, 6020)}


def test_a_new_cluster_refuses_checkpoints_of_another_one(old: Path) -> None:
    """It began with the rows of the other one, even with other fields."""
    other: dict[str, Any] = {"env_dict": {"q": {"shape": 2}}}
    with pytest.raises(FileExistsError, match=r"host-0 has the rows of another cluster"):
        cluster(checkpoints=old)
    with pytest.raises(FileExistsError, match=r"host-0 has the rows of another cluster"):
        cluster(checkpoints=old, **other)
    with SharedReplay.load(old / "host-0") as shared, shared.learner() as learner:
        assert len(learner) == 100


def test_checkpoints_of_a_cluster_that_runs_are_refused(saved: Path, tmp_path: Path) -> None:
    """Each of both would have replaced the checkpoints of the other."""
    with (
        cluster(checkpoints=tmp_path / "own"),
        pytest.raises(FileExistsError, match="of another cluster, which runs"),
    ):
        ClusterReplay.load(saved, checkpoints=tmp_path / "own")


def test_a_name_is_that_of_one_cluster() -> None:
    """A second one of the name attached to the memory of the first, and removed it at its end."""
    with SharedReplay(10, {"x": {"shape": ()}}, writers=1, name="taken-0") as shared:
        with cluster(name="taken") as replay:
            fill(replay, 0, steps(0, 30))
            with pytest.raises(FileExistsError, match="there is a cluster of the name 'taken'"):
                cluster(name="taken")
            assert ids_of(replay) == set(range(30))
        with cluster(name="taken") as again:
            assert again.name == "taken"
            assert ids_of(again) == set()
        with shared.actor() as actor:
            actor.add(x=np.zeros(3))
        assert shared.stats()["rows"] == 3
