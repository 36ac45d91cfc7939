"""``Parameters``: weights that a learner publishes and actors read, in a shared replay's memory.

Three slots hold versions, which one process writes in turn and others read without a lock. A word
of each slot is the version that is whole in it; it is 0 while the slot is written. One more word is
the newest version. A reader copies its slot and looks at the word of the slot again. If the word
has changed, the copy is mixed, and the reader starts over. A writer that is killed leaves the
newest version as it was.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cpprb_like._arguments.checks import as_int
from cpprb_like._arguments.foreign_arrays import read_array
from cpprb_like._arguments.narrow_dtypes import kind_of
from cpprb_like._files.json_codec import from_json, to_json
from cpprb_like._machine.aligned import empty
from cpprb_like._machine.file_systems import replacing
from cpprb_like._machine.opening import read_bytes
from cpprb_like._machine.waiting import PATIENCE, wait_until
from cpprb_like._rows.edits import fence
from cpprb_like.processes._folder import (
    LOCK_NBYTES,
    FileLock,
    Folder,
    is_locked,
    reserve_file,
    room_for,
    said_by,
    unless_gone,
)
from cpprb_like.processes._words import SLOTS, Words, mapped

FOLDER = "parameters"  # folder in the folder of the replay
LAYOUT, VALUES, LOCK = "layout.json", "values", "publisher"
ALIGNMENT = 64
TIMEOUT = 60.0  # default time-out of ``wait`` in seconds
TOO_FAST = "newer versions were published faster than one can be read"
PIECE = 1 << 22  # bytes of a copy after which a reader tests whether they were overwritten
ALONE = ""  # the name of a single array
NEWEST, FIRST = 0, 1  # places of the word of the newest version, and of the word of slot 0


@dataclass(frozen=True)
class ArrayPlace:
    """The place of an array in a slot."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int

    def of(self, slot: NDArray[np.uint8]) -> NDArray[Any]:
        """The array in a slot."""
        nbytes = math.prod(self.shape) * self.dtype.itemsize
        return slot[self.offset : self.offset + nbytes].view(self.dtype).reshape(self.shape)


class Versions:
    """The words of the slots, zeros at first: see ``Words``."""

    def __init__(self, words: NDArray[np.int64]) -> None:
        self._words = words.data  # each item is loaded and stored whole

    def newest(self) -> int:
        """Number of the newest version; 0 before the first one."""
        return self._words[NEWEST]

    def begin(self) -> tuple[int, int]:
        """The next version and its slot, which readers do not use until ``end``."""
        version = self.newest() + 1
        self._words[FIRST + version % SLOTS] = 0
        fence()
        return version, version % SLOTS

    def end(self, version: int) -> None:
        """Publish a version from ``begin`` as the newest one, after its bytes are written."""
        fence()
        self._words[FIRST + version % SLOTS] = version
        fence()
        self._words[NEWEST] = version

    def find(self) -> tuple[int, int] | None:
        """The newest version and its slot; None without a version, or after an overwrite."""
        version = self.newest()
        if version <= 0 or not self.is_there(version):
            return None
        fence()
        return version, version % SLOTS

    def is_there(self, version: int) -> bool:
        """Whether the slot of a version has not been overwritten since ``find``."""
        fence()
        return bool(self._words[FIRST + version % SLOTS] == version)


