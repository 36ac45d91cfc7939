"""``Plan``: the fields of a replay on a device, and the bytes that its rows take.

Not here: layers (``_readings``), and the arrays (``_rows``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Literal, TypedDict

import numpy as np

from cpprb_like._arguments.checks import as_int
from cpprb_like._fields.schema import read_n_envs, read_size
from cpprb_like._machine.machine_memory import format_nbytes
from cpprb_like.buffers import ReplayBuffer
from cpprb_like.errors import FieldNameError
from cpprb_like.samplers import Prioritized, Sampler, Uniform

TOGETHER = 64  # bytes of the largest fields that lie side by side, so that a gather reads several
EPISODE = 16  # steps of the shortest episodes whose finals all have room, by default
RESERVED = ("final",)  # an option of ``add``
Index = Literal["int32", "int64"]


class Options(TypedDict, total=False):
    """Options of a replay besides its number of environments: see ``DeviceReplay``."""

    next_of: str | Iterable[str] | None
    sampler: Sampler | None
    finals: int | None
    default_dtype: Any
    terminated: str | Literal[False] | None
    truncated: str | Literal[False] | None


@dataclass(frozen=True)
class DeviceField:
    """A field: its dtype in the library of the device, and the shape of one value."""

    name: str
    dtype: Any
    shape: tuple[int, ...]
    nbytes: int  # of one value
    table: str  # where it lies
    start: int  # the first of its numbers in a row of the table


Fields = tuple[DeviceField, ...]


class Plan:
    """The declaration of a replay: rows of ``n_envs`` environments that step together.

    ``dtypes`` gives a dtype in both libraries. NumPy lacks some dtypes of devices. It then gives
    another one of the same kind.
    """

    def __init__(
        self,
        size: float,
        env_dict: Mapping[str, Mapping[str, Any]],
        dtypes: Callable[[Any], tuple[Any, np.dtype[Any]]],
        *,
        n_envs: int,
        sampler: Sampler | None = None,
        finals: int | None = None,
        default_dtype: Any = None,
        **options: Any,
    ) -> None:
        unknown = [name for name in options if name not in Options.__annotations__]
        if unknown:
            raise TypeError(f"unknown options {unknown}; expected {[*Options.__annotations__]}")
        self.size = read_size(size)
        self.n_envs = read_n_envs(n_envs, self.size)
        if self.size % self.n_envs:
            raise ValueError(f"size: expected a multiple of n_envs={n_envs}, got {self.size}")
        if not isinstance(env_dict, Mapping):
            raise TypeError(f"env_dict: expected a dict, got {type(env_dict).__name__}")
        given: dict[str, Any] = {}
        found: dict[str, Any] = {}
        for name, spec in env_dict.items():
            if not isinstance(spec, Mapping):
                raise TypeError(f"field {name!r}: expected a dict, got {spec!r}")
            if any(isinstance(one, str) for one in np.atleast_1d(spec.get("shape", 1)).tolist()):
                raise ValueError(f"field {name!r}: expected a fixed shape; a device has no others")
            wanted = spec.get("dtype", default_dtype or np.float32)
            try:
                found[name], as_numpy = dtypes(wanted)
            except (AttributeError, TypeError, ValueError) as error:
                raise TypeError(
                    f"field {name!r}: expected a dtype of numbers of the device, got {wanted!r} "
                    f"({error})"
                ) from error
            given[name] = {**spec, "dtype": as_numpy}
        self.sampler = _options_of(sampler)
        # A buffer of one row reads the declaration, so it has the rules and the messages of all.
        self.schema = schema = ReplayBuffer(
            1, given, sampler=_options_of(sampler), **options
        ).schema
        self.names = names = schema.names
        empty = [one.name for one in schema.declared if 0 in one.shape]
        if empty:
            raise ValueError(f"fields {empty}: expected shapes with elements")
        taken = [name for name in names if name in RESERVED]
        if taken:
            raise ValueError(f"env_dict: {taken} are options of add; expected other names")
        self.steps = self.size // self.n_envs  # that the ring holds
        # The field that each field of next values is read from.
        self.sources = dict(schema.next_of)
        # The fields of ``next_of``, and each ``next_x`` beside ``x``.
        self.next_names = {f"next_{name}" for name in names} & {*names}
        # End fields: the flags that a value sets, and those that it clears.
        self.ends = [(names[k], sets, clears) for k, _, sets, clears in schema.end_fields()]
        if finals is None:
            finals = self.n_envs * (self.steps // EPISODE + 1)
        finals = as_int("finals", finals, self.n_envs) // self.n_envs * self.n_envs
        self.finals = finals if self.sources else 0  # next values that have room beside the ring
        self.room = self.finals + self.n_envs if self.sources else 0  # and those of the newest step
        self._lay_out(found)

    def _lay_out(self, dtypes: Mapping[str, Any]) -> None:
        """Put fields side by side into tables: of one dtype, and all or none of ``next_of``.

        A large field has a table of its own, so that no call moves more than it needs.
        """
        nexts = {source: following for following, source in self.sources.items()}
        places: dict[Any, str] = {}
        self.tables: dict[str, Fields] = {}
        self.widths: dict[str, int] = {}  # numbers of a row
        for one in self.schema.declared:
            if one.name in self.sources:
                continue
            dtype = dtypes[one.name]
            kind: Any = (dtype, one.name in nexts) if one.nbytes <= TOGETHER else one.name
            table = places.setdefault(kind, one.name)
            start = self.widths.get(table, 0)
            field = DeviceField(one.name, dtype, one.shape, one.nbytes, table, start)
            self.tables[table] = (*self.tables.get(table, ()), field)
            self.widths[table] = start + prod(one.shape)
        # Of each table of ``next_of`` the fields of next values, in the same order.
        self.following = {
            table: tuple(replace(one, name=nexts[one.name]) for one in fields)
            for table, fields in self.tables.items()
            if fields[0].name in nexts
        }
        laid = (*self.tables.values(), *self.following.values())
        self.named = {one.name: one for fields in laid for one in fields}
        self.fields = tuple(self.named[name] for name in self.names)

    def rows_of(self, table: str) -> int:
        """Rows of memory of a table: the ring, next values, and one to write over."""
        return self.size + (self.room if table in self.following else 0) + 1

    @property
    def index(self) -> Index:
        """The dtype of places of rows."""
        most = self.size + self.room + 1
        return "int32" if most <= np.iinfo(np.int32).max else "int64"

    @property
    def declaration(self) -> str:
        """What a state belongs to, as text."""
        options: dict[str, Any] = {}
        if isinstance(self.sampler, Prioritized):
            options = {"alpha": self.sampler.alpha, "eps": self.sampler.eps}
        return (
            f"size={self.size}, n_envs={self.n_envs}, fields={self.fields}, ends={self.ends}, "
            f"next_of={self.sources}, finals={self.finals}, {options}"
        )

    def require(self, available: int, device: object) -> None:
        """Raise ``MemoryError``, with the bytes of each field, if a device has fewer."""
        nbytes = {
            one.name: self.rows_of(table) * one.nbytes
            for table, fields in self.tables.items()
            for one in fields
        }
        nbytes["flags"] = self.size
        if self.sources:
            nbytes["links"] = (self.size + self.room) * np.dtype(self.index).itemsize
        if isinstance(self.sampler, Prioritized):
            numbers = int(1.05 * self.size) + 8192  # leaves, the sums above them, and least ones
            nbytes["priorities"] = numbers * self.sampler.weights_dtype.itemsize
        if sum(nbytes.values()) > available:
            table = "\n".join(f"  {name}: {format_nbytes(size)}" for name, size in nbytes.items())
            raise MemoryError(
                f"{self.size} rows need {format_nbytes(sum(nbytes.values()))} on {device}, but "
                f"{format_nbytes(available)} are available:\n{table}"
            )

    def check_step(self, given: Mapping[str, Any]) -> int:
        """Number of time steps of one call of ``add``; raises unless dtypes and shapes fit."""
        if given.keys() != self.named.keys():
            unknown = [name for name in given if name not in self.names]
            missing = [name for name in self.names if name not in given]
            what = f"unknown fields {unknown}" if unknown else f"missing fields {missing}"
            raise FieldNameError(f"{what}; this replay has {list(self.names)}")
        lengths = {}
        for field in self.fields:
            value, row = given[field.name], (self.n_envs, *field.shape)
            shape = tuple(value.shape)
            if value.dtype != field.dtype or shape[-len(row) :] != row or len(shape) > len(row) + 1:
                raise ValueError(
                    f"field {field.name!r}: expected {field.dtype} of shape {row} or (T, "
                    f"{', '.join(map(str, row))}), got {value.dtype} of shape {shape}"
                )
            lengths[field.name] = shape[0] if len(shape) > len(row) else 1
        if len({*lengths.values()}) > 1:
            raise ValueError(f"expected as many steps of all fields, got {lengths}")
        count: int = lengths[self.names[0]]
        if not count:
            raise ValueError("expected at least 1 step, got 0")
        return count

    def check_batch(self, name: str, value: Any, n: int) -> None:
        """Raise unless a value of ``update`` holds ``n`` rows of a field that may change."""
        reasons = dict.fromkeys(self.sources.values(), "the row before shares it")
        reasons |= dict.fromkeys(self.sources, "rows share it")
        reasons |= {end: "it says where an episode ends" for end, _, _ in self.ends}
        if name not in self.names:
            raise FieldNameError(f"unknown fields [{name!r}]; expected {list(self.names)}")
        if name in reasons:
            raise ValueError(f"field {name!r} cannot be replaced: {reasons[name]}")
        field = self.named[name]
        if value.dtype != field.dtype or tuple(value.shape) != (n, *field.shape):
            raise ValueError(
                f"field {name!r}: expected {field.dtype} of shape {(n, *field.shape)}, got "
                f"{value.dtype} of shape {tuple(value.shape)}"
            )


def _options_of(sampler: Sampler | None) -> Uniform | Prioritized:
    """A sampler with the same options and no rows."""
    if sampler is None or type(sampler) is Uniform:
        return Uniform()
    if type(sampler) is not Prioritized:
        raise TypeError(f"sampler: expected Uniform or Prioritized, got {sampler!r}")
    if callable(sampler.beta):
        raise TypeError("beta: expected a number, got a schedule; give its value to each sample")
    return Prioritized(
        sampler.alpha,
        beta=sampler.beta,
        eps=sampler.eps,
        stratified=sampler.stratified,
        weights=sampler.weights,
        probabilities=sampler.probabilities,
        weights_dtype=sampler.weights_dtype,
    )
