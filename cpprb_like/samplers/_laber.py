"""LaBER: a batch by priority out of a large batch that was drawn without.

The priorities are those of the network as it is now, computed for the large batch only; so there is
none to keep for every row. Not here: drawing the large batch (``buffers._replay``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cpprb_like._c.checks import as_int
from cpprb_like._c.foreign_arrays import read_array
from cpprb_like._c.generators import Seed, generator
from cpprb_like.schedules import value_at

__all__ = ["LaBERlazy", "LaBERmax", "LaBERmean"]

Array = NDArray[Any]


class _LaBER(ABC):
    """What the three have in common: all but the weights."""

    def __init__(
        self, batch_size: int, m: int = 4, *, eps: float = 1e-6, seed: Seed = None
    ) -> None:
        self.batch_size = as_int("batch_size", batch_size, 1)
        self.m = as_int("m", m, 1)
        if callable(eps):
            raise TypeError(f"eps: expected a number, got {eps!r}")
        self.eps = value_at(eps, 0, "eps", 0)
        self.rng = generator(seed)

    def __call__(self, *, priorities: ArrayLike, **fields: ArrayLike) -> dict[str, Array]:
        """Choose ``batch_size`` rows of a large batch, each time by its priority.

        Parameters
        ----------
        priorities : array_like, shape (batch_size * m,)
            At least 0 and finite, such as absolute TD errors.
        **fields : array_like, shape (batch_size * m, ...)
            The large batch.

        Returns
        -------
        dict of ndarray
            The chosen rows of each field, fresh, and two columns:

            weights : shape (batch_size,)
                Factors for the losses, times the ``weights`` of the chosen rows if such were
                passed. Of the dtype of ``priorities``, at least float32; float64 for integers.
            indexes : shape (batch_size,)
                Places of the chosen rows in the large batch. If ``indexes`` were passed, the chosen
                ones of these: slots of the buffer, to which new priorities go.

        Raises
        ------
        TypeError
            ``priorities`` or ``weights`` are no real numbers.
        ValueError
            An array has another length than ``batch_size * m``; a priority is negative or not
            finite; all are 0, and ``eps`` as well.

        Notes
        -----
        Cost: proportional to the large batch.
        """
        n = self.batch_size * self.m
        found = _column("priorities", priorities, n)
        likely = found.astype(np.float64) + self.eps
        bad = np.flatnonzero(~((found >= 0) & np.isfinite(likely)))
        if len(bad):
            raise ValueError(
                f"priorities: expected finite numbers of at least 0, got {found[bad[0]]} "
                f"in place {bad[0]}"
            )
        largest = likely.max()
        if largest == 0:
            raise ValueError("priorities: expected one above 0, since eps is 0; all are 0")
        batch = {name: _rows(name, values, n) for name, values in fields.items()}
        given = _column("weights", batch.pop("weights"), n) if "weights" in batch else None

        # Shares of the largest, so that no sum is infinite. The last sum is above every target, and
        # a row of priority 0 leaves no room between two sums.
        sums = np.cumsum(likely / largest)
        targets = self.rng.random(self.batch_size) * sums[-1]
        chosen = np.searchsorted(sums, targets, side="right")

        batch = {name: values[chosen] for name, values in batch.items()}
        weights = self._weights(likely[chosen] / largest, sums[-1], n)
        if given is not None:
            weights *= given[chosen]
        kind = found.dtype if found.dtype.kind == "f" else np.float64
        batch["weights"] = weights.astype(np.result_type(kind, np.float32))
        batch.setdefault("indexes", chosen)
        return batch

    @abstractmethod
    def _weights(self, chosen: Array, total: float, n: int) -> Array:
        """Weights of the chosen rows, from their priorities and the sum of all n, in one unit."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.batch_size}, m={self.m}, eps={self.eps})"


class LaBERmean(_LaBER):
    """Chooses rows of a large batch by priority, with weights that leave the mean loss unbiased.

    Draw ``batch_size * m`` rows with a buffer, compute a priority for each, and call this with
    both: row i is chosen with probability p_i / sum(p), as often as it comes, where p_i is its
    priority plus ``eps``. Its weight is ``mean(p) / p_i``.

    Parameters
    ----------
    batch_size : int
        Rows to choose, at least 1.
    m : int
        The large batch has ``m`` times as many.
    eps : float
        At least 0; added to each priority. With 0, rows of priority 0 are never chosen.
    seed : int, SeedSequence, BitGenerator, Generator, optional
        Of the choice. Without one, ``np.random.seed`` controls it. A buffer's ``rb.rng`` will do.

    Attributes
    ----------
    batch_size, m, eps
        As given.
    rng : numpy.random.Generator
        The generator in use.

    Raises
    ------
    TypeError, ValueError
        A parameter is of a wrong type or value; the message names it.

    Notes
    -----
    The large batch may come from a buffer with priorities. Pass its ``weights`` and ``indexes`` on
    with the other fields: the weights are multiplied, and the indexes stay those of the buffer.
    (cpprb overwrites both.)

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

    def _weights(self, chosen: Array, total: float, n: int) -> Array:
        return total / n / chosen


class LaBERlazy(_LaBER):
    """As ``LaBERmean``, with the weight ``sum(p) / p_i``, one over the probability of row i.

    These are ``batch_size * m`` times the weights of ``LaBERmean``: the scale is left to the
    learning rate.

    Examples
    --------
    >>> from cpprb_like import LaBERlazy
    >>> batch = LaBERlazy(2, m=2, eps=0, seed=0)(priorities=[1.0, 1.0, 1.0, 1.0])
    >>> batch["weights"].tolist()
    [4.0, 4.0]
    """

    def _weights(self, chosen: Array, total: float, n: int) -> Array:  # noqa: ARG002 (the lazy part)
        return total / chosen


class LaBERmax(_LaBER):
    """As ``LaBERmean``, with weights in proportion to ``1 / p_i``, of which the largest is 1.

    Examples
    --------
    >>> from cpprb_like import LaBERmax
    >>> batch = LaBERmax(2, m=1, eps=0, seed=0)(priorities=[4.0, 4.0], obs=[1, 2])
    >>> batch["weights"].tolist()
    [1.0, 1.0]
    """

    def _weights(self, chosen: Array, total: float, n: int) -> Array:  # noqa: ARG002 (another scale)
        weights: Array = chosen.min() / chosen
        return weights


def _rows(name: str, values: ArrayLike, n: int) -> Array:
    """The values as an array of n rows, or an error."""
    try:
        array = read_array(values)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    if array.ndim == 0 or len(array) != n:
        raise ValueError(f"{name}: expected batch_size * m = {n} rows, got shape {array.shape}")
    return array


def _column(name: str, values: ArrayLike, n: int) -> Array:
    """The values as n real numbers in one dimension, or an error."""
    array = _rows(name, values, n)
    if array.dtype.kind not in "iuf":
        raise TypeError(f"{name}: expected real numbers, got {array.dtype}")
    if array.size != n:
        raise ValueError(f"{name}: expected shape ({n},), got {array.shape}")
    return array.reshape(n)
