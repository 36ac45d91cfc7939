"""LeRobot 3.0: a folder of Parquet files with a row for each frame, and ``meta/``.

``observation.*``, ``action``, ``next.reward``, ``next.done``, ``next.terminated``,
``next.truncated``; every other field is a feature of its name. LeRobot has no place for the
observation after the last step of an episode. Not here: what is in a column
(``_lerobot_features``).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cpprb_like.datasets import _arrow
from cpprb_like.datasets._files import need
from cpprb_like.datasets._format import CUT, FINAL, Format, Reader, Writer
from cpprb_like.datasets._from_buffer import rows_in_chunk
from cpprb_like.datasets._header_builder import HeaderBuilder
from cpprb_like.datasets._lerobot_features import (
    DEFAULTS,
    DONE,
    NAME,
    REWARD,
    TERMINATED,
    TRUNCATED,
    Feature,
    Statistics,
    feature_of,
    features_of,
    is_held,
)
from cpprb_like.datasets._model import (
    Array,
    EpisodeRecord,
    Field,
    Header,
    Rows,
    load_json,
    with_next,
)
from cpprb_like.datasets._model import Path as Parts
from cpprb_like.datasets._video import Video

__all__ = ["FORMAT", "LerobotReader", "LerobotWriter"]

VERSION = "v3.0"
INFO, STATS = "meta/info.json", "meta/stats.json"
TASKS, EPISODES = "meta/tasks.parquet", "meta/episodes"
PIECE = "chunk-{chunk_index:03d}/file-{file_index:03d}"
DATA_PATH = f"data/{PIECE}.parquet"
VIDEO_PATH = f"videos/{{video_key}}/{PIECE}.mp4"
FILES_IN_CHUNK = 1000
FILE_NBYTES = 100 << 20
VIDEO_FILE_MB = 200
TASK = "from_replay_buffer"  # as LeRobot's own replay buffer says
FPS = 1
FLAG = np.dtype(np.bool_)
BYTES_AS_PARQUET = 8  # bytes that an integer of one byte takes while it is written, with its levels
MOST_EPISODES = 256  # whose metadata wait to be written
MOST_STATISTICS = 256  # numbers of a feature that has statistics of each episode
ALONE = ("observation", "observation.state", "observation.image")
OBSERVATION = "observation"
ROLES = {
    OBSERVATION: "obs",
    "action": "act",
    REWARD: "rew",
    DONE: "done",
    TERMINATED: "terminated",
    TRUNCATED: "truncated",
}


# ---------------------------------------------------------------------- writing


class _File:
    """A Parquet file, to which rows are written group by group."""

    def __init__(self, path: Path, most: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self._most = path, most
        self._waiting: list[Any] = []
        self._n = 0
        self._writer: Any = None

    def add(self, table: Any) -> None:
        """Rows behind those before."""
        self._waiting.append(table)
        self._n += len(table)
        if self._n >= self._most:
            self._write()

    def _write(self) -> None:
        pa, parquet = need("pyarrow", NAME), need("pyarrow.parquet", NAME)
        table = pa.concat_tables(self._waiting)
        self._waiting, self._n = [], 0
        if self._writer is None:
            known = [name for name in ("episode_index",) if name in table.column_names]
            self._writer = parquet.ParquetWriter(
                self.path, table.schema, use_dictionary=False, write_statistics=known
            )
        self._writer.write_table(table, row_group_size=self._most)

    def nbytes(self) -> int:
        """Bytes on the disk so far."""
        return self.path.stat().st_size if self._writer is not None else 0

    def close(self) -> None:
        """Write what waits, and the footer."""
        if self._n:
            self._write()
        self.abandon()

    def abandon(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()


class LerobotWriter(Writer):
    """Writes a folder of LeRobot's."""

    def __init__(self, path: Path, header: Header, about: Mapping[str, Any]) -> None:
        need("pyarrow.parquet", NAME)
        self._folder, self._header = path, header
        self._about = {"robot_type": None, **about}
        self._fps, self._task = self._about.pop("fps", FPS), self._about.pop("task", TASK)
        if not isinstance(self._fps, int) or isinstance(self._fps, bool) or self._fps < 1:
            raise ValueError(f"about: fps: expected an integer of at least 1, got {self._fps!r}")
        if not isinstance(self._task, str) or not self._task:
            raise ValueError(f"about: task: expected text, got {self._task!r}")
        self._features = features_of(header)
        if any(feature.kind == "image" for feature in self._features.values()):
            need("PIL.Image", NAME)
        flags = [(DONE, FLAG), (TERMINATED, FLAG), (TRUNCATED, FLAG)]
        defaults = [(name, np.dtype(dtype)) for name, dtype in DEFAULTS.items()]
        self._beside = {
            column: Feature(column, Field(column, dtype, ()))
            for column, dtype in (*flags, *defaults)
        }
        self._most = rows_in_chunk(header.row_nbytes, BYTES_AS_PARQUET)
        self._file = _File(self._data_path(0), self._most)
        where = PIECE.format(chunk_index=0, file_index=0)
        self._episodes = _File(path / EPISODES / f"{where}.parquet", MOST_EPISODES)
        self._number = self._row = 0  # of the file, and of all rows
        self._statistics: dict[str, Statistics] = {}

    def _data_path(self, number: int) -> Path:
        chunk, file = divmod(number, FILES_IN_CHUNK)
        return self._folder / DATA_PATH.format(chunk_index=chunk, file_index=file)

    def episode(self, number: int, record: EpisodeRecord, chunks: Iterator[Rows]) -> None:
        """Write the rows of an episode behind those before, all in one file."""
        pa = need("pyarrow", NAME)
        if self._file.nbytes() >= FILE_NBYTES:
            self._file.close()
            self._number += 1
            self._file = _File(self._data_path(self._number), self._most)
        statistics: dict[str, Statistics] = {}
        at = 0
        for rows in chunks:
            n = len(next(iter(rows.values())))
            beside = self._values_beside(number, record, rows, n, at)
            columns = {}
            found = [(feature, rows[name]) for name, feature in self._features.items()]
            found += [(feature, beside[name]) for name, feature in self._beside.items()]
            for feature, values in found:
                values = values.reshape(n, *feature.field.shape)
                columns[feature.column] = feature.to_arrow(values)
                known = statistics.setdefault(feature.column, Statistics())
                known.add(feature.samples(values))
            self._file.add(pa.table(columns))
            at += n
        self._episodes.add(self._about_episode(number, record, statistics))
        for column, known in statistics.items():
            self._statistics.setdefault(column, Statistics()).merge(known)
        self._row += record.length

    def _values_beside(
        self, number: int, record: EpisodeRecord, rows: Rows, n: int, at: int
    ) -> Rows:
        """The columns that are no fields."""
        is_last = at + n == record.length
        terminated, truncated = self._header.last_flags(rows, n, record, is_last=is_last)
        frames = np.arange(at, at + n, dtype=np.int64)
        return {
            DONE: terminated | truncated,
            TERMINATED: terminated,
            TRUNCATED: truncated,
            "timestamp": (frames / self._fps).astype(np.float32),
            "frame_index": frames,
            "episode_index": np.full(n, number, np.int64),
            "index": self._row + frames,
            "task_index": np.zeros(n, np.int64),
        }

    def _about_episode(
        self, number: int, record: EpisodeRecord, statistics: Mapping[str, Statistics]
    ) -> Any:
        """The row that LeRobot has of an episode."""
        pa = need("pyarrow", NAME)
        chunk, file = divmod(self._number, FILES_IN_CHUNK)
        row: dict[str, Any] = {
            "episode_index": number,
            "tasks": [self._task],
            "length": record.length,
            "data/chunk_index": chunk,
            "data/file_index": file,
            "dataset_from_index": self._row,
            "dataset_to_index": self._row + record.length,
            "meta/episodes/chunk_index": 0,
            "meta/episodes/file_index": 0,
        }
        by_column = {feature.column: feature for feature in self._features.values()}
        for column, found in statistics.items():
            feature = by_column.get(column)
            sizes = () if feature is None or feature.kind == "image" else feature.numbers.shape
            if math.prod(sizes) <= MOST_STATISTICS:
                made = found.to_json(feature)
                row |= {f"stats/{column}/{name}": values for name, values in made.items()}
        return pa.Table.from_pylist([row])

    def close(self) -> None:
        """Write the last rows, and what says what they are."""
        self._file.close()
        self._episodes.close()
        info = {
            **self._about,
            "codebase_version": VERSION,
            "total_episodes": len(self._header.episodes),
            "total_frames": self._row,
            "total_tasks": 1,
            "chunks_size": FILES_IN_CHUNK,
            "data_files_size_in_mb": FILE_NBYTES >> 20,
            "video_files_size_in_mb": VIDEO_FILE_MB,
            "fps": self._fps,
            "splits": {"train": f"0:{len(self._header.episodes)}"},
            "data_path": DATA_PATH,
            "video_path": None,
            "features": {
                feature.column: feature.to_json()
                for feature in (*self._features.values(), *self._beside.values())
            },
        }
        by_column = {feature.column: feature for feature in self._features.values()}
        statistics = {
            column: found.to_json(by_column.get(column))
            for column, found in self._statistics.items()
        }
        for name, document in {INFO: info, STATS: statistics}.items():
            (self._folder / name).write_text(json.dumps(document, indent=1), encoding="utf-8")
        self._write_tasks()

    def _write_tasks(self) -> None:
        """The table of tasks, in which the text is the index of a frame of pandas."""
        pa, parquet = need("pyarrow", NAME), need("pyarrow.parquet", NAME)
        index = "__index_level_0__"
        table = pa.table({"task_index": pa.array([0], pa.int64()), index: pa.array([self._task])})
        kinds = {"task_index": ("int64", "int64"), index: ("unicode", "object")}
        columns = [
            {
                "name": None if name == index else name,
                "field_name": name,
                "pandas_type": pandas_type,
                "numpy_type": numpy_type,
                "metadata": None,
            }
            for name, (pandas_type, numpy_type) in kinds.items()
        ]
        pandas = {"index_columns": [index], "column_indexes": [], "columns": columns}
        pandas |= {"creator": {"library": "pyarrow", "version": pa.__version__}}
        schema = table.schema.with_metadata({"pandas": json.dumps(pandas)})
        parquet.write_table(table.cast(schema), self._folder / TASKS)

    def abandon(self) -> None:
        """Close the files."""
        self._file.abandon()
        self._episodes.abandon()


