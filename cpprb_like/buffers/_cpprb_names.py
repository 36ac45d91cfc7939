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
    """Base class of ``ReplayBuffer``: cpprb's methods of sizes and files."""

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
        """Slot that the next row goes to, or the next that will be complete with ``Nstep``."""
        return self.ring.stop % self.ring.span

    def is_Nstep(self) -> bool:  # noqa: N802 (cpprb's name)
        """Whether rows are read as transitions of several steps."""
        return self._nstep is not None

    def save_transitions(self, file: File, *, safe: bool = True) -> None:
        """Write all rows to a file that cpprb 10 and 11 read too.

        Rows by value, the oldest first, with n-step returns summed; and after which of them an
        episode ends, which cpprb does not read. Not in the file: priorities, the generator, which
        episodes are open, and rows whose n-step window is not complete: ``save`` has all of it.

        Parameters
        ----------
        file : str or path or binary file
            A path gets the suffix ``.npz`` unless it has it. The file has its name, and replaces
            another one, when it is complete and on the disk.
        safe : bool
            Whether the values of ``next_of`` are written for each row. Otherwise they are written
            for those rows only whose next value is not that of the row after; with ``Nstep`` or
            several environments, for each row all the same.

        Raises
        ------
        TypeError, ValueError
            ``file`` is neither a path nor a file; or a field holds Python objects.
        OSError
            It cannot be written; a file that was there is as it was.

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

        They come behind the rows that are there, as if added in the order of the file, the last
        ``size`` of them. With priorities they get that of new rows.

        Parameters
        ----------
        file : str or path or binary file
            A path is tried with the suffix ``.npz`` first. A file has ``read`` and ``seek``.

        Raises
        ------
        KeyError
            The file lacks a field of this buffer. Other fields of the file are left out.
        TypeError, ValueError
            ``file`` is neither a path nor a file. The shape of a field differs, or its values have
            no faithful value of the declared dtype; ``Nstep`` differs, or has ``discount``, which
            no file has; or the file is damaged, of an unknown version, or holds Python objects. The
            buffer is as it was.
        OSError, MemoryError
            It cannot be read, or a part of it unpacks to more than the memory that is free.

        Notes
        -----
        No code of the file is run. Memory: at most three times what it unpacks to.

        The open episode ends before the first row and after the last one. In between episodes end
        where they ended when the file was saved. A file of cpprb's does not have that: there one
        ends where the field that ends episodes says so, and where ``next_x`` is not ``x`` of the
        row after; and its rows are in the order of cpprb's slots. With ``Nstep``, or several
        environments, each row is an episode of its own.
        """
        from cpprb_like.checkpoint import _cpprb_files  # noqa: PLC0415 (few programs need it)

        _cpprb_files.load_transitions(cast("Any", self), file)

    def _encode_sample(self, idx: ArrayLike) -> Batch:
        """The rows at the given slots."""
        found: Batch = cast("Any", self)[np.atleast_1d(idx)]
        return found
