"""Random generators from the argument ``seed`` of a buffer, a mixture or a front.

Not here: bounded random integers in compiled code (``random_integers``).
"""

from __future__ import annotations

import operator
import reprlib
from typing import Any

import numpy as np

from cpprb_like._machine.forks import GENERATOR, watch

OF_NUMPY = (
    np.random.SeedSequence,
    np.random.BitGenerator,
    np.random.Generator,
    np.random.RandomState,
)
MOST_NESTED = 8  # nested lists

Seed = int | np.random.SeedSequence | np.random.BitGenerator | np.random.Generator | None


def generator(seed: Seed) -> np.random.Generator:
    """The generator of a buffer.

    Without a seed the generator is seeded from NumPy's global state, so ``np.random.seed`` controls
    it. A ``Generator`` is used as it is.
    """
    if seed is None:
        words = np.random.randint(0, 2**32, size=4, dtype=np.uint32)
        seed = np.random.SeedSequence(words.tolist())
    readable = read_seed("seed", seed)
    try:
        rng = np.random.default_rng(readable)
    except (TypeError, ValueError) as error:
        raise type(error)(f"seed: {error}") from error
    watch(rng.bit_generator.lock, GENERATOR)
    return rng


def read_seed(name: str, seed: Any) -> Any:
    """A seed that NumPy can read: a seed of NumPy's classes, an integer, or lists of integers.

    NumPy itself overflows the stack for a list that contains itself, and for a matrix, whose rows
    are matrices. Raises ``TypeError`` that names the argument.
    """
    if seed is None or isinstance(seed, OF_NUMPY):
        return seed
    try:
        return _integers(seed, MOST_NESTED)
    except TypeError:
        raise TypeError(
            f"{name}: expected an integer, or lists of integers, got {reprlib.repr(seed)}"
        ) from None


def _integers(seed: Any, depth: int) -> Any:
    """A seed as an integer, or lists of integers that are nested ``depth`` deep at most.

    ``TypeError`` for other values.
    """
    if type(seed) is np.ndarray:
        if seed.ndim > 1 and not seed.size:
            raise TypeError("no integers, in any number of lists")
        seed = seed.tolist()
    if depth and isinstance(seed, (list, tuple, range)):
        return [_integers(entry, depth - 1) for entry in seed]
    return operator.index(seed)
