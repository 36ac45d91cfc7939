"""Data sets of other libraries: what is in a buffer, written as theirs, and theirs as a buffer.

``ReplayBuffer.export`` and ``ReplayBuffer.from_dataset`` are the doors; ``describe`` looks without
reading rows. A step passes through ``_from_buffer`` to the writer of a format, and from its reader
through ``_open``; ``_model`` is what they agree on. Each format has a file of its own.
May import: public names of the other rooms, and of what is private the operations on files, the
progress of a save, and fields.
"""

from cpprb_like.datasets._model import EpisodeRecord
from cpprb_like.datasets._open import (
    FORMATS,
    Description,
    describe,
    detect_format,
    export,
    from_dataset,
)

__all__ = [
    "FORMATS",
    "Description",
    "EpisodeRecord",
    "describe",
    "detect_format",
    "export",
    "from_dataset",
]
