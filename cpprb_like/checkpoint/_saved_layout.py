"""``SavedLayout``: fields and options of the rows in files.

Not here: their JSON (``_files.json_codec``), and the memory of a buffer (``_fields.layout``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cpprb_like._fields.axes import axes_of
from cpprb_like._fields.checked_options import CheckedOptions
from cpprb_like._fields.derived import check_next
from cpprb_like._fields.field import Field
from cpprb_like._fields.layout import OfOptions
from cpprb_like._fields.schema import Schema, with_axes
from cpprb_like._files.json_codec import number
from cpprb_like._machine.byte_order import native


def is_foreign(dtype: np.dtype[Any]) -> bool:
    """Whether values have the byte order of other machines."""
    return native(dtype) != dtype


@dataclass(frozen=True)
class SavedLayout(OfOptions):
    """The layout of a ring whose rows are in files."""

    options: CheckedOptions  # with the dtypes of the files

    def __post_init__(self) -> None:
        number("size", self.options.size, 1)
        number("n_envs", self.n_envs, 1, self.options.size)
        number("capacity", self.capacity, self.options.size)

    def native(self, names: Sequence[str] | None = None) -> CheckedOptions:
        """Options of a buffer that loads these fields: see ``fields``."""
        return replace(self.options, schema=self.fields(names))

    def fields(self, names: Sequence[str] | None = None) -> Schema:
        """All fields, or the fields in ``names``.

        Raises ``ValueError`` if these depend on other fields.
        """
        schema = self.schema
        if names is None:
            return schema
        ends = {schema.fields[place].name for place, *_ in schema.end_fields()}
        known = list(schema.names)
        unknown = [name for name in names if name not in known]
        if unknown or len(set(names)) != len(names):
            raise ValueError(f"fields: expected each once, of {known}, got {list(names)}")
        missing = sorted(ends - set(names))
        if missing:
            raise ValueError(f"fields: {missing} end episodes, so they have to be there")
        alone = [name for name, source in schema.next_of if name in names and source not in names]
        if alone:
            raise ValueError(f"fields: {alone} come from fields that are not asked for")
        fields = tuple(field for field in schema.declared if field.name in names)
        axes, all_axes = axes_of(fields), axes_of(schema.declared)
        for field in fields:
            if field.counts not in (None, *axes):
                lacking = all_axes[str(field.counts)]
                raise ValueError(
                    f"fields: {field.name!r} counts items of {list(lacking)}; ask for one of them"
                )
        chosen = replace(
            schema,
            fields=fields,
            axes=(),
            next_of=tuple(pair for pair in schema.next_of if pair[0] in names),
            stacks=tuple(stack for stack in schema.stacks if stack.name in names),
        )
        check_next(chosen)
        return with_axes(chosen, schema.rooms)


def differences(there: CheckedOptions, saved: CheckedOptions) -> list[str]:
    """The differences of two buffers by name, but not of sizes and rooms; none if rows fit."""
    found = []
    own = {field.name: field for field in there.schema.declared}
    other = {field.name: field for field in saved.schema.declared}
    found += [f"field {name!r} is not in the checkpoint" for name in own if name not in other]
    found += [f"field {name!r} is in the checkpoint only" for name in other if name not in own]
    for name in (name for name in own if name in other):
        if own[name] != other[name]:
            one, two = own[name], other[name]
            found.append(
                f"field {name!r}: {_described(one)} here, {_described(two)} in the checkpoint"
            )
    for name, read in OPTIONS.items():
        here, given = read(there), read(saved)
        if here != given:
            found.append(f"{name}: {here} here, {given} in the checkpoint")
    return found


def _described(field: Field) -> str:
    """Dtype and shape of a field, and the axis whose items it counts."""
    counts = "" if field.counts is None else f" that counts {field.counts!r}"
    return f"{field.declared_dtype} of shape {field.declared_shape}{counts}"


# The options of a buffer that its rows depend on, besides fields, by the name of the argument.
OPTIONS: Mapping[str, Callable[[CheckedOptions], object]] = {
    "n_envs": lambda options: options.n_envs,
    "Nstep": lambda options: options.nstep,
    "terminated": lambda options: options.schema.terminated,
    "truncated": lambda options: options.schema.truncated,
    "next_of": lambda options: sorted(source for _, source in options.schema.next_of),
    "stack_compress": lambda options: {
        stack.name: stack.axis for stack in sorted(options.schema.stacks, key=repr)
    },
}
