"""Large Batch Experience Replay (LaBER; Lahire, Geist and Rachelson, 2022).

A large batch is drawn uniformly, and the network computes its current TD errors. The training batch
is drawn out of the large batch by these priorities. So no priority is stored or outdated. Not here:
the draw of the large batch (``ReplayBuffer``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from cpprb_like._arguments.arrays import Array
from cpprb_like._arguments.checks import as_whole
from cpprb_like._arguments.foreign_arrays import read_array
from cpprb_like._machine.aligned import aligned, empty
from cpprb_like._machine.byte_order import native
from cpprb_like._machine.generators import Seed, generator
from cpprb_like.samplers._prioritized import read_priorities, read_weights_dtype
from cpprb_like.schedules import value_at


class _LaBER(ABC):
    """Base class of the three samplers; subclasses compute the weights."""

    def __init__(
        self,
        batch_size: int,
        m: int = 4,
        *,
        eps: float = 1e-6,
        weights_dtype: DTypeLike = np.float32,
        seed: Seed = None,
    ) -> None:
        self.batch_size = as_whole("batch_size", batch_size, 1)
        self.m = as_whole("m", m, 1)
        if callable(eps):
            raise TypeError(f"eps: expected a number, got {eps!r}")
        self.eps = value_at(eps, 0, "eps", 0)
        self.weights_dtype = read_weights_dtype(weights_dtype)
        self.rng = generator(seed)

    def __call__(self, *, priorities: ArrayLike, **fields: ArrayLike) -> dict[str, Array]:
        """Draw ``batch_size`` rows out of a large batch, in proportion to their priorities.

        Parameters
        ----------
        priorities : array_like, shape (batch_size * m,)
            At least 0 and finite, such as absolute TD errors.
        **fields : array_like, shape (batch_size * m, ...)
            The large batch.

        Returns
        -------
        dict of ndarray
            The drawn rows of each field, fresh, and two columns:

            weights : shape (batch_size,), dtype ``weights_dtype``
                Importance-sampling weights: factors of the losses. They are multiplied by the
                ``weights`` of the drawn rows, if these were passed.
            indexes : shape (batch_size,)
                The passed ``indexes`` of the drawn rows, for ``update_priorities`` of the buffer.
                By default positions of the drawn rows in the large batch, intp, as in cpprb. A
                buffer cannot use positions.

        Raises
        ------
        TypeError
            ``priorities`` or ``weights`` are not real numbers.
        ValueError
            The length of an array is not ``batch_size * m``. A priority is negative or not finite.
            Or all priorities and ``eps`` are 0.

        Notes
        -----
        Cost: proportional to the large batch.
        """
        n = self.batch_size * self.m
        likely = read_priorities(priorities) + self.eps
        if len(likely) != n:
            raise ValueError(f"priorities: expected batch_size * m = {n}, got {len(likely)}")
        largest = likely.max()
        if largest == 0:
            raise ValueError("priorities: expected one above 0, since eps is 0; all are 0")
        batch = {name: _rows(name, values, n) for name, values in fields.items()}
        given = _column("weights", batch.pop("weights"), n) if "weights" in batch else None

        # Divided by the largest, so that no sum is infinite. The last sum is above every target. A
        # row of priority 0 has an empty interval.
        sums = np.cumsum(likely / largest)
        targets = self.rng.random(self.batch_size) * sums[-1]
        drawn = np.searchsorted(sums, targets, side="right")

        batch = {name: _rows_at(values, drawn) for name, values in batch.items()}
        weights = self._weights(likely[drawn] / largest, sums[-1], n)
        if given is not None:
            weights *= given[drawn]
        batch["weights"] = aligned(weights.astype(self.weights_dtype))
        batch.setdefault("indexes", aligned(drawn))
        return batch

    @abstractmethod
    def _weights(self, drawn: Array, total: float, n: int) -> Array:
        """Weights of the drawn rows, from their priorities and the sum ``total`` of all n rows."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.batch_size}, m={self.m}, eps={self.eps})"


