"""The table of the fields of a buffer and their bytes, in its ``repr`` and in ``MemoryError``."""

from __future__ import annotations

from collections.abc import Mapping

from cpprb_like._fields.layout import Layout
from cpprb_like._machine.machine_memory import format_nbytes


def field_table(layout: Layout, overflow: Mapping[str, int] | None = None, index: int = 0) -> str:
    """A table of the fields and their bytes.

    ``overflow`` has the bytes of the overflow by field. ``index`` is the size in bytes of the index
    of rows.
    """
    apart = {name: size for name, size in (overflow or {}).items() if size}
    schema = layout.schema
    rows = [("field", "dtype", "shape", "bytes/step", "total")]
    for field in schema.fields:
        stored = str(schema.stored_nbytes(field))
        total = format_nbytes(layout.nbytes_of(field))
        rows.append((field.name, str(field.dtype), str(field.shape), stored, total))
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
