"""``copy``: copies a state of a checkpoint into another folder, file by file.

Nothing is loaded: no class, function or environment of the caller is needed, and little memory. The
copy has the number of the original, which its files have in their names.
"""

from __future__ import annotations

import uuid
from pathlib import Path

from cpprb_like.checkpoint import _arrays, _manifest
from cpprb_like.checkpoint._arrays import Codec
from cpprb_like.checkpoint._disk import Disk, UnsynchronisedDisk
from cpprb_like.checkpoint._load import Options, State, retried
from cpprb_like.checkpoint._progress import Progress, Tell, shown

__all__ = ["AS_IT_IS", "copy"]

AS_IT_IS = "as it is"


def copy(
    folder: str | Path,
    new: str | Path,
    *,
    state: int | None = None,
    codec: str | None = AS_IT_IS,
    level: int | None = None,
    sync: bool = True,
    progress: Tell = None,
) -> None:
    """Copy one state of a checkpoint to a folder that has none.

    If it is killed, it can be called again: files that it left there, and no state names, go.

    Parameters
    ----------
    folder, new : str or path
        From where, and where to.
    state : int, optional
        The number of the state; the newest one.
    codec : {"as it is", None, "zlib", "lzma"}
        How the files of the copy are compressed.
    level : int, optional
        Of the codec, 0 to 9.
    sync : bool
        As for ``save``: with False a crash of the machine soon after may cost the copy.
    progress : callable or bool, optional
        As for ``save``.

    Raises
    ------
    TypeError
        ``sync`` is no bool.
    FileNotFoundError
        There is no checkpoint, or no such state.
    FileExistsError
        There is a checkpoint in the other folder.
    ValueError
        A file is damaged, or there is no such codec or level.
    BlockingIOError
        Another save to the other folder goes on.
    OSError
        The disk is full, or such. Whatever is raised, the other folder has no state.
    """
    if not isinstance(sync, bool):
        raise TypeError(f"sync: expected a bool, got {sync!r}")
    other = Disk(new) if sync else UnsynchronisedDisk(new)
    if codec == AS_IT_IS and level is not None:
        raise ValueError("level: expected a codec too")
    chosen = None if codec == AS_IT_IS else Codec(codec, level).check()
    with shown(progress) as on_progress:
        watch = Progress(on_progress)
        disk = Disk(folder)

        def attempt() -> None:
            source = State(disk, Options((), {}, None, False, state, watch))
            watch.total = sum(entry.nbytes for entry in source.entries)
            other.make()
            with other.locked(), source.held():
                _copy(source, other, chosen, watch)

        retried(disk, attempt)


def _copy(source: State, other: Disk, codec: Codec | None, watch: Progress) -> None:
    if _manifest.numbers(other):
        raise FileExistsError(f"{other.folder}: there is a checkpoint already")
    _manifest.clean(other, 1)  # files of a copy that was killed, which no state names
    manifest = dict(source.manifest)
    copied = []
    try:
        for entry in source.entries:
            copied.append(_arrays.transcribe(source.disk, entry, other, codec, watch))  # noqa: PERF401
    except BaseException:
        for entry in copied:
            other.remove(entry.name)
        raise
    # Another name: what a buffer knows of its last save is of the files there, not of these.
    manifest |= {
        "id": uuid.uuid4().hex,
        "synchronised": other.synchronises,
        "files": [entry.to_json() for entry in copied],
    }
    _manifest.commit(other, manifest["number"], manifest)
