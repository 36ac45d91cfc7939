"""``Reading``: what the layers of a view read of each row, and its arithmetic on places.

The layers are those of ``cpprb_like.views``. Not here: the arrays (``_rows``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cpprb_like._arguments.checks import as_int
from cpprb_like._fields.derived import NStepReturns
from cpprb_like._fields.schema import as_names, read_names
from cpprb_like.device._plan import DeviceField, Plan
from cpprb_like.views import FrameStacks, Layer, NStep, Sequences

KINDS = (NStep, Sequences, FrameStacks)


@dataclass(frozen=True)
class Stacks:
    """A column that is made of frames: the field of the frames, their number and axis."""

    source: str
    depth: int
    axis: int


@dataclass(frozen=True)
class Reading:
    """The rows around a drawn row that a batch is computed from. The default is the row alone."""

    plan: Plan
    layers: tuple[Layer, ...] = ()
    nstep: NStepReturns | None = None
    least: int = 1  # least n of an n-step return
    rows: int = 1  # rows of an item
    least_rows: int = 1
    is_sequence: bool = False
    across: bool = False
    stride: int = 1
    first_only: frozenset[str] = frozenset()
    stacks: dict[str, Stacks] = field(default_factory=dict)
    pads_with_zeros: bool = False
    most: int = 1  # greatest n of an n-step return
    gammas: tuple[float, ...] = ()  # the powers of gamma
    powers: Any = None  # the same on the device
    before: int = 0  # rows before a row that its stacks need
    last_fields: frozenset[str] = frozenset()  # fields of the last row of an n-step return

    @classmethod
    def of(cls, xp: Any, plan: Plan, layers: tuple[Layer, ...]) -> Reading:
        """Check the layers of a view, at most one of each kind.

        What the device needs of them is copied there now, as a draw must not wait for that.
        """
        options: dict[str, Any] = {}
        for layer in layers:
            if type(layer) not in KINDS:
                raise TypeError(
                    f"view: expected NStep, Sequences or FrameStacks on a device, got {layer!r}"
                )
            if [type(one) for one in layers].count(type(layer)) > 1:
                raise ValueError(f"view: expected one {type(layer).__name__}, got more")
            if isinstance(layer, NStep):
                steps = layer.steps(plan.schema, None)
                if steps.returns is not None:
                    options |= {
                        "nstep": steps.returns,
                        "least": steps.least,
                        "most": steps.returns.size,
                        "last_fields": frozenset(steps.returns.last_step_fields),
                        "gammas": (gammas := _powers(steps.returns)),
                        "powers": xp.floats(gammas),
                    }
            elif isinstance(layer, Sequences):
                options |= _of_sequences(layer, plan)
            elif isinstance(layer, FrameStacks):
                options["stacks"] = _of_stacks(layer, plan)
                options["pads_with_zeros"] = layer.padding == "zeros"
                options["before"] = max(layer.depths.values()) - 1
        found = cls(plan, layers, **options)
        window = found.before + 1 + found.ahead
        if window > plan.steps:
            raise ValueError(f"view: expected at most {plan.steps} steps, got windows of {window}")
        return found

    @property
    def ahead(self) -> int:
        """Rows that follow a row before it can be drawn."""
        return self.rows + self.most - 2

    def fields(self, names: str | Iterable[str] | None) -> tuple[DeviceField, ...]:
        """The fields that the option ``fields`` names, or all."""
        if names is None:
            return self.plan.fields
        chosen = read_names("fields", as_names("fields", names), self.plan.names)
        if not chosen or len(set(chosen)) < len(chosen):
            raise ValueError(f"fields: expected some names, each once, got {chosen}")
        return tuple(one for one in self.plan.fields if one.name in chosen)

    def bootstraps(self, fields: tuple[DeviceField, ...]) -> bool:
        """Whether a batch of these fields has values to bootstrap from."""
        has_next = any(one.name in self.plan.next_names for one in fields)
        return has_next or self.nstep is not None

    @property
    def is_single(self) -> bool:
        """Whether an item is read from one row, and its next one."""
        return self.rows == 1 and self.nstep is None

    @property
    def may_refuse(self) -> bool:
        """Whether rows with all steps around them may still not be drawn."""
        return self.least_rows > 1 or self.stride > 1


def _powers(returns: NStepReturns) -> tuple[float, ...]:
    """The powers of gamma from 0 to n, as the host computes them."""
    return tuple((returns.gamma ** np.arange(1.0 + returns.size)).tolist())


def _of_sequences(layer: Sequences, plan: Plan) -> dict[str, Any]:
    names = [*plan.names, "discount"]
    items = layer.items()
    return {
        "rows": items.rows,
        "least_rows": 1 if items.across else items.least,
        "is_sequence": True,
        "across": items.across,
        "stride": items.stride,
        "first_only": frozenset(read_names("first_only", items.first_only, names)),
    }


def _of_stacks(layer: FrameStacks, plan: Plan) -> dict[str, Stacks]:
    shapes = {one.name: one.shape for one in plan.fields}
    found = {}
    for name in read_names("depths", layer.depths, plan.names):
        if name in plan.sources:
            raise ValueError(f"depths: {name!r} is a next value; name {plan.sources[name]!r}")
        depth, ndim = layer.depths[name], len(shapes[name]) + 1
        axis = as_int("axis", layer.axis, -ndim, ndim - 1) % ndim
        found[name] = Stacks(name, depth, axis)
        following = f"next_{name}"
        if following in shapes and following not in layer.depths:
            if shapes[following] != shapes[name]:
                raise ValueError(f"depths: field {following!r}: expected frames like {name!r}")
            found[following] = Stacks(name, depth, axis)
    return found
