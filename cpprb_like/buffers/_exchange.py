"""``Exchanged``: methods for data sets of other libraries, and cpprb's names and files.

The room ``datasets`` writes and reads data sets. The methods import it, as it needs optional
packages. Not here: cpprb's classes (``compat.cpprb``), and the format of its files
(``checkpoint._cpprb_files``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from cpprb_like.typing import FieldSpec, PrioritizedOptions

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from typing_extensions import Self, Unpack

    from cpprb_like._arguments.arrays import Batch
    from cpprb_like._core import Ring
    from cpprb_like._fields.derived import NStepReturns
    from cpprb_like._fields.layout import Layout
    from cpprb_like.checkpoint._cpprb_files import File


class Exchanged:
    """Base class of ``ReplayBuffer``: data sets of other libraries, and cpprb's names and files."""

    _hold: Any
    _layout: Layout
    _nstep: NStepReturns | None

    if TYPE_CHECKING:

        @property
        def ring(self) -> Ring:
            """The rows."""
            ...

    def export(
        self,
        path: str | os.PathLike[str],
        format: str | None = None,  # noqa: A002 (the word that users know)
        *,
        strict: bool = False,
        observation: str | Iterable[str] | None = None,
        action: str | Iterable[str] | None = None,
        reward: str | None = None,
        about: Mapping[str, Any] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Write all rows as a data set of another library.

        A data set serves exchange. It has numbers and bools, the episodes in order with their ends,
        and further values that the format can hold. ``save`` writes a lossless copy. Rows are the
        single steps that were added. To export a view, export its buffer.

        Parameters
        ----------
        path : str or path
            The new file or folder. It takes its name when it is complete and on the disk.
        format : str, optional
            One of ``cpprb_like.datasets.FORMATS``. By default the suffix names it.
        strict : bool
            Raise an error, not a warning, for values that the format cannot hold.
        observation, action, reward : str or iterable of str, optional
            Names of these fields. By default ``obs``, ``act`` and ``rew``, or similar names, with
            parts such as ``obs.position``. If no field has such a name, each field ``x`` with a
            ``next_x`` is an observation.
        about : dict, optional
            Further metadata of the format, such as ``{"author": "..."}``. For Minari also
            ``observation_space``, ``action_space`` and ``env_spec``, as Gymnasium has them. The
            result of ``cpprb_like.datasets.describe`` for another data set can be passed.
        progress : callable, optional
            ``progress(done, total)`` is called with numbers of bytes.

        Warns
        -----
        DataLossWarning
            The format cannot hold values, such as a field of Python objects. They are left out, and
            the message says how much. ``describe(path).lacks`` lists what a format cannot hold.
        UserWarning
            A data set of Minari is written without the spaces of its environment.

        Raises
        ------
        ValueError
            There is no such format, or the buffer lacks a field that the format needs. There are no
            rows. ``about`` does not fit the fields or the format. Next observations differ from the
            observations of the next rows, and the format has no place for them. Or the format
            cannot hold a value and ``strict`` is true.
        FileExistsError
            ``path`` exists.
        ImportError
            A package is not installed; the message names it.
        OSError
            The files cannot be written. After any error nothing new is left at ``path``.

        Notes
        -----
        Other threads that write wait; threads that sample do not. Cost: each observation is read
        twice, other values once. Memory: some megabytes, for any number of rows.

        Examples
        --------
        >>> import tempfile
        >>> from cpprb_like import ReplayBuffer
        >>> number = {"shape": ()}
        >>> fields = {"obs": {"shape": 2}, "act": number, "rew": number, "truncated": number}
        >>> rb = ReplayBuffer(10, fields, next_of="obs")
        >>> rb.add(obs=[[1, 2]], act=[0], rew=[1], next_obs=[[3, 4]], truncated=[True])
        0
        >>> path = tempfile.mkdtemp() + "/episodes"
        >>> rb.export(path, "dreamerv3")
        >>> ReplayBuffer.from_dataset(path).get_all_transitions()["next_obs"].tolist()
        [[3.0, 4.0]]
        """
        from cpprb_like import datasets  # noqa: PLC0415 (on demand)

        self._hold(
            True,
            lambda: datasets.export(
                self,
                path,
                format,
                strict=strict,
                observation=observation,
                action=action,
                reward=reward,
                about=about,
                progress=progress,
            ),
        )

    @classmethod
    def from_dataset(
        cls,
        path: str | os.PathLike[str],
        format: str | None = None,  # noqa: A002 (the word that users know)
        *,
        split: str | None = None,
        capacity: float | None = None,
        env_dict: Mapping[str, FieldSpec] | None = None,
        strict: bool = False,
        resume: bool = False,
        progress: Callable[[int, int], None] | None = None,
        **options: Unpack[PrioritizedOptions],
    ) -> Self:
        """A buffer with the rows of a data set.

        Parameters
        ----------
        path : str or path
            The file or folder, or the name of a local data set of Minari's.
        format : str, optional
            One of ``cpprb_like.datasets.FORMATS``. By default the files show it.
        split : str, optional
            The split to read, if a folder of format ``"rlds"`` has several.
        capacity : int, optional
            Rows that the buffer holds, by default as many as the data set has. A smaller buffer
            holds the newest rows.
        env_dict : dict, optional
            The fields to read, with ``shape`` and ``dtype`` where these differ from the data set.
            By default all. Numbers are converted, or refused, as by ``add``.
        strict : bool
            Raise an error, not a warning, for values that a buffer cannot hold, such as text of any
            length, and for steps that would be left out.
        resume : bool
            Leave the newest episode open if it is open in the files, so the first ``add`` goes on
            with it. By default it is truncated, as its environment is gone.
        progress : callable, optional
            ``progress(done, total)`` is called with numbers of bytes.
        **options
            Options of the constructor except ``n_envs``, such as ``next_of``, ``Nstep``, ``seed``.

        Returns
        -------
        ReplayBuffer
            A buffer of this class for one environment, with the episodes one after another. It has
            the fields ``obs``, ``act``, ``rew``, ``next_obs``, ``terminated`` and ``truncated``,
            with parts such as ``obs.position``, and others by name. The last step of an episode is
            left out if its next observation is not in the files. It is kept if it is terminated, or
            if ``env_dict`` names no field of next values.

        Warns
        -----
        DataLossWarning
            A buffer cannot hold values of the files, or steps are left out.

        Raises
        ------
        ValueError
            The files show no format or are damaged. Or a buffer cannot hold a value, and ``strict``
            is true. The message names the file and the field.
        FileNotFoundError, OSError
            The files do not exist, or cannot be read.
        ImportError
            A package is not installed; the message names it.

        Notes
        -----
        No code in the files is run, and nothing is unpickled. Cost: reading the
        files, ``add`` of all rows, and memory of some megabytes beside the buffer.

        Examples
        --------
        >>> import tempfile
        >>> from cpprb_like import ReplayBuffer
        >>> number = {"shape": ()}
        >>> fields = {"obs": {"shape": 2}, "act": number, "rew": number, "done": number}
        >>> rb = ReplayBuffer(10, fields, next_of="obs")
        >>> rb.add(
        ...     obs=[[1, 2], [3, 4]], act=[0, 1], rew=[1, 2], next_obs=[[2, 3], [4, 5]], done=[1, 0]
        ... )
        0
        >>> path = tempfile.mkdtemp() + "/episodes"
        >>> rb.export(path, "dreamerv3")
        >>> other = ReplayBuffer.from_dataset(path, capacity=100)
        >>> len(other), [one.truncated for one in other.episodes.list()]
        (2, [False, True])
        """
        from cpprb_like import datasets  # noqa: PLC0415 (on demand)

        found: Self = datasets.from_dataset(
            cls,
            path,
            format,
            split=split,
            capacity=capacity,
            env_dict=env_dict,
            strict=strict,
            resume=resume,
            progress=progress,
            options=options,
        )
        return found

    # ------------------------------------------------------------------ cpprb's names

    def get_stored_size(self) -> int:
        """Rows that can be drawn."""
        return len(self.ring)

    def get_buffer_size(self) -> int:
        """Rows that the buffer can hold."""
        return self._layout.size

    def get_next_index(self) -> int:
        """Slot of the next row; with ``Nstep`` and one environment, of the first incomplete row."""
        return self.ring.stop % self.ring.span

    def is_Nstep(self) -> bool:  # noqa: N802 (cpprb's name)
        """Whether rows are read as transitions of several steps."""
        return self._nstep is not None

    def save_transitions(self, file: File, *, safe: bool = True) -> None:
        """Write all rows to a file that cpprb 10 and 11 read too.

        The file has the values of the rows, oldest first, with n-step returns summed, and a flag
        for each episode end, which cpprb ignores. It lacks priorities, the generator, open episodes
        and rows whose n-step window is incomplete. ``save`` writes all of these.

        Parameters
        ----------
        file : str or path or binary file
            A path without the suffix ``.npz`` gets it. The file takes its name, and replaces
            another file, when it is complete and on the disk.
        safe : bool
            Whether the next values of ``next_of`` are written for each row. If false, they are
            written only for rows whose next value differs from the value of the next row. With
            ``Nstep`` or several environments they are always written for each row.

        Raises
        ------
        TypeError, ValueError
            ``file`` is neither a path nor a file; or a field holds Python objects.
        OSError
            The file cannot be written. An existing file is unchanged.

        Examples
        --------
        >>> import tempfile
        >>> from cpprb_like import ReplayBuffer
        >>> rb = ReplayBuffer(10, {"rew": {"shape": ()}})
        >>> rb.add(rew=[1, 2, 3])
        0
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     rb.save_transitions(f"{folder}/rows")
        ...     rb.load_transitions(f"{folder}/rows")
        >>> rb.get_all_transitions()["rew"].tolist()
        [1.0, 2.0, 3.0, 1.0, 2.0, 3.0]
        """
        from cpprb_like.checkpoint import _cpprb_files  # noqa: PLC0415 (few programs need it)

        _cpprb_files.save_transitions(self, file, safe=safe)

    def load_transitions(self, file: File) -> None:
        """Add the rows of a file that this or cpprb's ``save_transitions`` wrote.

        The last ``size`` rows of the file are added in the order of the file. With priorities they
        get the priority of new rows.

        Parameters
        ----------
        file : str or path or binary file
            A path is tried with the suffix ``.npz`` first. A file has ``read`` and ``seek``.

        Raises
        ------
        KeyError
            The file lacks a field of this buffer. Other fields of the file are left out.
        TypeError, ValueError
            ``file`` is neither a path nor a file. The shape of a field differs, or the declared
            dtype cannot hold its values. ``Nstep`` differs, or has ``discount``, which no file has.
            Or the file is damaged, of an unknown version, or holds Python objects. The buffer is
            unchanged.
        OSError, MemoryError
            The file cannot be read, or a part of it unpacks to more than the free memory.

        Notes
        -----
        No code in the file is run. Memory: at most three times the unpacked bytes.

        The open episode ends before the first row and after the last one. Between them, episodes
        end where they ended when the file was saved. cpprb's own files lack these ends, and their
        rows are in the order of cpprb's slots. There an episode ends at a nonzero end field, and
        where ``next_x`` differs from ``x`` of the next row. With ``Nstep``, or several
        environments, each row is its own episode.
        """
        from cpprb_like.checkpoint import _cpprb_files  # noqa: PLC0415 (few programs need it)

        _cpprb_files.load_transitions(self, file)

    def _encode_sample(self, idx: ArrayLike) -> Batch:
        """The rows at the given slots."""
        found: Batch = cast("Any", self)[np.atleast_1d(idx)]
        return found
