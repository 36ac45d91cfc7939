"""``CpprbNames``: methods of buffers under cpprb's names, and cpprb's files of transitions.

Not here: cpprb's classes without a counterpart here (``compat.cpprb``), and the format of the
files (``checkpoint._cpprb_files``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from cpprb_like._arguments.arrays import Batch
    from cpprb_like._core import Ring
    from cpprb_like._fields.derived import NStepReturns
    from cpprb_like._fields.layout import Layout
    from cpprb_like.checkpoint._cpprb_files import File

__all__ = ["CpprbNames"]


class CpprbNames:
    """Base class of ``ReplayBuffer``: methods for sizes and files under cpprb's names."""

    _layout: Layout
    _nstep: NStepReturns | None

    if TYPE_CHECKING:

        @property
        def ring(self) -> Ring:
            """The rows."""
            ...

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

        _cpprb_files.save_transitions(cast("Any", self), file, safe=safe)

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

        _cpprb_files.load_transitions(cast("Any", self), file)

    def _encode_sample(self, idx: ArrayLike) -> Batch:
        """The rows at the given slots."""
        found: Batch = cast("Any", self)[np.atleast_1d(idx)]
        return found
