"""``Checkpointed``: ``save``, ``save_async``, ``load`` and ``restore``; and two as functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cpprb_like._fields.schema import as_names
from cpprb_like.checkpoint._disk import Disk
from cpprb_like.checkpoint._options import Codec, Decode, Encode, LoadOptions, SaveOptions, Target
from cpprb_like.checkpoint._savable import Savable

if TYPE_CHECKING:
    from typing_extensions import Self

    from cpprb_like.checkpoint._save import Saving

__all__ = ["Checkpointed", "load", "save"]


class Checkpointed(Savable):
    """Base class of objects that are saved to a folder: buffers, views, mixtures and fronts.

    Their truth value is True, empty or not, unless the library whose class a front stands for
    defines another one.
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
    ) -> None:
        """Save everything to a folder: rows, priorities, schedules, generator.

        What ``load`` gives goes on bit for bit as this object does. After a crash at any moment,
        of the program or of the machine, the folder has the state before or the new one; see
        ``sync``. Another save to the same folder writes what has changed since.

        Parameters
        ----------
        folder : str or path
            The folder, which is made if it is not there. Files of others in it are left alone.
        keep : int
            States that are there afterwards, at most: the newest ones, at least 1. With
            ``sync=False`` there may be one more.
        codec : {None, "zlib", "lzma"}
            How files are compressed.
        level : int, optional
            Of the codec, 0 to 9.
        sync : bool
            Return when all is on the disk. With False it returns when the operating system has it,
            as writing a pickle does. The program may still be killed at any moment; but if the
            machine loses power or crashes in the next half-minute or so, this state may be lost,
            and ``load`` raises. The newest state that was synchronised stays until a later one
            is, so save without ``sync=False`` now and then, and in the end.
        encode : callable, optional
            ``encode(object)`` -> bytes, for fields of Python objects; ``load`` wants its inverse.
        classes : iterable of type
            Classes of your own whose objects are attributes of what is saved.

        Raises
        ------
        TypeError, ValueError
            An argument is of a wrong type or value, or a part of the object cannot be saved; the
            message names it.
        BlockingIOError
            Another program is saving to this folder.
        OSError
            The disk is full, or such. Whatever is raised, the folder has its old states.

        Notes
        -----
        Threads that write wait until all is there; see ``save_async``. Functions and environments
        are not saved, only where they were: ``load`` wants them again, ``restore`` takes those that
        are there. Cost: one copy of what has changed, its checksum, and the disk; up to 32 MiB of
        rows that have not changed are written again beside each one that has.

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
        options = SaveOptions(keep, Codec(codec, level), sync, encode, tuple(classes))
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
    ) -> Saving:
        """Save as ``save`` does, in a thread of its own.

        It returns when what may change has been copied: flags and priorities, a few bytes a row,
        and the rows too if no more than 16 MiB of them are written. Writers wait for that and no
        longer. The save has the state of this moment. If there are more rows, the oldest rows may
        be overwritten before they are on the disk, and are then left out. Rows that ``update``
        changes until then have their new values.

        Parameters
        ----------
        folder, keep, codec, level, sync, encode, classes
            As for ``save``; ``encode`` is called in the other thread.

        Returns
        -------
        Saving
            ``done()``, ``progress.done`` of ``progress.total`` bytes, ``cancel()``, and
            ``result()``, which waits and raises what the save raised.

        Raises
        ------
        TypeError, ValueError, BlockingIOError, OSError
            As ``save``; what happens later is raised by ``result()``: a ``RuntimeError`` if the
            buffer was cleared or all rows were overwritten before it ended.

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

        options = SaveOptions(keep, Codec(codec, level), sync, encode, tuple(classes))
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
        mmap_prefix: str | Path | None = None,
        mmap_mode: str = "x",
        replace: Mapping[str, Any] | None = None,
        classes: Iterable[type] = (),
        decode: Decode | None = None,
        salvage: bool = False,
    ) -> Self:
        """A new object with what was saved.

        Parameters
        ----------
        folder : str or path
            The folder that ``save`` was given.
        state : int, optional
            The number of a state that is there, see ``keep``; the newest one.
        size : int, optional
            New capacity, of one buffer. A smaller buffer keeps the newest rows. ``indexes`` of
            earlier batches then count as indexes of rows that are gone.
        fields : str or iterable of str, optional
            The fields to load, of one buffer; all. Those that end episodes have to be among them.
        mmap_prefix, mmap_mode
            Where the rows of one buffer shall lie: see ``ReplayBuffer``.
        replace : mapping of str to object, optional
            What takes the place of something that was saved, by its path, as
            ``{"sampler.beta": Linear(0.4, 1.0, 10**6)}``; functions and environments have to be
            here, as ``{"layers.0.reward_func": reward}``.
        classes : iterable of type
            Classes of your own that were saved: subclasses of buffers and samplers.
        decode : callable, optional
            The inverse of ``encode``.
        salvage : bool
            Load what is left of a folder that is damaged, and warn of what is lost.

        Raises
        ------
        FileNotFoundError
            There is no checkpoint in this folder, or no such state.
        ValueError, TypeError
            A file is damaged or not of this library, or an argument does not fit what was saved;
            the message says which.
        MemoryError
            The machine has not enough memory.

        Notes
        -----
        No code in a file is run, imported or evaluated: files of strangers can be opened. Cost:
        one pass over the files, for their checksums too.

        Examples
        --------
        See ``save``.
        """
        target = Target(size, _names(fields), mmap_prefix, mmap_mode)
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
        """Give this object, and all that it is made of, what was saved.

        As ``load``, but buffers, samplers and generators that others hold stay the same objects,
        functions and environments stay those that are here, and a buffer keeps its capacity.

        Parameters
        ----------
        folder, state, replace, classes, decode, salvage
            As for ``load``.

        Raises
        ------
        FileNotFoundError, ValueError, TypeError, MemoryError
            As ``load``; also if another kind of object was saved, or other fields: the message
            says which. Whatever is raised, nothing has changed.

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
) -> None:
    """Save what has no such method, or has another one, as ReAgent's buffers do.

    Parameters
    ----------
    value : Checkpointed or buffer of ``compat.reagent``
        What to save.
    folder, keep, codec, level, sync, encode, classes
        As for ``Checkpointed.save``.

    Raises
    ------
    TypeError, ValueError, BlockingIOError, OSError
        As ``Checkpointed.save``.

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
    options = SaveOptions(keep, Codec(codec, level), sync, encode, tuple(classes))
    _save(value, folder, options)


