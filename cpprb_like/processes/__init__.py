"""Processes on one machine: many actors and several learners share memory, without a server.

An actor adds its steps to its own shard, as to any buffer. A learner follows all shards, and draws
batches from their rows as from one buffer. May import: ``limiters`` and the rooms above it.
"""

from cpprb_like.processes._learner import Learner
from cpprb_like.processes._mass import Mass
from cpprb_like.processes._parameters import Parameters
from cpprb_like.processes._replay import Member, SharedReplay
from cpprb_like.processes._shards import Actor

__all__ = ["Actor", "Learner", "Mass", "Member", "Parameters", "SharedReplay"]
