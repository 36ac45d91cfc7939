"""Fields: ``env_dict`` as frozen field specs, and columns of batches.

Only this module interprets ``env_dict``. Not here: the memory of the fields (``layout``), and casts
of values (``casting``).
"""

from __future__ import annotations

import dataclasses
import operator
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from cpprb_like._arguments.foreign_arrays import as_out
from cpprb_like._core import (
    FLAG_END,
    FLAG_TERMINATED,
    FLAG_TRUNCATED,
)
from cpprb_like._fields.axes import Axis, axes_of, check_axes
from cpprb_like._fields.field import LEFT_OUT, NEXT, Field
from cpprb_like._machine.byte_order import native
from cpprb_like._rows.column import Column
from cpprb_like.errors import FieldNameError

__all__ = [
    "ColumnSpec",
    "Schema",
    "Stack",
    "as_names",
    "read_columns",
    "read_env_dict",
    "read_n_envs",
    "read_names",
    "read_size",
    "with_axes",
]

PROPERTIES = ("shape", "dtype", "counts")
# Near-misses of the names of end flags, after ``_plain_word``.
NEAR_NAMES = {
    "terminated": ("done", "terminated", "termination", "terminal", "terminate", "term"),
    "truncated": ("truncated", "truncation", "truncate", "trunc", "timeout", "timelimit"),
}
ADD_SHAPE = "add_shape"  # a key that cpprb writes into the user's dict; it is ignored
MOST = 2**55  # most rows, or length of an axis: sums of several fit into 64 bits


class ColumnSpec(NamedTuple):
    """A column of a batch: its dtype, and the shape of one item.

    The shape of values of any length has the name of an axis, such as ``("N", 11)``.
    """

    dtype: np.dtype[Any]
    shape: tuple[Any, ...]


def read_env_dict(env_dict: object, default_dtype: DTypeLike | None) -> tuple[Field, ...]:
    """The fields that ``env_dict`` declares; the dict is not changed.

    The message of a ``TypeError`` or ``ValueError`` names the field and the fault.
    """
    if not isinstance(env_dict, Mapping):
        raise TypeError(
            f"env_dict: expected a dict of field names to dicts, got {type(env_dict).__name__}"
        )
    if not env_dict:
        raise ValueError("env_dict: expected at least one field, got none")
    try:
        default = np.dtype(default_dtype)
    except TypeError as error:
        raise TypeError(f"default_dtype: expected a dtype, got {default_dtype!r}") from error
    fields = tuple(_read_field(name, spec, default) for name, spec in env_dict.items())
    check_axes(fields)
    return fields


def _read_field(name: object, spec: object, default: np.dtype[Any]) -> Field:
    if not isinstance(name, str):
        raise TypeError(f"env_dict: expected field names of type str, got {name!r}")
    if not isinstance(spec, Mapping):
        raise TypeError(
            f"field {name!r}: expected a dict such as {{'shape': 3, 'dtype': 'float32'}}, "
            f"got {spec!r}"
        )
    unknown = [key for key in spec if key not in PROPERTIES and key != ADD_SHAPE]
    if unknown:
        raise ValueError(
            f"field {name!r}: unknown properties {unknown}; expected some of {list(PROPERTIES)} "
            "(cpprb ignores others without a word)"
        )
    counts = spec.get("counts")
    if counts is not None and not isinstance(counts, str):
        raise TypeError(f"field {name!r}: counts: expected the name of an axis, got {counts!r}")
    wanted = spec.get("dtype", default)
    if wanted is str or wanted is np.str_:
        return _read_text(str(name), spec, counts)
    try:
        dtype = np.dtype(np.float64 if wanted is None else wanted)  # as in NumPy and cpprb
    except TypeError as error:
        raise TypeError(
            f"field {name!r}: expected a NumPy dtype, got {wanted!r}: {error}"
        ) from error
    if dtype.base.kind not in "biufcmMOSUV":
        raise TypeError(
            f"field {name!r}: expected a dtype of numbers, times, bytes, or texts such as 'U8', "
            f"whose values lie in the array, or object, got {dtype}"
        )
    if dtype.itemsize == 0 and dtype.kind in "SUV":
        raise ValueError(
            f"field {name!r}: expected a dtype with a size such as 'U8', got {wanted!r}"
        )
    lengths, axis, axis_at = _read_shape(name, spec.get("shape", 1))
    shape = (*lengths, *dtype.shape)
    try:
        np.broadcast_to(np.zeros((), np.uint8), (1, *shape))
    except ValueError as error:
        raise ValueError(
            f"field {name!r}: NumPy has no arrays of shape {shape}: {error}"
        ) from error
    return Field(str(name), native(dtype.base), shape, axis, axis_at, counts)


