"""Draws from a node of Ray that is another than this process's: a program of its own.

    python tests/cluster/other_node.py

It checks that images are those that were added, and that the answers which are read next come to
this node before they are read.
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
from soak_nodes import nodes

from cpprb_like._machine.waiting import wait_until
from cpprb_like.ray import ClusterActor, ClusterReplay

ROWS, BATCH, BATCHES = 200, 16, 4
FIELDS: dict[str, Any] = {
    "id": {"shape": (), "dtype": np.int64},
    "obs": {"shape": (84, 84), "dtype": np.uint8},
}


def main() -> None:
    """Add at the other node, draw here."""
    with (
        nodes(1) as found,
        ClusterReplay(ROWS, FIELDS, writers=1, hosts=[found.others[0].id]) as replay,
    ):
        with replay.actor() as actor:
            assert isinstance(actor, ClusterActor)
            for row in range(ROWS):
                actor.add(id=row, obs=np.full((84, 84), row, np.uint8))
        learner = replay.learner(seed=0, batches=BATCHES)
        for number in range(3 * BATCHES + 1):
            if number % BATCHES == 0:
                time.sleep(1.0)  # the host has answered
            batch = learner.sample(BATCH)
            assert (batch["obs"] == batch["id"][:, None, None]).all()
            assert batch["obs"].flags.writeable
        ((_, ahead, *_),) = learner._groups.values()
        (answer,) = ahead.answers
        own = ray.get_runtime_context().get_node_id()
        where = ray.experimental.get_object_locations
        assert wait_until(lambda: own in where([answer])[answer]["node_ids"], 10.0)
        learner.close()


if __name__ == "__main__":
    main()
