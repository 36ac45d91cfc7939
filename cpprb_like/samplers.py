"""Which rows to draw.

A sampler is any object with the method of ``Sampler``; it keeps no rows and does not read them.
Randomness comes from the buffer's generator, which is passed in.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cpprb_like._core import Ring
from cpprb_like._uniform import draw_uniform
from cpprb_like.errors import NotEnoughDataError

__all__ = ["LegacyUniform", "Sampler", "Seed", "Uniform", "generator"]

Slots = NDArray[np.intp]
Extra = dict[str, NDArray[Any]]
Seed = int | np.random.SeedSequence | np.random.BitGenerator | np.random.Generator | None


def generator(seed: Seed) -> np.random.Generator:
    """The generator of a buffer.

    Without a seed it is seeded from NumPy's global state, so that ``np.random.seed`` controls it; a
    ``Generator`` is taken as it is.
    """
    if seed is None:
        words = np.random.randint(0, 2**32, size=4, dtype=np.uint32)
        return np.random.default_rng(words.tolist())
    try:
        return np.random.default_rng(seed)
    except (TypeError, ValueError) as error:
        raise type(error)(f"seed: {error}") from error


class Sampler(Protocol):
    """What ``ReplayBuffer(sampler=...)`` takes."""

    def draw(
        self, ring: Ring, n: int, rng: np.random.Generator, *, replace: bool
    ) -> tuple[Slots, Extra]:
        """Choose rows.

        Parameters
        ----------
        ring : Ring
            The rows. ``len(ring)`` can be drawn and is at least 1; their slots are below
            ``ring.stored``, and all of these unless ``ring.absent`` is above 0: then they are
            ``ring.present_slots()``.
        n : int
            How many, at least 0.
        rng : numpy.random.Generator
            The only source of randomness.
        replace : bool
            Whether a row may come more than once.

        Returns
        -------
        slots : ndarray of intp, shape (n,)
            C-contiguous.
        extra : dict
            More columns of the batch, such as weights: arrays of length n.

        Raises
        ------
        NotEnoughDataError
            ``n`` distinct rows were asked for and there are fewer.
        """
        ...


class Uniform:
    """Every row with the same probability, repeatedly or not. Cost proportional to ``n``."""

    def draw(
        self, ring: Ring, n: int, rng: np.random.Generator, *, replace: bool
    ) -> tuple[Slots, Extra]:
        """See ``Sampler.draw``."""
        return draw_uniform(ring, n, rng, replace), {}

    def __repr__(self) -> str:
        return "Uniform()"


class LegacyUniform:
    """Uniform draws by ``np.random.randint`` on NumPy's global state: the slots that cpprb draws.

    For programs that must reproduce old runs bit by bit; it takes no notice of the buffer's own
    generator.
    """

    def draw(
        self,
        ring: Ring,
        n: int,
        rng: np.random.Generator,  # noqa: ARG002
        *,
        replace: bool,
    ) -> tuple[Slots, Extra]:
        """See ``Sampler.draw``."""
        if not replace and n > len(ring):
            raise NotEnoughDataError(
                f"cannot sample {n} distinct rows: the buffer holds {len(ring)}"
            )
        if replace:
            places = np.random.randint(0, len(ring), n)
        else:
            places = np.random.permutation(len(ring))[:n]
        if ring.absent:
            return ring.present_slots()[places], {}
        return places.astype(np.intp), {}

    def __repr__(self) -> str:
        return "LegacyUniform()"
