"""``Share``: quotas of a batch by the values of a field, as a layer of a view.

Not here: the draw of each value's rows (``samplers._shares``).
"""

from __future__ import annotations

import numbers
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any, Literal

import numpy as np

from cpprb_like._arguments.arrays import Array, Batch, Slots
from cpprb_like.samplers._shares import ends_of
from cpprb_like.schedules import Schedule, check, value_at
from cpprb_like.views._layer import Fields, ViewedRows
from cpprb_like.views._rule import Rule, check_number

MOST_VALUES = 64  # each has a tree of its own
Shares = Mapping[Any, float | Schedule] | Literal["equal"]


class Share(Rule):
    """Gives values of a field their shares of each batch, such as balanced tasks.

    Parameters
    ----------
    shares : dict
        One entry: ``{field: {value: share}}``, or ``{field: "equal"}``. The field has one bool or
        number a row. Shares are numbers of at least 0, and not all 0, or schedules, whose time is
        the number of batches that the view has drawn. They are normalised by their sum, and a float
        counts as its printed decimal. Rows of other values, and of a share of 0, are never drawn.
        ``"equal"`` gives all values that rows have at the draw the same share. At most 64 values.

    Raises
    ------
    TypeError, ValueError
        A parameter is of a wrong type or value. By ``view``: there is no such field, it is not one
        bool or number a row, its dtype does not hold a value, or another layer draws groups. By
        ``sample``: all shares are 0 at this time, rows have more than 64 values, or the sampler
        draws by age, as ``Recency`` does.
    NotEnoughDataError
        By ``sample``: no value with a share has a row that can be drawn. With ``replace=False`` or
        ``AtMost``: a value has fewer rows than its part of the batch. The message names it.

    Notes
    -----
    The parts of a batch are in the order of the values: as given, or ascending with ``"equal"``.
    ``n * share`` is rounded down or up at random, so that the mean is exact, as by ``Mixture``.
    The share of a value without a row that can be drawn goes to the others, in the ratio of their
    shares. So training may begin before the first success.

    The rows of a value are drawn by the sampler, in proportion to priorities and to the masses of
    other layers. Importance-sampling ``weights`` correct the priorities alone, with one scale for
    the batch, and not the shares. ``probabilities`` are those within a value times its share. The
    share of ``Sequences`` and of n-step returns is by their first row. There is no ``epoch``. In a
    cluster shares are of the rows of all hosts that answer; a schedule is asked when its batch is
    requested, ahead of need.

    Cost: that of ``Among``, and about a microsecond for each value that has a part of the batch,
    whatever the number of its rows. New and updated rows take about ten microseconds, and a fifth
    of one for each, before the next draw. Memory: 19 bytes a row, and 17 more for each value: with
    50 values 0.9 GB for a million rows. Where windows of ``Sequences`` or n-step returns matter, a
    value none of whose rows can begin one costs a look at its rows at each draw.

    Examples
    --------
    >>> from cpprb_like import ReplayBuffer
    >>> from cpprb_like.views import Share
    >>> fields = {"x": {"shape": ()}, "success": {"shape": (), "dtype": bool}}
    >>> rb = ReplayBuffer(100, fields, seed=0)
    >>> rb.add(x=range(100), success=[False] * 99 + [True])
    0
    >>> view = rb.view(Share({"success": {True: 0.25, False: 0.75}}))
    >>> view.sample(8)["success"].tolist()
    [True, True, False, False, False, False, False, False]
    >>> rb.view(Share({"success": "equal"})).sample(4)["success"].tolist()
    [False, False, True, True]
    """

    has_shares = True

    def __init__(self, shares: Mapping[str, Shares]) -> None:
        if not isinstance(shares, Mapping):
            raise TypeError(f"shares: expected {{field: {{value: share}}}}, got {shares!r}")
        if len(shares) != 1:
            raise ValueError(f"shares: expected one field, got {list(shares)}")
        field: str
        of_values: Any
        ((field, of_values),) = shares.items()
        where = f"shares[{field!r}]"
        if isinstance(of_values, Mapping):
            _check_values(where, of_values)
            of_values = dict(of_values)
        elif not (isinstance(of_values, str) and of_values == "equal"):
            raise TypeError(f"{where}: expected {{value: share}} or 'equal', got {of_values!r}")
        self.shares: dict[str, Shares] = {field: of_values}

    def open(self, rows: ViewedRows) -> ShareOfRows:
        return ShareOfRows(self.shares, rows.numbers)


