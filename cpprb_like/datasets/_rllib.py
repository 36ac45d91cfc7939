"""RLlib: Parquet with a row for each step, in the columns that ``OfflineData`` reads.

The columns are ``eps_id``, ``t``, ``obs``, ``actions``, ``rewards``, ``new_obs``, ``terminateds``
and ``truncateds``. Parts of an observation or action are the fields of a struct. An extra field is
a column of its name, which RLlib takes for an output of the model. A folder of such files, as RLlib
records them, is read too. The column ``t`` counts the steps of an episode. RLlib's own recorder
omits ``t``, and each of its files has rows of several episodes in turns. Then the next observation
of a row is compared with observations to find the row that follows. So it is where there are no
names of episodes either.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from cpprb_like.datasets import _arrow
from cpprb_like.datasets._files import need, reading
from cpprb_like.datasets._format import CUT, Format, Reader, Steps, Writer
from cpprb_like.datasets._from_buffer import rows_in_chunk
from cpprb_like.datasets._model import (
    Array,
    EpisodeRecord,
    Field,
    Header,
    HeaderBuilder,
    Place,
    Rows,
    load_json,
)
from cpprb_like.datasets._ragged import bytes_of_rows

NAME = "rllib"
EPISODE, TIME, AGENT = "eps_id", "t", "agent_id"
UNIQUE = re.compile("[0-9a-f]{32}")  # unique episode names that RLlib generates
PATTERNS = ("*.parquet", "run-*/*.parquet", "*/run-*/*.parquet")  # the last two: RLlib's recorders
WHOLE = "item"  # the column of RLlib's files of whole, pickled episodes
COLUMNS = {
    "obs": "obs",
    "actions": "act",
    "rewards": "rew",
    "new_obs": "next_obs",
    "terminateds": "terminated",
    "truncateds": "truncated",
}
Key = tuple[Any, ...]  # names of the episode and the agent of a row; () without such columns
GROUPS = ("obs", "actions", "new_obs")  # columns that may have parts
RESERVED = (EPISODE, TIME, AGENT, "module_id", "infos", "dones", "unroll_id")
OF_RAY = ("ray.data.arrow_tensor", "ray.data.arrow_tensor_v2")
METADATA = b"ARROW:extension:metadata"
NO_TEXTS = {(name,) for name in (*GROUPS, *RESERVED)}  # names and pickles


class RllibWriter(Writer):
    """Writes a Parquet file, in groups of rows."""

    flags = (("terminateds",), ("truncateds",))

    def __init__(self, path: Path, header: Header, about: Mapping[str, Any]) -> None:
        super().__init__(header, header.places(COLUMNS, RESERVED))
        self._file = _arrow.ParquetWriter(
            path,
            _arrow.rows_in_group(header),
            {str(key): str(value) for key, value in about.items()},
            use_dictionary=[EPISODE],
            write_statistics=False,
        )

    def steps(self, at: int, steps: Steps) -> None:
        pa = need("pyarrow", NAME)
        n = len(steps[self.flags[0]])
        parts: dict[str, dict[Place, Any]] = {
            EPISODE: {(): pa.array([str(self.number)] * n)},
            TIME: {(): pa.array(np.arange(at, at + n))},
        }
        for (column, *path), values in steps.items():
            field = self.columns[(column, *path)]
            parts.setdefault(column, {})[tuple(path)] = (
                _arrow.ragged_column(values, field) if field.is_ragged else _tensor_column(values)
            )
        self._file.add({column: _arrow.struct(found) for column, found in parts.items()})

    def close(self) -> None:
        self._file.close()

    def abandon(self) -> None:
        self._file.abandon()


class RllibReader(Reader):
    """Reads a Parquet file, or a folder of them."""

    def __init__(self, path: Path, split: str | None = None) -> None:
        super().__init__(path, split)
        need("pyarrow", NAME)
        paths = sorted(_files_of(path)) if path.is_dir() else [path]
        if not paths:
            raise ValueError(f"{path}: expected files that end in .parquet, got none")
        self._files = _arrow.ParquetFiles(paths)

    def read_fields(self) -> HeaderBuilder:
        """The fields, from the first row of the first file."""
        with reading(self._files.paths[0]):
            return self._read_fields()

    def _read_fields(self) -> HeaderBuilder:
        first = next(self._files.open(0).iter_batches(1), None)
        if first is None or len(first) == 0:
            raise ValueError("expected rows, got none")
        _check_recorded(first)
        paths = [
            (column, *path)
            for column in first.schema.names
            for path in _arrow.parts(first.schema.field(column))
            if column != TIME  # the step number within the episode is no field
            and str(first.schema.field(column).type) != "null"
        ]

        lists = self._list_lengths(first, paths)

        def field_of(place: Place, name: str) -> Field | str:
            column, *path = place
            whole = first.column(column)
            found = _tensor_part(first.schema.field(column), whole, tuple(path))
            field = lists[place].field(name) if place in lists else None
            kind = next((text for text in (found, field) if isinstance(text, str)), str(whole.type))
            if field is None and not isinstance(found, str):
                field = _arrow.field_of(found, name)
            if isinstance(field, Field) and not (field.is_text and place in NO_TEXTS):
                return field
            if column in GROUPS and not path:
                raise ValueError(
                    f"{column}: expected numbers, got {kind}: what RLlib pickles is not read; "
                    "record with output_compress_columns=[] and arrays of numbers of one shape"
                )
            return kind

        has_next = any(path[0] == "new_obs" for path in paths)
        builder = HeaderBuilder(COLUMNS, self.left_out, derives_next=not has_next)
        builder.add(paths, field_of)
        return builder

    def _list_lengths(self, first: Any, paths: list[Place]) -> dict[Place, _arrow.ListLengths]:
        """What all rows of the columns have that may be lists of any length, or texts."""
        types = need("pyarrow", NAME).types
        parts = {
            (column, *path): _tensor_part(first.schema.field(column), first.column(column), path)
            for column, *rest in paths
            for path in [tuple(rest)]
        }
        found = {
            place: _arrow.ListLengths()
            for place, part in parts.items()
            if not isinstance(part, str)
            and (_has_lists(part.type, types) or (_arrow.is_text(part) and place not in NO_TEXTS))
        }
        columns = list(dict.fromkeys(place[0] for place in found))
        for number, path in enumerate(self._files.paths if found else ()):
            with reading(path):
                file = self._files.open(number)
                for batch in file.iter_batches(self._files.most, columns=columns):
                    for place, lengths in found.items():
                        column, name = batch.column(place[0]), ".".join(place)
                        lengths.add(_arrow.part(column, place[1:], name), name)
        for place, lengths in found.items():
            if place[0] == "obs" and (following := found.get(("new_obs", *place[1:]))):
                lengths.join(following)
        return found

    def read_episodes(self) -> Iterator[tuple[EpisodeRecord, Array]]:
        """Episodes, each with the numbers of its rows."""
        keys, of_key, ended, times = self._read_marks()
        order = np.argsort(of_key, kind="stable")  # by key, then in the order of files
        begins = np.ones(len(order), np.bool_)
        begins[1:] = self._begin(keys, of_key, ended, times, order[:-1], order[1:])
        pieces = np.split(order, np.flatnonzero(begins)[1:])
        pieces.sort(key=lambda rows: int(rows[0]))
        names = [keys[of_key[rows[0]]] for rows in pieces]
        if all(name[:1] == (str(number),) for number, name in enumerate(names)):
            # Names that only count the episodes are no loss.
            self.left_out = [text for text in self.left_out if not text.startswith(f"{EPISODE} (")]
        for rows in pieces:
            yield EpisodeRecord(len(rows), is_open=not ended[rows[-1]]), rows

    def _read_marks(self) -> tuple[list[Key], Array, Array, Array | None]:
        """All keys; and for each row the number of its key, whether it is an end, and ``t``."""
        ends, numbers = self.header.ends, dict[Key, int]()
        of_key: list[int] = []
        ended: list[Array] = []
        times: list[Array] = []
        there = self._files.open(0).schema_arrow.names
        named = [name for name in (EPISODE, AGENT) if name in there] if EPISODE in there else []
        columns = {name: self.places[name][0] for name in ends.names}
        columns |= {TIME: TIME} if TIME in there else {}
        for number, path in enumerate(self._files.paths):
            file = self._files.open(number)
            with reading(path):
                wanted = [*named, *columns.values()] or None
                for batch in file.iter_batches(self._files.most, columns=wanted):
                    n = len(batch)
                    parts = [batch.column(name).to_pylist() for name in named]
                    keys = list(zip(*parts, strict=True)) if named else [()] * n
                    of_key.extend(numbers.setdefault(key, len(numbers)) for key in keys)
                    values = {
                        name: _arrow.flat(batch.column(column), column)[0].reshape(n)
                        for name, column in columns.items()
                    }
                    ended.append(np.logical_or(*ends.flags(values, n)))
                    times += [values[TIME]] if TIME in there else []
                if len(of_key) != self._files.starts[number + 1]:
                    raise ValueError(f"expected {file.metadata.num_rows} rows, got others")
        every = np.concatenate(times) if times else None
        return list(numbers), np.array(of_key, np.int64), np.concatenate(ended), every

    def _begin(
        self,
        keys: list[Key],
        of_key: Array,
        ended: Array,
        times: Array | None,
        before: Array,
        after: Array,
    ) -> Array:
        """For each pair of rows: whether ``after`` begins an episode, or else continues ``before``.

        Raises ``ValueError`` if the rows of a key are not in order.
        """
        files = np.repeat(np.arange(len(self._files.paths)), np.diff(self._files.starts))
        is_same, is_other = of_key[before] == of_key[after], files[before] != files[after]
        begins: Array = ~is_same | ended[before]
        wrong = np.zeros(len(after), np.bool_)
        what = "its rows in a row, got others between them: sort the rows by eps_id"
        if times is not None:
            was, now = times[before], times[after]
            is_new = (now == 0) & (begins | is_other | (keys == [()]))
            wrong = is_same & (now != was + 1) & ~is_new
            begins |= is_new
        else:
            has_names = keys != [()]
            apart = np.flatnonzero(~begins & (is_other | (after != before + 1)))
            if self._is_linked():
                # Without names of episodes nothing but next observations tells where one is cut.
                asked = apart if has_names else np.flatnonzero(~begins & ~is_other)
                begins[asked] = ~self._are_linked(before[asked], after[asked])
            if not has_names:
                begins |= is_other
            elif self._is_linked():
                unique = np.array([UNIQUE.fullmatch(str(key[0])) is not None for key in keys])
                wrong = is_same & ended[before] & unique[of_key[after]]
                what = (
                    "it once, got it again after its end: without output_max_rows_per_file RLlib "
                    "records all rows again with each run, so read the folder of the last run alone"
                )
            else:
                begins[apart], wrong[apart] = is_other[apart], ~is_other[apart]
        for k in np.flatnonzero(wrong)[:1].tolist():
            if times is not None:
                by = f"sort the rows by {EPISODE}, {AGENT} and {TIME}"
                what = f"t to count the steps, got {now[k]} after {was[k]}: {by}"
            path, key = self._files.paths[files[after[k]]], keys[of_key[after[k]]]
            raise ValueError(f"{path}: episode {'/'.join(map(str, key))!r}: expected {what}")
        return begins

    def _is_linked(self) -> bool:
        """Whether the files have a next observation of each observation, of the same dtype."""
        return bool(self.header.nexts) and not self.header.chained

    def _are_linked(self, before: Array, after: Array) -> Array:
        """For each pair of rows: whether ``before`` ends with the observation of ``after``."""
        names = self.header.nexts
        nexts = self._digests(before, list(names.values()))
        here = self._digests(after, list(names))
        return np.array([one == other for one, other in zip(nexts, here, strict=True)], np.bool_)

    def _digests(self, rows: Array, names: list[str]) -> list[bytes]:
        """A digest of some fields of each row."""
        order, made = np.sort(rows), list[bytes]()
        for found in self._read_rows(order, names, rows_in_chunk(self.header.row_nbytes)):
            parts = zip(*map(bytes_of_rows, found.values()), strict=True)
            for row in parts:
                digest = hashlib.blake2b(digest_size=16)
                for part in row:
                    digest.update(len(part).to_bytes(8, "little") + part)
                made.append(digest.digest())
        by_row = dict(zip(order.tolist(), made, strict=True))
        return [by_row[row] for row in rows.tolist()]

    def read(self, number: int, most: int, names: Collection[str]) -> Iterator[Rows]:
        there = [name for name in self.places if name in names]
        return self._read_rows(self.spans[number], there, most)

    def _read_rows(self, rows: Array, names: list[str], most: int) -> Iterator[Rows]:
        """Some fields of rows. The numbers of the rows are ascending."""
        columns = list(dict.fromkeys(self.places[name][0] for name in names))
        while len(rows):
            near, at = rows[: np.searchsorted(rows, rows[0] + most)], int(rows[0])
            rows = rows[len(near) :]
            for found in self._files.read(
                at, int(near[-1]) + 1, columns, most, lambda batch: self._values(batch, names)
            ):
                stop = at + len(found[names[0]])
                wanted = near[slice(*np.searchsorted(near, (at, stop)))] - at
                if len(wanted):
                    yield {name: values[wanted] for name, values in found.items()}
                at = stop

    def _values(self, batch: Any, names: Iterable[str]) -> Rows:
        """The values of fields in a batch of Arrow."""
        rows = {}
        for name in names:
            column, *path = self.places[name]
            if column not in batch.schema.names:
                raise ValueError(f"{column}: expected a column of this name, got none")
            field, whole = batch.schema.field(column), batch.column(column)
            found = _tensor_part(field, whole, tuple(path))
            if isinstance(found, str):
                raise ValueError(f"{column}: expected numbers, got {found}")
            rows[name] = _arrow.values_of(found, column, self.header[name])
        return rows

    def close(self) -> None:
        self._files.close()


def _has_lists(kind: Any, types: Any) -> bool:
    """Whether a type of Arrow is a list of any length, or has one inside."""
    while types.is_fixed_size_list(kind):
        kind = kind.value_type
    return bool(types.is_list(kind) or types.is_large_list(kind))


def _files_of(path: Path) -> Iterator[Path]:
    """The Parquet files of a folder."""
    return itertools.chain.from_iterable(map(path.glob, PATTERNS))


def _check_recorded(batch: Any) -> None:
    """Raise ``ValueError`` if the rows are whole, pickled episodes."""
    if batch.schema.names == [WHOLE]:
        raise ValueError(
            f"{WHOLE}: expected a column for each of {list(COLUMNS)}, got whole episodes: record "
            "with output_write_episodes=False and output_compress_columns=[]"
        )


# ---------------------------------------------------------------------- tensors of Ray
#
# A column of tensors has an extension type of Arrow: a flat list for each row, and the shape in the
# metadata of the type. Ray reads nested lists as arrays of Python objects, so tensors are written
# with Ray's type. pyarrow reads such a column as Ray's type if the process has imported Ray, and
# else as plain lists without a shape.


@cache
def _type_of_ray() -> Any:
    """An extension type with the name and the storage of Ray's. Ray is not imported."""
    pa = need("pyarrow", "arrow")

    class Tensor(pa.ExtensionType):  # type: ignore[misc, name-defined]
        """Flat lists, with the shape of the tensors as JSON."""

        def __init__(self, values: Any, shape: tuple[int, ...]) -> None:
            self._shape = shape
            super().__init__(pa.large_list(values), OF_RAY[-1])

        def __arrow_ext_serialize__(self) -> bytes:
            return json.dumps(self._shape).encode()

        @classmethod
        def __arrow_ext_deserialize__(cls, storage: Any, serialized: bytes) -> Any:
            """An equal type. pyarrow rebuilds types whose instances were collected."""
            return cls(storage.value_type, json.loads(serialized))

    return Tensor


