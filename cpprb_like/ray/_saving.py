"""``SavedCluster``: a saved cluster, besides the rows and the priorities of its hosts.

Those are checkpoints of the hosts' shared replays, in folders that a save of the cluster names. It
is a checkpoint too, and written last. Not here: the methods that users call (``_cluster``).
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cpprb_like.checkpoint import CLUSTER, Checkpointed, manifest_name, states
from cpprb_like.errors import DamagedError
from cpprb_like.processes import Learner, SharedReplay
from cpprb_like.samplers import Sampler

STATES = "a", "b"  # folders of the states of hosts: a save leaves the one that is named alone


def save_host(replay: SharedReplay, folder: str | Path, learners: Mapping[str, Learner]) -> int:
    """Save the rows of a host and learners of this process; returns the state's number."""
    moment = time.time()
    replay.save(folder, learners=learners)
    number = states(folder)[-1]
    os.utime(
        Path(folder) / manifest_name(number), (moment, moment)
    )  # rows after that are not in it
    return number


@dataclass(eq=False)
class SavedLearner:
    """A learner of a saved cluster. Names of attributes are part of the file format."""

    name: str  # name of the learner in the states of the hosts
    draws: int  # number of batches drawn so far
    seed: int  # seed of the generators at hosts
    rng: np.random.Generator
    sampler: Sampler  # sampler without state of rows


@dataclass(eq=False)
class SavedCluster(Checkpointed):
    """A saved cluster. Names of attributes are part of the file format."""

    description: dict[str, Any]  # options, capacity and writers of a host, and the limiter
    states: str  # name of the folder with the states of the hosts
    hosts: dict[str, int]  # number of the state of each host, by the name of its folder
    learners: dict[str, SavedLearner]  # learners by the names that the caller chose
    counts: dict[str, Any]  # counts of the ledger
    parameters: Any  # newest parameters, or None

    @classmethod
    def read(cls, base: Path, state: int | None = None) -> SavedCluster:
        """The cluster that was saved last; ``FileNotFoundError`` without one, or another state."""
        if not states(base / CLUSTER):
            raise FileNotFoundError(f"{base}: no cluster was saved there")
        saved = cls.load(base / CLUSTER, state=state)
        numbers = {f"host-{number}" for number in range(len(saved.hosts))}
        if saved.states not in STATES or not numbers or saved.hosts.keys() != numbers:
            raise DamagedError(f"{base}: expected states of hosts, got {saved.hosts}")
        return saved

    def folder(self, base: Path, host: int) -> str:
        """Folder of the state of a host."""
        return str(base / self.states / f"host-{host}")

    def learner(self, name: str) -> SavedLearner:
        """The learner of this name; ``ValueError`` if there is none."""
        if name not in self.learners:
            raise ValueError(f"learner {name!r}: expected one of {sorted(self.learners)}")
        return self.learners[name]
