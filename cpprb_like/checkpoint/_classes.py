"""The classes of this package that checkpoints know, by their names in files.

A name in files never changes, while the module of a class may. A file cannot cause the import of a
class that is not in this table.
"""

from __future__ import annotations

import importlib
from functools import cache

__all__ = ["class_of", "name_of"]

# Name in files: module. The part of the name after a dot is the name in the module.
MODULES = {
    "ReplayBuffer": "cpprb_like.buffers._replay",
    "PrioritizedReplayBuffer": "cpprb_like.buffers._prioritized",
    "ReverseReplayBuffer": "cpprb_like.buffers._prioritized",
    "ReplayMemory": "cpprb_like.buffers._replay_memory",
    "View": "cpprb_like.buffers._view",
    "Mixture": "cpprb_like.buffers._mixture",
    "RateLimited": "cpprb_like.limiters._rate_limited",
    "processes.SavedReplay": "cpprb_like.processes._saving",
    "processes.SavedLearner": "cpprb_like.processes._saving",
    "processes.SavedShard": "cpprb_like.processes._saving",
    "MinSize": "cpprb_like.limiters._policies",
    "SampleToInsertRatio": "cpprb_like.limiters._policies",
    "Backlog": "cpprb_like.limiters._policies",
    "Uniform": "cpprb_like.samplers._uniform",
    "LegacyUniform": "cpprb_like.samplers._uniform",
    "Recency": "cpprb_like.samplers._recency",
    "Reverse": "cpprb_like.samplers._reverse",
    "Prioritized": "cpprb_like.samplers._prioritized",
    "RankBased": "cpprb_like.samplers._rank_based",
    "Among": "cpprb_like.views._among",
    "NStep": "cpprb_like.views._nstep",
    "Sequences": "cpprb_like.views._sequences",
    "FrameStacks": "cpprb_like.views._frame_stacks",
    "Hindsight": "cpprb_like.views._hindsight",
    "Linear": "cpprb_like.schedules",
    "Piecewise": "cpprb_like.schedules",
    "Field": "cpprb_like._fields.schema",
    "EnvUniform": "cpprb_like.integrations._env_uniform",
    "cpprb.HindsightReplayBuffer": "cpprb_like.compat.cpprb._hindsight",
    "cpprb.SelectiveReplayBuffer": "cpprb_like.compat.cpprb._selective",
    "coax.SimpleReplayBuffer": "cpprb_like.compat.coax._buffers",
    "coax.PrioritizedReplayBuffer": "cpprb_like.compat.coax._buffers",
    "coax.TransitionBatch": "cpprb_like.compat.coax._transitions",
    "dqn.ReplayBuffer": "cpprb_like.compat.dqn._replay",
    "reagent.ReplayBuffer": "cpprb_like.compat.reagent._buffer",
    "reagent.PrioritizedReplayBuffer": "cpprb_like.compat.reagent._prioritized",
    "keras_gym.ExperienceReplayBuffer": "cpprb_like.compat.keras_gym._replay",
    "keras_gym.NStepCache": "cpprb_like.compat.keras_gym._caches",
    "keras_gym.MonteCarloCache": "cpprb_like.compat.keras_gym._caches",
}
NAMES = {(module, name.rpartition(".")[2]): name for name, module in MODULES.items()}


@cache
def class_of(name: str) -> type | None:
    """The class of a name in files; None for an unknown name."""
    module = MODULES.get(name)
    if module is None:
        return None
    found: type = getattr(importlib.import_module(module), name.rpartition(".")[2])
    return found


def name_of(cls: type) -> str | None:
    """The name of a class in files; None for a class that is not in the table."""
    return NAMES.get((cls.__module__, cls.__qualname__))
