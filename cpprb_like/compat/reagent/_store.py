"""The rows of a buffer: steps, padding and final observations, one after the other.

All are rows of one ``cpprb_like.ReplayBuffer``, so that slots are ReAgent's slots. Not here: which
rows may be drawn (``_draws``), and what a batch is made of (``_windows``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpprb_like import ReplayBuffer
from cpprb_like.compat.reagent._elements import DenseMetadata, ElementMetadata
from cpprb_like.compat.reagent._errors import InputError, need
from cpprb_like.typing import FieldSpec
from cpprb_like.views._stacking import CHECKED_NBYTES, take_stacks

__all__ = ["END", "FINAL_FOLLOWS", "FLAGS", "TERMINAL", "TRUNCATED", "Read", "Store"]

Array = NDArray[Any]
Slots = NDArray[np.intp]
Read = Callable[[str, Slots], Array]

FLAGS = "$flags"  # of a row; no name of a user's, which are names of Python
TERMINAL = 1  # the last step of an episode
TRUNCATED = 2  # the same, of one that would have gone on
END = TERMINAL | TRUNCATED
FINAL_FOLLOWS = 4  # the next row holds the observation behind the last step


class Store:
    """Rows of named elements, in a ring.

    Parameters
    ----------
    rows : ReplayBuffer
        Of the fields that ``empty`` declares.
    elements : dict
        The kind of each field.
    """

    def __init__(self, rows: ReplayBuffer, elements: Mapping[str, ElementMetadata]) -> None:
        self.rows = rows
        self.elements = dict(elements)
        self.fields = {field.name: field for field in rows.schema.fields}

    @classmethod
    def empty(cls, capacity: int, elements: Mapping[str, ElementMetadata]) -> Store:
        """No rows yet, and room for so many."""
        declared: dict[str, FieldSpec] = {
            name: kind.declaration() for name, kind in elements.items()
        }
        try:
            rows = ReplayBuffer(
                capacity,
                declared | {FLAGS: {"shape": (), "dtype": np.uint8}},
                terminated=False,
                truncated=FLAGS,  # any of them: the last step, which its final observation follows
                seed=0,
            )
        except (TypeError, ValueError) as error:
            raise InputError(str(error)) from error
        return cls(rows, elements)

    def read_step(self, fields: Mapping[str, Any], *, strict: bool) -> dict[str, Any]:
        """The values of a step as ``add`` takes them, or ``InputError``."""
        return {
            name: kind.read(name, fields[name], strict=strict)
            for name, kind in self.elements.items()
        }

    def add(self, step: dict[str, Any], flags: int, padding: int, final: Any = None) -> int:
        """Add a step, behind ``padding`` rows of zeros and before the final observation, if any.

        Returns how many rows were written. ``InputError`` names the field that has no faithful
        value of its dtype; then nothing has changed.
        """
        try:
            if not padding and final is None:
                self.rows.add(**step, **{FLAGS: flags})
                return 1
            n = padding + 1 + (final is not None)
            columns = {name: self._zeros(name, n) for name in (*step, FLAGS)}
            for name, value in {**step, FLAGS: flags}.items():
                columns[name][padding] = self._convert(name, value)
            if final is not None:
                columns["observation"][-1] = self._convert("observation", final)
            self.rows.add(**columns)
        except ValueError as error:
            raise InputError(str(error)) from error
        return n

    def _convert(self, name: str, value: Any) -> Any:
        return self.fields[name].convert(value, 1)[0]

    def _zeros(self, name: str, n: int) -> Array:
        field = self.fields[name]
        blank = None if field.dtype.kind == "O" else field.dtype.type()
        return np.full((n, *field.shape), blank, field.dtype)

    @property
    def stored(self) -> int:
        """Slots that were ever written."""
        return self.rows.ring.stored

    def place(self, slots: Slots) -> Slots:
        """Numbers of slots around the end of the ring; -1 for slots that hold nothing."""
        ring = self.rows.ring
        capacity, stored = ring.capacity, ring.stored
        places = slots % capacity
        if stored < capacity:
            places[places >= stored] = -1
        return places

    def read(self, name: str, slots: Slots) -> Array:
        """A field at these slots, shape ``(*slots.shape, *shape)``, slots in two dimensions.

        The slot -1 stands for zeros, or ``None`` where the field holds lists.
        """
        return self.rows.stack(name, slots, axis=0)

    def reader(self) -> Read:
        """``read``, for those who see to it themselves that what they read was there at one moment.

        It asks less of its arguments: slots are a dense array.
        """
        stack, ring = self.rows.stack, self.rows.ring
        columns = {column.name: column for column in ring.columns if column.objects is None}

        def read(name: str, slots: Slots) -> Array:
            column = columns.get(name)
            if column is None or slots.size * column.nbytes >= CHECKED_NBYTES:
                return stack(name, slots, axis=0)
            return take_stacks(ring, column, slots, 0)

        return read

    def all_rows(self, name: str) -> Array:
        """A field at all slots, zeros or ``None`` where nothing was written; a copy."""
        slots = self.place(np.arange(self.rows.capacity, dtype=np.intp))
        return self.read(name, slots[:, np.newaxis])[:, 0]

    def is_dense(self, name: str) -> bool:
        """Whether the values are arrays, and not lists of ids."""
        return isinstance(self.elements[name], DenseMetadata)

    def tensors(self) -> dict[str, Any]:
        """``all_rows`` of each field, as tensors where the values are arrays."""
        torch = need("torch")
        return {
            name: torch.from_numpy(values) if self.is_dense(name) else values
            for name, values in ((name, self.all_rows(name)) for name in self.elements)
        }
