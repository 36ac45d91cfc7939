"""Arrow: a table of lists, and its ``take``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from contender import Contender
from data import Array
from items import FIELDS, Rows, rows_of
from measure import Work, statement

from .common import item_memory_case

Batch = dict[str, Array]

theirs = Contender(
    "pyarrow",
    "A table with a list in each column, and its take of random rows. Their values are arrays of "
    "NumPy without a copy; padded rows are made of them by a mask.",
)
theirs.cannot("item_add_graph item_add_answer", "its tables do not change")


def column_of(rows: Rows, name: str) -> Any:
    """The values of a field, a list for each row."""
    axis, outer, numbers, _ = FIELDS[name]
    width = outer * numbers
    given = rows.values[name].T if outer > 1 else rows.values[name]
    values = pa.array(np.array(given, order="C").ravel())  # a copy, which it keeps
    if width > 1:
        values = pa.FixedSizeListArray.from_arrays(values, width)
    return pa.ListArray.from_arrays(pa.array(rows.offsets(axis), pa.int32()), values)


def filled(rows: Rows) -> Any:
    """A table of these rows."""
    return pa.table({name: column_of(rows, name) for name in rows.values})


def held(kind: str, rows: int) -> Any:
    """A table of rows of a kind."""
    return filled(rows_of(kind, rows))


def taken(table: Any, rng: np.random.Generator, n: int) -> tuple[Batch, Batch]:
    """Values of random rows, packed; and where each row begins, by axis."""
    some = table.take(pa.array(rng.integers(0, len(table), n)))
    batch, offsets = {}, {}
    for name in table.column_names:
        axis, outer, numbers, _ = FIELDS[name]
        lists = some[name].combine_chunks()
        values = lists.flatten()
        if outer * numbers > 1:
            values = values.flatten()
        array = values.to_numpy()
        batch[name] = array.reshape(-1, outer * numbers) if outer * numbers > 1 else array
        offsets[axis] = lists.offsets.to_numpy()
    return batch, offsets


def packed(table: Any, rng: np.random.Generator, n: int) -> Batch:
    """A packed batch: values and offsets; ends of edges grow by the offsets of nodes."""
    batch, offsets = taken(table, rng, n)
    if "edges" in batch:
        shifts = np.repeat(offsets["N"][:-1], np.diff(offsets["E"]))
        batch["edges"] = np.add(batch["edges"].T, shifts, order="C")
    return batch | {f"{axis}_offsets": of_axis for axis, of_axis in offsets.items()}


def padded(table: Any, rng: np.random.Generator, n: int) -> Batch:
    """A batch that is padded to its longest row, with masks."""
    batch, offsets = taken(table, rng, n)
    masks, found = {}, {}
    for axis, of_axis in offsets.items():
        counts = np.diff(of_axis)
        masks[axis] = np.arange(counts.max()) < counts[:, np.newaxis]
    for name, values in batch.items():
        axis, outer, *_ = FIELDS[name]
        rows = np.zeros((*masks[axis].shape, *values.shape[1:]), values.dtype)
        rows[masks[axis]] = values
        found[name] = np.ascontiguousarray(np.moveaxis(rows, 2, 1)) if outer > 1 else rows
    return found | {f"{axis}_mask": mask for axis, mask in masks.items()}


def drawing(source: str, table: Any, n: int) -> Work:
    """A batch of random rows."""
    rng = np.random.default_rng(0)
    names = {"packed": packed, "padded": padded, "table": table, "rng": rng}
    return statement(f"batch = {source}(table, rng, {n})", **names)


theirs.works_on(
    held,
    item_packed=lambda table, n: drawing("packed", table, n),
    item_padded=lambda table, n: drawing("padded", table, n),
)
item_memory_case(theirs, filled)