def _read_text(name: str, spec: Mapping[Any, Any], counts: str | None) -> Field:
    shape = spec.get("shape", ())
    try:
        is_single = tuple(shape) == ()
    except TypeError:
        is_single = False
    if not is_single:
        raise ValueError(
            f"field {name!r}: a text of any length, dtype str, has the shape (), got {shape!r}; "
            "several texts of one size have a dtype such as 'U8'"
        )
    return Field(name, np.dtype(np.uint8), (0,), name, 0, counts, is_text=True)


def _read_shape(name: str, shape: object) -> tuple[tuple[int, ...], str | None, int]:
    """Lengths of a shape, 0 for a named axis; the name of this axis, or None; and its place."""
    given: Any = shape
    result: tuple[int, ...]
    names: list[str] = []
    at = 0
    try:
        result = (operator.index(given),)
    except TypeError:  # no integer: a sequence, such as a list or an array
        try:
            lengths = [given] if isinstance(given, str) else list(given)
            names = [str(one) for one in lengths if isinstance(one, str)]
            at = next((at for at, one in enumerate(lengths) if isinstance(one, str)), 0)
            result = tuple(0 if isinstance(one, str) else operator.index(one) for one in lengths)
        except TypeError:
            raise TypeError(
                f"field {name!r}: expected a shape such as 3, (84, 84) or ('T',), got {shape!r}"
            ) from None
    if isinstance(given, str):
        raise TypeError(
            f"field {name!r}: expected a shape such as 3, (84, 84) or ('T',), got {shape!r}"
        )
    if len(names) > 1:
        raise ValueError(f"field {name!r}: expected at most one named axis, got shape {shape!r}")
    if any(not 0 <= length <= MOST for length in result):
        raise ValueError(f"field {name!r}: expected lengths of 0 to {MOST}, got shape {shape!r}")
    return result, names[0] if names else None, at


def read_size(size: object) -> int:
    """A number of steps: an integer, or a float of integral value such as ``1e6``."""
    if isinstance(size, (bool, np.bool_)):
        raise TypeError(f"size: expected a number of steps, got {size!r}")
    if isinstance(size, (float, np.floating)):
        if not float(size).is_integer():
            raise ValueError(f"size: expected a whole number of steps, got {size!r}")
        capacity = int(size)
    else:
        try:
            capacity = operator.index(size)  # type: ignore[arg-type]
        except TypeError:
            raise TypeError(f"size: expected a number of steps, got {size!r}") from None
    if not 1 <= capacity <= MOST:
        raise ValueError(f"size: expected 1 to {MOST} steps, got {size!r}")
    return capacity


def read_n_envs(n_envs: object, capacity: int) -> int:
    """A number of environments: at least 1, at most one for each row of the ring."""
    try:
        n = operator.index(n_envs)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"n_envs: expected an integer, got {n_envs!r}") from None
    if not 1 <= n <= capacity:
        raise ValueError(f"n_envs: expected 1 to size={capacity}, got {n}")
    return n


@dataclass(frozen=True)
class Stack:
    """A field that is a frame stack."""

    name: str
    axis: int  # axis of the frames
    depth: int  # number of frames


