"""``ReplayMemory``: a ring buffer of Python objects, sampled uniformly.

For programs that store transitions as tuples. Transitions with fields of fixed dtypes and shapes
take less memory, and are drawn faster, in a ``ReplayBuffer``.
"""

from __future__ import annotations

import copy as copying
import sys
from collections.abc import Iterable, Iterator
from math import prod
from typing import Any, SupportsIndex, overload

import numpy as np
from numpy.typing import NDArray

from cpprb_like._arguments.checks import as_int
from cpprb_like._machine import forks
from cpprb_like._machine.generators import Seed, generator
from cpprb_like._machine.machine_memory import require
from cpprb_like.checkpoint import Checkpointed
from cpprb_like.errors import NotEnoughDataError

REFERENCE_NBYTES = 8
OWN = ("_max_size", "rng", "_copies", "_items", "_oldest", "_free")
CHECKED_OBJECTS = 1 << 25  # least objects of a batch that is compared with the free memory


class ReplayMemory(Checkpointed):
    """Ring buffer of the newest ``max_size`` Python objects, sampled uniformly with replacement.

    Parameters
    ----------
    max_size : int
        Capacity, at least 1.
    seed : int, SeedSequence, BitGenerator, Generator, optional
        Seed of the draws. Without one, ``np.random.randint(memory.size, size=batch_size)`` draws
        from NumPy's global state, so ``np.random.seed`` controls it.
    copy : bool
        Store a deep copy of each object. By default the object itself is stored, and later changes
        to it are visible in the memory.

    Attributes
    ----------
    buffer : ndarray of object, shape (max_size,)
        A read-only copy of the objects by slot, ``None`` in a slot that was never used.
    max_size, index, size : int
        Capacity, slot of the next object, and number of objects.
    rng : numpy.random.Generator or None
        The generator of the draws; None without a seed.

    Raises
    ------
    TypeError, ValueError
        An argument has a wrong type or value; the message names it.
    MemoryError
        The machine does not have enough free memory.

    Notes
    -----
    Like a ``collections.deque(maxlen=max_size)``, ``memory[0]`` is the oldest object and
    ``memory[-1]`` the newest. Slices are lists. Iteration is over the objects present at its start.
    ``append`` and indexing take constant time. All methods are thread-safe. Pickles and copies
    include the generator. ``copy.copy`` shares the objects, ``copy.deepcopy`` copies them.

    Memory: about 8 bytes for each reference, plus the objects.

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
    OF_ROWS = ("_max_size",)

    # The objects by slot. The list grows up to `max_size`; `clear` and `hold` replace the list.
    # Other threads run only when a function is called: `append` calls none before its last
    # statement, so threads and finalizers never see an intermediate state.
    _items: list[Any]
    _oldest: int  # slot of the oldest object; 0 until the memory is full
    _free: int  # objects that can be added until the memory is full

    def __init__(self, max_size: int, *, seed: Seed = None, copy: bool = False) -> None:
        places = as_int("max_size", max_size, 1)
        require(places * REFERENCE_NBYTES, f"a ReplayMemory of {places} objects")
        self._start(places, None if seed is None else generator(seed), copy)

    def _start(self, max_size: int, rng: np.random.Generator | None, copies: bool) -> None:
        if rng is not None:
            lock: Any = rng.bit_generator.lock
            forks.watch(lock, forks.GENERATOR)
        self._max_size, self.rng, self._copies = max_size, rng, copies
        self.clear()

    @property
    def max_size(self) -> int:
        """Capacity in objects."""
        return self._max_size

    @property
    def size(self) -> int:
        """Number of objects."""
        return len(self._items)

    @property
    def index(self) -> int:
        """Slot of the next object."""
        return len(self._items) if self._free else self._oldest

    @property
    def buffer(self) -> NDArray[Any]:
        """A read-only copy of the objects by slot, ``None`` in a slot that was never used."""
        items = self._items[:]
        found = np.full(self.max_size, None, object)
        found[: len(items)] = np.fromiter(items, object, len(items))
        found.flags.writeable = False
        return found

    def append(self, obj: Any, /) -> None:
        """Store a reference to an object, in place of the oldest one when the memory is full.

        Without ``copy=True`` later changes to the object are visible in the memory.
        """
        if self._copies:
            obj = copying.deepcopy(obj)
        items, free = self._items, self._free
        if free:
            self._free = free - 1
            items.append(obj)
        else:
            place = self._oldest
            self._oldest = place + 1 if place + 1 < self._max_size else 0
            items[place] = obj  # the finalizer of the old object may run any code here

    def sample(self, batch_size: int | tuple[int, ...] | list[int]) -> NDArray[Any]:
        """Draw objects uniformly, with replacement.

        ``batch_size`` is the number of objects, or the shape of the result. The result is an array
        of references to the objects. Without a seed,
        ``np.random.randint(memory.size, size=batch_size)`` draws the slots.

        Raises
        ------
        NotEnoughDataError
            The memory is empty. It is a ``ValueError``.
        TypeError, ValueError
            ``batch_size`` is neither a number nor a shape, or is below 0.
        MemoryError
            The batch does not fit into memory.

        Examples
        --------
        >>> import numpy as np
        >>> from cpprb_like import ReplayMemory
        >>> memory = ReplayMemory(1000)
        >>> for i in range(10):
        ...     memory.append((i, str(i)))
        >>> np.random.seed(0)
        >>> memory.sample(3).tolist()
        [(5, '5'), (0, '0'), (3, '3')]
        """
        if isinstance(batch_size, (tuple, list)):
            shape = [as_int("batch_size", length, 0) for length in batch_size]
            return self.sample(prod(shape)).reshape(shape)
        n = as_int("batch_size", batch_size, 0)
        if n >= CHECKED_OBJECTS:
            if n > sys.maxsize:
                raise ValueError(f"batch_size: expected 0 to {sys.maxsize}, got {n}")
            require(n * REFERENCE_NBYTES, f"a batch of {n} objects")
        items, rng = self._items, self.rng
        if not items:
            raise NotEnoughDataError("cannot sample: the memory is empty")
        if rng is None:
            slots = np.random.randint(len(items), size=n)
        else:
            slots = rng.integers(len(items), size=n)
        return np.fromiter(map(items.__getitem__, slots.tolist()), object, n)

    def sample_columns(self, batch_size: int) -> tuple[NDArray[Any], ...]:
        """Draw at least 1 transition as ``sample`` does, and return an array for each field.

        The array is ``np.array`` of the values, with the dtype that NumPy infers.

        Raises
        ------
        NotEnoughDataError, TypeError, ValueError
            As ``sample``; or a drawn object is not a tuple or list, or differs from the others in
            length; or a field has values of different shapes.

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

    def clear(self) -> None:
        """Remove all objects. Cost: proportional to them. The generator keeps its state."""
        self.hold([], 0)

    def hold(self, objects: Iterable[Any], index: int) -> None:
        """Replace the content by objects, oldest first. The next object goes to slot ``index``."""
        given, most = list(objects), self.max_size
        n = len(given)
        if n > most or not (0 <= index < most if n == most else index == n):
            raise ValueError(f"expected at most {most} objects, got {n} up to {index}")
        oldest = index if n == most else 0
        items = given[n - oldest :] + given[: n - oldest]
        old = getattr(self, "_items", None)  # old objects die after the replacement
        self._items, self._oldest, self._free = items, oldest, most - n
        del old

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, index: SupportsIndex) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: Any) -> Any:
        """The object at an index, or a list of the objects of a slice.

        Index 0 is the oldest object, -1 the newest.
        """
        try:
            items, oldest, n = self._items, self._oldest, len(self._items)
            if 0 <= index < n:
                return items[index + oldest - n]
            if -n <= index < 0:
                return items[index + oldest]
        except TypeError:
            if not isinstance(index, slice):
                raise TypeError(f"index: expected an integer or a slice, got {index!r}") from None
            return self._by_age()[0][index]
        expected = f"{-n} to {n - 1}" if n else "an object to be there"
        raise IndexError(f"index: expected {expected}, got {index}")

    def __iter__(self) -> Iterator[Any]:
        """Iterator over the present objects, oldest first."""
        return iter(self._by_age()[0])

    def _by_age(self) -> tuple[list[Any], int]:
        """A list of the present objects, oldest first, and the slot of the oldest."""
        found: list[Any] = []
        oldest = -1
        while oldest != self._oldest:  # a new list may start the garbage collector
            items, oldest = self._items, self._oldest
            found = items[oldest:]
            found += items[:oldest]
        return found, oldest

    def __repr__(self) -> str:
        return f"{type(self).__name__}(max_size={self.max_size}, size={self.size})"

    def __copy__(self) -> ReplayMemory:
        """Another memory with the same objects."""
        other = type(self).__new__(type(self))
        other.__setstate__(self.__getstate__() | {"rng": copying.deepcopy(self.rng)})
        return other

    def __getstate__(self) -> dict[str, Any]:
        objects, oldest = self._by_age()  # consistent, as other threads may append
        return {
            "max_size": self.max_size,
            "index": oldest if len(objects) == self.max_size else len(objects),
            "objects": objects,
            "rng": self.rng,
            "copies": self._copies,
            "attributes": {k: v for k, v in self.__dict__.items() if k not in OWN},
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        try:
            max_size, rng, copies = state["max_size"], state["rng"], state["copies"]
            self._start(as_int("max_size", max_size, 1), rng, bool(copies))
            self.hold(state["objects"], as_int("index", state["index"], 0))
        except (AttributeError, KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"the pickled memory is damaged: {error!r}") from error
        self.__dict__.update(state["attributes"])


def _column(number: int, values: tuple[Any, ...]) -> NDArray[Any]:
    try:
        return np.array(values)
    except ValueError as error:
        raise ValueError(f"field {number} of the transitions: {error}") from None