def load(
    folder: str | Path,
    *,
    state: int | None = None,
    size: int | None = None,
    fields: Iterable[str] | None = None,
    mmap_prefix: str | Path | None = None,
    mmap_mode: str = "x",
    replace: Mapping[str, Any] | None = None,
    classes: Iterable[type] = (),
    decode: Decode | None = None,
    salvage: bool = False,
) -> Any:
    """Whatever was saved to a folder: see ``Checkpointed.load``."""
    target = Target(size, _names(fields), mmap_prefix, mmap_mode)
    options = LoadOptions(tuple(classes), replace or {}, decode, salvage, state)
    return _load(folder, options, target)


def _names(fields: Iterable[str] | None) -> tuple[str, ...] | None:
    names = None if fields is None else tuple(as_names("fields", fields))
    if names == ():
        raise ValueError("fields: expected names of fields, got none")
    return names


def _save(value: Savable, folder: str | Path, options: SaveOptions) -> None:
    from cpprb_like.checkpoint._save import Job  # noqa: PLC0415 (by saves only)

    Job(value, Disk(folder, options.sync), options).run()


def _load(folder: str | Path, options: LoadOptions, target: Target) -> Any:
    from cpprb_like.checkpoint._load import load as load_now  # noqa: PLC0415 (by loads only)

    found = load_now(Disk(folder), options, target)
    if not isinstance(found, Savable):
        raise ValueError(f"{folder}: a {type(found).__name__} is nothing that is saved")
    return found