@dataclass(frozen=True)
class Schema:
    """The fields of a buffer in declared order, with end flags, next values and frame stacks.

    Behind the declared fields there is a hidden field for each named axis, with its entries.
    """

    fields: tuple[Field, ...]
    terminated: str | Literal[False] | None = None  # None: found by name; False: no field
    truncated: str | Literal[False] | None = None
    next_of: tuple[tuple[str, str], ...] = ()  # pairs (field of next values, its source)
    stacks: tuple[Stack, ...] = ()
    axes: tuple[Axis, ...] = dataclasses.field(default=(), metadata=LEFT_OUT)  # by first use

    @property
    def declared(self) -> tuple[Field, ...]:
        """The fields without the hidden ones."""
        return self.fields[: len(self.fields) - len(self.axes)]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the fields; hidden ones are left out."""
        return tuple(field.name for field in self.declared)

    @property
    def rooms(self) -> dict[str, int]:
        """The room of each named axis that has one of its own."""
        return {axis.name: axis.room for axis in self.axes if axis.source is None}

    @property
    def without_next(self) -> tuple[Field, ...]:
        """The declared fields but those of ``next_of``: their axes have rooms."""
        following = dict(self.next_of)
        return tuple(field for field in self.declared if field.name not in following)

    @property
    def chained_next(self) -> tuple[tuple[str, str], ...]:
        """The pairs of ``next_of`` with values of fixed shape, which are read from other rows."""
        ragged = {field.name for field in self.declared if field.is_ragged}
        return tuple(pair for pair in self.next_of if pair[0] not in ragged)

    @property
    def chained(self) -> set[str]:
        """Names of the chained fields: next values of fixed shape, and frame stacks."""
        return {name for name, _ in self.chained_next} | {stack.name for stack in self.stacks}

    @property
    def chained_in_order(self) -> tuple[str, ...]:
        """Names of the chained fields, in the order in which ``add`` writes them."""
        stacks = tuple(stack.name for stack in self.stacks)
        return stacks + tuple(name for name, _ in self.chained_next)

    def stored_nbytes(self, field: Field) -> int:
        """Bytes stored per row, without overflow."""
        if field.name in dict(self.next_of):
            return 0
        for stack in self.stacks:
            if stack.name == field.name:
                return field.nbytes // stack.depth
        return field.nbytes

    @property
    def most_row_nbytes(self) -> float:
        """Limit of the memory of a buffer, in bytes per row: 1.05 times (the stored bytes + 16).

        With named axes it is the stored bytes + 8, beside the items.
        """
        stored = sum(map(self.stored_nbytes, self.fields))
        return stored + 8 if self.axes else 1.05 * (stored + 16)

    def refuse_ragged(self, where: str, among: Iterable[str] | None = None) -> None:
        """Raise ``ValueError`` if ``where`` does not take fields, as they have any length."""
        chosen = self.names if among is None else set(among)
        names = [one.name for one in self.declared if one.is_ragged and one.name in chosen]
        if names:
            raise ValueError(
                f"{where}: fields of any length {names} are not supported here yet; fixed fields "
                "only"
            )

    def check_names(self, given: Iterable[str]) -> None:
        """Raise ``FieldNameError`` unless all fields and no other names are given."""
        given = list(given)
        unknown = [name for name in given if name not in self.names]
        if unknown:
            raise FieldNameError(
                f"unknown fields {unknown}; this buffer has {list(self.names)} "
                "(cpprb drops the values of unknown fields without a word)"
            )
        missing = [name for name in self.names if name not in given]
        if missing:
            raise FieldNameError(f"missing fields {missing}; this buffer has {list(self.names)}")

    def check_out(
        self, out: object, n: int, names: Sequence[str] | None = None
    ) -> list[NDArray[Any]]:
        """The checked arrays of ``out`` for ``names``, or for all fields: see ``check_out``."""
        fields = [field for field in self.fields if names is None or field.name in names]
        return check_out(out, n, {field.name: (field.dtype, field.shape) for field in fields})

    def end_fields(self) -> list[tuple[int, int, int, int]]:
        """The fields that end episodes, in the order in which their values change the flags.

        Each tuple has the number of the field, the byte of its sign (-1 for none), the bits that a
        value other than 0 sets, and the bits that such a value clears before. ``terminated``
        terminates, ``truncated`` truncates. A ``done`` beside ``terminated`` only ends the episode.
        A lone ``done`` terminates, and ``truncated`` clears that bit. Only a bool, integer or float
        of up to 8 bytes ends episodes. If an option names another field, ``ValueError`` is raised.
        """
        found: list[tuple[int, int, int, int]] = []
        terminated = self._end_field(self.terminated, "terminated")
        done = None if self.terminated is not None else self._end_field(None, "done")
        truncated = self._end_field(self.truncated, "truncated")
        if terminated is not None:
            found.append((*terminated, FLAG_TERMINATED, 0))
        if done is not None:
            found.append((*done, FLAG_TERMINATED if terminated is None else FLAG_END, 0))
        if truncated is not None:
            is_lone = done is not None and terminated is None
            found.append((*truncated, FLAG_TRUNCATED, FLAG_TERMINATED if is_lone else 0))
        return found

    def near_ends(self) -> list[tuple[str, Field]]:
        """Fields whose names resemble end flags, each with the option that would name it.

        An end flag known by its name or by an option gives no fields: ``dones`` beside ``done``
        means something else.
        """
        found = []
        meanings = [flags for _, _, flags, _ in self.end_fields()]
        known = {
            "terminated": any(flags & FLAG_TERMINATED & ~FLAG_END for flags in meanings)
            or FLAG_END in meanings,
            "truncated": any(flags & FLAG_TRUNCATED & ~FLAG_END for flags in meanings),
        }
        for option, words in NEAR_NAMES.items():
            if known[option] or getattr(self, option) is not None:
                continue
            found += [
                (option, field) for field in self.declared if _plain_word(field.name) in words
            ]
        return found

    def _end_field(
        self, named: str | Literal[False] | None, default: str
    ) -> tuple[int, int] | None:
        if named is False:
            return None
        name = default if named is None else named
        if name not in self.names:
            if named is not None:
                raise ValueError(
                    f"{default}={named!r}: expected one of the fields {list(self.names)}"
                )
            return None
        number = self.names.index(name)
        field = self.fields[number]
        if not field.can_end:
            if named is not None:
                raise ValueError(
                    f"{default}={named!r}: expected a field of one bool, integer or float, "
                    f"got {field.declared_dtype} of shape {field.declared_shape}"
                )
            return None
        sign_byte = -1
        if field.dtype.kind == "f":
            sign_byte = field.dtype.itemsize - 1 if sys.byteorder == "little" else 0
        return number, sign_byte


def with_axes(schema: Schema, rooms: Mapping[str, int]) -> Schema:
    """The schema with a room for each named axis, and a hidden field for its entries.

    ``rooms`` are those of the axes of all fields but next values, whose axes come last.
    """
    own = axes_of(schema.without_next)
    axes = [Axis(name, rooms[name], fields) for name, fields in own.items()]
    for name, fields in own.items():
        following = tuple(one for one, source in schema.next_of if source in fields)
        if following:
            axes.append(Axis(NEXT + name, rooms[name], following, name))
    entries = [Field(axis.entry, axis.entry_dtype, (2,), axis.name, is_entry=True) for axis in axes]
    return replace(schema, fields=(*schema.declared, *entries), axes=tuple(axes))


def _plain_word(name: str) -> str:
    """A name without affixes: ``Is_Terminals`` is ``terminal``."""
    words = [word for word in re.split(r"[^a-z0-9]+", name.lower()) if word]
    words = [word for word in words if word not in ("is", "flag", "flags", "episode", "ep")]
    word = "".join(words)
    for prefix in ("is", "all"):
        word = word.removeprefix(prefix)
    return word.removesuffix("s")


def read_names(option: str, names: str | Iterable[str], known: Sequence[str]) -> list[str]:
    """One or several field names in the argument ``option``; ``ValueError`` for unknown names."""
    given, among = as_names(option, names), set(known)
    for name in given:
        if name not in among:
            raise ValueError(f"{option}: expected some of {list(known)}, got {name!r}")
    return given


def as_names(option: str, names: str | Iterable[str]) -> list[str]:
    """One name or several as a list; ``TypeError`` if they are no strings."""
    try:
        given = [names] if isinstance(names, str) else list(names)
    except TypeError:
        raise TypeError(f"{option}: expected names of fields, got {names!r}") from None
    for name in given:
        if not isinstance(name, str):
            raise TypeError(f"{option}: expected names of fields, got {name!r}")
    return given


def read_columns(
    fields: str | Iterable[str] | None, columns: tuple[Column, ...], further: Iterable[str] = ()
) -> tuple[Column, ...] | None:
    """The columns that the option ``fields`` names, in declared order; None for all.

    It may name ``further`` columns too, which come with every batch. Raises ``TypeError`` for
    values that are no names, and ``ValueError`` for an unknown or repeated name, or no field.
    """
    if fields is None:
        return None
    names = as_names("fields", fields)
    wanted = set(names)
    found = tuple([one for one in columns if one.name in wanted and not one.is_entry])
    if not found or len(found) + len(wanted.intersection(further)) < len(names):
        known = [column.name for column in columns if not column.is_entry]
        read_names("fields", names, [*known, *further])
        if not found:
            raise ValueError(f"fields: expected some of {known}, got {names or 'none'}")
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise ValueError(f"fields: expected each field once, got {twice!r} twice")
    return found


def check_out(
    out: object, n: int | None, wanted: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]
) -> list[NDArray[Any]]:
    """The arrays of ``out``, checked: each holds ``n`` items of the dtype and shape ``wanted``.

    If n is None, shapes are those of whole arrays. Other entries of ``out`` are ignored. An array
    of another library, such as a tensor, becomes a NumPy array over the same memory.
    """
    if not isinstance(out, dict):
        raise TypeError(f"out: expected a dict of arrays, got {type(out).__name__}")
    names = list(wanted)
    missing = [name for name in names if name not in out]
    if missing:
        raise TypeError(f"out: missing fields {missing}; expected {names}")
    arrays = [as_out(f"out[{name!r}]", out[name]) for name in names]
    for (name, (dtype, item)), array in zip(wanted.items(), arrays, strict=True):
        shape = item if n is None else (n, *item)
        if array.dtype != dtype or array.shape != shape:
            raise ValueError(
                f"out[{name!r}]: expected {dtype} of shape {shape}, "
                f"got {array.dtype} of shape {array.shape}"
            )
        if not array.flags.c_contiguous or not array.flags.writeable:
            flaw = "read-only" if array.flags.c_contiguous else "not C-contiguous"
            raise ValueError(
                f"out[{name!r}]: expected a writeable C-contiguous array, got one that is {flaw}"
            )
    order = sorted(range(len(arrays)), key=lambda place: arrays[place].ctypes.data)
    for one, two in pairwise(place for place in order if arrays[place].nbytes):
        if np.may_share_memory(arrays[one], arrays[two]):
            first, second = sorted((one, two))
            raise ValueError(
                f"out[{names[second]!r}] shares memory with out[{names[first]!r}]; expected arrays "
                "of their own"
            )
    return arrays
