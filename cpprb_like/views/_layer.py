"""``Layer``: the base class of layers, which compute columns of a view from drawn rows.

Not here: the order in which a view calls the hooks (``buffers._view``).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from cpprb_like._arguments.arrays import Array, Batch, Slots
from cpprb_like._core import Ring
from cpprb_like._fields.derived import NStepReturns
from cpprb_like._fields.schema import ColumnSpec, Schema
from cpprb_like._rows.column import Column

if TYPE_CHECKING:
    from cpprb_like.views._windows import Windows

__all__ = [
    "Condition",
    "Drawn",
    "Items",
    "Layer",
    "Plan",
    "Revision",
    "Steps",
    "as_names",
    "check_layers",
]

Fields = Mapping[str, ColumnSpec]
Condition = tuple[Iterable[str], Callable[[Batch], Any]]


@dataclass(frozen=True)
class Steps:
    """n-step returns of a view; n is drawn from ``least`` to ``returns.size``."""

    returns: NStepReturns | None  # None: single steps
    least: int = 1
    says_discount: bool = True  # whether the options decide about the column ``discount``


@dataclass(frozen=True)
class Items:
    """The rows of each item of a batch, for items of several rows."""

    rows: int  # rows of an item
    least: int  # least rows of an item, in an episode that has ended
    across: bool  # whether items continue across the ends of episodes
    stride: int  # rows of an environment from one start to the next
    mark: str  # name of the bool column of padding, or of begins of episodes
    first_only: Any  # names of columns that are read for the first row only


@dataclass
class Plan:
    """The columns that are read for the batches of a view."""

    ring: Ring
    columns: tuple[Column, ...]
    single: frozenset[str]  # columns that hold the first row of each item only
    nstep: NStepReturns | None
    replaced: frozenset[str]  # fields whose stored values a layer replaces


@dataclass
class Drawn:
    """The rows of a batch that was read, for layers that revise the batch.

    Rows of all items follow one another, without padding.
    """

    slots: Slots  # slots of the rows
    items: int
    shape: tuple[int, ...]  # shape of the rows of an item: () or (T,)
    places: Slots | None  # place of each row in the batch, rows on one axis; None: in order
    begins: NDArray[np.bool_] | None  # whether a row begins an item, or an episode; None: all do
    windows: Windows | None  # windows of the rows, if a layer reads windows
    rng: np.random.Generator
    others: Callable[[Slots, int], Slots]  # draws rows of the same episodes: see ``choose_rows``
    still: Callable[[], bool]  # whether no row before the drawn ones was overwritten
    read: Callable[[Slots, Slots | None, tuple[Column, ...]], Batch]  # rows, steps, columns


class Revision:
    """Changes of a layer in one batch after it was read: see ``Layer.revises``."""

    def choose(self, drawn: Drawn, batch: Batch) -> bool:  # noqa: ARG002 (for subclasses)
        """Choose and read rows during a draw; false if rows were overwritten: repeat the draw."""
        return True

    def write(self, batch: Batch) -> bool:  # noqa: ARG002 (for subclasses)
        """Write into the batch; false if rows that it needs were overwritten: repeat the draw."""
        return True


class Layer:
    """Base class of layers, which compute columns of a view: ``buffer.view(*layers)``.

    A layer holds options only. It belongs to no buffer, and several views may share it. The hooks
    declare the rows that the layer needs and the columns that it computes. Each hook has a default.
    A layer whose columns are computed from the rows around a row defines ``around``, ``reads``,
    ``columns`` and ``fill``.

    The attributes of a layer are saved and copied with its view. ``repr`` shows attributes with the
    name of a parameter of ``__init__``.

    Notes
    -----
    A view calls the hooks in the order of their definitions here. ``fields`` is a dict of the
    buffer's fields, ``ColumnSpec(dtype, shape)`` by name.

    With ``Sequences`` each row of a sequence is read like a single row: ``fill`` is called with the
    rows of all sequences at once, and the view puts the values in their places. With ``NStep`` and
    ``FrameStacks`` a layer still reads rows as they are stored. A view cannot be made if one layer
    ``changes`` a field that another layer ``reads`` or ``changes``.

    ``cpprb_like.testing.check_layer`` tests that a layer follows these rules.

    Examples
    --------
    >>> import numpy as np
    >>> from cpprb_like import ReplayBuffer
    >>> from cpprb_like.views import Layer
    >>> class Speed(Layer):
    ...     def around(self, fields):
    ...         return 1, 0
    ...     def reads(self, fields):
    ...         return ["x"]
    ...     def columns(self, fields):
    ...         return {"speed": ("f4", ())}
    ...     def fill(self, windows, wanted):
    ...         x = windows.read("x")
    ...         return {"speed": np.where(windows.counts[:, 0] > 0, x[:, 1] - x[:, 0], 0)}
    >>> rb = ReplayBuffer(100, {"x": {"shape": ()}, "done": {"shape": ()}}, seed=0)
    >>> rb.add(x=[1, 3, 6], done=[0, 0, 1])
    0
    >>> batch = rb.view(Speed()).sample(3)
    >>> batch["x"].tolist(), batch["speed"].tolist()
    ([6.0, 3.0, 3.0], [3.0, 2.0, 2.0])
    """

    def open(self, rows: Any) -> Layer:  # noqa: ARG002 (for subclasses)
        """The layer for the rows of a buffer: the view calls the other hooks of this layer.

        Parameters
        ----------
        rows : ReplayBuffer or Learner
            Owner of the rows, with ``rows.ring`` and ``rows.schema``. A learner has one ring for
            all shards, whose slots are numbers of rows.

        Returns
        -------
        Layer
            By default the layer itself. Another layer may hold values derived from the rows.
        """
        return self

    def steps(
        self,
        schema: Schema,  # noqa: ARG002 (for subclasses)
        default: NStepReturns | None,  # noqa: ARG002
    ) -> Steps | None:
        """The n-step returns of the rows; None, the default, if the layer sets none.

        ``default`` is the buffer's own ``Nstep``. At most one layer of a view sets n-step returns.
        """
        return None

    def items(self) -> Items | None:
        """The rows of an item; None, the default: one row. At most one layer sets them."""
        return None

    def around(self, fields: Fields) -> tuple[int, int]:  # noqa: ARG002 (for subclasses)
        """Numbers of rows of the episode that it needs before and behind each row; by default none.

        A row can be drawn if these rows are there, or if the episode begins or has ended earlier.
        """
        return 0, 0

    def condition(self, fields: Fields) -> Condition | None:  # noqa: ARG002 (for subclasses)
        """Condition for drawing a row; None, the default: all rows that other layers allow.

        Returns
        -------
        (names, holds) or None
            ``holds(values)`` gives a bool for each of n rows, shape ``(n,)``. ``values`` are the
            values of the fields ``names`` in these rows, as they were added.
        """
        return None

    def reads(self, fields: Fields) -> Iterable[str]:  # noqa: ARG002 (for subclasses)
        """Names of the fields that the layer reads; by default none.

        If it also replaces such a field, ``windows.values`` has the values without the layer.
        """
        return ()

    def changes(self, fields: Fields) -> Iterable[str]:  # noqa: ARG002 (for subclasses)
        """Names of the fields that the layer's revision changes; by default none."""
        return ()

    def columns(
        self,
        fields: Fields,  # noqa: ARG002 (for subclasses)
    ) -> Mapping[str, tuple[DTypeLike, tuple[int, ...]]]:
        """Columns that the layer computes: dtype and shape of a row, by name; by default none.

        A column with the name of a field replaces that field. Others are added to each batch.
        """
        return {}

    def fill(self, windows: Windows, wanted: Fields) -> Mapping[str, Array]:  # noqa: ARG002
        """Compute the columns of the layer.

        The method may be called again for the same batch, and from several threads. It changes
        neither the layer nor the arrays of ``windows``.

        Parameters
        ----------
        windows : Windows
            The n rows, and as many rows around each as ``around`` declares.
        wanted : dict of ColumnSpec
            The columns to compute: all but replaced fields that ``fields=`` leaves out.

        Returns
        -------
        dict of ndarray
            A fresh array for each of ``wanted``, shape ``(n, *shape)``. Arrays are cast to the
            dtype of the column, if it is of the same kind and holds the values.
        """
        return {}

    def revises(self, plan: Plan) -> Callable[[int], Revision] | None:  # noqa: ARG002
        """Function that makes the revision of a batch with the columns of ``plan``.

        Returns
        -------
        callable or None
            ``revision(draws)`` is called before each draw, with the number of batches drawn so far.
            None, the default: no revision.
        """
        return None

    def __repr__(self) -> str:
        options = [
            f"{name}={getattr(self, name)!r}"
            for name, parameter in inspect.signature(type(self)).parameters.items()
            if getattr(self, name, parameter.default) is not parameter.default
        ]
        return f"{type(self).__name__}({', '.join(options)})"


def as_names(names: Any) -> Any:
    """An iterable of names as a tuple, for repeated iteration; other values unchanged."""
    is_iterable = isinstance(names, Iterable) and not isinstance(names, (str, Mapping))
    return tuple(names) if is_iterable else names


def check_layers(layers: tuple[Layer, ...]) -> None:
    """Raise unless these are layers, at most one of each kind."""
    kinds = [type(layer) for layer in layers]
    for layer, kind in zip(layers, kinds, strict=True):
        if not isinstance(layer, Layer):
            raise TypeError(
                "view: expected NStep, Sequences, FrameStacks, Hindsight, Among or another "
                f"Layer, got {layer!r}"
            )
        if kinds.count(kind) > 1:
            raise ValueError(f"view: expected one {kind.__name__}, got more")
