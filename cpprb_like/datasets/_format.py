"""Base classes ``Format``, ``Writer`` and ``Reader``: how files are recognised, written and read.

The module of each format derives from them, and has the instance ``FORMAT``. The base classes
handle flags of ends, final observations and the list of episodes. Not here: the list of formats
(``_open``), and the model of a data set (``_model``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from cpprb_like._machine.opening import open_regular
from cpprb_like.datasets._files import is_native
from cpprb_like.datasets._model import (
    FLAG,
    Array,
    EpisodeRecord,
    Field,
    Header,
    HeaderBuilder,
    Place,
    Rows,
    as_one_stream,
    with_next,
)
from cpprb_like.datasets._ragged import blank

CUT = "that the first steps of an episode are missing"
FINAL = "the next observation of the last step of an episode"
BOTH = "that a step is truncated as well as terminated"
OPEN = "that an episode before the last one is still open: it counts as truncated"
TEXTS = "texts of any length"
LISTS = "numbers of any length, such as tokens and graphs"
LACKS = (
    "fields of texts of fixed size, times, complex numbers and Python objects",
    "the environment of each episode",
    "options of the buffer, such as next_of",
)

Steps = dict[Place, Array]  # values by the path of their column


class Writer:
    """Writes a data set, episode by episode. ``places`` has the path of each field's column."""

    flags: ClassVar[tuple[Place, Place]]  # paths of terminations and truncations in ``steps``

    def __init__(self, header: Header, places: Mapping[str, Place]) -> None:
        self.header, self.places = header, dict(places)
        self.columns = {path: header.stored(name) for name, path in places.items()}
        self.columns |= {path: Field(path[-1], FLAG, ()) for path in self.flags}

    def episode(self, number: int, record: EpisodeRecord, chunks: Iterator[Rows]) -> None:
        """Write an episode, whose rows come in chunks."""
        self.number, self.record = number, record  # the methods of subclasses read these
        header, at, last = self.header, 0, {}
        self.begin()
        for rows in chunks:
            n = len(next(iter(rows.values())))
            terminated, truncated = header.ends.flags(rows, n)
            if at + n == record.length and not record.is_open and not terminated[-1]:
                truncated = np.append(truncated[:-1], True)  # on_episode_end() sets no flag
            steps = {path: self._column(rows[name], path) for name, path in self.places.items()}
            self.steps(at, steps | dict(zip(self.flags, (terminated, truncated), strict=True)))
            at, last = at + n, {name: values[-1:] for name, values in rows.items()}
        final: Steps = {}
        for name, path in self.places.items():
            following = header.chained.get(name)
            values = self._nothing(path) if following is None else last[following]
            final[path] = self._column(values, path)
        self.end(final)

    def _column(self, values: Array, path: Place) -> Array:
        field = self.columns[path]
        return values if field.is_ragged else values.reshape(len(values), *field.shape)

    def _nothing(self, path: Place) -> Array:
        """One value of a column: zeros, or no items."""
        field = self.columns[path]
        return blank(field, 1) if field.is_ragged else np.zeros((1, *field.shape), field.dtype)

    def begin(self) -> None:
        """Begin the episode. By default there is nothing to do."""

    def steps(self, at: int, steps: Steps) -> None:
        """Write rows of the episode from row ``at`` on. The arrays are not used again."""
        raise NotImplementedError

    def end(self, final: Steps) -> None:
        """End the episode. ``final`` is one step: final observations, and zeros elsewhere."""

    def close(self) -> None:
        """Write what is left, when all episodes are written."""
        raise NotImplementedError

    def abandon(self) -> None:
        """Close all files after an error. By default none is open."""


class Reader:
    """Reads a data set, or one split of it.

    If ``has_final`` is false, a next observation without a column is the observation of the next
    row. It is unknown at the last step of an episode.
    """

    has_final: ClassVar[bool] = False  # episodes have one observation more than steps
    header: Header  # complete after ``load``
    about: Mapping[str, Any] = MappingProxyType({})  # entries that ``Format.metadata`` takes

    def __init__(self, path: Path, split: str | None = None) -> None:
        self.path, self.split = path, split
        self.left_out: list[str] = []  # descriptions of contents that a buffer cannot hold
        self.places: dict[str, Place] = {}  # path of the column of each field that has one
        self.spans: list[Any] = []  # position of each episode, from ``read_episodes``

    def load(self) -> None:
        """Read everything but the rows."""
        builder = self.read_fields()
        self.places, self.header = builder.places, builder.header()
        found = [(record, span) for record, span in self.read_episodes() if record.length > 0]
        if not found:
            raise ValueError("expected an episode with rows, got none")
        self.spans = [span for _, span in found]
        episodes = as_one_stream([record for record, _ in found], self.left_out)
        self.header = replace(self.header, episodes=episodes)

    def read_fields(self) -> HeaderBuilder:
        """The fields, and their columns."""
        raise NotImplementedError

    def read_episodes(self) -> Iterable[tuple[EpisodeRecord, Any]]:
        """Each episode, and its position in the files. ``header`` has the fields."""
        raise NotImplementedError

    @property
    def unknown(self) -> tuple[str, ...]:
        """Fields of next values that the files lack at the last step of an episode.

        The rows of these steps repeat the value of the step.
        """
        return () if self.has_final else tuple(self.header.chained.values())

    def rows(self, number: int, most: int, names: Sequence[str]) -> Iterator[Rows]:
        """Some fields of an episode, at most ``most`` rows at a time; others may come too."""
        chained = {name: after for name, after in self.header.chained.items() if after in names}
        pieces = self.read(number, most, {*names, *chained})
        return pieces if self.has_final else with_next(pieces, chained)

    def read(self, number: int, most: int, names: Collection[str]) -> Iterator[Rows]:
        """Pieces of ``rows``; without derived next observations if ``has_final`` is false."""
        raise NotImplementedError

    def close(self) -> None:
        """Close all files. By default none is open."""


