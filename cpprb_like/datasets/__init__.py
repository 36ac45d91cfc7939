"""Data sets of other libraries: buffers are exported to their files, and made from their files.

Users call ``ReplayBuffer.export``, ``ReplayBuffer.from_dataset`` and ``describe``. An export reads
the rows of a buffer (``_from_buffer``) and hands them to the writer of a format. An import hands
the rows of a format's reader to a new buffer (``_open``). Both use the classes of ``_model``. Each
format has a module of its own.
May import: public names of the other rooms, and of private ones the operations on files, the
progress of a save, and fields.
"""

from cpprb_like.datasets._model import EpisodeRecord
from cpprb_like.datasets._open import (
    FORMATS,
    DatasetInfo,
    describe,
    detect_format,
    export,
    from_dataset,
)

__all__ = [
    "FORMATS",
    "DatasetInfo",
    "EpisodeRecord",
    "describe",
    "detect_format",
    "export",
    "from_dataset",
]