def _tensor_column(values: Array) -> Any:
    """Values as an array of Arrow: numbers, or tensors of Ray."""
    pa = need("pyarrow", "arrow")
    n, shape = len(values), values.shape[1:]
    if not shape:
        return _arrow.column(values)
    offsets = np.arange(n + 1, dtype=np.int64) * math.prod(shape)
    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    stored = pa.LargeListArray.from_arrays(offsets, flat)
    return pa.ExtensionArray.from_storage(_type_of_ray()(flat.type, shape), stored)


def _tensor_part(field: Any, found: Any, path: Place) -> Any:
    """The values at a path of a column, tensors as lists of a fixed size.

    If the column has another extension type, the name of the type is returned.
    """
    name = ".".join((field.name, *path))
    for key in path:
        kind = found.type
        found = _arrow.part(found, (key,), name)
        field = kind.field(kind.get_field_index(key))
    return _plain(field, found, name)


def _plain(field: Any, found: Any, name: str) -> Any:
    pa = need("pyarrow", "arrow")
    kind, metadata = field.type, field.metadata or {}
    if isinstance(kind, pa.BaseExtensionType):
        if kind.extension_name in OF_RAY and isinstance(kind, pa.ExtensionType):
            return _shaped(found.storage, _shape(kind.__arrow_ext_serialize__(), name), name)
        return kind.extension_name
    extension = metadata.get(_arrow.EXTENSION, b"").decode(errors="replace")
    if extension in OF_RAY:
        return _shaped(found, _shape(metadata.get(METADATA, b""), name), name)
    return extension or found