class Format:
    """A format of data sets.

    If ``has_final`` of the reader is true, an exported buffer needs next observations, actions and
    rewards.
    """

    name: ClassVar[str]  # one of ``FORMATS``
    is_file: ClassVar[bool] = False  # whether a data set is a file; else it is a folder
    magic: ClassVar[bytes] = b""  # first bytes of a file
    suffixes: ClassVar[tuple[str, ...]] = ()  # a path with one of these chooses the format
    has_splits: ClassVar[bool] = False
    reader: ClassVar[type[Reader]]
    writer: ClassVar[type[Any]]
    keys: ClassVar[tuple[str, ...] | None] = None  # keys that ``about`` may have; None for any
    lacks: ClassVar[tuple[str, ...]] = ()  # contents that the files lose, with ``LACKS``
    # The module that gives local data sets names, and downloads them; empty without names.
    library: ClassVar[str] = ""

    def holds(self, field: Field) -> bool:
        """Whether the values of a field can be written."""
        if field.is_ragged and (TEXTS if field.is_text else LISTS) in self.lacks:
            return False
        return is_native(field.dtype) and (field.is_ragged or field.nbytes > 0)

    def matches(self, path: Path) -> bool:
        """Whether the files at a path are of this format: by default a file, by ``magic``."""
        if not path.is_file():
            return False
        with open_regular(path) as file:
            return path.suffix in self.suffixes or file.read(len(self.magic)) == self.magic

    def root(self) -> Path:
        """The folder where ``library`` keeps its local data sets."""
        raise NotImplementedError

    def names(self) -> list[str]:
        """The names of all data sets in ``root``."""
        raise NotImplementedError

    def find(self, name: str) -> Path | None:
        """Path of the local data set of a name; None if there is none."""
        path = self.root() / name
        return path if self.matches(path) else None

    def download(self, library: Any, name: str) -> None:
        """Call the library, so that it downloads the data set of a name to ``root``."""
        raise NotImplementedError

    def metadata(
        self,
        path: Path,
        header: Header,
        about: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Entries of the format's own metadata, for a new data set at a path: by default ``about``.

        Raises ``ValueError`` if ``about`` has an entry that the format cannot hold.
        """
        unknown = sorted(about.keys() - set(about if self.keys is None else self.keys))
        if unknown:
            places = f"some of {list(self.keys)}" if self.keys else "none"
            raise ValueError(f"about: expected {places} with format {self.name!r}, got {unknown}")
        return dict(about)

    def open_reader(self, path: Path, split: str | None) -> Reader:
        """A reader of the whole data set, or of a split."""
        if split is not None and not self.has_splits:
            raise ValueError(
                f"split: expected none, as data sets of format {self.name!r} have no splits; "
                f"got {split!r} for {path}"
            )
        return self.reader(path, split)

    def check_fields(self, header: Header) -> None:
        """Raise ``ValueError`` if the fields lack something that the format needs."""
        if not self.reader.has_final:
            return
        roles = {
            "observation": header.observations,
            "action": header.actions,
            "reward": header.reward,
        }
        for role, found in roles.items():
            if not found:
                raise ValueError(
                    f"{self.name}: expected a field of {role}s; {role}=... names it, one of "
                    f"{list(header.names)}"
                )
        lacking = [name for name in header.observations if header.following(name) is None]
        if lacking:
            raise ValueError(
                f"{self.name}: expected fields {[f'next_{name}' for name in lacking]} of the same "
                f"dtype and shape as {lacking}, as each episode has its final observation; formats "
                "'d4rl', 'rllib' and 'lerobot' need none"
            )

    def check_rows(self, header: Header) -> None:
        """Raise ``ValueError`` if the format cannot hold the next observations."""
        if self.reader.has_final and header.chained.keys() != header.observations.keys():
            raise ValueError(
                f"{self.name}: expected next observations that are the observations of the rows "
                f"after, as each step has one observation; {list(header.nexts.values())} differ "
                "somewhere; formats 'd4rl', 'rllib' and 'lerobot' hold both"
            )
