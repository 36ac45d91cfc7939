"""New values for stored fields of rows: which may be replaced, and by what.

Not here: how rows are named (``_store.row_handles``), and the writing (``_store.replace``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from numpy.typing import ArrayLike, NDArray

from cpprb_like._core import Ring
from cpprb_like._store.column import Column
from cpprb_like._store.replace import write
from cpprb_like._store.schema import Field, Schema
from cpprb_like.errors import FieldNameError
from cpprb_like.samplers._prioritized import read_indexes

__all__ = ["Updatable", "UpdatesRows", "updatable_fields", "update_rows"]

Updatable = dict[str, tuple[Field, Column, str | None]]


class UpdatesRows(Protocol):
    """What ``update_rows`` needs of a buffer."""

    _updatable: Updatable

    @property
    def ring(self) -> Ring:
        """The rows."""
        ...

    def _hold(self, pauses: bool, call: Callable[..., Any], *arguments: Any) -> Any:
        """What the call gives, while other threads that write wait."""
        ...


def update_rows(self: UpdatesRows, indexes: ArrayLike, /, **fields: Any) -> None:
    """Replace values of rows that are stored: recomputed targets, new latent states.

    Rows that were overwritten or cleared since they got their index are passed over.

    Parameters
    ----------
    indexes : array_like of int, shape () or (n,) or (n, 1)
        Handles: ``batch["indexes"]`` of ``sample(n, indexes=True)``, or of a
        ``PrioritizedReplayBuffer`` with ``check_for_update=True``. Or slots, which stand for the
        rows that are there now. Of duplicates the last wins.
    **fields
        New values, shape ``(n, *shape)``; converted or refused as by ``add``.

    Raises
    ------
    TypeError
        A field is unknown, or none is given; or the indexes are no integers.
    ValueError
        A value has the wrong shape or no faithful value of the declared dtype, or the field cannot
        be replaced: those that end episodes, those of ``next_of`` and ``stack_compress``, and those
        whose next value is a field of ``next_of``.
    IndexError
        An index is a slot that holds no step, or no row ever had it. Whatever is raised, the buffer
        is as it was.

    Notes
    -----
    Cost: proportional to n. Other threads see all of it or nothing: a batch that is being read
    meanwhile is read again. Priorities stay as they are.

    Examples
    --------
    >>> from cpprb_like import ReplayBuffer
    >>> rb = ReplayBuffer(10, {"obs": {"shape": 2}, "target": {"shape": ()}}, seed=0)
    >>> rb.add(obs=[[1, 2], [3, 4]], target=[0, 0])
    0
    >>> batch = rb.sample(8, indexes=True)
    >>> rb.update(batch["indexes"], target=batch["obs"].sum(axis=1))
    >>> rb.get_all_transitions()["target"].tolist()
    [3.0, 7.0]
    """
    ring, known = self.ring, self._updatable
    unknown = [name for name in fields if name not in known]
    if unknown:
        raise FieldNameError(f"unknown fields {unknown}; this buffer has {list(known)}")
    if not fields:
        raise TypeError(f"expected new values of some of the fields {list(known)}, got none")
    chosen = [known[name] for name in fields]
    for field, _, reason in chosen:
        if reason is not None:
            raise ValueError(f"field {field.name!r} cannot be replaced: {reason}")
    rows = read_indexes(indexes)
    arrays = [
        _convert(field, column, value, len(rows))
        for (field, column, _), value in zip(chosen, fields.values(), strict=True)
    ]
    columns = [column for _, column, _ in chosen]
    if self.ring is not ring:
        raise RuntimeError("the buffer was initialised anew while a value was read")
    self._hold(False, write, ring, rows, columns, arrays)


def updatable_fields(schema: Schema, ring: Ring) -> Updatable:
    """Each field by its name, its column, and why it cannot be replaced, or None."""
    reasons = _reasons(schema)
    return {
        field.name: (field, column, reasons.get(field.name))
        for field, column in zip(schema.fields, ring.columns, strict=True)
    }


def _reasons(schema: Schema) -> dict[str, str]:
    """Why a field cannot be replaced, by its name."""
    reasons = {
        stack.name: "of a stack only the newest frame is stored, and rows share them"
        for stack in schema.stacks
    }
    for name, source in schema.next_of:
        reasons[name] = f"it is not stored but where it differs from {source!r} of the next row"
        reasons.setdefault(source, f"{name!r} of the row before is read from it")
    for number, _, _ in schema.end_fields():
        reasons[schema.names[number]] = "it says where an episode ends"
    return reasons


def _convert(field: Field, column: Column, value: object, n: int) -> NDArray[Any]:
    array: Any = column.cast(value)
    if array is None:
        array = field.convert(value, 1)
    if len(array) != n:
        raise ValueError(
            f"field {field.name!r}: expected {n} rows, one for each index, got {len(array)}"
        )
    return array  # type: ignore[no-any-return]
