"""ReAgent's module ``circular_replay_buffer``: its names for ``ReplayBuffer``.

The classes are defined in other modules, so a program that imports this module under ReAgent's name
gets the same classes.
"""

from cpprb_like.compat.reagent._buffer import CHECKPOINT_DURATION, ReplayBuffer
from cpprb_like.compat.reagent._elements import (
    REQUIRED_KEYS,
    DenseMetadata,
    ElementMetadata,
    IDListMetadata,
    IDScoreListMetadata,
    InputError,
    NamesError,
    ReplayElement,
)
from cpprb_like.compat.reagent._files import STORE_FILENAME_PREFIX
from cpprb_like.compat.reagent._rows import invalid_range

__all__ = [
    "CHECKPOINT_DURATION",
    "REQUIRED_KEYS",
    "STORE_FILENAME_PREFIX",
    "DenseMetadata",
    "ElementMetadata",
    "IDListMetadata",
    "IDScoreListMetadata",
    "InputError",
    "NamesError",
    "ReplayBuffer",
    "ReplayElement",
    "invalid_range",
]