def _shape(text: bytes, name: str) -> list[int]:
    """The shape of Ray's tensors, from the JSON in the metadata of the type."""
    shape: Any = load_json(text, name)
    is_shape = isinstance(shape, list) and len(shape) <= _arrow.MOST_AXES
    if not is_shape or any(type(n) is not int or n < 0 for n in shape):
        raise ValueError(f"{name}: expected the shape of a tensor, got {json.dumps(shape)}")
    return list(shape)


def _shaped(storage: Any, shape: list[int], name: str) -> Any:
    """Nested lists of a fixed size, made of a flat list for each row."""
    values, lengths = _arrow.flat(storage, name)
    size = math.prod(shape)
    if lengths != (size,) and len(storage):
        raise ValueError(
            f"{name}: expected {size} values of a tensor of shape {tuple(shape)}, got {lengths}"
        )
    return _arrow.column(values.reshape(len(storage), *shape))


class Rllib(Format):
    """See ``Format``."""

    name = NAME
    reader, writer = RllibReader, RllibWriter
    is_file, magic = True, b"PAR1"
    suffixes = (".parquet",)
    lacks = (CUT,)

    def check_fields(self, header: Header) -> None:
        super().check_fields(header)
        for name, path in {**header.observations, **header.actions}.items():
            if header[name].is_text and not path:
                raise ValueError(
                    f"{self.name}: expected numbers, or several parts, got the text {name!r}: "
                    f"RLlib takes it for a pickle; a part such as '{name}.text' is read as text"
                )

    def matches(self, path: Path) -> bool:
        return any(_files_of(path)) if path.is_dir() else super().matches(path)


FORMAT = Rllib()
