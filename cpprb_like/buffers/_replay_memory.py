"""``ReplayMemory``: a ring buffer of Python objects, sampled uniformly.

For programs that store transitions as tuples. Transitions with fields of fixed dtypes and shapes
take less memory, and are drawn faster, in a ``ReplayBuffer``.
"""

from __future__ import annotations

import copy as copying
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpprb_like._arguments.checks import as_int
from cpprb_like._machine.generators import Seed, generator
from cpprb_like._machine.machine_memory import require
from cpprb_like._rows.object_ring import ObjectRing, appending
from cpprb_like.checkpoint import Checkpointed
from cpprb_like.checkpoint._held import HoldsObjects

__all__ = ["ReplayMemory"]

REFERENCE_NBYTES = 8


@appending
class ReplayMemory(ObjectRing, Checkpointed, HoldsObjects):
    """Ring buffer of the newest ``max_size`` Python objects, sampled uniformly with replacement.

    Parameters
    ----------
    max_size : int
        Capacity, at least 1.
    seed : int, SeedSequence, BitGenerator, Generator, optional
        Seed of the draws. Without one the draws are those of
        ``np.random.randint(memory.size, size=batch_size)``, from NumPy's global state, so
        ``np.random.seed`` controls them.
    copy : bool
        Store a deep copy of each object. By default the object itself is stored, and later changes
        to it are visible in the memory.

    Attributes
    ----------
    buffer : ndarray of object, shape (max_size,)
        The objects by slot, ``None`` in a slot that was never used; a view of the memory itself.
    max_size, index, size : int
        Capacity, slot of the next object, and number of objects.
    rng : numpy.random.Generator or None
        The generator of the draws; None without a seed.

    Raises
    ------
    TypeError, ValueError
        An argument is of a wrong type or value; the message names it.
    MemoryError
        The machine does not have enough free memory.

    Notes
    -----
    Like a ``collections.deque(maxlen=max_size)``, ``memory[0]`` is the oldest object and
    ``memory[-1]`` the newest; slices are lists, and iteration is over the objects that are there
    when it begins. ``append`` and indexing take constant time. All methods are thread-safe. Pickles
    and copies include the generator; ``copy.copy`` has the same objects, ``copy.deepcopy`` copies
    of them.

    Memory: 8 bytes for each of ``max_size`` references, plus the objects.

    Examples
    --------
    >>> from cpprb_like import ReplayMemory
    >>> memory = ReplayMemory(100_000, seed=0)
    >>> for step in range(1000):
    ...     memory.append(([step, step + 1], step % 2, float(step)))
    >>> len(memory), memory[-1]
    (1000, ([999, 1000], 1, 999.0))
    >>> states, actions, rewards = memory.sample_columns(32)
    >>> states.shape, actions.dtype, rewards.dtype
    ((32, 2), dtype('int64'), dtype('float64'))
    """

    OBJECTS = ("objects",)

    def __init__(self, max_size: int, *, seed: Seed = None, copy: bool = False) -> None:
        places = as_int("max_size", max_size, 1)
        require(places * REFERENCE_NBYTES, f"a ReplayMemory of {places} objects")
        super().__init__(places, None if seed is None else generator(seed), copy)

    def sample_columns(self, batch_size: int) -> tuple[NDArray[Any], ...]:
        """Draw transitions as ``sample`` does, and return one array for each of their fields.

        Parameters
        ----------
        batch_size : int
            Transitions to draw, at least 1.

        Returns
        -------
        tuple of ndarray
            For each field ``np.array`` of its values in the drawn transitions: shape
            ``(batch_size, ...)``, with the dtype that NumPy infers.

        Raises
        ------
        NotEnoughDataError
            The memory is empty. It is a ``ValueError``.
        TypeError, ValueError
            ``batch_size`` is no integer of at least 1; a drawn object is no tuple or list, or
            differs from the others in length; or a field has values of different shapes.

        Examples
        --------
        >>> from cpprb_like import ReplayMemory
        >>> memory = ReplayMemory(10)
        >>> memory.append(([0.0, 1.0], 3, True))
        >>> memory.sample_columns(2)
        (array([[0., 1.],
               [0., 1.]]), array([3, 3]), array([ True,  True]))
        """
        drawn = self.sample(as_int("batch_size", batch_size, 1)).tolist()
        for transition in drawn:
            if not isinstance(transition, (tuple, list)):
                raise TypeError(f"expected tuples in the memory, got {type(transition).__name__}")
            if len(transition) != len(drawn[0]):
                raise ValueError(
                    f"expected transitions of one length, got {len(drawn[0])} "
                    f"and {len(transition)} fields"
                )
        return tuple(
            _column(number, values) for number, values in enumerate(zip(*drawn, strict=True))
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}(max_size={self.max_size}, size={self.size})"

    def __copy__(self) -> ReplayMemory:
        """Another memory with the same objects."""
        blank, arguments, state = self.__reduce__()
        other: ReplayMemory = blank(*arguments)
        other.__setstate__(state | {"rng": copying.deepcopy(self.rng)})
        return other

    def __reduce__(self) -> tuple[Any, ...]:
        return _blank, (type(self),), self.__getstate__()

    def __getstate__(self) -> dict[str, Any]:
        return {
            "max_size": self.max_size,
            "index": self.index,
            "objects": self[:],
            "rng": self.rng,
            "copies": self.copies,
            "attributes": self.__dict__,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        try:
            ObjectRing.__init__(self, state["max_size"], state["rng"], state["copies"])
            self.hold(state["objects"], state["index"])
        except (KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"the pickled memory is damaged: {error!r}") from error
        self.__dict__.update(state["attributes"])


def _column(number: int, values: tuple[Any, ...]) -> NDArray[Any]:
    try:
        return np.array(values)
    except ValueError as error:
        raise ValueError(f"field {number} of the transitions: {error}") from None


def _blank(cls: type[ReplayMemory]) -> ReplayMemory:
    """A memory of no capacity, for ``__setstate__``."""
    return cls.__new__(cls)
