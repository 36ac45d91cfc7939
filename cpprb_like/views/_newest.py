"""``Newest``: draws among the rows of the newest versions, as a layer of a view.

Versions are known by slot. The rows of versions that are drawn stand in sorted runs, so the rows
that a rise of the cut leaves out are the first of each run. Not here: masses (``samplers._rules``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Real
from typing import Any

import numpy as np

from cpprb_like._arguments.arrays import Array, Batch, Slots
from cpprb_like._arguments.checks import as_int
from cpprb_like.schedules import check
from cpprb_like.views._layer import Fields, ViewedRows
from cpprb_like.views._rule import Moved, Rule, check_number

FRESH = 1 << 12  # rows that are not sorted yet
RUNS = 32  # most sorted runs, before runs of similar lengths are merged
SPAN = 256  # half-lives from one reference to the next: masses are at most 2**300
NO_SLOTS: Slots = np.empty(0, np.intp)
NO_ROW, EVERY_ROW = math.inf, -math.inf  # cuts


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
        no such field, or it is not one bool or number a row. By ``sample``: a version is NaN, or
        infinite with ``half_life``; the function returns anything but a number.

    Notes
    -----
    Rows come from any actors, in any order. ``rb.update`` of the field counts at the next draw. A
    learner of several processes compares the versions of all shards. Integers are exact; a
    threshold is rounded to the dtype of a field of floats. Rows that wait for the end of their
    n-step return count, and are not drawn yet.

    Cost: that of ``Among``, and of each new version that of the rows that it leaves out. A look at
    all rows costs a version that goes while older ones wait, and a threshold that falls. With
    ``half_life`` a new version costs nothing, but for a computation of all masses every 256
    half-lives; rows more than 1,000 half-lives behind may have mass 0. Memory for each view, beside
    that of ``Among``: 1 byte a row and those of the version, and up to 32 for each row that is
    drawn, or with ``half_life`` of the newest version.

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
            as_threshold(at_least, np.dtype(int), field)
        self.field = field
        self.k = k
        self.at_least = at_least
        self.half_life = half_life

    def follows(self, fields: Fields) -> tuple[str]:
        check_number("Newest", self.field, fields)
        return (self.field,)

    def open(self, rows: ViewedRows) -> Rule:
        dtypes = {column.name: column.dtype for column in rows.ring.columns}
        dtype = dtypes.get(self.field, np.dtype(float))  # without the field ``follows`` raises
        if self.k is not None:
            return NewestVersions(self, dtype, rows.numbers)
        return (AtLeast if self.half_life is None else Weighed)(self, dtype, rows.numbers)


class Versions(Rule):
    """The versions of the rows of a view, and a cut: rows of this version or newer have mass 1.

    ``moved`` alone changes the cut. A subclass has ``_target``.
    """

    def __init__(self, layer: Newest, dtype: np.dtype[Any], numbers: int) -> None:
        self._layer = layer
        self._name = layer.field
        self._dtype = np.dtype(np.uint8) if dtype.kind == "b" else dtype  # bools as 0 and 1
        # The version by slot, and whether there is a row.
        self._versions, self._known = np.zeros(numbers, self._dtype), np.zeros(numbers, np.bool_)
        self.begin()

    def follows(self, fields: Fields) -> tuple[str]:
        return self._layer.follows(fields)

    def begin(self) -> None:
        self._cut: Any = NO_ROW
        self._known[:] = False
        self._runs: list[tuple[Array, Slots]] = []  # versions, ascending, and slots
        self._fresh: list[Slots] = []  # slots that are in no run yet
        self._n_fresh = 0

    def masses(self, rows: Batch, slots: Slots) -> Array:
        given = rows[self._name].reshape(-1)
        self._check(given)
        versions, known = self._versions, self._known
        taken, now = slots, given
        if not is_ascending(slots):  # the last of a row that comes twice
            taken, last = np.unique(slots[::-1], return_index=True)
            now = given[::-1][last]
        before, was_known = versions[taken], known[taken]
        is_other = (before != now) | ~was_known
        versions[taken] = now
        known[taken] = True
        self._count(before[is_other & was_known & (before >= self._cut)], -1)
        has_mass = is_other & (now >= self._cut)
        self._count(now[has_mass], 1)
        self._keep(taken[has_mass])
        return self._weigh(given if taken is slots else versions[slots])

    def _weigh(self, versions: Array) -> Array:
        """The masses of rows of these versions."""
        masses: Array = versions >= self._cut
        return masses

    def _check(self, versions: Array) -> None:
        """Raise ``ValueError`` for a version that cannot be compared."""
        if versions.dtype.kind == "f" and np.isnan(versions).any():
            raise ValueError(f"Newest: expected versions, got NaN in the field {self._name!r}")

    def leave(self, slots: Slots) -> None:
        if len(slots):
            versions, known = self._versions, self._known
            slots = np.unique(slots[known[slots]])
            known[slots] = False
            gone = versions[slots]
            self._count(gone[gone >= self._cut], -1)

    def _count(self, versions: Array, by: int) -> None:
        """Note that rows of these versions, from the cut on, have come, or with -1 gone."""

    def moved(self) -> Moved | None:
        old, new = self._cut, self._target()
        if new == old:
            return None
        if new > old:
            self._sort()
        self._cut = new
        slots = self._left_out(old) if new > old else self._let_in(old)
        return slots, np.full(len(slots), new < old)

    def _target(self) -> Any:
        """The cut as it has to be now."""
        raise NotImplementedError

    def _let_in(self, old: Any) -> Slots:
        """The rows between the cut and an older one, which was greater."""
        versions, known = self._versions, self._known
        slots: Slots = np.flatnonzero(known & (versions >= self._cut) & (versions < old))
        self._keep(slots)
        return slots

    def _left_out(self, old: Any) -> Slots:
        """The rows between an older cut and this one, which is greater; out of all runs."""
        left, parts = [], [NO_SLOTS]
        for versions, slots in self._runs:
            end = int(np.searchsorted(versions, self._cut))
            parts.append(slots[:end])
            if end < len(slots):
                left.append((versions[end:], slots[end:]))
        self._runs = left
        out = np.concatenate(parts)
        all_versions, known = self._versions, self._known
        versions = all_versions[out]  # they may have changed since
        found: Slots = out[known[out] & (versions >= old) & (versions < self._cut)]
        return found

    # ------------------------------------------------------------------ runs

    def _keep(self, slots: Slots) -> None:
        """Note rows that a rise of the cut may leave out."""
        if len(slots):
            self._fresh.append(slots)
            self._n_fresh += len(slots)
            if self._n_fresh > FRESH:
                self._sort()

    def _sort(self) -> None:
        """Make a run of new rows; with many runs, merge each that is not half as long as another.

        So a row is sorted as often as the logarithm of the number of rows.
        """
        if not self._fresh:
            return
        runs = self._runs
        runs.append(self._run(self._fresh))
        self._fresh, self._n_fresh = [], 0
        if len(runs) > RUNS:
            while len(runs) > 1 and len(runs[-2][1]) <= 2 * len(runs[-1][1]):
                runs[-2:] = [self._run([slots for _, slots in runs[-2:]])]

    def _run(self, parts: list[Slots]) -> tuple[Array, Slots]:
        """Those of these rows that have a mass, by their present version."""
        slots = np.concatenate(parts)
        if not is_ascending(slots):
            slots = np.unique(slots)
        all_versions, known = self._versions, self._known
        versions = all_versions[slots]
        has_mass = known[slots] & (versions >= self._cut)
        versions, slots = versions[has_mass], slots[has_mass]
        order = np.argsort(versions, kind="stable")
        return versions[order], slots[order]

    def reason(self, slot: int) -> str:
        version = self._versions[slot]
        return f"Newest leaves it out: {self._name} {version}, {self._why(version)}"

    def _why(self, version: Any) -> str:
        """What a version is compared with."""
        raise NotImplementedError


class AtLeast(Versions):
    """A cut that is given."""

    def __init__(self, layer: Newest, dtype: np.dtype[Any], numbers: int) -> None:
        super().__init__(layer, dtype, numbers)
        if not callable(layer.at_least):
            self._target()  # raises for a number that the field does not hold

    @property
    def by_host(self) -> bool:  # type: ignore[override]
        """A function is for this process alone."""
        return not callable(self._layer.at_least)

    def _target(self) -> Any:
        given: Any = self._layer.at_least
        return as_threshold(given() if callable(given) else given, self._dtype, self._name)

    def _why(self, version: Any) -> str:  # noqa: ARG002
        return f"at_least is {self._cut}"


class NewestVersions(Versions):
    """A cut that leaves k versions; without older rows it is ``EVERY_ROW``."""

    def __init__(self, layer: Newest, dtype: np.dtype[Any], numbers: int) -> None:
        self._k = layer.k or 1
        super().__init__(layer, dtype, numbers)

    def begin(self) -> None:
        super().begin()
        self._counts: dict[Any, int] = {}  # rows of each version from the cut on

    def _count(self, versions: Array, by: int) -> None:
        if not len(versions):
            return
        counts, distinct = self._counts, versions[:1]
        numbers: Any = [len(versions)]
        if len(versions) > 1 and not (versions == versions[0]).all():
            distinct, numbers = np.unique(versions, return_counts=True)
        for version, number in zip(distinct.tolist(), numbers, strict=True):
            counts[version] = counts.get(version, 0) + by * number
            if not counts[version]:
                del counts[version]

    def _target(self) -> Any:
        missing = self._k - len(self._counts)
        if missing < 0:
            return self._dtype.type(sorted(self._counts)[-self._k])
        if missing == 0 or self._cut == EVERY_ROW:
            return self._cut
        versions, known = self._versions, self._known
        older = np.unique(versions[known & (versions < self._cut)])
        return older[-missing] if len(older) > missing else EVERY_ROW

    def _let_in(self, old: Any) -> Slots:
        slots = super()._let_in(old)
        self._count(self._versions[slots], 1)
        return slots

    def _left_out(self, old: Any) -> Slots:
        for version in [version for version in self._counts if version < self._cut]:
            del self._counts[version]
        return super()._left_out(old)

    def _why(self, version: Any) -> str:  # noqa: ARG002
        return f"the oldest of the newest {self._k} is {self._cut}"


class Weighed(NewestVersions):
    """Masses by the distance to a reference, which depends on the newest version alone."""

    by_host = False

    def __init__(self, layer: Newest, dtype: np.dtype[Any], numbers: int) -> None:
        self._half_life: Any = layer.half_life
        super().__init__(layer, dtype, numbers)

    def begin(self) -> None:
        super().begin()
        self._newest: Any = None
        self._reference: Any = None

    def _check(self, versions: Array) -> None:
        super()._check(versions)
        if versions.dtype.kind == "f" and not np.isfinite(versions).all():
            raise ValueError(
                f"Newest: half_life: expected finite versions, got one that is infinite in the "
                f"field {self._name!r}"
            )

    def _weigh(self, versions: Array) -> Array:
        if self._reference is None:
            return np.zeros(len(versions))
        exponents = half_lives(versions, self._reference, self._half_life)
        return np.exp2(np.minimum(exponents, SPAN + 1))  # ``moved`` follows where there are more

    def moved(self) -> Moved | None:
        super().moved()
        newest = max(self._counts, default=None)
        if newest is None or newest == self._newest:
            return None
        self._newest = newest
        reference = reference_of(newest, self._dtype, self._half_life)
        if reference == self._reference:
            return None
        self._reference = reference
        versions, known = self._versions, self._known
        slots = np.flatnonzero(known)
        return slots, self._weigh(versions[slots])

    def _why(self, version: Any) -> str:
        newest = np.array([max(self._counts, default=version)], self._dtype)
        behind = half_lives(newest, version, self._half_life)[0]
        return f"{behind:.6g} half-lives behind the newest"


def is_ascending(slots: Slots) -> bool:
    """Whether each is greater than the one before: so none comes twice."""
    return len(slots) == 1 or bool((slots[1:] > slots[:-1]).all())


def as_threshold(value: Any, dtype: np.dtype[Any], field: str) -> Any:
    """A number as one of a dtype, or infinite; what is at least the one is so of the other."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Real):
        raise TypeError(f"at_least: expected a number, got {value!r}")
    if value != value:  # NaN
        raise ValueError(f"at_least: expected a number, got {value!r}")
    if value in (NO_ROW, EVERY_ROW):
        return float(value)
    if dtype.kind == "f":
        try:
            with np.errstate(over="ignore"):
                return dtype.type(value)
        except OverflowError as error:
            raise ValueError(
                f"at_least: field {field!r} is {dtype}, which does not hold {value!r}"
            ) from error
    least, most = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    whole: Any = math.ceil(value)
    if whole > most:
        return NO_ROW
    return EVERY_ROW if whole <= least else dtype.type(whole)


def half_lives(versions: Array, reference: Any, half_life: float) -> Array:
    """How many half-lives versions are ahead of a reference, a number of their dtype."""
    if versions.dtype.kind == "f":
        ahead: Array = versions.astype(np.float64) - float(reference)
    else:  # differences modulo 2**64 are exact
        modular, other = versions.astype(np.uint64), np.asarray(reference).astype(np.uint64)
        above, below = (modular - other).astype(float), (other - modular).astype(float)
        ahead = np.where(versions >= reference, above, -below)
    with np.errstate(over="ignore"):
        return ahead / half_life


def reference_of(newest: Any, dtype: np.dtype[Any], half_life: float) -> Any:
    """A number of the dtype, by the newest version alone, which is up to 256 half-lives ahead."""
    step: Any = SPAN * half_life
    if dtype.kind != "f":
        step = max(1, int(min(step, 2.0**63)))
    reference: Any = newest - newest % step
    if dtype.kind != "f":
        reference = max(reference, int(np.iinfo(dtype).min))
    elif not 0 <= newest - reference <= step:  # rounded
        reference = newest
    return dtype.type(reference)
