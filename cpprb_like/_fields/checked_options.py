"""``CheckedOptions``: all options of a buffer that its rows depend on, after checks; and warnings.

One frozen object is compared, pickled, saved and passed on to other processes. A new option that
rows depend on is one attribute of this class or of ``Schema``. Options that are valid but seldom
intended cause a warning. Not here: the rules of single options (``schema``, ``derived``), and the
memory of the rows (``layout``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import DTypeLike

from cpprb_like._arguments.checks import as_int, warn
from cpprb_like._arguments.narrow_dtypes import name_of
from cpprb_like._core import FLAG_TRUNCATED
from cpprb_like._fields.axes import MOST_ITEMS, axes_of, check_axes, read_room
from cpprb_like._fields.derived import (
    NStepReturns,
    check_next,
    check_nstep,
    derive,
    read_nstep,
    refuse_axes,
)
from cpprb_like._fields.schema import (
    Schema,
    read_env_dict,
    read_n_envs,
    read_size,
    with_axes,
)
from cpprb_like._machine.byte_order import native

__all__ = ["CheckedOptions", "warn_of_rows", "warn_of_short_windows"]


@dataclass(frozen=True)
class CheckedOptions:
    """The options of a buffer that its rows depend on: ``typing.RowOptions``, checked and read."""

    schema: Schema
    size: int  # most rows that can be drawn
    n_envs: int
    nstep: NStepReturns | None

    @classmethod
    def read(
        cls,
        size: object,
        env_dict: object,
        *,
        default_dtype: DTypeLike | None = None,
        n_envs: int | None = None,
        terminated: str | Literal[False] | None = None,
        truncated: str | Literal[False] | None = None,
        next_of: str | Iterable[str] | None = None,
        stack_compress: str | Iterable[str] | Mapping[str, int] | None = None,
        Nstep: object = None,  # noqa: N803 (cpprb's name)
        room: object = None,
    ) -> CheckedOptions:
        """Check arguments of ``ReplayBuffer``; raises ``TypeError`` or ``ValueError``."""
        rows = read_size(size)
        fields = read_env_dict(env_dict, np.float32 if default_dtype is None else default_dtype)
        schema = Schema(fields, terminated, truncated)
        schema.end_fields()
        schema = derive(schema, next_of, stack_compress)
        schema = with_axes(schema, read_room(room, schema.without_next, rows))
        streams = read_n_envs(1 if n_envs is None else n_envs, rows)
        return cls(schema, rows, streams, read_nstep(Nstep, schema))

    @property
    def capacity(self) -> int:
        """Slots in memory. Slots beyond ``size`` hold rows with an incomplete n-step window."""
        return self.size + (0 if self.nstep is None else (self.nstep.size - 1) * self.n_envs)

    def resized(self, size: object, room: object = None) -> CheckedOptions:
        """These options with another size, and other rooms for the axes that ``room`` names."""
        rows, schema = read_size(size), self.schema
        if room is not None:
            merged = {**schema.rooms, **room} if isinstance(room, Mapping) else room
            schema = with_axes(schema, read_room(merged, schema.without_next, rows))
        return replace(self, schema=schema, size=rows, n_envs=read_n_envs(self.n_envs, rows))

    def check(self) -> None:
        """Raise ``ValueError`` or ``TypeError`` if options of a pickle or a file are not sound."""
        read_n_envs(self.n_envs, read_size(self.size))
        fields = {field.name: field for field in self.schema.fields}
        if len(fields) < len(self.schema.fields):
            raise ValueError(f"expected each field once, got {list(self.schema.names)}")
        for field in fields.values():
            if native(field.dtype) != field.dtype:
                raise ValueError(
                    f"field {field.name!r}: expected the byte order of this machine, "
                    f"got {field.dtype}"
                )
            for length in field.shape:
                as_int(f"shape of field {field.name!r}", length, 0)
        self._check_axes()
        for name in self.schema.chained.intersection(fields):
            refuse_axes("next_of and stacks", fields[name])
        for name in self.schema.chained.union(dict(self.schema.next_of).values()):
            if name not in fields or fields[name].dtype.hasobject:
                raise ValueError(f"next_of and stacks: no field {name!r} of numbers")
        for name, source in self.schema.next_of:
            if fields.get(name) != fields[source].following:
                raise ValueError(f"next_of: field {name!r} is no next value of {source!r}")
        check_next(self.schema)
        for stack in self.schema.stacks:
            shape = fields[stack.name].shape
            if not 0 <= stack.axis < len(shape) or shape[stack.axis] != stack.depth:
                raise ValueError(f"stack of field {stack.name!r}: {stack} does not fit {shape}")
        check_nstep(self.nstep, self.schema)

    def _check_axes(self) -> None:
        """Raise ``ValueError`` or ``TypeError`` unless axes and entries follow from the fields."""
        schema = self.schema
        check_axes(schema.declared)
        for axis in schema.axes:
            as_int(f"room[{axis.name!r}]", axis.room, 1, MOST_ITEMS)
        rooms = schema.rooms
        if list(rooms) != list(axes_of(schema.without_next)) or schema != with_axes(schema, rooms):
            raise ValueError(f"axes: {schema.axes} do not follow from the fields")


def warn_of_rows(options: CheckedOptions, given: object) -> None:
    """Warn of suspicious options of rows, and of the user's option ``Nstep``."""
    for option, field in options.schema.near_ends():  # names like those of end flags
        if field.can_end or name_of(field.dtype) is not None:
            warn(
                f"field {field.name!r} ends no episode: say {option}={field.name!r} if it does, or "
                f"{option}=False if no field does"
            )
    if options.nstep is not None:
        says = not isinstance(given, Mapping) or "discount" in given
        warn_of_short_windows(options.nstep, options.schema, says_discount=says)


def warn_of_short_windows(nstep: NStepReturns, schema: Schema, *, says_discount: bool) -> None:
    """Warn of n-step returns whose bootstrap discount is not in the batch.

    Before a truncation a window has fewer than n steps, and the next value is still used.
    ``says_discount``: whether the options request or refuse the column ``discount``.
    """
    ends = schema.end_fields()
    names = [schema.names[number] for number, _, sets, _ in ends if sets == FLAG_TRUNCATED]
    ending = {schema.names[number] for number, *_ in ends}
    bootstraps = nstep.size > 1 and not ending.issuperset(nstep.last_step_fields)
    if names and bootstraps and not says_discount:
        warn(
            f"Nstep: rows before a truncation ({names[0]!r}) sum fewer than {nstep.size} steps, "
            "and batches do not say how many: give discount as True, and multiply the next value "
            "by the column discount; or as False, if nothing is bootstrapped"
        )
