"""Draws from a node of Ray that is another than this process's: a program of its own.

    python tests/cluster/other_node.py

It checks that images are those that were added, and that the answers which are read next come to
this node before they are read. Then the other node dies, with answers that were not read.
"""

from __future__ import annotations

import sys
from pathlib import Path

SUPPORT = Path(__file__).resolve().parents[1] / "support"
sys.path[:0] = [str(SUPPORT), str(SUPPORT.parents[1])]

import time
from typing import Any

import numpy as np
from local_ray import ray
from soak_nodes import Nodes, nodes

from cpprb_like._machine.waiting import wait_until
from cpprb_like.ray import ClusterLearner, ClusterReplay

ROWS, BATCH, BATCHES = 200, 16, 4
FIELDS: dict[str, Any] = {
    "id": {"shape": (), "dtype": np.int64},
    "obs": {"shape": (84, 84), "dtype": np.uint8},
}


def add(replay: ClusterReplay, host: int) -> None:
    """Add images to a host."""
    with replay.actor(host=host) as actor:
        for row in range(ROWS):
            actor.add(id=row, obs=np.full((84, 84), row, np.uint8))


def draw(learner: ClusterLearner) -> None:
    """Draw a batch, and check it."""
    batch = learner.sample(BATCH)
    assert (batch["obs"] == batch["id"][:, None, None]).all()
    assert batch["obs"].flags.writeable


def answers_come_ahead(found: Nodes) -> None:
    """The next answer is at this node before it is read."""
    with ClusterReplay(ROWS, FIELDS, writers=1, hosts=[found.others[0].id]) as replay:
        add(replay, 0)
        with replay.learner(seed=0, batches=BATCHES) as learner:
            for number in range(3 * BATCHES + 1):
                if number % BATCHES == 0:
                    time.sleep(1.0)  # the host has answered
                draw(learner)
            ((_, ahead, *_),) = learner._batches.groups.values()
            (answer,) = ahead.answers
            own = ray.get_runtime_context().get_node_id()
            where = ray.experimental.get_object_locations
            assert wait_until(lambda: own in where([answer])[answer]["node_ids"], 10.0)


def answers_are_lost(found: Nodes) -> None:
    """Batches whose bytes died with their node come from the other host."""
    hosts = [found.head.id, found.others[0].id]
    with ClusterReplay(2 * ROWS, FIELDS, writers=1, hosts=hosts) as replay:
        for host in range(2):
            add(replay, host)
        with replay.learner(seed=0, batches=BATCHES) as learner:
            draw(learner)
            time.sleep(1.0)  # the host has answered; two answers lie at its node
            found.kill(found.others[0])
            for _ in range(10 * BATCHES):
                draw(learner)


def main() -> None:
    """Run both on one cluster."""
    with nodes(1) as found:
        answers_come_ahead(found)
        answers_are_lost(found)


if __name__ == "__main__":
    main()
