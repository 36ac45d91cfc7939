"""``Checkpointed``, with four methods to save and load, and two of them as functions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cpprb_like._fields.schema import as_names
from cpprb_like.checkpoint._disk import Disk
from cpprb_like.checkpoint._options import (
    Beside,
    Codec,
    Decode,
    Encode,
    LoadOptions,
    SaveOptions,
    Target,
)
from cpprb_like.checkpoint._savable import Savable

if TYPE_CHECKING:
    from typing_extensions import Self

    from cpprb_like.checkpoint._save import Saving


class Checkpointed(Savable):
    """Base class of objects that are saved to a folder: buffers, views, mixtures and fronts.

    The truth value is True, also of empty objects. A front follows its original library, if that
    defines another truth value.
    """

    def __bool__(self) -> bool:
        """Always true."""
        return True

    def save(
        self,
        folder: str | Path,
        *,
        keep: int = 1,
        codec: str | None = None,
        level: int | None = None,
        sync: bool = True,
        encode: Encode | None = None,
        classes: Iterable[type] = (),
        beside: Beside | None = None,
    ) -> None:
        """Save the complete state to a folder: rows, priorities, schedules, generator.

        The object that ``load`` returns continues bit for bit like this object. After a crash of
        the program or the machine at any moment, the folder has the old state or the new one; see
        ``sync``. A later save to the same folder writes only the changes.

        Parameters
        ----------
        folder : str or path
            The folder, which is created if it does not exist. Other files in it stay unchanged.
        keep : int
            Maximum number of states to keep, the newest ones, at least 1. With ``sync=False`` there
            may be one more.
        codec : {None, "zlib", "lzma"}
            Compression of the files.
        level : int, optional
            Level of the codec, 0 to 9.
        sync : bool
            Return when all bytes are on the disk. With False the call returns when the operating
            system has them, as after writing a pickle. A killed program then loses nothing. But if
            the machine crashes or loses power within about half a minute, this state may be lost,
            and ``load`` raises. The newest synchronised state stays until a later state is
            synchronised. So save with ``sync=True`` now and then, and at the end.
        encode : callable, optional
            ``encode(object)`` gives bytes for fields of Python objects; ``load`` needs its inverse.
        classes : iterable of type
            Your own classes whose objects are attributes of the saved object.
        beside : dict of str to bytes or callable, optional
            Files that belong to this state, by name: the model, the optimizer, the environment. A
            callable gets a binary file to write to, as in
            ``{"model.pt": lambda file: torch.save(agent.state_dict(), file)}``. The file has no
            ``seek`` and no ``fileno``. Close what you wrap it in. A callable that writes nothing
            is refused. ``checkpoint.open_beside(folder, "model.pt")`` opens a file for reading.
            Rows and files become the newest state together. A later save has its own files.

        Raises
        ------
        TypeError, ValueError
            An argument is of a wrong type or value, or a part of the object cannot be saved. The
            message names it.
        BlockingIOError
            Another program is saving to this folder.
        OSError
            For example, the disk is full. After any error, also one of a callable of ``beside``,
            the folder has its old states.

        Notes
        -----
        Callables of ``beside`` run first, in the order of the dict. Then threads that write wait
        for the end of the save; see ``save_async``. Functions and environments are not saved, only
        their paths. ``load`` needs them again, and ``restore`` keeps the present ones. Cost: one
        copy of the changed bytes, their checksum, and the disk. With each changed row, up to 32 MiB
        of unchanged rows are written again. Files of ``beside`` are written whole, and not
        compressed.

        Examples
        --------
        >>> import tempfile
        >>> from cpprb_like import ReplayBuffer
        >>> folder = tempfile.mkdtemp()
        >>> rb = ReplayBuffer(100, {"rew": {"shape": ()}}, seed=0)
        >>> rb.add(rew=[1, 2, 3])
        0
        >>> rb.save(folder)
        >>> other = ReplayBuffer.load(folder)
        >>> bool((other.sample(5)["rew"] == rb.sample(5)["rew"]).all())
        True
        """
        options = SaveOptions(keep, Codec(codec, level), sync, encode, tuple(classes), beside)
        _save(self, folder, options)

    def save_async(
        self,
        folder: str | Path,
        *,
        keep: int = 1,
        codec: str | None = None,
        level: int | None = None,
        sync: bool = True,
        encode: Encode | None = None,
        classes: Iterable[type] = (),
        beside: Beside | None = None,
    ) -> Saving:
        """Save like ``save``, in another thread.

        The call returns when the bytes that may change are copied: flags and priorities, a few
        bytes a row, and the rows too if at most 16 MiB of rows are written. Writers wait only for
        this copy. The save has the state of this moment. If there are more rows, the oldest rows
        may be overwritten before they are on the disk; the save then omits them. Rows that
        ``update`` changes before they are on the disk have their new values. The save also omits
        rows with values of any length that leave or are deleted before its end.

        Parameters
        ----------
        folder, keep, codec, level, sync, encode, classes, beside
            As for ``save``. ``encode`` is called in the other thread. Callables of ``beside`` are
            called before this method returns, so they write the model of this moment.

        Returns
        -------
        Saving
            ``done()``, ``progress.done`` of ``progress.total`` bytes, ``cancel()``, and
            ``result()``, which waits for the end and raises the error of the save.

        Raises
        ------
        TypeError, ValueError, BlockingIOError, OSError
            As for ``save``. ``result()`` raises later errors, such as ``RuntimeError`` if the
            buffer was cleared, all rows were overwritten, or ``rewind`` forgot saved rows with
            values of any length, before the save ended.

        Examples
        --------
        >>> import tempfile
        >>> from cpprb_like import ReplayBuffer
        >>> rb = ReplayBuffer(100, {"rew": {"shape": ()}}, seed=0)
        >>> rb.add(rew=[1, 2, 3])
        0
        >>> saving = rb.save_async(tempfile.mkdtemp())
        >>> rb.add(rew=4)  # not in what is saved
        3
        >>> saving.result()
        """
        from cpprb_like.checkpoint._save import Job, Saving  # noqa: PLC0415 (by saves only)

        options = SaveOptions(keep, Codec(codec, level), sync, encode, tuple(classes), beside)
        saving = Saving(Job(self, Disk(folder, options.sync), options))
        saving._start()
        return saving

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        state: int | None = None,
        size: int | None = None,
        fields: Iterable[str] | None = None,
        room: Mapping[str, float] | None = None,
        mmap_prefix: str | Path | None = None,
        mmap_mode: str = "x",
        replace: Mapping[str, Any] | None = None,
        classes: Iterable[type] = (),
        decode: Decode | None = None,
        salvage: bool = False,
    ) -> Self:
        """A new object with the saved state.

        Parameters
        ----------
        folder : str or path
            The folder of ``save``.
        state : int, optional
            Number of a state in the folder, see ``keep``. By default the newest state.
        size : int, optional
            New capacity, if one buffer was saved. A smaller buffer keeps the newest rows.
            ``indexes`` of earlier batches then count as indexes of rows that are gone.
        fields : str or iterable of str, optional
            Fields of one buffer to load; by default all. Fields that end episodes are needed, and
            with fields that count items of an axis a field of this axis.
        room : dict, optional
            New rooms of named axes of one buffer, see ``ReplayBuffer``; the others keep theirs. The
            oldest rows leave if their items do not fit.
        mmap_prefix, mmap_mode
            Place of the rows, if one buffer was saved: see ``ReplayBuffer``.
        replace : mapping of str to object, optional
            Values that replace saved ones, by path, as
            ``{"sampler.beta": Linear(0.4, 1.0, 10**6)}``. Functions and environments must be given
            here, as ``{"layers.0.reward_func": reward}``.
        classes : iterable of type
            Your own classes that were saved: subclasses of buffers and samplers.
        decode : callable, optional
            The inverse of ``encode``.
        salvage : bool
            Load the intact parts of a damaged folder, and warn of the losses.

        Raises
        ------
        FileNotFoundError
            There is no checkpoint in this folder, or no such state.
        ValueError, TypeError
            A file is damaged or not of this library, or an argument does not fit the saved object.
            The message says which.
        MemoryError
            The machine has not enough memory.

        Notes
        -----
        No code in a file is run, imported or evaluated, so untrusted files can be opened. Cost: one
        pass over the files, checksums included.

        Examples
        --------
        See ``save``.
        """
        target = Target(size, _names(fields), room, mmap_prefix, mmap_mode)
        options = LoadOptions((cls, *classes), replace or {}, decode, salvage, state)
        found = _load(folder, options, target)
        if not isinstance(found, cls):
            raise TypeError(
                f"{folder} has a {type(found).__name__}, no {cls.__name__}; "
                f"{type(found).__name__}.load() gives it"
            )
        return found

    def restore(
        self,
        folder: str | Path,
        *,
        state: int | None = None,
        replace: Mapping[str, Any] | None = None,
        classes: Iterable[type] = (),
        decode: Decode | None = None,
        salvage: bool = False,
    ) -> None:
        """Restore the saved state in this object and all its parts.

        Unlike with ``load``, buffers, samplers and generators stay the same objects. Present
        functions and environments stay, and a buffer keeps its capacity.

        Parameters
        ----------
        folder, state, replace, classes, decode, salvage
            As for ``load``.

        Raises
        ------
        FileNotFoundError, ValueError, TypeError, MemoryError
            As for ``load``. Also if the saved object or a part of it is of another class, or has
            other fields or other options that rows depend on, such as ``n_envs``, ``Nstep``, layers
            of a view or sources of a mixture; the message says which. After any error nothing has
            changed. Nor has anything after an exception of a signal handler, such as Ctrl-C: all
            parts change at once.

        Examples
        --------
        >>> import tempfile
        >>> from cpprb_like import ReplayBuffer
        >>> folder = tempfile.mkdtemp()
        >>> rb = ReplayBuffer(100, {"rew": {"shape": ()}}, seed=0)
        >>> rb.add(rew=[1, 2, 3])
        0
        >>> rb.save(folder)
        >>> rb.clear()
        >>> rb.restore(folder)
        >>> len(rb)
        3
        """
        from cpprb_like.checkpoint._load import restore  # noqa: PLC0415 (by those who load)

        options = LoadOptions(tuple(classes), replace or {}, decode, salvage, state)
        restore(Disk(folder), options, self)


def save(
    value: Savable,
    folder: str | Path,
    *,
    keep: int = 1,
    codec: str | None = None,
    level: int | None = None,
    sync: bool = True,
    encode: Encode | None = None,
    classes: Iterable[type] = (),
    beside: Beside | None = None,
) -> None:
    """Save an object without this method, or with another ``save``, such as ReAgent's buffers.

    Parameters
    ----------
    value : Checkpointed or buffer of ``compat.reagent``
        The object to save.
    folder, keep, codec, level, sync, encode, classes, beside
        As for ``Checkpointed.save``.

    Raises
    ------
    TypeError, ValueError, BlockingIOError, OSError
        As for ``Checkpointed.save``.

    Examples
    --------
    >>> import tempfile
    >>> from cpprb_like import ReplayBuffer, checkpoint
    >>> folder = tempfile.mkdtemp()
    >>> rb = ReplayBuffer(100, {"rew": {"shape": ()}})
    >>> checkpoint.save(rb, folder)
    >>> checkpoint.load(folder).capacity
    100
    """
    if not isinstance(value, Savable):
        raise TypeError(
            f"value: expected a buffer, a view or a mixture, got {type(value).__name__}"
        )
    options = SaveOptions(keep, Codec(codec, level), sync, encode, tuple(classes), beside)
    _save(value, folder, options)


def load(
    folder: str | Path,
    *,
    state: int | None = None,
    size: int | None = None,
    fields: Iterable[str] | None = None,
    room: Mapping[str, float] | None = None,
    mmap_prefix: str | Path | None = None,
    mmap_mode: str = "x",
    replace: Mapping[str, Any] | None = None,
    classes: Iterable[type] = (),
    decode: Decode | None = None,
    salvage: bool = False,
) -> Any:
    """The object that was saved to a folder, of any class: see ``Checkpointed.load``."""
    target = Target(size, _names(fields), room, mmap_prefix, mmap_mode)
    options = LoadOptions(tuple(classes), replace or {}, decode, salvage, state)
    return _load(folder, options, target)


def _names(fields: Iterable[str] | None) -> tuple[str, ...] | None:
    names = None if fields is None else tuple(as_names("fields", fields))
    if names == ():
        raise ValueError("fields: expected names of fields, got none")
    return names


def _save(value: Savable, folder: str | Path, options: SaveOptions) -> None:
    from cpprb_like.checkpoint._save import Job, started  # noqa: PLC0415 (by saves only)

    job = Job(value, Disk(folder, options.sync), options)  # refuses what cannot be saved
    with started(job.disk, options) as files:
        job.run(files)


@contextlib.contextmanager
def begun(folder: str | Path, options: SaveOptions) -> Iterator[Callable[[Savable], None]]:
    """Write the files beside, then give a function that saves an object with them.

    So the object may be made after the callables of ``beside`` have run. The function may be called
    again after an error.
    """
    from cpprb_like.checkpoint._save import Job, started  # noqa: PLC0415 (by saves only)

    disk = Disk(folder, options.sync)
    with started(disk, options) as files:
        yield lambda value: Job(value, disk, options).run(files)


def _load(folder: str | Path, options: LoadOptions, target: Target) -> Any:
    from cpprb_like.checkpoint._load import load as load_now  # noqa: PLC0415 (by loads only)

    found = load_now(Disk(folder), options, target)
    if not isinstance(found, Savable):
        raise ValueError(f"{folder}: a {type(found).__name__} is nothing that is saved")
    return found
