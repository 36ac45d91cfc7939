"""Random generators from the argument ``seed`` of a buffer, a mixture or a front.

Not here: bounded random integers in compiled code (``random_integers``).
"""

from __future__ import annotations

import numpy as np

from cpprb_like._c.forks import GENERATOR, watch

Seed = int | np.random.SeedSequence | np.random.BitGenerator | np.random.Generator | None


def generator(seed: Seed) -> np.random.Generator:
    """The generator of a buffer.

    Without a seed it is seeded from NumPy's global state, so that ``np.random.seed`` controls it; a
    ``Generator`` is taken as it is.
    """
    if seed is None:
        words = np.random.randint(0, 2**32, size=4, dtype=np.uint32)
        seed = np.random.SeedSequence(words.tolist())
    try:
        rng = np.random.default_rng(seed)
    except (TypeError, ValueError) as error:
        raise type(error)(f"seed: {error}") from error
    watch(rng.bit_generator.lock, GENERATOR)
    return rng
