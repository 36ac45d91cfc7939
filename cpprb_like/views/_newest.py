"""``Newest``: draws among the rows of the newest versions, as a layer of a view.

Versions are followed as integers of the same order. Not here: which rows are of versions from a cut
on (``_newer_rows``), and when rows are told of (``samplers._rules``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

import numpy as np

from cpprb_like._arguments.arrays import Array, Batch, Slots
from cpprb_like._arguments.checks import as_int
from cpprb_like.samplers._rules import distinct
from cpprb_like.schedules import check
from cpprb_like.views._layer import Fields, ViewedRows
from cpprb_like.views._newer_rows import NewerRows
from cpprb_like.views._rule import Moved, Rule, check_number

SPAN = 256  # half-lives from one reference to the next: masses are at most 2**300
LEAST, MOST = -(2**63), 2**63 - 1  # of int64


class Newest(Rule):
    """Draws among the rows of the newest versions, or draws these more often.

    Versions are numbers, such as that of the policy that acted, and a greater one is newer. Exactly
    one of ``k``, ``at_least`` and ``half_life`` is given.

    Parameters
    ----------
    field : str
        Name of a field of one bool or number a row: the version of the row.
    k : int, optional
        Rows of the k greatest versions in the buffer are drawn. At least 1. Rows that were
        overwritten or deleted do not count.
    at_least : number or callable, optional
        Rows of this version and of greater ones are drawn. A function, called without arguments at
        least once for each draw, returns the version of now, which may rise and fall. It must not
        call the buffer or its views: a draw of another thread may wait for it then, for ever.
    half_life : float, optional
        All rows are drawn. The mass of a row halves for each ``half_life`` that its version is
        behind the greatest version in the buffer. More than 0.

    Raises
    ------
    TypeError, ValueError
        A parameter is of a wrong type or value, or not exactly one is given. By ``view``: there is
        no such field, or it is not one bool or number of at most 64 bits a row. By ``sample``: a
        version is NaN, or infinite with ``half_life``; the function returns anything but a number.

    Notes
    -----
    Rows come from any actors, in any order. ``rb.update`` of the field counts at the next draw. A
    learner of several processes compares the versions of all shards, and ``half_life`` those of all
    hosts of a cluster, each of which has its own k versions. A function is called by the process of
    the cluster's learner, when it asks hosts for rows, which may be ahead of need. Integers are
    exact; a threshold is rounded to the dtype of a field of floats. Rows that wait for the end of
    their n-step return count, and are not drawn yet.

    Cost: that of ``Among``, and of each new version that of the rows that it leaves out. A look at
    all rows costs a version that goes while older ones wait, and a threshold that falls. With
    ``half_life`` a new version costs nothing, but for a computation of all masses every 256
    half-lives; rows more than 1,000 half-lives behind may have mass 0. Memory for each view, beside
    that of ``Among``: 24 bytes a row, and about 150 for each version that is drawn, or with
    ``half_life`` for one.

    Examples
    --------
    >>> from cpprb_like import ReplayBuffer
    >>> from cpprb_like.views import Newest
    >>> fields = {"x": {"shape": ()}, "version": {"shape": (), "dtype": int}}
    >>> rb = ReplayBuffer(100, fields, seed=0)
    >>> rb.add(x=range(6), version=[1, 1, 2, 4, 4, 3])
    0
    >>> sorted(rb.view(Newest("version", 2)).sample(3, replace=False)["x"].tolist())
    [3.0, 4.0, 5.0]
    >>> policy = 4
    >>> late = rb.view(Newest("version", at_least=lambda: policy - 2))
    >>> sorted(late.sample(4, replace=False)["x"].tolist())
    [2.0, 3.0, 4.0, 5.0]
    >>> view = rb.view(Newest("version", half_life=0.5))
    >>> [view.explain(row)["mass"] / view.explain(3)["mass"] for row in (2, 5)]
    [0.0625, 0.25]
    """

    def __init__(
        self,
        field: str,
        k: int | None = None,
        *,
        at_least: float | Callable[[], float] | None = None,
        half_life: float | None = None,
    ) -> None:
        if not isinstance(field, str):
            raise TypeError(f"field: expected the name of a field, got {field!r}")
        options = {"k": k, "at_least": at_least, "half_life": half_life}
        given = [name for name, value in options.items() if value is not None]
        if len(given) != 1:
            raise ValueError(
                f"Newest: expected one of k, at_least and half_life, got {given or 'none'}"
            )
        if k is not None:
            as_int("k", k, 1)
        elif half_life is not None:
            check("half_life", half_life, 0.0, above=True)
            if callable(half_life):
                raise TypeError(f"half_life: expected a number, got {half_life!r}")
        elif not callable(at_least):
            as_cut(at_least, np.dtype(int), field)
        self.field = field
        self.k = k
        self.at_least = at_least
        self.half_life = half_life

    def follows(self, fields: Fields) -> tuple[str]:
        check_number("Newest", self.field, fields)
        if fields[self.field].dtype.itemsize > 8:
            raise ValueError(
                f"Newest: expected a field of at most 64 bits, got {self.field!r} of "
                f"{fields[self.field].dtype}"
            )
        return (self.field,)

    def open(self, rows: ViewedRows) -> Rule:
        dtypes = {column.name: column.dtype for column in rows.ring.columns}
        dtype = dtypes.get(self.field, np.dtype(float))  # without the field ``follows`` raises
        if self.k is not None:
            return NewestVersions(self, dtype, rows.numbers)
        return (AtLeast if self.half_life is None else Weighed)(self, dtype, rows.numbers)

    def at_hosts(self) -> Newest:
        """With a function of the learner, which says its value with each request."""
        return Newest(self.field, at_least=unsaid) if callable(self.at_least) else self


def unsaid() -> float:
    """In place of a function at the host of a cluster."""
    raise RuntimeError("Newest: the learner has said no version")


class Versions(Rule):
    """The versions of the rows of a view, and a cut: rows of this version or newer have mass 1.

    A subclass has ``moved``, which moves the cut. Versions are integers: see ``as_order``.
    """

    def __init__(self, layer: Newest, dtype: np.dtype[Any], numbers: int) -> None:
        self._layer = layer
        self._name = layer.field
        self._dtype = np.dtype(np.uint8) if dtype.kind == "b" else dtype
        self._rows = NewerRows(numbers)

    def follows(self, fields: Fields) -> tuple[str]:
        return self._layer.follows(fields)

    def begin(self) -> None:
        self._rows.clear()

    def masses(self, rows: Batch, slots: Slots) -> Array:
        return self._rows.put(slots, self._read(rows))

    def _read(self, rows: Batch) -> Array:
        """The versions of rows. Raises ``ValueError`` for one that cannot be compared."""
        versions = rows[self._name].reshape(-1)
        if versions.dtype.kind == "f" and np.isnan(versions).any():
            raise ValueError(f"Newest: expected versions, got NaN in the field {self._name!r}")
        return as_order(versions)

    def leave(self, slots: Slots) -> None:
        if len(slots):
            self._rows.take_out(slots)

    def reason(self, slot: int) -> str:
        version = int(self._rows.versions[slot])
        shown = as_numbers(version, self._dtype)
        return f"Newest leaves it out: {self._name} {shown}, {self._why(version)}"

    def _why(self, version: int) -> str:
        """What a version is compared with."""
        raise NotImplementedError


class AtLeast(Versions):
    """A cut that is given.

    ``said`` has the cut that a learner of a cluster has said, in place of its function.
    """

    said: tuple[int | None] | None = None

    def __init__(self, layer: Newest, dtype: np.dtype[Any], numbers: int) -> None:
        super().__init__(layer, dtype, numbers)
        if not callable(layer.at_least):
            as_cut(layer.at_least, self._dtype, self._name)  # raises where the field has no such

    @property
    def has_said_value(self) -> bool:  # type: ignore[override]
        """A function is asked by the process that draws."""
        return callable(self._layer.at_least)

    @property
    def moves_with_rows(self) -> bool:  # type: ignore[override]
        """Without a function."""
        return not self.has_said_value

    def ask(self) -> int | None:
        """The cut of now."""
        given: Any = self._layer.at_least
        return as_cut(given() if callable(given) else given, self._dtype, self._name)

    def moved(self) -> Moved | None:
        cut = self.ask() if self.said is None else self.said[0]
        return None if cut == self._rows.cut else self._rows.move(cut, MOST)

    def _why(self, version: int) -> str:  # noqa: ARG002
        cut = self._rows.cut
        return f"at_least is {math.inf if cut is None else as_numbers(cut, self._dtype)}"


class NewestVersions(Versions):
    """A cut that leaves k versions; without older rows it is ``LEAST``."""

    moves_with_rows = True

    def __init__(self, layer: Newest, dtype: np.dtype[Any], numbers: int) -> None:
        super().__init__(layer, dtype, numbers)
        self._k = layer.k or 1

    def moved(self) -> Moved | None:
        rows, missing = self._rows, self._k - self._rows.count
        if missing < 0:
            return rows.move(rows.cut, self._k)
        if missing == 0 or rows.cut == LEAST:
            return None
        older = distinct(rows.older())  # ``np.unique`` takes ten times as long for many
        return rows.move(int(older[-missing]) if len(older) > missing else LEAST, self._k)

    def _why(self, version: int) -> str:  # noqa: ARG002
        least = as_numbers(self._rows.least, self._dtype)
        return f"the oldest of the newest {self._k} is {least}"


class Weighed(NewestVersions):
    """Masses by the distance to a reference, which depends on the newest version alone."""

    has_reference = True
    _newest: int | None = None
    reference: Any = None

    def begin(self) -> None:
        super().begin()
        self._newest = self.reference = None

    def masses(self, rows: Batch, slots: Slots) -> Array:
        versions = self._read(rows)
        if self._dtype.kind == "f" and not np.isfinite(self._numbers(versions)).all():
            raise ValueError(
                f"Newest: half_life: expected finite versions, got one that is infinite in the "
                f"field {self._name!r}"
            )
        self._rows.put(slots, versions)
        return self._weigh(versions)

    def moved(self) -> Moved | None:
        super().moved()
        newest = self._rows.least  # of one
        if newest is None or newest == self._newest:
            return None
        self._newest = newest
        reference = reference_of(self._numbers(newest).item(), self._half_life)
        if reference == self.reference:
            return None
        self.reference = reference
        slots = self._rows.rows()
        return slots, self._weigh(self._rows.versions[slots])

    @property
    def _half_life(self) -> Any:
        return self._layer.half_life

    def _numbers(self, versions: Any) -> Array:
        """Versions as int64 or float64 that have the differences of the values of the field."""
        return as_numbers(versions, np.dtype(float if self._dtype.kind == "f" else np.int64))

    def _weigh(self, versions: Array) -> Array:
        if self.reference is None:
            return np.zeros(len(versions))
        exponents = half_lives(self._numbers(versions), self.reference, self._half_life)
        return np.exp2(np.minimum(exponents, SPAN + 1))  # ``moved`` follows where there are more

    def factors(self, references: Sequence[Any]) -> Array:
        """By which factors masses relative to these references become those by the newest one."""
        numbers = np.array(references, float if self._dtype.kind == "f" else np.int64)
        return np.exp2(half_lives(numbers, max(references), self._half_life))

    def _why(self, version: int) -> str:
        newest = self._numbers([self._rows.least])
        behind = half_lives(newest, self._numbers(version).item(), self._half_life)[0]
        return f"{behind:.6g} half-lives behind the newest"


def as_order(numbers: Array) -> Array:
    """Bools, or numbers other than NaN, as int64 in the same order; as float64 floats are exact."""
    if numbers.dtype.kind == "f":
        return flipped((numbers.astype(np.float64) + 0.0).view(np.int64))  # without a negative 0
    order = np.ascontiguousarray(numbers, np.int64)
    return order ^ LEAST if is_uint64(numbers.dtype) else order


def as_numbers(order: Any, dtype: np.dtype[Any]) -> Array:
    """The numbers of a dtype that are these integers, by ``as_order``."""
    order = np.asarray(order, np.int64)
    if dtype.kind == "f":
        return np.asarray(flipped(order).view(np.float64).astype(dtype))
    return np.asarray((order ^ LEAST if is_uint64(dtype) else order).astype(dtype))


def is_uint64(dtype: np.dtype[Any]) -> bool:
    """Whether numbers of a dtype are greater than those of int64."""
    return dtype.kind == "u" and dtype.itemsize == 8


def flipped(bits: Array) -> Array:
    """The bits of float64 as int64 in the same order, and back."""
    order: Array = bits ^ (bits >> 63 & MOST)
    return order


def as_cut(value: Any, dtype: np.dtype[Any], field: str) -> int | None:
    """A number as the least of the versions of a dtype that are at least it; None for none."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Real):
        raise TypeError(f"at_least: expected a number, got {value!r}")
    if value != value:  # NaN
        raise ValueError(f"at_least: expected a number, got {value!r}")
    if dtype.kind == "f":
        try:
            with np.errstate(over="ignore"):
                threshold = dtype.type(value)
        except OverflowError as error:
            raise ValueError(
                f"at_least: field {field!r} is {dtype}, which does not hold {value!r}"
            ) from error
    else:
        least, most = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
        whole: Any = value if value in (math.inf, -math.inf) else math.ceil(value)
        if whole > most:
            return None
        threshold = max(whole, least)
    return int(as_order(np.array([threshold], dtype))[0])


def half_lives(versions: Array, reference: float, half_life: float) -> Array:
    """How many half-lives versions, int64 or float64, are ahead of a reference."""
    if versions.dtype.kind == "f":
        ahead: Array = versions - reference
    else:  # differences modulo 2**64 are exact
        modular, other = versions.astype(np.uint64), np.asarray(reference).astype(np.uint64)
        above, below = (modular - other).astype(float), (other - modular).astype(float)
        ahead = np.where(versions >= reference, above, -below)
    with np.errstate(over="ignore"):
        return ahead / half_life


def reference_of(newest: float, half_life: float) -> float:
    """A number by the newest version alone, which is up to 256 half-lives ahead of it."""
    step: Any = SPAN * half_life
    if isinstance(newest, int):
        step = max(1, int(min(step, 2.0**63)))
    reference: float = newest - newest % step
    if isinstance(newest, int):
        return max(reference, LEAST)
    return reference if 0 <= newest - reference <= step else newest  # rounded
