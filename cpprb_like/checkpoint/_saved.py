"""``Checkpointed``, and as functions: ``save``, ``save_async``, ``load`` and ``restore``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cpprb_like._arguments.checks import as_int
from cpprb_like.checkpoint._disk import Disk, UnsynchronisedDisk
from cpprb_like.checkpoint._held import Savable
from cpprb_like.checkpoint._progress import Progress, Tell, shown

if TYPE_CHECKING:
    from typing_extensions import Self

    from cpprb_like.checkpoint._load import Options
    from cpprb_like.checkpoint._save import Encode, Job, Saving

__all__ = ["Checkpointed", "load", "save"]


class Checkpointed(Savable):
    """Base class of what is saved to a folder, whole: buffers, views, mixtures and fronts.

    It is a thing and not its rows: always true, empty or not, unless the library whose class a
    front stands for says otherwise.
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
        progress: Tell = None,
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
        progress : callable or bool, optional
            ``progress(done, total)`` is called with bytes; or whether a bar is shown (tqdm). By
            default it is, for 256 MiB and more, if standard error is a terminal and tqdm is there.

        Raises
        ------
        TypeError, ValueError
            An argument is of a wrong type or value, or a part of the object cannot be saved; the
            message names it.
        BlockingIOError
            Another save to this folder goes on.
        RuntimeError
            ``encode`` or ``progress`` changed what is saved.
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
        with shown(progress) as on_progress:
            job = _job(
                self, folder, keep, codec, level, sync, encode, classes, Progress(on_progress)
            )
            job.run()

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
        longer. The state that is saved is that of this moment. Of more rows, those that are
        overwritten before they have been written to the disk, the oldest ones, are left out; and
        rows that ``update`` changes meanwhile have their new values.

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
            buffer was cleared or all rows were overwritten meanwhile.

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
        from cpprb_like.checkpoint._save import Saving  # noqa: PLC0415 (by those who save)

        progress = Progress()
        job = _job(self, folder, keep, codec, level, sync, encode, classes, progress)
        saving = Saving(job, progress)
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
        decode: Callable[[bytes], Any] | None = None,
        salvage: bool = False,
        progress: Tell = None,
    ) -> Self:
        """A new object with what was saved.

        Parameters
        ----------
        folder : str or path
            The folder that ``save`` was given.
        state : int, optional
            The number of a state that is still there; the newest one.
        size : int, optional
            Another capacity, of one buffer. Of a smaller one the newest rows remain; ``indexes``
            of batches before are taken for those of rows that are gone.
        fields : iterable of str, optional
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
        progress : callable or bool, optional
            As for ``save``.

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
        found = load(
            folder,
            state=state,
            size=size,
            fields=fields,
            mmap_prefix=mmap_prefix,
            mmap_mode=mmap_mode,
            replace=replace,
            classes=(cls, *classes),
            decode=decode,
            salvage=salvage,
            progress=progress,
        )
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
        decode: Callable[[bytes], Any] | None = None,
        salvage: bool = False,
        progress: Tell = None,
    ) -> None:
        """Give this object, and all that it is made of, what was saved.

        As ``load``, but buffers, samplers and generators that others hold stay the same objects,
        functions and environments stay those that are here, and a buffer keeps its capacity.

        Parameters
        ----------
        folder, state, replace, classes, decode, salvage, progress
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

        with shown(progress) as on_progress:
            options = _options(tuple(classes), replace, decode, salvage, state, on_progress)
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
    progress: Tell = None,
) -> None:
    """Save what has no such method, or has another one, as ReAgent's buffers do.

    Parameters
    ----------
    value : Checkpointed or buffer of ``compat.reagent``
        What to save.
    folder, keep, codec, level, sync, encode, classes, progress
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
    with shown(progress) as on_progress:
        _job(value, folder, keep, codec, level, sync, encode, classes, Progress(on_progress)).run()


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
    decode: Callable[[bytes], Any] | None = None,
    salvage: bool = False,
    progress: Tell = None,
) -> Any:
    """Whatever was saved to a folder: see ``Checkpointed.load``."""
    from cpprb_like.checkpoint import _load  # noqa: PLC0415 (by those who load)

    target = _load.Target(size, None if fields is None else tuple(fields), mmap_prefix, mmap_mode)
    with shown(progress) as on_progress:
        options = _options(tuple(classes), replace, decode, salvage, state, on_progress)
        found = _load.load(Disk(folder), options, target)
    if not isinstance(found, Savable):
        raise ValueError(f"{folder}: a {type(found).__name__} is nothing that is saved")
    return found


def _job(
    value: Savable,
    folder: str | Path,
    keep: int,
    codec: str | None,
    level: int | None,
    sync: bool,
    encode: Encode | None,
    classes: Iterable[type],
    progress: Progress,
) -> Job:
    from cpprb_like.checkpoint._arrays import Codec  # noqa: PLC0415 (by those who save)
    from cpprb_like.checkpoint._save import Job  # noqa: PLC0415

    if not isinstance(sync, bool):
        raise TypeError(f"sync: expected a bool, got {sync!r}")
    return Job(
        value,
        Disk(folder) if sync else UnsynchronisedDisk(folder),
        keep=as_int("keep", keep, 1),
        codec=Codec(codec, level).check(),
        encode=encode,
        classes=tuple(classes),
        progress=progress,
    )


def _options(
    classes: tuple[type, ...],
    replace: Mapping[str, Any] | None,
    decode: Callable[[bytes], Any] | None,
    salvage: bool,
    state: int | None,
    on_progress: Callable[[int, int], None] | None,
) -> Options:
    from cpprb_like.checkpoint._load import Options  # noqa: PLC0415 (by those who load)

    number = None if state is None else as_int("state", state, 0)
    watch = Progress(on_progress)
    return Options(classes, dict(replace or {}), decode, bool(salvage), number, watch)