# ---------------------------------------------------------------------- reading


class _Rows:
    """Rows of Parquet files that follow one another, of which one is open at a time."""

    def __init__(self, paths: list[Path], starts: Array, columns: list[str], most: int) -> None:
        self._paths, self._starts = paths, starts
        self._columns, self._most = columns, most
        self._number = -1
        self._file: Any = None
        self._cursor: Any = None

    def read(self, start: int, stop: int) -> Iterator[tuple[Path, Any]]:
        """Batches that have the rows from ``start`` to ``stop``, in order, and their files."""
        while start < stop:
            number = int(np.searchsorted(self._starts, start, side="right")) - 1
            first, end = int(self._starts[number]), int(self._starts[number + 1])
            if number != self._number:
                self.close()
                path = self._paths[number]
                self._file, self._number = _arrow.opened(path), number
                self._cursor = _arrow.Cursor(path, self._file, self._columns, self._most)
            until = min(stop, end)
            for batch in self._cursor.read(start - first, until - first):
                yield self._paths[number], batch
            start = until

    def close(self) -> None:
        """Close the file."""
        self._cursor = None
        if self._file is not None:
            self._file.close()
        self._file, self._number = None, -1


def _starts_of(paths: list[Path]) -> Array:
    """The first row of each file, and the end of all."""
    counts = []
    for path in paths:
        file = _arrow.opened(path)
        with _arrow.reading(path):
            counts.append(file.metadata.num_rows)
        file.close()
    return np.cumsum([0, *counts], dtype=np.int64)


