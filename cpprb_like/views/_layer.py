"""``Layer``: the base class of layers, which compute columns of a view from drawn rows.

Not here: the order in which a view calls the hooks (``buffers._view``).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike

from cpprb_like._arguments.arrays import Array
from cpprb_like._fields.derived import NStepReturns
from cpprb_like._fields.schema import ColumnSpec, Schema

if TYPE_CHECKING:
    from cpprb_like.views._windows import Windows

IS_PAD = "_is_pad"  # last part of the names of masks, as in LeRobot

Fields = Mapping[str, ColumnSpec]


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


@dataclass(frozen=True)
class ViewedRows:
    """The rows of a view, of a buffer or of the shards of a learner: see ``Layer.open``."""

    ring: Any  # ``Ring``, or ``Followers`` for all shards, whose slots are numbers of rows
    schema: Schema
    nstep: NStepReturns | None  # the n-step returns of the view
    numbers: int  # slots, or numbers of rows, are less than this


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
    buffer's fields, ``ColumnSpec(dtype, shape)`` by name. The shape of a field with values of any
    length has the name of its axis, such as ``("T",)``. Such values are read by ``windows.read``
    and ``windows.take``, and no layer changes them.

    With ``Sequences`` each row of a sequence is read like a single row: ``fill`` is called with the
    rows of all sequences at once, and the view puts the values in their places. With ``NStep`` and
    ``FrameStacks`` a layer still reads rows as they are stored. A view cannot be made if one layer
    ``changes`` a field that another layer ``reads`` or ``changes``.

    Layers without ``changes`` are called first, then those with, both in the order of the view. So
    a seed gives the same random numbers: those of the sampler, of random n, and of each layer.

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

    def steps(
        self,
        schema: Schema,  # noqa: ARG002 (for subclasses)
        default: NStepReturns | None,  # noqa: ARG002
    ) -> Steps | None:
        """The n-step returns of the rows; None, the default, if the layer sets none.

        ``default`` is the buffer's own ``Nstep``. At most one layer of a view sets n-step returns.
        """
        return None

    def open(self, rows: ViewedRows) -> Layer:  # noqa: ARG002 (for subclasses)
        """The layer for the rows of a buffer: the view calls the other hooks of this layer.

        Parameters
        ----------
        rows : ViewedRows
            The rows: ``rows.ring``, ``rows.schema``, and ``rows.nstep``, the n-step returns of the
            view or None. A learner has one ring for all shards, whose slots are numbers of rows.

        Returns
        -------
        Layer
            By default the layer itself. Another layer may hold values derived from the rows.
        """
        return self

    def items(self) -> Items | None:
        """The rows of an item; None, the default: one row. At most one layer sets them."""
        return None

    def item_layout(self) -> Layer | None:
        """How batches hold values of any length; None, the default: as ``Padded()``.

        At most one layer decides this: ``Padded`` or ``Packed``.
        """
        return None

    def around(self, fields: Fields) -> tuple[int, int]:  # noqa: ARG002 (for subclasses)
        """Numbers of rows of the episode that it needs before and behind each row; by default none.

        A row can be drawn if these rows are there, or if the episode begins or has ended earlier.
        """
        return 0, 0

    def reads(self, fields: Fields) -> Iterable[str]:  # noqa: ARG002 (for subclasses)
        """Names of the fields that the layer reads; by default none.

        If it also replaces such a field, ``windows.values`` has the values without the layer.
        """
        return ()

    def changes(self, fields: Fields) -> Iterable[str]:  # noqa: ARG002 (for subclasses)
        """Names of the columns whose values the layer changes; by default none.

        A layer with changes is called after the layers without. ``windows.values`` has the columns
        that these have made, and the fields that they leave as they are. No other layer may read or
        change the same fields.
        """
        return ()

    def columns(
        self,
        fields: Fields,  # noqa: ARG002 (for subclasses)
    ) -> Mapping[str, tuple[DTypeLike, tuple[int, ...]]]:
        """Columns that the layer computes: dtype and shape of a row, by name; by default none.

        A column with the name of a field replaces that field. Others are added to each batch; one
        named ``x_is_pad`` is the mask of ``x``, which ``first_only`` of ``x`` reads too. A
        layer with ``changes`` gets, as ``fields``, the columns that the other layers make. It names
        a column that it changes only if dtype or shape change too.
        """
        return {}

    def stacks(self) -> Mapping[str, tuple[int, int]]:
        """Depth and axis of the columns that are frame stacks, by name; by default none.

        A cluster sends the frames that a stack and the next stack share once.
        """
        return {}

    def fill(
        self,
        windows: Windows,  # noqa: ARG002 (for subclasses)
        wanted: Fields,  # noqa: ARG002
    ) -> Mapping[str, Array] | Callable[[], Mapping[str, Array]]:
        """Compute the columns of the layer.

        The method may be called again for the same batch, and from several threads. It changes
        neither the layer nor the arrays of ``windows``, but for the values of its ``changes``.
        Random numbers come from ``windows.rng``.

        Parameters
        ----------
        windows : Windows
            The n rows, and as many rows around each as ``around`` declares.
        wanted : dict of ColumnSpec
            The columns to compute: all but replaced or changed fields that ``fields=`` leaves out.

        Returns
        -------
        dict of ndarray, or callable
            A fresh array for each of ``wanted``, shape ``(n, *shape)``. Arrays are cast to the
            dtype of the column, if it is of the same kind and holds the values. A layer with
            ``changes`` may return a function instead, which returns the dict. It is called without
            arguments, when it is known that no row was overwritten during the read, and may take
            its time. It reads rows by ``windows.take`` only.
        """
        return {}

    def __repr__(self) -> str:
        options = [
            f"{name}={getattr(self, name)!r}"
            for name, parameter in inspect.signature(type(self)).parameters.items()
            if getattr(self, name, parameter.default) is not parameter.default
        ]
        return f"{type(self).__name__}({', '.join(options)})"


def set_options(layer: Layer, cls: type[Layer], state: Mapping[str, Any]) -> None:
    """Set the attributes of a saved layer; the constructor of ``cls`` checks its options.

    Further attributes, of a subclass of ``cls``, are set as they are.
    """
    layer.__dict__.update(state)
    make: Any = cls.__init__
    make(layer, **{name: state[name] for name in inspect.signature(cls).parameters})


def wrong_return(hook: str, expected: str, found: object) -> TypeError:
    """The error for a hook, such as ``Speed.fill``, that returned something else."""
    got = f"an array of shape {found.shape}" if isinstance(found, np.ndarray) else repr(found)
    return TypeError(f"{hook}: expected {expected}, got {got}")


def stacks_of(layer: Layer) -> dict[str, tuple[int, int]]:
    """The checked result of ``Layer.stacks``."""
    found: Any = layer.stacks()
    hook, expected = f"{type(layer).__name__}.stacks", "(depth, axis) by name"
    if not isinstance(found, Mapping):
        raise wrong_return(hook, expected, found)
    try:
        return {name: (index(depth), index(axis)) for name, (depth, axis) in found.items()}
    except (TypeError, ValueError):
        raise wrong_return(hook, expected, found) from None


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