class LaBERmean(_LaBER):
    """LaBER whose importance-sampling weights leave the mean loss of the large batch unbiased.

    Draw ``batch_size * m`` rows from a buffer, compute a priority for each (most often the absolute
    TD error), and call the sampler with both. Row i is drawn with probability ``p_i / sum(p)``,
    with replacement, where ``p_i`` is its priority plus ``eps``. Its weight is ``mean(p) / p_i``.

    Parameters
    ----------
    batch_size : int
        Rows to draw, at least 1.
    m : int
        Rows of the large batch, divided by ``batch_size``; at least 1.
    eps : float
        Added to each priority, at least 0. With 0, rows of priority 0 are never drawn.
    weights_dtype : {float32, float64}
        Dtype of the column ``weights``. Weights are computed in float64 and rounded once.
    seed : int, SeedSequence, BitGenerator, Generator, optional
        Seed of the draws, or ``rb.rng`` of a buffer. By default ``np.random.seed`` controls them.

    Attributes
    ----------
    batch_size, m, eps, weights_dtype
        As given.
    rng : numpy.random.Generator
        The generator in use.

    Raises
    ------
    TypeError, ValueError
        A parameter has a wrong type or value; the message names it.

    Notes
    -----
    The large batch may come from a buffer with priorities. Pass its ``weights`` and ``indexes``
    with the other fields: the weights are multiplied, and the indexes of drawn rows are returned.
    (cpprb overwrites both, and its weights have the dtype of the priorities.)

    Source: Lahire, Geist and Rachelson (2022), "Large Batch Experience Replay".

    Examples
    --------
    >>> import numpy as np
    >>> from cpprb_like import LaBERmean, ReplayBuffer
    >>> rb = ReplayBuffer(100, {"obs": {"shape": 3}, "rew": {"shape": ()}}, seed=0)
    >>> rb.add(obs=np.ones((50, 3)), rew=np.arange(50))
    0
    >>> laber = LaBERmean(8, m=4, seed=0)
    >>> large = rb.sample(8 * 4)
    >>> batch = laber(priorities=np.abs(large["rew"] - 20), **large)
    >>> list(batch), batch["obs"].shape
    (['obs', 'rew', 'weights', 'indexes'], (8, 3))
    >>> bool((batch["rew"] == large["rew"][batch["indexes"]]).all())
    True
    """

    def _weights(self, drawn: Array, total: float, n: int) -> Array:
        return total / n / drawn


class LaBERlazy(_LaBER):
    """As ``LaBERmean``, with the weight ``sum(p) / p_i``: one over the probability of row i.

    These are ``batch_size * m`` times the weights of ``LaBERmean``. The learning rate must
    compensate for the scale.
    """

    def _weights(self, drawn: Array, total: float, n: int) -> Array:  # noqa: ARG002 (the lazy part)
        return total / drawn


class LaBERmax(_LaBER):
    """As ``LaBERmean``, with weights ``1 / p_i`` normalised by their maximum over the batch."""

    def _weights(self, drawn: Array, total: float, n: int) -> Array:  # noqa: ARG002 (another scale)
        weights: Array = drawn.min() / drawn
        return weights


def _rows(name: str, values: ArrayLike, n: int) -> Array:
    """The values as an array of n rows; raises if they are not n rows."""
    try:
        array = read_array(values)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    if array.ndim == 0 or len(array) != n:
        raise ValueError(f"{name}: expected batch_size * m = {n} rows, got shape {array.shape}")
    return array


def _column(name: str, values: ArrayLike, n: int) -> Array:
    """The values as n real numbers in one dimension; raises for other values."""
    array = _rows(name, values, n)
    if array.dtype.kind not in "iuf":
        raise TypeError(f"{name}: expected real numbers, got {array.dtype}")
    if array.size != n:
        raise ValueError(f"{name}: expected shape ({n},), got {array.shape}")
    return array.reshape(n)


def _rows_at(values: Array, drawn: NDArray[np.intp]) -> Array:
    """``values[drawn]``, aligned and of the machine's byte order."""
    found = empty((len(drawn), *values.shape[1:]), native(values.dtype))
    return values.take(drawn, axis=0, out=found, mode="clip")  # "raise" would make a copy
