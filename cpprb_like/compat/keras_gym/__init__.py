"""keras-gym's caches: ``ExperienceReplayBuffer``, ``NStepCache``, ``MonteCarloCache``, its errors.

Steps are stored once, in a ``ReplayBuffer``. Frame stacks and n-step returns are computed when a
batch is drawn. The names of ``coax``, keras-gym's successor, are importable from here as well.
"""

from cpprb_like.compat.coax import PrioritizedReplayBuffer, SimpleReplayBuffer, TransitionBatch
from cpprb_like.compat.keras_gym._caches import MonteCarloCache, NStepCache
from cpprb_like.compat.keras_gym._env import (
    ActionSpaceError,
    EpisodeDoneError,
    InconsistentCacheInputError,
    InsufficientCacheError,
    KerasGymError,
    NumpyArrayCheckError,
    SpaceError,
)
from cpprb_like.compat.keras_gym._replay import ExperienceReplayBuffer

__all__ = [
    "ActionSpaceError",
    "EpisodeDoneError",
    "ExperienceReplayBuffer",
    "InconsistentCacheInputError",
    "InsufficientCacheError",
    "KerasGymError",
    "MonteCarloCache",
    "NStepCache",
    "NumpyArrayCheckError",
    "PrioritizedReplayBuffer",
    "SimpleReplayBuffer",
    "SpaceError",
    "TransitionBatch",
]
