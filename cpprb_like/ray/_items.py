"""Values of any length on their way from a host to a learner: packed, with their numbers by row.

A host draws through ``PackedForTheWay`` in place of the layout of a view. The learner puts the
items of all answers to a call into one memory, with an entry for each row, and reads them from
there as if they were its own: into padded or packed batches. Not here: these layouts
(``views._items_of_batch``), and rows on their way to a host (``_blocks``).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cpprb_like._arguments.arrays import Array, Batch, Slots
from cpprb_like._core import Ring
from cpprb_like._fields.axes import Axis
from cpprb_like._fields.checked_options import CheckedOptions
from cpprb_like._fields.layout import Items, Layout
from cpprb_like._machine.machine_memory import require
from cpprb_like._rows.item_copies import counts_of, take_items
from cpprb_like._rows.item_ring import ItemRing
from cpprb_like.views import Layer, Padded
from cpprb_like.views._item_layouts import ItemLayout
from cpprb_like.views._items_of_batch import (
    ItemPlan,
    LaidItems,
    RaggedFields,
    new_items,
    pack,
)

__all__ = ["ItemsOfAnswers", "for_the_way"]

WORDS = 8  # of an item ring


def for_the_way(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """The layers of a view whose batches hold values of any length as they travel."""
    layouts = [one for layer in layers if isinstance(one := layer.item_layout(), ItemLayout)]
    others = tuple(layer for layer in layers if layer.item_layout() is None)
    return (*others, PackedForTheWay(layouts[0] if layouts else Padded()))


class PackedForTheWay(ItemLayout):
    """Lays values of any length out for another process, which lays them out by ``layout``."""

    def __init__(self, layout: ItemLayout) -> None:
        self.layout = layout

    def lay(self, ragged: RaggedFields) -> LaidItems:
        laid = self.layout.lay(ragged)
        laid.kind_of_plan = PlanForTheWay
        return laid


class PlanForTheWay(ItemPlan):
    """Plan that reads the items of all rows one behind the other, texts as their bytes.

    A batch has the stored values of each ragged field, with the axis in its place. In place of an
    entry of each row it has their number of items.
    """

    def put(self, batch: Batch, slots: Slots) -> Batch:
        ragged = self.laid.ragged
        entries = {axis: batch[column.name] for axis, column in self.entries.items()}
        placed = {axis: pack(counts_of(ragged.ring, axis, one)) for axis, one in entries.items()}
        fields = [(field, placed[str(field.axis)]) for field in self.fields.values()]
        nbytes = sum(field.item_nbytes * items.used for field, items in fields)
        require(nbytes, f"a batch of {len(slots)} rows and their items")
        for axis, column in self.entries.items():
            lead = entries[axis].shape[:-1]
            batch[column.name] = placed[axis].counts.astype(column.dtype).reshape(lead)
        for field, items in fields:
            at, column = field.axis_at, ragged.columns[field.name]
            shape = *field.shape[:at], items.used, *field.shape[at + 1 :]
            values = batch[field.name] = new_items(ragged.ring, shape, field.dtype)
            entry = entries[str(field.axis)]
            take_items(ragged.ring, slots, entry, column, values, items.starts, 0, items.used)
        return batch


class ItemsOfAnswers:
    """The memory of the items that a learner gets from hosts: rings without rows."""

    def __init__(self, options: CheckedOptions) -> None:
        self._layout = Layout.of(options.resized(options.n_envs))
        self._arena = np.zeros(self._layout.nbytes, np.uint8)
        self._columns = tuple(self._layout.columns())

    def ring_of(self, plan: ItemPlan, answers: Sequence[Batch]) -> Ring:
        """A ring with the items of answers, from which the plan reads.

        The answers get an entry for each row, in place of values and numbers of items. Raises
        ``OverflowError`` if these have no number for all items.
        """
        rings = [self._items_of(plan, axis, answers) for axis in plan.entries]
        layout, arena = self._layout, self._arena
        return Ring(
            self._columns,
            arena,
            layout.state(arena),
            layout.record,
            (),
            capacity=layout.capacity,
            n_envs=layout.n_envs,
            items=rings,
        )

    def _items_of(self, plan: ItemPlan, axis: str, answers: Sequence[Batch]) -> ItemRing:
        """The items of one axis."""
        column = plan.entries[axis]
        fields = [field for field in plan.fields.values() if field.axis == axis]
        totals = [int(answer[column.name].sum(dtype=np.int64)) for answer in answers]
        total = sum(totals)
        if total > np.iinfo(column.dtype).max:
            raise OverflowError(
                f"sample: {total} items of axis {axis!r} in one answer; draw fewer rows"
            )
        known = Axis(axis, max(total, 1), tuple(field.name for field in fields))
        items = Items.of(known, fields, 0) if fields else Items(axis, known.room, ())
        arena = np.empty(items.end if fields else 1, np.uint8)
        for field, (_, nbytes, start) in zip(fields, items.columns, strict=True):
            memory = arena[start : start + total * nbytes].view(field.dtype)
            stored: Array = memory.reshape(total, *field.item_shape)
            stop = 0
            for answer, count in zip(answers, totals, strict=True):
                begin, stop = stop, stop + count
                stored[begin:stop] = np.moveaxis(answer.pop(field.name), field.axis_at, 0)
        stop = 0
        for answer in answers:
            counts: NDArray[np.int64] = answer[column.name].astype(np.int64)
            ends = stop + counts.cumsum().reshape(counts.shape)
            entries = np.stack([ends - counts, counts], axis=-1)
            answer[column.name] = entries.astype(column.dtype)
            stop += int(counts.sum())
        return ItemRing(items, self._columns, arena, np.zeros(WORDS, np.int64))