class Parameters:
    """Weights on their way from a learner to the actors: ``SharedReplay.parameters``.

    The weights are one array, or a dict of arrays. Each version replaces the previous one as a
    whole. A reader gets all arrays of one version, while any number of processes publish and read.
    This holds too if one of these processes is killed.

    Notes
    -----
    All versions have the names, shapes and dtypes of the first one. The memory holds three
    versions, so that neither side waits. The next version is written to a slot without readers.

    Examples
    --------
    >>> from cpprb_like.processes import SharedReplay
    >>> replay = SharedReplay(100, {"obs": {"shape": 4}}, writers=1)
    >>> replay.parameters.publish({"weight": [[1.0, 2.0]], "bias": [0.5]})  # the learner
    1
    >>> version, weights = replay.parameters.wait()                         # an actor
    >>> version, weights["weight"]
    (1, array([[1., 2.]]))
    >>> replay.parameters.latest(after=version) is None                     # nothing newer
    True
    """

    def __init__(self, replay: Folder, words: Words) -> None:
        self._replay = replay  # a reference, which keeps the folder open
        self._folder = replay.path / FOLDER
        self._versions = Versions(words.versions)
        self._places: dict[str, ArrayPlace] = {}
        self._slots: NDArray[np.uint8] | None = None

    # ------------------------------------------------------------------ the learner's side

    def publish(self, values: Mapping[str, Any] | ArrayLike) -> int:
        """Publish these values as the newest version.

        Parameters
        ----------
        values : array_like or dict of array_like
            Values that NumPy can read, such as ``state_dict()`` of a PyTorch module on the CPU.
            They are copied.

        Returns
        -------
        int
            Number of the version: 1, 2, 3 and so on.

        Raises
        ------
        TypeError
            A name is not a string, or a value is not an array of numbers.
        ValueError
            There are no values; or names, shapes or dtypes differ from the first version. The
            message names the parameter.
        MemoryError
            Shared memory has no room for three times the first version.
        BlockingIOError
            Another process has been publishing for 10 seconds.
        RuntimeError
            The replay was closed in this process. After any of these errors the newest version is
            unchanged.

        Notes
        -----
        Cost: a copy of the values, and some 10 microseconds.
        """
        arrays = read_parameters(values)
        self._replay.check_open()
        with room_for(LOCK_NBYTES, self._folder, "publish"), self._publishing():
            slots = self._open()
            if slots is None:
                slots = self._make(arrays)
            self._check(arrays)
            version, slot = self._versions.begin()
            for name, place in self._places.items():
                np.copyto(place.of(slots[slot]), arrays[name], casting="no")
            self._versions.end(version)
        return version

    @contextmanager
    def _publishing(self) -> Iterator[None]:
        """Hold the lock of the publisher."""
        lock = FileLock(self._folder / LOCK)
        with unless_gone(self._replay.path):
            wait_until(
                lambda: lock.take({"pid": os.getpid()}, create=True, patience=0.0),
                PATIENCE,
                lambda: BlockingIOError(
                    f"publish: process {said_by(lock.path).get('pid')} has been at it for "
                    f"{PATIENCE} s"
                ),
            )
            try:
                yield
            finally:
                lock.release()

    def _make(self, arrays: dict[str, NDArray[Any]]) -> NDArray[np.uint8]:
        """Create the memory for arrays with these dtypes and shapes."""
        places, nbytes = {}, 0
        for name, array in arrays.items():
            places[name] = ArrayPlace(array.dtype, array.shape, nbytes)
            nbytes += max(1, -(-array.nbytes // ALIGNMENT)) * ALIGNMENT
        values = self._folder / VALUES
        values.unlink(missing_ok=True)  # a publisher may have been killed here
        reserve_file(values, SLOTS * nbytes, "three versions of the parameters")
        with replacing(self._folder / LAYOUT) as unfinished:
            unfinished.write_text(json.dumps(to_json(places)), encoding="utf-8")
        slots = self._open()
        assert slots is not None
        return slots

    def _check(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Raise ``ValueError`` if names, dtypes or shapes differ from the first version."""
        if arrays.keys() != self._places.keys():
            names = ", ".join(map(_quoted, sorted(arrays.keys() ^ self._places.keys())))
            raise ValueError(
                f"expected the parameters of the first version: {names} missing or unknown"
            )
        for name, place in self._places.items():
            array = arrays[name]
            if (array.dtype, array.shape) != (place.dtype, place.shape):
                raise ValueError(
                    f"{_quoted(name)}: expected {place.dtype} of shape {place.shape}, as in the "
                    f"first version, got {array.dtype} of shape {array.shape}"
                )

    # ------------------------------------------------------------------ the actors' side

    @property
    def version(self) -> int:
        """Number of the newest version; 0 if nothing was published yet."""
        if self._slots is None:
            self._replay.check_open()
        return self._versions.newest()

    def latest(self, after: int = 0) -> tuple[int, Any] | None:
        """The newest version and its arrays, if it is newer than ``after``.

        Parameters
        ----------
        after : int
            Number of a version, such as the one that the caller has.

        Returns
        -------
        (int, dict of ndarray), (int, ndarray) or None
            The number of the version, and new arrays with the published values. None if there is
            no newer version.

        Raises
        ------
        RuntimeError
            For 10 seconds newer versions were published faster than one can be read.

        Notes
        -----
        Cost: less than a microsecond without a newer version, else a copy of the values.
        """
        if self.version <= after:
            return None
        return wait_until(
            self._read, PATIENCE, lambda: RuntimeError(f"for {PATIENCE} s {TOO_FAST}")
        )

    def _read(self) -> tuple[int, Any] | None:
        """The newest version, read once; None if it was overwritten during the read."""
        slots, found = self._open(), self._versions.find()
        if slots is None or found is None:
            return None
        version, slot = found
        block = empty(slots[slot].shape, slots.dtype)
        for start in range(0, len(block), PIECE):
            block[start : start + PIECE] = slots[slot, start : start + PIECE]
            if not self._versions.is_there(version):
                return None
        arrays = {name: place.of(block) for name, place in self._places.items()}
        return version, arrays.get(ALONE, arrays)

    def wait(self, version: int = 1, timeout: float | None = TIMEOUT) -> tuple[int, Any]:
        """Wait for a version or a newer one, and return the newest as ``latest`` does.

        Parameters
        ----------
        version : int
            Number of the version to wait for, at least 1.
        timeout : float or None
            Seconds to wait; None to wait without end. A copy that has begun is completed.

        Raises
        ------
        TimeoutError
            The version was not published in time; or newer versions came faster than one can be
            read. The message names the newest version and the process that published it.
        RuntimeError
            The replay was closed in this process.

        Examples
        --------
        >>> from cpprb_like.processes import SharedReplay
        >>> parameters = SharedReplay(100, {"obs": {"shape": 4}}, writers=1).parameters
        >>> parameters.wait(timeout=0.01)
        Traceback (most recent call last):
            ...
        TimeoutError: waited 0.01 s for version 1 of the parameters: nothing was published yet
        """
        wanted = as_int("version", version, 1)

        def why() -> TimeoutError:
            late = f", and {TOO_FAST}" if self.version >= wanted else ""
            return TimeoutError(
                f"waited {timeout} s for version {wanted} of the parameters: {self._newest()}{late}"
            )

        def look() -> tuple[int, Any] | None:
            self._replay.check_open()  # another thread may close it
            return self._read() if self.version >= wanted else None

        found = wait_until(look, timeout, why)
        assert found is not None
        return found

    def _newest(self) -> str:
        """The newest version and its publisher, for messages."""
        if self.version == 0:
            return "nothing was published yet"
        lock = self._folder / LOCK
        now = ", which is at it now" if is_locked(lock) else ""
        return f"version {self.version} is there, of process {said_by(lock).get('pid')}{now}"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("parameters are in shared memory; hand on the SharedReplay instead")

    def _open(self) -> NDArray[np.uint8] | None:
        """The memory of the versions; None before the first version."""
        if self._slots is not None:
            return self._slots
        with unless_gone(self._replay.path):
            return self._open_now()

    def _open_now(self) -> NDArray[np.uint8] | None:
        """The memory of the versions, mapped; None before the first version."""
        if (self._folder / LAYOUT).exists():
            layout = json.loads(read_bytes(self._folder / LAYOUT))
            self._places = from_json(dict[str, ArrayPlace], layout)
            self._slots = mapped(self._folder / VALUES, np.uint8).reshape(SLOTS, -1)
        return self._slots


def _quoted(name: str) -> str:
    return "the array" if name == ALONE else repr(name)


def read_parameters(values: Any) -> dict[str, NDArray[Any]]:
    """The values to publish, as arrays by name."""
    is_alone, arrays = not isinstance(values, Mapping), {}
    for name, value in [(ALONE, values)] if is_alone else values.items():
        if not isinstance(name, str) or (name == ALONE and not is_alone):
            raise TypeError(f"expected names of parameters, got {name!r}")
        try:
            array = read_array(value)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise TypeError(f"{_quoted(name)}: expected an array on the CPU: {error}") from error
        if kind_of(array.dtype) not in "biufc":
            raise TypeError(f"{_quoted(name)}: expected numbers, got {array.dtype}")
        arrays[name] = array
    if not arrays:
        raise ValueError("expected parameters, got an empty dict")
    return arrays