class _Clip(NamedTuple):
    """Where the images of an episode are in a video."""

    path: Path
    start: float


class LerobotReader(Reader):
    """Reads a folder of LeRobot's."""

    header: Header

    def __init__(self, path: Path) -> None:
        need("pyarrow.parquet", NAME)
        self.path = path
        self._folder = path
        self.left_out: list[str] = []
        self._info = self._read_info()
        self._paths = sorted((path / "data").glob("*/*.parquet"))  # as LeRobot orders them
        self._starts = _starts_of(self._paths)
        self._pieces: list[tuple[int, int]] = []  # the number and the first row of each episode
        self._clips: dict[str, list[_Clip]] = {}
        self._features: dict[str, Feature] = {}
        self._rows: _Rows | None = None
        self._videos: dict[str, tuple[Path, Video]] = {}
        try:
            self.header = self._read_header()
            self._try_rows()
        except BaseException:
            self.close()
            raise

    def _read_info(self) -> dict[str, Any]:
        path = self._folder / INFO
        info = load_json(path.read_bytes(), str(path))
        if not isinstance(info, dict) or not isinstance(info.get("features"), dict):
            raise ValueError(f"{path}: expected an object with features")
        version = info.get("codebase_version")
        if not isinstance(version, str) or not version.startswith("v3."):
            raise ValueError(
                f"{path}: expected codebase_version {VERSION}, got {version!r}; LeRobot's "
                "convert_dataset_v21_to_v30 makes one of the other"
            )
        return info

    def _read_header(self) -> Header:
        path = self._folder / INFO
        try:
            header = self._read_features()
        except (AttributeError, KeyError, OverflowError, TypeError) as error:
            raise ValueError(f"{path}: expected features: {error!r}") from None
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        episodes: list[EpisodeRecord] = []
        for place in sorted((self._folder / EPISODES).glob("*/*.parquet")):
            file = _arrow.opened(place)
            try:
                with _arrow.reading(place):
                    episodes += self._read_episodes(place, file)
            finally:
                file.close()
        if not episodes:
            raise ValueError(f"{self._folder}: expected an episode with rows, got none")
        return replace(header, episodes=tuple(episodes))

    def _read_features(self) -> Header:
        found = self._info["features"]
        passed = set(DEFAULTS)
        if self._info.get("total_tasks") != 1:
            passed.discard("task_index")
        if {TERMINATED, TRUNCATED} <= found.keys():
            passed.add(DONE)  # says the same as both
        parts = [column for column in found if _is_part(column, OBSERVATION)]
        is_alone = len(parts) == 1 and parts[0] in ALONE
        columns = {_path_of(column, is_alone=is_alone): column for column in found}
        columns = {path: column for path, column in columns.items() if column not in passed}

        def field_of(path: Parts, name: str) -> Field | str:
            feature = feature_of(columns[path], name, found[columns[path]])
            if feature is None or not self._is_there(feature):
                return _told(found[columns[path]]["dtype"])
            self._features[name] = feature
            return feature.field

        builder = HeaderBuilder(ROLES, self.left_out, makes_next=True, takes_next=True, mark=".")
        builder.add(columns, field_of)
        if not any(feature.field.nbytes for feature in self._features.values()):
            raise ValueError(
                f"expected features of numbers or images, got {list(columns.values())}"
            )
        return builder.header()

    def _is_there(self, feature: Feature) -> bool:
        """Whether what reads a feature is installed: frames of videos need PyAV."""
        if feature.kind != "video":
            return True
        key = feature.column
        if "/" in key or "\\" in key or feature.image_shape[2] != 3:
            return False
        try:
            need("av", NAME)
        except ImportError:
            return False
        self._clips[feature.field.name] = []
        return True

    def _read_episodes(self, place: Path, file: Any) -> Iterator[EpisodeRecord]:
        """The episodes of a file, and where their rows and their frames are."""
        numbers = ["episode_index", "dataset_from_index", "dataset_to_index"]
        videos = {
            name: [
                f"videos/{self._features[name].column}/{key}"
                for key in ("chunk_index", "file_index", "from_timestamp")
            ]
            for name in self._clips
        }
        columns = [*numbers, *(column for found in videos.values() for column in found)]
        lacking = [column for column in columns if column not in file.schema_arrow.names]
        if lacking:
            raise ValueError(f"{place}: expected the columns {lacking}")
        total = int(self._starts[-1])
        for batch in file.iter_batches(1 << 12, columns=columns):
            found = {
                column: _arrow.flat(batch.column(column), column)[0].tolist() for column in columns
            }
            for k in range(len(batch)):
                number, start, stop = (found[column][k] for column in numbers)
                if not 0 <= start <= stop <= total:
                    raise ValueError(
                        f"{place}: episode {number}: expected rows of 0 to {total}, "
                        f"got {start} to {stop}"
                    )
                if start == stop:
                    continue
                self._pieces.append((number, start))
                for name, (chunk, piece, when) in videos.items():
                    path = self._folder / VIDEO_PATH.format(
                        video_key=self._features[name].column,
                        chunk_index=found[chunk][k],
                        file_index=found[piece][k],
                    )
                    self._clips[name].append(_Clip(path, float(found[when][k])))
                yield EpisodeRecord(stop - start)

    # ------------------------------------------------------------------ rows

    def _columns(self) -> list[str]:
        features = self._features.values()
        stored = [feature.column for feature in features if feature.kind != "video"]
        timed = ["timestamp"] if self._clips else []
        return list(dict.fromkeys(["episode_index", *stored, *timed]))

    def _try_rows(self) -> None:
        """Read a row, so that sizes that files only claim are known before memory is taken.

        Read the last one too: the newest episode is open if the files mark ends, and none there.
        """
        for _ in self.rows(0, 1):
            break
        header = self.header
        if DONE in self._info["features"]:
            number, last = len(self._pieces) - 1, header.episodes[-1]
            start = last.length - 1
            (rows,) = self._read(number, 1, start)
            if not np.any(header.ends.flags(rows, 1)):
                episodes = (*header.episodes[:-1], replace(last, is_open=True))
                self.header = replace(header, episodes=episodes)
        self.close()

    def rows(self, number: int, most: int) -> Iterator[Rows]:
        """The rows of an episode."""
        return with_next(self._read(number, most), self.header.chained)

    def _read(self, number: int, most: int, skip: int = 0) -> Iterator[Rows]:
        """The rows of an episode from one on, as far as they have columns."""
        index, start = self._pieces[number]
        if self._rows is None:
            self._rows = _Rows(self._paths, self._starts, self._columns(), most)
        stop = start + self.header.episodes[number].length
        for path, batch in self._rows.read(start + skip, stop):
            with _arrow.reading(path):
                rows = self._values(batch, number, index)
            yield rows

    def _values(self, batch: Any, number: int, index: int) -> Rows:
        lacking = [name for name in self._columns() if name not in batch.schema.names]
        if lacking:
            raise ValueError(f"expected the columns {lacking}")
        found = _arrow.flat(batch.column("episode_index"), "episode_index")[0]
        if (found != index).any():
            raise ValueError(f"episode_index: expected {index}, got {found[:5].tolist()}")
        rows: Rows = {}
        for name, feature in self._features.items():
            if feature.kind != "video":
                rows[name] = feature.from_arrow(batch.column(feature.column))
        for name, clips in self._clips.items():
            times = _arrow.flat(batch.column("timestamp"), "timestamp")[0].astype(np.float64)
            video = self._video(name, clips[number].path)
            rows[name] = video.frames((times + clips[number].start).tolist())
        return rows

    def _video(self, name: str, path: Path) -> Video:
        if name not in self._videos or self._videos[name][0] != path:
            if name in self._videos:
                self._videos.pop(name)[1].close()
            fps = self._info.get("fps")
            if isinstance(fps, bool) or not isinstance(fps, int | float) or not fps > 0:
                raise ValueError(f"{self._folder / INFO}: expected fps, got {fps!r}")
            shape = self._features[name].image_shape
            self._videos[name] = path, Video(path, shape, 0.5 / fps)
        return self._videos[name][1]

    def close(self) -> None:
        """Close the files."""
        if self._rows is not None:
            self._rows.close()
            self._rows = None
        for _, video in self._videos.values():
            video.close()
        self._videos.clear()


def _is_part(column: str, role: str) -> bool:
    return column == role or column.startswith(f"{role}.")


def _told(dtype: str) -> str:
    """What is said of a feature that is left out."""
    if dtype != "video":
        return dtype
    return "video of three channels, which needs av: pip install 'cpprb_like[video]'"


def _path_of(column: str, *, is_alone: bool) -> Parts:
    """The path of a column, whose first part is one of ``ROLES`` or the whole column."""
    for role in (OBSERVATION, "action"):
        if _is_part(column, role):
            is_whole = is_alone and role == OBSERVATION
            return (role,) if is_whole else tuple(column.split("."))
    return (column,)


class LeRobot(Format):
    """See ``Format``."""

    name = NAME
    reader, writer = LerobotReader, LerobotWriter
    lacks = (CUT, FINAL)

    def holds(self, field: Field) -> bool:
        """Whether the values of a field can be written."""
        return is_held(field)

    def told_by(self, path: Path) -> bool:
        """Whether a path is one of this format."""
        return path.is_dir() and (path / INFO).is_file()


FORMAT = LeRobot()
