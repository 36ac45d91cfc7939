"""D4RL: one HDF5 file with a data set for each field, in which episodes follow one another.

D4RL's names are ``observations``, ``actions``, ``rewards``, ``terminals``, ``timeouts`` and
``next_observations``. A field ``info.x`` is the data set ``infos/x``. Any other field is a data set
of its own name, as D4RL's ``sequence_dataset`` requires a value of each data set for each row. If a
file lacks ``next_observations``, they are taken from the rows after, within an episode. If a file
lacks ``timeouts``, ``next_observations`` tell where a time limit ended an episode.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cpprb_like._arguments.checks import warn
from cpprb_like.datasets import _hdf5
from cpprb_like.datasets._format import CUT, LISTS, OPEN, TEXTS, Format, Reader, Steps, Writer
from cpprb_like.datasets._from_buffer import rows_in_chunk
from cpprb_like.datasets._model import (
    Array,
    EpisodeRecord,
    Field,
    Header,
    HeaderBuilder,
    Place,
    Rows,
    follow,
)

NAME = "d4rl"
ABOUT = "metadata"
REWARDS, FLAGS = "rewards", ("terminals", "timeouts")
INFOS, INFO = "infos", "info."
ROLES = {
    "observations": "obs",
    "actions": "act",
    REWARDS: "rew",
    "next_observations": "next_obs",
    "terminals": "terminated",
    "timeouts": "truncated",
    INFOS: "info",
}


def _place(path: Place) -> Place:
    """The path of a column. Fields ``info.x`` are in the group ``infos``."""
    is_info = path[0].startswith(INFO) and path[0] != INFO
    return (INFOS, path[0].removeprefix(INFO)) if is_info else path


class D4rlWriter(Writer):
    """Writes a file of D4RL."""

    flags = ((FLAGS[0],), (FLAGS[1],))

    def __init__(self, path: Path, header: Header, about: Mapping[str, Any]) -> None:
        places = header.places(ROLES, {ABOUT})
        super().__init__(header, {name: _place(place) for name, place in places.items()})
        self._new = _hdf5.NewFile(path, NAME)
        self._at = 0
        self._data = {
            place: self._new.file.create_dataset(
                "/".join(place), (header.rows, *field.shape), field.dtype
            )
            for place, field in self.columns.items()
        }
        for key, value in about.items():
            self._new.file.attrs[key] = value

    def steps(self, at: int, steps: Steps) -> None:
        for place, values in steps.items():
            self._data[place][self._at + at : self._at + at + len(values)] = values
        self._new.check()

    def end(self, final: Steps) -> None:
        self._at += self.record.length

    def close(self) -> None:
        self._new.close()

    def abandon(self) -> None:
        self._new.abandon()


class D4rlReader(Reader):
    """Reads a file of D4RL."""

    def __init__(self, path: Path, split: str | None = None) -> None:
        super().__init__(path, split)
        self._file = _hdf5.opened(path, NAME, "r")

    def read_fields(self) -> HeaderBuilder:
        """The fields by the names that D4RL uses."""
        found = dict(_hdf5.members(self._file))
        for path in [path for path in found if path[0] == ABOUT]:
            self.left_out.append(f"{'/'.join(path)} ({found.pop(path).dtype})")
        first = found.get((REWARDS,), found.get((FLAGS[0],)))
        if first is None or first.ndim < 1:
            raise ValueError(f"{REWARDS}: expected a data set with a value for each row, got none")
        rows = len(first)

        def field_of(path: Place, name: str) -> Field | str:
            data = found[path]
            if data.ndim and len(data) == rows:
                return _hdf5.field_of(data, "/".join(path), name)
            return f"{data.dtype} of shape {data.shape}"

        has_next = any(ROLES.get(path[0]) == "next_obs" for path in found)
        builder = HeaderBuilder(ROLES, self.left_out, derives_next=not has_next)
        builder.add(found, field_of)
        self._data = {name: found[path] for name, path in builder.places.items()}
        self._n = rows
        return builder

    def read_episodes(self) -> Iterator[tuple[EpisodeRecord, int]]:
        """Episodes, which end where the end flags are set. Rows after the last end are open.

        Without ``timeouts`` an episode also ends, truncated, where the next observation is not the
        observation of the row after.
        """
        ends, start = self.header.ends, 0
        ended = np.zeros(self._n, np.bool_)
        if ends.names:
            flags = {name: self._data[name][: self._n] for name in ends.names}
            ended = np.logical_or(*ends.flags(flags, self._n))
        if ends.truncated is None:
            ended |= self._truncated(ended)
        for last in np.flatnonzero(ended).tolist():
            yield EpisodeRecord(last + 1 - start), start
            start = last + 1
        yield EpisodeRecord(self._n - start, is_open=True), start

    def _truncated(self, ended: Array) -> Array:
        """The rows at which a time limit ended an episode, by observations and next observations.

        Rows that ``ended`` marks are left out. Warns of these rows, or that none can be found.
        ``ValueError`` if they are most rows: next observations then tell no time limits.
        """
        header, cut = self.header, np.zeros(self._n, np.bool_)
        pairs = [(name, f"next_{name}") for name in header.observations]
        pairs = [
            pair
            for pair in pairs
            if pair[1] in self._data and header[pair[0]].shape == header[pair[1]].shape
        ]
        for name, following in pairs:
            values, nexts = self._data[name], self._data[following]
            most = rows_in_chunk(header[name].nbytes + header[following].nbytes)
            for start in range(0, self._n - 1, most):
                stop = min(start + most, self._n - 1)
                before = _hdf5.read(nexts, start, stop, header[following])
                after = _hdf5.read(values, start + 1, stop + 1, header[name])
                cut[start:stop] |= ~follow(before, after)
        is_known = cut.any()  # some next observations are not those of the row after
        cut &= ~ended
        n_cut, n = np.count_nonzero(cut), np.count_nonzero(~ended[:-1])
        if 2 * n_cut > n:
            raise ValueError(
                "without a data set timeouts expected next_observations that are the observations "
                f"of the row after, but for ends of episodes; got others in {n_cut} of {n} rows, "
                "as if values were rounded, or rows in another order: add timeouts"
            )
        if not pairs:
            warn(
                f"{self.path}: without a data set timeouts nothing tells where a time limit ended "
                "an episode: it and the one after it are read as one",
                UserWarning,
            )
        elif not is_known:
            warn(
                f"{self.path}: without a data set timeouts nothing tells where a time limit ended "
                "an episode, as all next_observations are the observations of the row after: it "
                "and the one after it are read as one",
                UserWarning,
            )
        elif n_cut:
            warn(
                f"{self.path}: without a data set timeouts {n_cut} episodes are truncated "
                "where next_observations are not the observations of the row after",
                UserWarning,
            )
        return cut

    def read(self, number: int, most: int, names: Collection[str]) -> Iterator[Rows]:
        first = self.spans[number]
        last = first + self.header.episodes[number].length
        for start in range(first, last, most):
            stop = min(start + most, last)
            yield {
                name: _hdf5.read(data, start, stop, self.header[name])
                for name, data in self._data.items()
                if name in names
            }

    def close(self) -> None:
        self._file.close()


class D4rl(Format):
    """See ``Format``."""

    name = NAME
    reader, writer = D4rlReader, D4rlWriter
    is_file, magic = True, b"\x89HDF\r\n\x1a\n"
    suffixes = (".hdf5", ".h5")
    lacks = (CUT, OPEN, TEXTS, LISTS)


FORMAT = D4rl()
