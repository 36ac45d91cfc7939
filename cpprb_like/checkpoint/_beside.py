"""Files of the caller beside the saved object: the model and the environment of a run, say.

They are files of a state like its arrays, so one manifest names the rows and them. Not here: their
names (``_options``), and their place in a save (``_save``).
"""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from cpprb_like.checkpoint import _arrays
from cpprb_like.checkpoint._disk import Disk, Output
from cpprb_like.checkpoint._open_state import OpenState, disk_of, read_folder
from cpprb_like.checkpoint._state import BesideFile


class _Bytes(io.RawIOBase):
    """Passes bytes on to a new file. It has neither ``seek`` nor ``fileno``."""

    def __init__(self, file: _arrays.NewFile, watch: Callable[[int], None]) -> None:
        self._file = file
        self._watch = watch

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._file.nbytes

    def write(self, data: Any) -> int:
        # The first bytes, which a cache holds: the file with the buffer writes the others.
        view = memoryview(data).cast("B")[: _arrays.CHUNK_NBYTES]
        self._watch(len(view))
        self._file.write(view)
        return len(view)


def write(
    disk: Disk, number: int, label: str, content: Any, watch: Callable[[int], None]
) -> tuple[BesideFile, Output]:
    """Write bytes, or what a callable writes, to a new file of a state: see ``_arrays.write``."""
    name = f"s{number}-beside-" + label  # the value of a member of a ``StrEnum``
    with _arrays.created(disk, name) as new:
        with io.BufferedWriter(_Bytes(new, watch), _arrays.CHUNK_NBYTES) as file:
            answer = content(file) if callable(content) else _write_bytes(file, content)
        # 0 is the answer of ``file.write(b"")``; False is another one.
        if not new.nbytes and not (type(answer) is int and answer == 0):
            raise TypeError(
                f"beside[{label!r}]: expected a function that writes to its file, got one that "
                f"wrote nothing and returned a {type(answer).__name__}; what wraps the file, such "
                "as an io.TextIOWrapper, has to be closed"
            )
    return BesideFile(name, new.nbytes, new.crc32), new.output


def _write_bytes(file: BinaryIO, content: Any) -> int:
    view = memoryview(content)
    return file.write(view if view.c_contiguous and view.nbytes else view.tobytes())


def open_beside(folder: str | Path, name: str, *, state: int | None = None) -> BinaryIO:
    """Open a file that was saved beside an object: ``save(folder, beside={name: ...})``.

    Parameters
    ----------
    folder : str or path
        The folder of ``save``, also of a ``ClusterReplay``.
    name : str
        The name of the file in ``beside``.
    state : int, optional
        Number of the state, as for ``load``; by default the newest.

    Returns
    -------
    file
        A binary file for reading, at its beginning. It stays readable when a later save removes it
        from the folder. On Windows that save raises ``PermissionError``, so close the file before.

    Raises
    ------
    FileNotFoundError
        There is no checkpoint in this folder, or no such state.
    ValueError
        The state has no file with this name; the message has those that it has. Or the file or the
        manifest is damaged (``DamagedError``). No other state is tried.

    Notes
    -----
    Cost: one read of the file, for its checksum.

    Examples
    --------
    >>> import tempfile
    >>> from cpprb_like import ReplayBuffer, checkpoint
    >>> folder = tempfile.mkdtemp()
    >>> rb = ReplayBuffer(100, {"rew": {"shape": ()}})
    >>> rb.save(folder, beside={"step.txt": b"1000"})
    >>> with checkpoint.open_beside(folder, "step.txt") as file:
    ...     file.read()
    b'1000'
    """

    def use(opened: OpenState) -> BinaryIO:
        files = {file.label: file for file in opened.state.beside}
        if name not in files:
            raise ValueError(
                f"{folder}: name: expected one of the files {sorted(files)} of state "
                f"{opened.state.number}, got {name!r}"
            )
        for _ in _arrays.bytes_of(opened.disk, files[name]):
            pass
        return opened.disk.open(files[name].name)

    return read_folder(folder, use, state=state)


def beside_of(folder: str | Path, state: int | None) -> dict[str, Callable[[BinaryIO], int]]:
    """The files beside the object of a state, for another save."""
    files = read_folder(folder, lambda opened: opened.state.beside, state=state)
    return {file.label: partial(_copy, disk_of(folder), file) for file in files}


def _copy(disk: Disk, file: BesideFile, to: BinaryIO) -> int:
    return sum(to.write(piece) for piece in _arrays.bytes_of(disk, file))