class ShareOfRows(Rule):
    """The values of the rows of one view. Values with a share have numbers from 0 on."""

    has_shares = True

    def __init__(self, shares: Mapping[str, Shares], numbers: int) -> None:
        ((self._field, given),) = shares.items()
        # 1 more than the number of its value, or 0, by row.
        self.of_rows = np.zeros(numbers, np.int8)
        self._shares: dict[Any, float | Schedule] | None = None  # None: equal ones
        if isinstance(given, Mapping):
            self._shares = {
                value: share if callable(share) else float(share)
                for value, share in given.items()
                if share != 0
            }
        self._has_schedule = any(callable(one) for one in (self._shares or {}).values())
        # What ``ends`` returned last, and the order of the values that it was computed of.
        self._ends: tuple[Slots, tuple[list[int], list[int]]] | None = None
        self._number(np.zeros(0))
        self.begin()

    def follows(self, fields: Fields) -> tuple[str]:
        check_number("Share", self._field, fields)
        dtype = fields[self._field].dtype
        values = np.array([_as(dtype, self._field, value) for value in self._shares or ()], dtype)
        if len(np.unique(values)) < len(values):
            raise ValueError(f"Share: two of the values {list(self._shares or ())} are one {dtype}")
        self._number(values)
        return (self._field,)

    def _number(self, values: Array) -> None:
        """Give values the numbers from 0 on."""
        order = values.argsort()
        self._values, self._order, self._sorted = values, order, values[order]

    @property
    def n_values(self) -> int:
        """How many values have numbers."""
        return len(self._values)

    @property
    def numbers(self) -> dict[Any, int]:
        """The number of each value, by the value as a number of Python."""
        return {value: number for number, value in enumerate(self._values.tolist())}

    # ------------------------------------------------------------------ rows

    def begin(self) -> None:
        self.of_rows[:] = 0
        if self._shares is None:
            self._number(self._values[:0])

    def leave(self, slots: Slots) -> None:
        self.of_rows[slots] = 0

    def masses(self, rows: Batch, slots: Slots) -> Array:
        values = rows[self._field].reshape(-1)
        found, numbers = self._find(values)
        if self._shares is None and not found.all():
            self.of_rows[slots] = 0
            self._meet(values)
            found, numbers = self._find(values)
        self.of_rows[slots] = np.where(found, numbers + 1, 0)
        return found

    def _find(self, values: Array) -> tuple[Array, Slots]:
        """Whether each value has a number, and this number."""
        if not self.n_values:
            return np.zeros(len(values), np.bool_), np.zeros(len(values), np.intp)
        places = np.minimum(self._sorted.searchsorted(values), self.n_values - 1)
        return self._sorted[places] == values, self._order[places]

    def _meet(self, values: Array) -> None:
        """Give new values numbers: those of values without a row, or further ones."""
        new = np.setdiff1d(values[values == values], self._values)  # without NaN
        if len(new) == 0:
            return
        has_rows = np.bincount(self.of_rows, minlength=self.n_values + 1)[1:] > 0
        kept = np.append(self._values, new[:0])
        unused = np.flatnonzero(~has_rows & ~np.isin(kept, values))[: len(new)]
        kept[unused] = new[: len(unused)]
        self._check_number_of(len(kept) + len(new) - len(unused))
        self._number(np.append(kept, new[len(unused) :]))

    def _check_number_of(self, n_values: int) -> None:
        if n_values > MOST_VALUES:
            raise ValueError(
                f"Share: expected at most {MOST_VALUES} values of {self._field!r}, got more"
            )

    def reason(self, slot: int) -> str:  # noqa: ARG002 (the value is not kept)
        return f"Share gives its value of {self._field!r} no share"

    # ------------------------------------------------------------------ draws

    def shares(self, time: int) -> list[tuple[int, float]]:
        """The numbers of the values with a share above 0 after so many batches, and the shares."""
        if self._shares is None:
            return [(number, 1.0) for number in self._order.tolist()]
        found = [
            share
            if isinstance(share, float)
            else value_at(share, time, f"Share: the share of {value!r}", 0)
            for value, share in self._shares.items()
        ]
        if not any(found):
            raise ValueError(f"Share: expected a share above 0, got {found} for batch {time}")
        return [(number, share) for number, share in enumerate(found) if share]

    def ends(self, time: int) -> tuple[list[int], list[int]]:
        """The numbers of ``shares``, and the cumulative shares, as integers from 0 on."""
        order, known = self._order, self._ends  # another thread may number values anew meanwhile
        if known is None or known[0] is not order or self._has_schedule:
            found = self.shares(time)
            ends = [number for number, _ in found], ends_of(tuple([one for _, one in found]))
            known = self._ends = order, ends
        return known[1]

    def shares_of(self, values: Collection[Any], time: int) -> list[tuple[Any, float]]:
        """``shares`` of these values, of which rows may be elsewhere: values, and shares."""
        if self._shares is None:
            self._check_number_of(len(values))
            return [(value, 1.0) for value in sorted(values)]
        known = self._values.tolist()
        return [
            (known[number], share) for number, share in self.shares(time) if known[number] in values
        ]

    def name_of(self, number: int) -> str:
        """The name of a value, for errors."""
        return self.name(self._values[number])

    def name(self, value: Any) -> str:
        """The name of a value, for errors."""
        return f"{self._field} {value}"


def _check_values(where: str, shares: Mapping[Any, Any]) -> None:
    if len(shares) > MOST_VALUES:
        raise ValueError(f"{where}: expected at most {MOST_VALUES} values, got {len(shares)}")
    for value, share in shares.items():
        if not isinstance(value, (numbers.Real, np.bool_)):
            raise TypeError(f"{where}: expected values that are bools or numbers, got {value!r}")
        check(f"{where}[{value!r}]", share, 0)
    if not any(callable(share) or share > 0 for share in shares.values()):
        raise ValueError(f"{where}: expected a share above 0, got {dict(shares)}")


def _as(dtype: np.dtype[Any], field: str, value: Any) -> Any:
    """A value in the dtype of the field; ``ValueError`` if this does not hold it."""
    held: Any = None
    is_held = False
    with np.errstate(over="ignore"), suppress(OverflowError, ValueError):  # too large, or no number
        held = int(value) if dtype.kind in "iu" else dtype.type(value)
        is_held = bool(np.isfinite(held) if dtype.kind == "f" else held == value)
    if is_held and dtype.kind in "iu":
        is_held = int(np.iinfo(dtype).min) <= held <= int(np.iinfo(dtype).max)
    if not is_held:
        raise ValueError(f"Share: field {field!r} is {dtype}, which does not hold {value!r}")
    return held
