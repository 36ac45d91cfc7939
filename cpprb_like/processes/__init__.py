"""Processes on one machine: many actors, several learners, one memory, no server.

A step goes into the shard of the actor that added it, as into any buffer. A learner follows all
shards and draws batches from their rows as from those of one buffer. May import: all rooms up to
``limiters``.
"""

from cpprb_like.processes._learner import Learner
from cpprb_like.processes._parameters import Parameters
from cpprb_like.processes._replay import Member, SharedReplay
from cpprb_like.processes._shards import Actor

__all__ = ["Actor", "Learner", "Member", "Parameters", "SharedReplay"]
