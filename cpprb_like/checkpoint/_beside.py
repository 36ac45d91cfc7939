"""Files of the caller beside the saved object: the model and the environment of a run, say.

They are files of a state like its arrays, so one manifest names the rows and them. Not here: their
names (``_options``), and their place in a save (``_save``).
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from cpprb_like._machine.crc32 import crc32
from cpprb_like.checkpoint import _arrays, _manifest
from cpprb_like.checkpoint._disk import Disk, Output
from cpprb_like.checkpoint._open_state import OpenState, read_folder
from cpprb_like.checkpoint._state import BesideFile

CLUSTER = "cluster"  # folder of the checkpoint in the folder of a saved ``ClusterReplay``


class _Bytes(io.RawIOBase):
    """Passes bytes on to an output, and computes their checksum. It has no ``seek``."""

    def __init__(self, output: Output, watch: Callable[[int], None]) -> None:
        self._output = output
        self._watch = watch
        self.nbytes = self.crc32 = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.nbytes

    def write(self, data: Any) -> int:
        # The first bytes, which a cache holds: the file with the buffer writes the others.
        view = memoryview(data).cast("B")[: _arrays.CHUNK_NBYTES]
        self._watch(len(view))
        self._output.write(view)
        self.crc32 = crc32(view, self.crc32)
        self.nbytes += len(view)
        return len(view)


def write(
    disk: Disk, number: int, label: str, content: Any, watch: Callable[[int], None]
) -> tuple[BesideFile, Output]:
    """Write bytes, or what a callable writes, to a new file of a state: see ``_arrays.write``."""
    name = f"s{number}-beside-{label}"
    output: Output = disk.create(name)
    try:
        data = _Bytes(output, watch)
        with io.BufferedWriter(data, _arrays.CHUNK_NBYTES) as file:
            answer = content(file) if callable(content) else file.write(content)
        if callable(content) and answer is not None and not data.nbytes:
            raise TypeError(
                f"beside[{label!r}]: expected a function that writes to its file, got one "
                f"that wrote nothing and returned a {type(answer).__name__}"
            )
    except BaseException:
        try:
            output.close()
        finally:
            disk.remove(name)
        raise
    return BesideFile(name, data.nbytes, data.crc32), output


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

    inner = Path(folder) / CLUSTER
    is_cluster = not _manifest.numbers(Disk(folder)) and inner.is_dir()
    return read_folder(inner if is_cluster else folder, use, state=state)


def beside_of(folder: str | Path, state: int | None) -> dict[str, Callable[[BinaryIO], object]]:
    """The files beside the object of a state, for another save."""

    def labels(opened: OpenState) -> list[str]:
        return [file.label for file in opened.state.beside]

    names = read_folder(folder, labels, state=state)
    return {name: partial(_copy_to, folder, name, state) for name in names}


def _copy_to(folder: str | Path, name: str, state: int | None, file: BinaryIO) -> None:
    with open_beside(folder, name, state=state) as source:
        shutil.copyfileobj(source, file, _arrays.CHUNK_NBYTES)
