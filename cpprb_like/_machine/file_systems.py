"""Calls that some file systems refuse: file locks, and synchronising the names of a folder.

Not here: which files are locked and synchronised (``_files.file_maps``, ``checkpoint._disk``).
"""

from __future__ import annotations

import errno
import os
import sys
import warnings
from pathlib import Path

__all__ = ["REFUSED", "sync_folder"]

# What network and user-space file systems answer to a call that they do not have.
REFUSED = (errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)


def sync_folder(path: Path) -> None:
    """Return when the names of the files in a folder are on the disk, where a system has that.

    A ``RuntimeWarning`` says what may be lost where the file system refuses it.
    """
    if sys.platform == "win32":
        return
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in REFUSED:
            raise
        warnings.warn(
            f"{path}: its file system does not synchronise folders ({error.strerror}): a crash of "
            "the machine may cost the files that were made or replaced last",
            RuntimeWarning,
            stacklevel=2,
        )
    finally:
        os.close(folder)
