"""``Padded`` and ``Packed``: layers that decide how batches hold values of any length.

Not here: reading the items (``_items_of_batch``), and how axes are declared (``_fields.axes``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike

from cpprb_like._arguments.arrays import Array
from cpprb_like._arguments.checks import as_int
from cpprb_like._arguments.narrow_dtypes import kind_of
from cpprb_like._fields import casting
from cpprb_like._fields.field import Field
from cpprb_like.views._items_of_batch import LaidItems, PackedItems, PaddedItems, RaggedFields
from cpprb_like.views._layer import Layer, as_names, set_options

Side = Literal["left", "right"]
ByAxis = int | Mapping[str, int]  # one number for all axes, or numbers by axis
Axes = bool | str | Iterable[str]


class ItemLayout(Layer):
    """Base class of layers that decide how batches hold values of any length."""

    # Dtypes that the further columns of an axis may have.
    dtypes_of_columns: tuple[np.dtype[Any], ...]

    def item_layout(self) -> ItemLayout:
        return self

    def lay(self, ragged: RaggedFields) -> LaidItems:
        """The layout over the fields of a ring; ``ValueError`` if an option does not fit them."""
        raise NotImplementedError

    def _refuse(self, option: str, expected: str, found: object) -> ValueError:
        return ValueError(f"{type(self).__name__}: {option}: expected {expected}, got {found!r}")

    def _by_axis(self, option: str, given: ByAxis | None, ragged: RaggedFields) -> dict[str, int]:
        """An option by axis."""
        axes = self._axes(ragged)
        if given is None:
            return {}
        if not isinstance(given, Mapping):
            return dict.fromkeys(axes, given)
        return {self._known(option, name, axes): number for name, number in given.items()}

    def _dtypes(
        self,
        given: Mapping[str, np.dtype[Any]] | None,
        ragged: RaggedFields,
        columns: Iterable[str],
    ) -> dict[str, np.dtype[Any]]:
        """Checked dtypes of fields and of further columns."""
        fields = {one.name: one for one in ragged.fields.values() if not one.is_text}
        known = [*fields, *columns]
        for name, dtype in (given or {}).items():
            if self._known("dtypes", name, known) in fields:
                self._check_cast(fields[name], dtype)
            elif dtype not in self.dtypes_of_columns:
                expected = " or ".join(map(str, self.dtypes_of_columns))
                raise self._refuse("dtypes", f"{expected} for {name!r}", dtype)
        return dict(given or {})

    def _check_cast(self, field: Field, dtype: np.dtype[Any]) -> None:
        are_floats = kind_of(field.dtype) == kind_of(dtype) == "f"
        if not are_floats and not np.can_cast(field.dtype, dtype, "safe"):
            raise self._refuse(
                "dtypes", f"a dtype with all values of {field.name!r}, {field.dtype}", dtype
            )

    def _values(
        self, given: float | Mapping[str, float], fields: Mapping[str, Field]
    ) -> dict[str, Array]:
        """Values of places without items, of the dtypes of the fields."""
        values = {}
        by_field = given if isinstance(given, Mapping) else dict.fromkeys(fields, given)
        for name, value in by_field.items():
            field = fields[self._known("value", name, fields)]
            is_default = type(value) is int and value == 0  # of any dtype, such as times
            try:
                values[name] = casting.cast(np.asarray(0 if is_default else value), field.dtype)
            except ValueError as error:
                if not is_default:
                    kind = type(self).__name__
                    raise ValueError(f"{kind}: value: field {name!r}: {error}") from error
                values[name] = np.zeros((), field.dtype)
        return values

    def _axes(self, ragged: RaggedFields) -> list[str]:
        """The axes but those of texts, which look the same in each layout."""
        return [axis for axis in ragged.entries if axis not in ragged.texts]

    def _known(self, option: str, name: str, known: Collection[str]) -> str:
        if name not in known:
            raise self._refuse(option, f"some of {list(known)}", name)
        return name

    def _check_multiples(
        self, option: str, lengths: dict[str, int], multiples: dict[str, int]
    ) -> None:
        for axis, length in lengths.items():
            if length % multiples.get(axis, 1):
                raise self._refuse(option, f"a multiple of multiple_of={multiples[axis]}", length)


class Padded(ItemLayout):
    """Values of any length, padded to the longest row of the batch: the default of each view.

    A field of shape ``("T",)`` has the shape ``(batch_size, L)`` in a batch, where L is the length
    of its longest row. The axis stays in its place: ``(2, "E")`` becomes ``(batch_size, 2, L)``.
    For each axis a batch has a bool column such as ``T_mask``, shape ``(batch_size, L)``: false for
    padding. A text is a string of NumPy's ``StringDType`` (of ``object`` before NumPy 2).

    Parameters
    ----------
    side : {"right", "left"} or dict
        Side of the padding. A dict gives that of some axes, such as ``{"P": "left"}`` for prompts.
    value : number or dict
        Value of the padding; a dict gives that of some fields, such as ``{"labels": -100}``. The
        default is 0.
    multiple_of : int or dict of int
        L is rounded up to a multiple of this number; a dict has numbers by axis.
    length : int or dict of int, optional
        L itself. ``sample`` raises ``ValueError`` for longer rows. The arrays of all batches then
        have one shape, so ``out`` can hold them.
    dtypes : dict of dtype, optional
        Dtypes of fields and masks in a batch, such as ``{"ids": np.int64, "T_mask": np.int64}``.
        Items are cast as they are copied.

    Raises
    ------
    TypeError, ValueError
        A parameter is of a wrong type or value. By ``view``: there is no such field or axis, the
        field cannot hold the value, or no field has an axis.

    Notes
    -----
    With ``Sequences`` the shape is ``(batch_size, T, L)``; rows of padding have no items. With
    ``NStep`` items are those of the first row, or of the last one for ``next_...`` fields. Values
    of fields with ``counts`` are as they were added. With ``out`` each array has the shape of the
    batch, which the length of its longest row decides. The batch is copied into the arrays when it
    is drawn; a call that raises leaves them as they were.

    Examples
    --------
    >>> from cpprb_like import ReplayBuffer
    >>> from cpprb_like.views import Padded
    >>> ids = {"shape": ("T",), "dtype": "i4"}
    >>> rb = ReplayBuffer(10, {"ids": ids, "labels": ids}, room={"T": 100})
    >>> rb.add(ids=[5, 6, 7], labels=[6, 7, 8]), rb.add(ids=[9], labels=[1])
    (0, 1)
    >>> batch = next(rb.view(Padded(side="left", value={"labels": -100})).epoch(2, shuffle=False))
    >>> batch["ids"].tolist(), batch["labels"].tolist()
    ([[5, 6, 7], [0, 0, 9]], [[6, 7, 8], [-100, -100, 1]])
    >>> batch["T_mask"].tolist()
    [[True, True, True], [False, False, True]]
    """

    dtypes_of_columns = tuple(map(np.dtype, ("?", "u1", "i4", "i8", "f4")))

    def __init__(
        self,
        *,
        side: Side | Mapping[str, Side] = "right",
        value: float | Mapping[str, float] = 0,
        multiple_of: ByAxis = 1,
        length: ByAxis | None = None,
        dtypes: Mapping[str, DTypeLike] | None = None,
    ) -> None:
        sides: list[object] = [*side.values()] if isinstance(side, Mapping) else [side]
        if not all(isinstance(one, str) and one in ("left", "right") for one in sides):
            raise ValueError(f"side: expected 'left' or 'right', or these by axis, got {side!r}")
        self.side = dict(side) if isinstance(side, Mapping) else side
        self.value = _read_value(value)
        self.multiple_of = _read_by_axis("multiple_of", multiple_of, 1)
        self.length = None if length is None else _read_by_axis("length", length, 0)
        self.dtypes = _read_dtypes(dtypes)

    def __setstate__(self, state: dict[str, Any]) -> None:
        set_options(self, Padded, state)

    def lay(self, ragged: RaggedFields) -> LaidItems:
        axes = self._axes(ragged)
        dtypes = self._dtypes(self.dtypes, ragged, [f"{axis}_mask" for axis in axes])
        fields = {one.name: one for one in ragged.fields.values() if not one.is_text}
        values = self._values(self.value, fields)
        lengths = self._by_axis("length", self.length, ragged)
        multiples = self._by_axis("multiple_of", self.multiple_of, ragged)
        self._check_multiples("length", lengths, multiples)
        sides = self.side if isinstance(self.side, dict) else dict.fromkeys(axes, self.side)
        return PaddedItems(
            ragged,
            left=[
                axis
                for axis, side in sides.items()
                if self._known("side", axis, axes) and side == "left"
            ],
            dtypes=dtypes,
            values=values,
            lengths=lengths,
            multiples=multiples,
        )


class Packed(ItemLayout):
    """Values of any length, packed: the items of all rows of a batch, one row behind the other.

    A field of shape ``("T",)`` has the shape ``(total,)`` in a batch, for the total of the items of
    its rows. The axis stays in its place: ``(2, "E")`` becomes ``(2, total)``. For each axis a
    batch has further columns:

    - ``T_offsets``, shape ``(batch_size + 1,)``: row i has the items from ``T_offsets[i]`` to
      ``T_offsets[i + 1]``. Empty rows are legal.
    - ``T_positions`` and ``T_segments``, shape ``(total,)``, if they are asked for.
    - ``T_longest``: the greatest length, an integer of NumPy, also in batches of tensors.

    Values of a field with ``counts="N"`` grow by the offset of their row on axis N, so that they
    name items of the batch, as in PyTorch Geometric. A text is a string as in ``Padded``.

    Parameters
    ----------
    positions, segments : bool, str or iterable of str
        Whether axes have the column of positions, which count from 0 in each row; and that of
        segments, the number of the row of each item. Or the names of these axes.
    multiple_of : int or dict of int
        ``total`` is rounded up to a multiple of this number; a dict has numbers by axis.
    total : int or dict of int, optional
        ``total`` itself, so that batches of one size have arrays of one shape, as XLA needs.
        ``sample`` raises ``ValueError`` if the rows have more items.
    offsets : dtype
        Dtype of offsets, positions and segments: int32 or int64.
    dtypes : dict of dtype, optional
        Dtypes of fields in a batch, such as ``{"ids": np.int64}``. Items are cast as they are
        copied. Or of columns such as ``T_positions``, in place of that of ``offsets``.
    value : number or dict
        Value of the filler; a dict gives that of some fields, such as ``{"labels": -100}``. The
        default is 0.

    Raises
    ------
    TypeError, ValueError
        A parameter is of a wrong type or value. By ``view``: there is no such field or axis, or no
        field has an axis. Or a field with ``counts`` is not int32 or int64 in a batch: give
        ``dtypes`` for one of any length, and declare one of fixed shape so. By ``sample``: offsets
        of int32 for too many items; expected int64.

    Notes
    -----
    With ``total``, or ``multiple_of`` above 1, a last segment fills each array: the filler, which
    may be empty. Its values are ``value``, its positions count from 0, and its segment is the
    number of rows. ``T_offsets`` then has one more number, ``total``. Values with ``counts`` name
    the first item of the filler of their axis, or item 0 if that filler is empty.

    With ``Sequences`` the rows of a sequence follow one another: there are
    ``batch_size * T + 1`` offsets, and rows of padding are empty. With ``NStep`` items are those of
    the first row, or of the last one for ``next_...`` fields.

    With ``out`` an array may be longer than the batch along the axis. ``sample`` then returns a new
    dict with views of the first parts of such arrays, and ``out`` stays as it is. The batch is
    copied into the arrays when it is drawn; a call that raises leaves them as they were.

    Examples
    --------
    >>> from cpprb_like import ReplayBuffer
    >>> from cpprb_like.views import Packed
    >>> edges = {"shape": (2, "E"), "dtype": "i8", "counts": "N"}
    >>> fields = {"nodes": {"shape": ("N", 1)}, "edges": edges}
    >>> rb = ReplayBuffer(10, fields, room={"N": 100, "E": 100})
    >>> rb.add(nodes=[[1], [2]], edges=[[0], [1]]), rb.add(nodes=[[3], [4]], edges=[[1, 0], [0, 1]])
    (0, 1)
    >>> batch = next(rb.view(Packed(segments="N")).epoch(2, shuffle=False))
    >>> batch["edges"].tolist(), batch["E_offsets"].tolist()
    ([[0, 3, 2], [1, 2, 3]], [0, 1, 3])
    >>> batch["nodes"].ravel().tolist(), batch["N_segments"].tolist()
    ([1.0, 2.0, 3.0, 4.0], [0, 0, 1, 1])
    """

    dtypes_of_columns = (np.dtype("i4"), np.dtype("i8"))

    def __init__(
        self,
        *,
        positions: Axes = False,
        segments: Axes = False,
        multiple_of: ByAxis = 1,
        total: ByAxis | None = None,
        offsets: DTypeLike = np.int32,
        dtypes: Mapping[str, DTypeLike] | None = None,
        value: float | Mapping[str, float] = 0,
    ) -> None:
        self.value = _read_value(value)
        self.positions = _read_axes("positions", positions)
        self.segments = _read_axes("segments", segments)
        self.multiple_of = _read_by_axis("multiple_of", multiple_of, 1)
        self.total = None if total is None else _read_by_axis("total", total, 0)
        if np.dtype(offsets) not in (np.int32, np.int64):
            raise ValueError(f"offsets: expected int32 or int64, got {offsets!r}")
        self.offsets = offsets
        self.dtypes = _read_dtypes(dtypes)

    def __setstate__(self, state: dict[str, Any]) -> None:
        set_options(self, Packed, state)

    def lay(self, ragged: RaggedFields) -> LaidItems:
        valued = {
            one.name: one
            for one in ragged.fields.values()
            if not one.is_text and one.counts is None
        }
        marks = {
            "offsets": self._axes(ragged),
            "positions": self._named("positions", self.positions, ragged),
            "segments": self._named("segments", self.segments, ragged),
        }
        columns = [f"{axis}_{kind}" for kind, axes in marks.items() for axis in axes]
        dtypes = self._dtypes(self.dtypes, ragged, columns)
        for field in ragged.declared:
            dtype = dtypes.get(field.name, field.dtype)
            if field.counts is not None and dtype not in (np.int32, np.int64):
                can_be_cast = field.is_ragged and np.can_cast(field.dtype, np.int64)
                cast = f"give Packed(dtypes={{{field.name!r}: 'i8'}})"
                raise ValueError(
                    f"Packed: field {field.name!r}: expected int32 or int64 for numbers of items "
                    f"of a whole batch, got {dtype}; {cast if can_be_cast else 'declare it so'}"
                )
        totals = self._by_axis("total", self.total, ragged)
        multiples = self._by_axis("multiple_of", self.multiple_of, ragged)
        self._check_multiples("total", totals, multiples)
        return PackedItems(
            ragged,
            offsets=np.dtype(self.offsets),
            dtypes=dtypes,
            positions=marks["positions"],
            segments=marks["segments"],
            totals=totals,
            values=self._values(self.value, valued),
            multiples=multiples,
        )

    def _named(self, option: str, given: bool | tuple[str, ...], ragged: RaggedFields) -> list[str]:
        """The axes of an option."""
        axes = self._axes(ragged)
        if isinstance(given, bool):
            return axes if given else []
        return [self._known(option, name, axes) for name in given]


def _read_by_axis(option: str, given: Any, least: int) -> Any:
    """A number, or numbers by axis."""
    if not isinstance(given, Mapping):
        return as_int(option, given, least)
    return {name: as_int(f"{option}[{name!r}]", number, least) for name, number in given.items()}


def _read_value(given: float | Mapping[str, float]) -> float | dict[str, float]:
    """A number, or numbers by field."""
    for one in given.values() if isinstance(given, Mapping) else [given]:
        if np.ndim(one) or np.asarray(one).dtype == object:
            raise TypeError(f"value: expected a number, or numbers by field, got {given!r}")
    return dict(given) if isinstance(given, Mapping) else given


def _read_dtypes(given: Mapping[str, DTypeLike] | None) -> dict[str, np.dtype[Any]] | None:
    """Dtypes by name."""
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise TypeError(f"dtypes: expected dtypes by field, got {given!r}")
    return {name: np.dtype(dtype) for name, dtype in given.items()}


def _read_axes(option: str, given: Any) -> bool | tuple[str, ...]:
    """Whether all axes are meant, or the names of some."""
    if isinstance(given, (bool, np.bool_)):
        return bool(given)
    names = (given,) if isinstance(given, str) else as_names(given)
    if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"{option}: expected a bool or names of axes, got {given!r}")
    return names
