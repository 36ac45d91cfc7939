"""``Plan``: the fields of a replay on a device, and the bytes that its rows take.

Not here: layers (``_readings``), and the arrays (``_rows``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, TypedDict

import numpy as np

from cpprb_like._arguments.checks import as_int
from cpprb_like._fields.schema import Schema, read_n_envs, read_size
from cpprb_like._machine.machine_memory import format_nbytes
from cpprb_like.buffers import ReplayBuffer
from cpprb_like.errors import FieldNameError
from cpprb_like.samplers import Prioritized, Sampler, Uniform

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


@dataclass(frozen=True)
class Plan:
    """The declaration of a replay: rows of ``n_envs`` environments that step together."""

    size: int
    n_envs: int
    fields: tuple[DeviceField, ...]
    schema: Schema  # of the same fields in NumPy
    finals: int  # next values that have room beside the ring
    sampler: Uniform | Prioritized
    sources: dict[str, str]  # the field that each field of next values is read from
    next_names: frozenset[str]  # those of ``next_of``, and each ``next_x`` beside ``x``
    ends: tuple[tuple[str, int, int], ...]  # end fields: flags that a value sets, and clears

    @classmethod
    def read(
        cls,
        size: float,
        env_dict: Mapping[str, Mapping[str, Any]],
        dtypes: Callable[[Any], tuple[Any, np.dtype[Any]]],
        *,
        n_envs: int,
        next_of: str | Iterable[str] | None = None,
        sampler: Sampler | None = None,
        finals: int | None = None,
        default_dtype: Any = None,
        terminated: str | Literal[False] | None = None,
        truncated: str | Literal[False] | None = None,
        **unknown: Any,
    ) -> Plan:
        """Check the arguments of a replay; ``dtypes`` gives a dtype in both libraries.

        NumPy lacks some dtypes of devices. It then gives another one of the same kind.
        """
        if unknown:
            raise TypeError(f"unknown options {[*unknown]}; expected {[*Options.__annotations__]}")
        capacity = read_size(size)
        n = read_n_envs(n_envs, capacity)
        if capacity % n:
            raise ValueError(f"size: expected a multiple of n_envs={n}, got {capacity}")
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
        # A buffer of one row reads the declaration, so it has the rules and the messages of all.
        chosen = _options_of(sampler)
        schema = ReplayBuffer(
            1,
            given,
            next_of=next_of,
            terminated=terminated,
            truncated=truncated,
            sampler=_options_of(sampler),
        ).schema
        empty = [one.name for one in schema.declared if 0 in one.shape]
        if empty:
            raise ValueError(f"fields {empty}: expected shapes with elements")
        taken = [name for name in schema.names if name in RESERVED]
        if taken:
            raise ValueError(f"env_dict: {taken} are options of add; expected other names")
        for following, source in schema.next_of:
            found.setdefault(following, found[source])
        fields = tuple(
            DeviceField(one.name, found[one.name], one.shape, one.nbytes) for one in schema.declared
        )
        steps = capacity // n
        if finals is None:
            finals = n * (steps // EPISODE + 1)
        finals = as_int("finals", finals, n) if schema.next_of else 0
        names = schema.names
        beside = {f"next_{name}" for name in names} & {*names}
        ends = tuple((names[k], sets, clears) for k, _, sets, clears in schema.end_fields())
        sources = dict(schema.next_of)
        return cls(capacity, n, fields, schema, finals, chosen, sources, frozenset(beside), ends)

    @property
    def steps(self) -> int:
        """Steps of all environments that the ring holds."""
        return self.size // self.n_envs

    @property
    def stored(self) -> tuple[DeviceField, ...]:
        """The fields that have memory of their own."""
        return tuple(field for field in self.fields if field.name not in self.sources)

    def rows_of(self, field: DeviceField) -> int:
        """Rows of memory of a field: the ring, one to write over, and those of next values."""
        beside = self.n_envs + self.finals + 1 if field.name in self.sources.values() else 0
        return self.size + beside + 1

    @property
    def index(self) -> Index:
        """The dtype of places of rows."""
        most = self.size + self.n_envs + self.finals + 3
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

    def nbytes(self) -> dict[str, int]:
        """Bytes of each array: fields, ``flags``, and what next values and priorities need."""
        found = {field.name: self.rows_of(field) * field.nbytes for field in self.stored}
        found["flags"] = self.size
        if self.sources:
            found["links"] = (self.size + self.finals + 3) * np.dtype(self.index).itemsize
        if isinstance(self.sampler, Prioritized):
            numbers = int(1.05 * self.size) + 8192  # leaves, the sums above them, and least ones
            found["priorities"] = numbers * self.sampler.weights_dtype.itemsize
        return found

    def require(self, available: int, device: object) -> None:
        """Raise ``MemoryError``, with the bytes of each field, if a device has fewer."""
        nbytes = self.nbytes()
        if sum(nbytes.values()) > available:
            table = "\n".join(f"  {name}: {format_nbytes(size)}" for name, size in nbytes.items())
            raise MemoryError(
                f"{self.size} rows need {format_nbytes(sum(nbytes.values()))} on {device}, but "
                f"{format_nbytes(available)} are available:\n{table}"
            )

    def check_step(self, given: Mapping[str, Any]) -> int:
        """Number of time steps of one call of ``add``; raises unless dtypes and shapes fit."""
        names = self.schema.names
        if given.keys() != set(names):
            unknown = [name for name in given if name not in names]
            missing = [name for name in names if name not in given]
            what = f"unknown fields {unknown}" if unknown else f"missing fields {missing}"
            raise FieldNameError(f"{what}; this replay has {list(names)}")
        lengths = {}
        for field in self.fields:
            value, row = given[field.name], (self.n_envs, *field.shape)
            shape = tuple(value.shape)
            if value.dtype != field.dtype or shape[-len(row) :] != row or len(shape) > len(row) + 1:
                raise ValueError(
                    f"field {field.name!r}: expected {field.dtype} of shape {row} or (T, "
                    f"{', '.join(map(str, row))}), got {value.dtype} of shape {shape}"
                )
            lengths[field.name] = prod(shape[: len(shape) - len(row)])
        if len(set(lengths.values())) > 1:
            raise ValueError(f"expected as many steps of all fields, got {lengths}")
        count: int = next(iter(lengths.values()))
        if not count:
            raise ValueError("expected at least 1 step, got 0")
        return count

    def check_batch(self, name: str, value: Any, n: int) -> None:
        """Raise unless a value of ``update`` holds ``n`` rows of a field that may change."""
        reasons = dict.fromkeys(self.sources.values(), "the row before shares it")
        reasons |= dict.fromkeys(self.sources, "rows share it")
        reasons |= {end: "it says where an episode ends" for end, _, _ in self.ends}
        if name not in self.schema.names:
            raise FieldNameError(f"unknown fields [{name!r}]; expected {list(self.schema.names)}")
        if name in reasons:
            raise ValueError(f"field {name!r} cannot be replaced: {reasons[name]}")
        (field,) = [field for field in self.fields if field.name == name]
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
