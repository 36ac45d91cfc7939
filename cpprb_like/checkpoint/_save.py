"""Saving: takes a snapshot of an object, and writes its files and manifest in order.

Files of the caller are written first. Then writers wait while the snapshot is taken. It has the row
ids, copies of index bytes and attributes, and the plan of segments. Then the other files are
written, while writers may continue. The manifest is written last. Not here: rows
(``_ring_writer``), files of the caller (``_beside``), other values (``_values``), and the methods
that users call (``_saved``).
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

from cpprb_like.checkpoint import _manifest
from cpprb_like.checkpoint._disk import Disk
from cpprb_like.checkpoint._options import SaveOptions
from cpprb_like.checkpoint._progress import Progress
from cpprb_like.checkpoint._ring_writer import (
    Files,
    PreviousState,
    RingWriter,
    refuse_objects,
    write_objects,
)
from cpprb_like.checkpoint._savable import Savable, holds_rows
from cpprb_like.checkpoint._state import ArrayFile, State
from cpprb_like.checkpoint._values import Encoder


class Job:
    """One save of one object to one folder."""

    def __init__(self, root: Any, disk: Disk, options: SaveOptions) -> None:
        own = (type(root),) if holds_rows(root) else ()
        self._classes = (*options.classes, *own)
        self._root = root
        self.disk = disk
        self.options = options
        self.progress = Progress()
        self.holders = self._find_holders()

    def encode(self) -> tuple[Any, Encoder]:
        """The JSON of the object, and the encoder with its arrays and holders of rows."""
        encoder = Encoder(self._classes)
        return encoder.encode(self._root), encoder

    def _find_holders(self) -> list[Savable]:
        _, encoder = self.encode()
        for path in encoder.unfit:
            raise TypeError(f"{path}: {type(encoder.external[path]).__name__} cannot be saved")
        for holder in encoder.holders:
            fields = holder._rows_to_save().layout.schema.fields
            names = [field.name for field in fields if field.dtype.hasobject]
            if names and self.options.encode is None:
                refuse_objects(names[0])
        return encoder.holders

    def run(self, files: Files) -> None:
        """Save to new files while writers wait: see ``started``."""
        previous = PreviousState(self.disk)
        self.hold(lambda: Snapshot(self, files, previous, is_still=True).write())

    def begin(self) -> Snapshot:
        """Write the files of the caller, and take a snapshot while writers wait.

        The caller has locked the folder.
        """
        files = new_files(self.disk, self.options, self.progress)
        previous = PreviousState(self.disk)
        return cast("Snapshot", self.hold(partial(Snapshot, self, files, previous, is_still=False)))

    def hold(self, call: Callable[[], Any]) -> Any:
        """Run ``call`` while no thread writes to a buffer. Buffers are locked in a fixed order."""
        holders: list[Any] = sorted(self.holders, key=id, reverse=True)
        for holder in holders:
            call = partial(holder._hold, True, call)
        return call()


def new_files(disk: Disk, options: SaveOptions, watch: Callable[[int], None]) -> Files:
    """The files of a new state; those of the caller are written, and their callables run here.

    The folder is locked. Its states stay, and only what a killed save has left is removed.
    """
    files = Files(disk, _manifest.unused_number(disk), options.codec, watch)
    _manifest.clean(disk, _manifest.ALL)
    try:
        for label, content in (options.beside or {}).items():
            files.write_beside(label, content)
    except BaseException:
        files.close()
        raise
    return files


@contextlib.contextmanager
def started(disk: Disk, options: SaveOptions) -> Iterator[Files]:
    """Lock the folder, and write the files of the caller, to the disk.

    A ``Job`` that has failed may be followed by another one with the same files.
    """
    disk.make()
    with disk.locked(), contextlib.closing(new_files(disk, options, Progress())) as files:
        files.sync()
        yield files


class Snapshot:
    """The content of a save, before its files are written. For ``is_still`` see ``RingWriter``."""

    def __init__(self, job: Job, files: Files, previous: PreviousState, *, is_still: bool) -> None:
        self._job = job
        self._files, self._previous = files, previous
        self._rings: list[RingWriter] = []
        try:
            self._root, encoder = job.encode()
            if [id(holder) for holder in encoder.holders] != [id(holder) for holder in job.holders]:
                raise RuntimeError("the parts of what is saved changed when it was read again")
            self._arrays = encoder.arrays
            self._objects = encoder.objects
            for number, holder in enumerate(encoder.holders):
                self._rings.append(RingWriter(holder, number, previous, is_still))
        except BaseException:
            self.abandon()
            raise
        job.progress.total = sum(
            (
                *(file.nbytes for file in files.beside),
                *(ring.nbytes for ring in self._rings),
                *(array.nbytes for _, array in self._arrays),
            )
        )

    def abandon(self) -> None:
        """End a save that made no state."""
        self._files.close()
        for ring in self._rings:
            ring.abandon()

    def write(self) -> None:
        """Write all files and the manifest. If this raises, the folder has its old states."""
        try:
            self._write()
        except BaseException:
            self.abandon()
            raise

    def _write(self) -> None:
        job = self._job
        disk, options = job.disk, job.options
        with contextlib.closing(self._files) as files:
            state = self._write_files(files)
            files.sync()
        job.progress(0)
        _manifest.commit(disk, state)
        for ring in self._rings:
            ring.commit(state.id, self._previous.id)
        _manifest.clean(disk, options.keep, self._previous.state, state)

    def _write_files(self, files: Files) -> State:
        """Write all files, and return the state that they form."""
        job, encode = self._job, self._job.options.encode
        for ring in self._rings:
            ring.write(files, self._previous, encode)
        arrays = tuple(ArrayFile(path, files.write_array(array)) for path, array in self._arrays)
        objects = tuple(
            write_objects(files, values, encode, path) for path, values in self._objects
        )
        job.hold(partial(self._settle, files))
        return State(
            id=secrets.token_hex(16),
            number=files.number,
            synchronised=job.disk.synchronises,
            rings=tuple(ring.saved for ring in self._rings),
            arrays=arrays,
            objects=objects,
            root=self._root,
            beside=tuple(files.beside),
        )

    def _settle(self, files: Files) -> None:
        for ring in self._rings:
            ring.settle(files, self._job.options.encode)


class Saving:
    """A save in another thread: the result of ``save_async``.

    Attributes
    ----------
    progress : Progress
        ``progress.done`` bytes of about ``progress.total`` were written.
    """

    def __init__(self, job: Job) -> None:
        self.progress = job.progress
        self._job: Job | None = job  # as long as it is needed: it holds the buffer
        self._snapshot: Snapshot | None = None
        self._error: BaseException | None = None
        self._lock = job.disk.locked()
        # Whether the thread or its caller ends the save is decided by a ``pop``, which is atomic.
        self._unowned = [True]
        # Signal handlers run in the main thread. An interrupt within ``Thread.start`` may leave a
        # thread there that never runs, for which the interpreter would wait: so it is a daemon, and
        # ``_finish`` waits for those that run. Other threads, and signal handlers while the
        # interpreter waits for these, may start saves after ``_finish``.
        is_daemon = threading.current_thread() is threading.main_thread() and not _ends.is_set()
        self._thread = threading.Thread(target=self._run, name="save", daemon=is_daemon)

    def _start(self) -> None:
        """Take the snapshot in this thread, and start the thread that writes.

        An exception, also of a signal handler, ends the save before the call returns. The lock of
        the folder is then free, or the cancelled thread frees it.
        """
        assert self._job is not None
        self._job.disk.make()
        try:
            self._lock.__enter__()
            self._snapshot = self._job.begin()
            _running.add(self)
            self._thread.start()
        except BaseException:
            self._call_off()
            raise

    def _call_off(self) -> None:
        """End a save whose start was interrupted, at any place."""
        self.progress.cancelled = True
        if self._owns():  # the thread never came so far, and never will
            _running.discard(self)
            if self._snapshot is not None:
                self._snapshot.abandon()
            self._lock.__exit__(None, None, None)
        else:
            self._thread.join()

    def _owns(self) -> bool:
        """Whether this thread is the first to ask, and has to free the lock."""
        try:
            return self._unowned.pop()
        except IndexError:
            return False

    def _run(self) -> None:
        if not self._owns():
            return
        try:
            assert self._snapshot is not None
            self._snapshot.write()
        except BaseException as error:  # noqa: BLE001 (raised by ``result``)
            self._error = error
        finally:
            self._job = self._snapshot = None
            self._lock.__exit__(None, None, None)
            _running.discard(self)

    def done(self) -> bool:
        """Whether the save has ended, with or without an error."""
        return not self._thread.is_alive()

    def cancel(self) -> None:
        """Cancel the save: the folder has its old state, and ``result`` raises ``CancelledError``.

        A save that has written all but its manifest may still succeed.
        """
        self.progress.cancelled = True

    def result(self, timeout: float | None = None) -> None:
        """Wait for the end of the save, and raise its error.

        Raises ``TimeoutError`` after ``timeout`` seconds; the save continues.
        """
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError(f"the save has not ended after {timeout} seconds")
        if self._error is not None:
            raise self._error


_running: set[Saving] = set()  # also one whose thread is about to start
_ends = threading.Event()  # set when the main thread has ended


def _finish() -> None:
    """Wait for the saves that run, before the interpreter or a forked process ends."""
    _ends.set()
    for saving in list(_running):
        if saving._thread.is_alive():
            saving._thread.join()


# ``atexit`` is not called where a process of ``multiprocessing`` ends. At the exit itself, as where
# a function of ``atexit`` saves for the first time, it is too late to register.
with contextlib.suppress(RuntimeError):
    threading._register_atexit(_finish)  # type: ignore[attr-defined]
