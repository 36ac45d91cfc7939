"""``LoggedDraws``: a source that writes a log of the draws of another source.

A record is a line of JSON and the columns that this line names, as bytes. Not here: reading a log
(``_draw_log``).
"""

from __future__ import annotations

import json
import os
import threading
from typing import TYPE_CHECKING

from cpprb_like._arguments.checks import as_path
from cpprb_like._machine.file_systems import InRoom
from cpprb_like.buffers._around import SourceAround
from cpprb_like.buffers._entry import SampleOptions
from cpprb_like.buffers._replay import ReplayBuffer
from cpprb_like.buffers._source import Batch, Source
from cpprb_like.buffers._view import View

if TYPE_CHECKING:
    from typing_extensions import Self

HEAD = b"cpprb_like draws, version 2\n"
COLUMNS = ("weights", "probabilities")  # columns of samplers, logged where a batch has them


def view_of(source: Source) -> View:
    """A view of the buffer that a source draws from, with its layers."""
    while isinstance(source, SourceAround):
        source = source._source
    rows = source.buffer if isinstance(source, View) else source
    if not isinstance(rows, ReplayBuffer):
        expected = "a ReplayBuffer, a view of one, or RateLimited around them"
        raise TypeError(f"source: expected {expected}, got {type(source).__name__}")
    return source if isinstance(source, View) else View(rows, ())


class LoggedDraws(SourceAround):
    """A source that writes down each draw of another source, for ``DrawLog``.

    Parameters
    ----------
    source : ReplayBuffer, View or RateLimited
        The source of the batches. Draws that do not go through this object are not logged.
    path : str or path
        The new file.

    Raises
    ------
    TypeError, ValueError
        ``source`` is another source, such as a learner; or its ``indexes`` are slots, which name
        other rows later, as with ``check_for_update=False``.
    FileExistsError, OSError
        The file exists, or cannot be written.

    Notes
    -----
    An ``epoch`` is not logged. States of the generator are exact where one thread draws. ``close``,
    or a ``with`` statement, ends the log. A full disk ends it too, and raises an error in the draw.
    A forked child logs nothing. Save or pickle the source, not this object.

    Cost: 8 bytes for each row, 16 with priorities, half a kilobyte and a write for each draw.

    Examples
    --------
    >>> import tempfile
    >>> from cpprb_like import DrawLog, LoggedDraws, ReplayBuffer
    >>> rb = ReplayBuffer(100, {"x": {"shape": ()}}, seed=0)
    >>> rb.add(x=range(10))
    0
    >>> path = tempfile.mkdtemp() + "/draws"
    >>> with LoggedDraws(rb, path) as logged:
    ...     first, second = logged.sample(3), logged.sample(4)
    >>> log = DrawLog(path)
    >>> len(log), log[1].ages.shape
    (2, (4,))
    >>> bool((log.replay(1, rb)["x"] == second["x"]).all())
    True
    """

    def __init__(self, source: Source, path: str | os.PathLike[str]) -> None:
        super().__init__(source)
        self._view = view_of(source)
        self._view.buffer._check_indexes()
        self.path = as_path("path", path)
        self._process = os.getpid()
        self._lock = threading.Lock()  # of the file
        self._file = self.path.open("xb", buffering=0)
        self._write(HEAD)

    def _sample(self, batch_size: int, options: SampleOptions) -> Batch:
        n, keywords = self._read_sample(batch_size, options)
        buffer, out = self._view.buffer, options.out
        if out is not None:
            keywords["out"] = dict(out)  # as it may get columns that were not asked for
        if not self.has_priorities:
            keywords["indexes"] = True
        before = buffer.rng.bit_generator.state
        batch = self._source.sample(n, **keywords)
        about = {"before": before, "after": buffer.rng.bit_generator.state}
        ring, now = buffer.ring, buffer.ring.now()
        about |= {"written": now.written, "edits": now.edits}
        about["newest"] = ring.handle_base + ring.span + now.written - 1
        names = ("indexes", *COLUMNS) if self.has_priorities else ("indexes",)
        named = {name: batch[name] for name in names if name in batch}
        about["columns"] = [[name, values.dtype.str, n] for name, values in named.items()]
        line = json.dumps(about, default=lambda array: array.tolist()).encode()
        self._write(line, b"\n", *(values.tobytes() for values in named.values()))
        if not (options.indexes or self.has_priorities):
            del batch["indexes"]
            batch.pop("row_indexes", None)  # of sequences
        if out is None or batch is not keywords["out"]:  # packed rows, in parts of the arrays
            return batch
        out.update(batch)
        return out

    def _write(self, *parts: bytes) -> None:
        record = memoryview(b"".join(parts))
        if os.getpid() != self._process:  # a forked child, which has the same file
            return
        with self._lock:
            try:
                while record and not self._file.closed:
                    with InRoom(self.path):
                        record = record[self._file.write(record) :]
            except BaseException:
                self._file.close()
                raise

    def close(self) -> None:
        """End the log."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
