"""``Rowless``: a buffer with the options of a shard and no rows, as a model of its batches.

Its memory is only reserved, so it takes none of the memory that a room for items has. Not here: the
rows of shards (``_shards``).
"""

from __future__ import annotations

from pathlib import Path

from cpprb_like._arguments.arrays import Bytes
from cpprb_like._fields.layout import Layout
from cpprb_like._files.file_maps import FileMode
from cpprb_like._machine.reserved import reserve
from cpprb_like.buffers import ReplayBuffer

__all__ = ["Rowless"]


class Rowless(ReplayBuffer):
    """A buffer that no row is added to."""

    def _open_memory(
        self,
        layout: Layout,
        prefix: str | Path | None = None,  # noqa: ARG002 (it has no file)
        mode: FileMode = "x",  # noqa: ARG002
    ) -> tuple[None, Bytes]:
        return None, reserve(layout.length, layout.nbytes)
