"""The table of the fields of a buffer and their bytes, in its ``repr`` and in ``MemoryError``."""

from __future__ import annotations

from collections.abc import Mapping

from cpprb_like._fields.layout import Layout
from cpprb_like._machine.machine_memory import format_nbytes


def field_table(
    layout: Layout,
    overflow: Mapping[str, int] | None = None,
    index: int = 0,
    used: Mapping[str, int] | None = None,
) -> str:
    """A table of the fields and their bytes.

    A field with a named axis has the bytes of an item, and as many items as the room of the axis.
    ``overflow`` has the bytes of the overflow by field. ``index`` is the size in bytes of the index
    of rows. ``used`` has the items in use by axis.
    """
    apart = {name: size for name, size in (overflow or {}).items() if size}
    schema = layout.schema
    of_texts = {field.name for field in schema.declared if field.is_text}
    rows = [("field", "dtype", "shape", "bytes/step", "total")]
    for field in schema.declared:
        stored = str(schema.stored_nbytes(field))
        if field.is_ragged and field in schema.without_next:
            stored = f"{field.item_nbytes}/item"
        total = format_nbytes(layout.nbytes_of(field))
        shape = str(field.declared_shape)
        rows.append((field.name, field.declared_dtype, shape, stored, total))
    for axis, entry in zip(schema.axes, schema.fields[len(schema.declared) :], strict=True):
        items = "bytes" if axis.name in of_texts else "items"
        in_use = f", {used[axis.name]:,} in use" if used and axis.name in used else ""
        what = f"(room of {axis.name}: {axis.room:,} {items}{in_use})"
        if axis.source is not None:
            what = f"({axis.name}: in the room of {axis.source})"
        rows.append((what, "", "", str(entry.nbytes), format_nbytes(layout.nbytes_of(entry))))
    of_fields = sum(map(layout.nbytes_of, schema.fields))
    others = {f"(overflow of {name})": size for name, size in apart.items()}
    others["(flags, padding, header)"] = layout.total_nbytes - of_fields - layout.sampler_nbytes
    if layout.sampler_nbytes:
        others["(sampler)"] = layout.sampler_nbytes
    if index:
        others["(rows not to draw)"] = index
    others["total"] = layout.total_nbytes + sum(apart.values()) + index
    rows += [(name, "", "", "", format_nbytes(size)) for name, size in others.items()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for *texts, nbytes, total in rows:
        left = "  ".join(text.ljust(width) for text, width in zip(texts, widths, strict=False))
        lines.append(f"  {left}  {nbytes.rjust(widths[3])}  {total.rjust(widths[4])}")
    return "\n".join(lines)
