"""``Format``: what a format of data sets is, and how its files are recognised, written and read.

Each format has a module with a ``Writer``, a ``Reader`` and a ``Format``, its ``FORMAT``. Not here:
which formats there are (``_open``), and what a data set is, whatever its format (``_model``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from cpprb_like.datasets._files import is_plain
from cpprb_like.datasets._model import (
    EpisodeRecord,
    Field,
    Header,
    Rows,
    check_chained,
    check_steps,
)

__all__ = ["BOTH", "CUT", "FINAL", "LACKS", "OPEN", "Format", "Reader", "Writer"]

CUT = "that the first steps of an episode are missing"
FINAL = "the next observation of the last step of an episode"
BOTH = "that a step is truncated as well as terminated"
OPEN = "that an episode before the last one is still open: it counts as truncated"
LACKS = (
    "fields of text, times, complex numbers and Python objects",
    "the environment of each episode",
    "options of the buffer, such as next_of",
)


class Writer:
    """Writes a data set, episode by episode.

    Attributes
    ----------
    lost : list of str
        What was in the rows and is not in the files, when it is closed.
    """

    lost: Sequence[str] = ()

    def episode(self, number: int, record: EpisodeRecord, chunks: Iterator[Rows]) -> None:
        """Write the rows of an episode, which come in chunks."""
        raise NotImplementedError

    def close(self) -> None:
        """Write what is left, when all episodes are written."""
        raise NotImplementedError

    def abandon(self) -> None:
        """Let go of all files, whatever is written. By default none is open."""


class Reader:
    """Reads a data set.

    Attributes
    ----------
    header : Header
    left_out : list of str
        What is in the files and cannot be in a buffer.
    unknown : tuple of str
        Fields of next values that are not in the files at the last step of an episode; there the
        rows repeat the value of the step itself.
    about : dict
        Entries of the format's own metadata that ``Format.metadata`` takes.
    """

    header: Header
    left_out: list[str]
    unknown: tuple[str, ...] = ()
    about: Mapping[str, Any] = MappingProxyType({})

    def rows(self, number: int, most: int) -> Iterator[Rows]:
        """The rows of an episode, at most so many at a time, with all fields."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of all files. By default none is open."""


class Format:
    """A format of data sets.

    Attributes
    ----------
    name : str
        As users say it.
    is_file : bool
        Whether a data set is one file, and not a folder.
    suffixes : tuple of str
        Of paths, which say the format of a new file.
    reader, writer : type
        A ``Reader``, made of a path, and a ``Writer``, made of a path, a header and metadata.
    has_final : bool
        Whether an episode has one observation more than steps. Then observations with final ones,
        actions and rewards are needed.
    keys : tuple of str or None
        Entries of the format's own metadata that ``export`` takes as ``about``; None for any.
    lacks : tuple of str
        What its files cannot say of a buffer, beside what no format can say (``LACKS``).
    """

    name: ClassVar[str]
    is_file: ClassVar[bool] = False
    suffixes: ClassVar[tuple[str, ...]] = ()
    reader: ClassVar[type[Any]]
    writer: ClassVar[type[Any]]
    has_final: ClassVar[bool] = False
    keys: ClassVar[tuple[str, ...] | None] = None
    lacks: ClassVar[tuple[str, ...]] = ()

    def holds(self, field: Field) -> bool:
        """Whether the values of a field can be written."""
        return is_plain(field)

    def told_by(self, path: Path) -> bool:
        """Whether what is at a path is of this format."""
        raise NotImplementedError

    def find(self, name: str) -> Path | None:  # noqa: ARG002 (for subclasses)
        """Where a data set of this name is; by default they have paths, and no names."""
        return None

    def check(self, header: Header) -> None:
        """Raise ``ValueError`` if the fields lack something that the format needs."""
        if self.has_final:
            check_steps(header, self.name)

    def metadata(
        self,
        path: Path,  # noqa: ARG002 (for subclasses)
        header: Header,  # noqa: ARG002
        about: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Entries of the format's own metadata, for a new data set at a path: by default ``about``.

        Raises ``ValueError`` if ``about`` has others than the format can hold.
        """
        unknown = sorted(about.keys() - set(about if self.keys is None else self.keys))
        if unknown:
            places = f"some of {list(self.keys)}" if self.keys else "none"
            raise ValueError(f"about: expected {places} with format {self.name!r}, got {unknown}")
        return dict(about)

    def open_writer(self, path: Path, header: Header, about: Mapping[str, Any]) -> Writer:
        """A writer, with entries of the format's own metadata."""
        if self.has_final:
            check_chained(header, self.name)
        made: Writer = self.writer(path, header, about)
        return made

    def open_reader(self, path: Path) -> Reader:
        """A reader of all that there is."""
        made: Reader = self.reader(path)
        return made

    def open_split(self, path: Path, split: str) -> Reader:
        """A reader of one part of a data set that has parts by name; by default it has none."""
        raise ValueError(
            f"split: expected none, as data sets of format {self.name!r} have no splits; "
            f"got {split!r} for {path}"
        )
