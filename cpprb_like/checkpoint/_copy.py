"""``copy``: copies a state of a checkpoint into another folder, file by file.

No object is loaded, so a copy needs no class or function of the caller, and little memory. The copy
keeps the number of the original, as the names of files have that number.
"""

from __future__ import annotations

import uuid
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from cpprb_like.checkpoint import _arrays, _manifest
from cpprb_like.checkpoint._disk import Disk
from cpprb_like.checkpoint._open_state import OpenState, read_folder, reading
from cpprb_like.checkpoint._options import Codec
from cpprb_like.checkpoint._state import StoredFile

AS_IT_IS = "as it is"


def copy(
    folder: str | Path,
    new: str | Path,
    *,
    state: int | None = None,
    codec: str | None = AS_IT_IS,
    level: int | None = None,
    sync: bool = True,
) -> None:
    """Copy one state of a checkpoint to a folder that has none.

    A killed copy can be repeated: files that no state names are removed first.

    Parameters
    ----------
    folder, new : str or path
        The checkpoint, and the folder of the copy.
    state : int, optional
        The number of the state; by default the newest one.
    codec : {"as it is", None, "zlib", "lzma"}
        Compression of the files of the copy.
    level : int, optional
        Level of the codec, 0 to 9.
    sync : bool
        As for ``save``. With False a crash of the machine soon after may destroy the copy.

    Raises
    ------
    TypeError
        ``sync`` is no bool.
    FileNotFoundError
        There is no checkpoint, or no such state.
    FileExistsError
        There is a checkpoint in the other folder.
    ValueError
        A file is damaged, there is no such codec or level, or a ``ClusterReplay`` was saved.
    BlockingIOError
        Another program is saving to the other folder.
    OSError
        For example, the disk is full. After any error the other folder has no new state.
    """
    if not isinstance(sync, bool):
        raise TypeError(f"sync: expected a bool, got {sync!r}")
    other = Disk(new, sync)
    if codec == AS_IT_IS and level is not None:
        raise ValueError("level: expected a codec too")
    chosen = None if codec == AS_IT_IS else Codec(codec, level)

    def use(source: OpenState) -> None:
        if source.hosts:
            raise ValueError(
                f"{folder}: a saved ClusterReplay is copied as a folder, by any program"
            )
        other.make()
        with reading(folder), other.locked():
            _copy(source, other, chosen)

    read_folder(folder, use, state=state)


def _copy(source: OpenState, other: Disk, codec: Codec | None) -> None:
    if _manifest.numbers(other):
        raise FileExistsError(f"{other.folder}: there is a checkpoint already")
    _manifest.clean(other, 1)  # removes files of a copy that was killed
    copied: dict[str, StoredFile] = {}
    try:
        for file in source.state.files:
            copied[file.name] = _arrays.transcribe(source.disk, file, other, codec)
    except BaseException:
        for file in copied.values():
            other.remove(file.name)
        raise
    # A new id: buffers know the edits since a save by the id, and have not saved to this folder.
    changes = {"id": uuid.uuid4().hex, "synchronised": other.synchronises}
    _manifest.commit(other, replace(_with_files(source.state, copied), **changes))


def _with_files(part: Any, new: dict[str, StoredFile]) -> Any:
    """A part of a state, in which new files replace the files of the same names."""
    if isinstance(part, StoredFile):
        return new[part.name]
    if isinstance(part, tuple):
        return tuple(_with_files(entry, new) for entry in part)
    if isinstance(part, dict):
        return {key: _with_files(entry, new) for key, entry in part.items()}
    if is_dataclass(part) and not isinstance(part, type):
        parts = {one.name: _with_files(getattr(part, one.name), new) for one in fields(part)}
        return replace(part, **parts)
    return part
