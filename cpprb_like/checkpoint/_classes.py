"""The classes of this package that checkpoints know, by their names in files.

A name in files never changes, while the module of a class may. A file cannot cause the import of a
class that is not in this table.
"""

from __future__ import annotations

import importlib
from functools import cache

# Module: names in files. The part of a name after a dot is the name in the module.
CLASSES = {
    "buffers._replay": "ReplayBuffer",
    "buffers._view": "View",
    "buffers._mixture": "Mixture",
    "limiters._rate_limited": "RateLimited",
    "processes._saving": "processes.SavedReplay processes.SavedLearner processes.SavedShard",
    "ray._saving": "ray.SavedCluster ray.SavedLearner",
    "limiters._policies": "MinSize SampleToInsertRatio Backlog",
    "samplers._uniform": "Uniform",
    "samplers._recency": "Recency",
    "samplers._prioritized": "Prioritized",
    "samplers._rank_based": "RankBased",
    "views._advantages": "Advantages",
    "views._among": "Among",
    "views._newest": "Newest",
    "views._at_most": "AtMost",
    "views._groups": "Groups",
    "views._nstep": "NStep",
    "views._sequences": "Sequences",
    "views._share": "Share",
    "views._frame_stacks": "FrameStacks",
    "views._offsets": "Offsets",
    "views._hindsight": "Hindsight",
    "views._item_layouts": "Padded Packed",
    "schedules": "Linear Piecewise",
    "_fields.field": "Field",
    "integrations._env_uniform": "EnvUniform",
    "compat._replay_memory": "ReplayMemory",
    "compat.cpprb._legacy_uniform": "LegacyUniform",
    "compat.cpprb._prioritized": "PrioritizedReplayBuffer ReverseReplayBuffer",
    "compat.cpprb._reverse": "Reverse",
    "compat.cpprb._hindsight": "cpprb.HindsightReplayBuffer",
    "compat.cpprb._selective": "cpprb.SelectiveReplayBuffer",
    "compat.coax._buffers": "coax.SimpleReplayBuffer coax.PrioritizedReplayBuffer",
    "compat.coax._transitions": "coax.TransitionBatch",
    "compat.dqn._replay": "dqn.ReplayBuffer",
    "compat.reagent._buffer": "reagent.ReplayBuffer",
    "compat.reagent._prioritized": "reagent.PrioritizedReplayBuffer",
    "compat.keras_gym._replay": "keras_gym.ExperienceReplayBuffer",
    "compat.keras_gym._caches": "keras_gym.NStepCache keras_gym.MonteCarloCache",
}
MODULES = {
    name: f"cpprb_like.{module}" for module, names in CLASSES.items() for name in names.split()
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
