"""LeRobot 3.0: a folder of Parquet files with a row for each frame, and ``meta/``.

``observation.*``, ``action``, ``next.reward``, ``next.done``, ``next.terminated``,
``next.truncated``; every other field is a feature ``cpprb_like.NAME``. LeRobot has no place for
final observations: these are in ``meta/cpprb_like.parquet``, a row for each episode, and our
metadata in ``meta/cpprb_like.json``. Not here: what is in a column (``_lerobot_features``).
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
from cpprb_like.datasets._format import Format, Reader, Writer
from cpprb_like.datasets._from_buffer import rows_in_chunk
from cpprb_like.datasets._lerobot_features import (
    DEFAULTS,
    DONE,
    NAME,
    OURS,
    REWARD,
    TERMINATED,
    TRUNCATED,
    Feature,
    Statistics,
    feature_of,
    features_of,
)
from cpprb_like.datasets._model import (
    Array,
    Ends,
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
METADATA, FINAL = "meta/cpprb_like.json", "meta/cpprb_like.parquet"
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
NAMES = {
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
        taken = {feature.column for feature in self._features.values()}
        self._beside = {
            column: Feature(column, Field(column, dtype, ()))
            for column, dtype in (*flags, *defaults)
            if column not in taken
        }
        self._most = rows_in_chunk(header.row_nbytes, BYTES_AS_PARQUET)
        self._file = _File(self._data_path(0), self._most)
        self._final = _File(path / FINAL, self._most) if header.chained else None
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
                if not feature.column.startswith(f"{OURS}."):
                    known = statistics.setdefault(feature.column, Statistics())
                    known.add(feature.samples(values))
            self._file.add(pa.table(columns))
            at += n
            if at == record.length and self._final is not None:
                self._final.add(pa.table(self._final_columns(rows)))
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

    def _final_columns(self, rows: Rows) -> dict[str, Any]:
        """The final observation: a copy, so that the rows before it are let go."""
        return {
            self._features[name].column: self._features[name].to_arrow(rows[following][-1:].copy())
            for name, following in self._header.chained.items()
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
        for file in self._files():
            file.close()
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
        documents = {INFO: info, STATS: statistics, METADATA: {OURS: self._header.to_json()}}
        for name, document in documents.items():
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

    def _files(self) -> list[_File]:
        return [file for file in (self._file, self._final, self._episodes) if file is not None]

    def abandon(self) -> None:
        """Close the files."""
        for file in self._files():
            file.abandon()


# ---------------------------------------------------------------------- reading


class _Opened:
    """Parquet files, each open while somebody reads it; environments share them."""

    def __init__(self) -> None:
        self._files: dict[Path, Any] = {}
        self._readers: dict[Path, int] = {}

    def take(self, path: Path) -> Any:
        """A file, for one reader more."""
        if path not in self._files:
            self._files[path] = _arrow.opened(path)
        self._readers[path] = self._readers.get(path, 0) + 1
        return self._files[path]

    def give_back(self, path: Path) -> None:
        """A file, for one reader less."""
        self._readers[path] -= 1
        if not self._readers[path]:
            self._files.pop(path).close()


class _Rows:
    """Rows of Parquet files that follow one another, from one of them at a time."""

    def __init__(
        self,
        opened: _Opened,
        paths: list[Path],
        starts: Array,
        columns: list[str],
        most: int,
    ) -> None:
        self._opened, self._paths, self._starts = opened, paths, starts
        self._columns, self._most = columns, most
        self._number = -1
        self._cursor: Any = None

    def read(self, start: int, stop: int) -> Iterator[tuple[Path, Any]]:
        """Batches that have the rows from ``start`` to ``stop``, in order, and their files."""
        while start < stop:
            number = int(np.searchsorted(self._starts, start, side="right")) - 1
            first, end = int(self._starts[number]), int(self._starts[number + 1])
            if number != self._number:
                self.close()
                path = self._paths[number]
                file = self._opened.take(path)
                self._number = number
                self._cursor = _arrow.Cursor(path, file, self._columns, self._most)
            until = min(stop, end)
            for batch in self._cursor.read(start - first, until - first):
                yield self._paths[number], batch
            start = until

    def close(self) -> None:
        """Give back the file."""
        self._cursor = None
        if self._number >= 0:
            self._opened.give_back(self._paths[self._number])
        self._number = -1


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
    """Reads a folder of LeRobot's, ours or another."""

    header: Header

    def __init__(self, path: Path) -> None:
        need("pyarrow.parquet", NAME)
        self._folder = path
        self.left_out: list[str] = []
        self._info = self._read_info()
        self._paths = sorted((path / "data").glob("*/*.parquet"))  # as LeRobot orders them
        self._starts = _starts_of(self._paths)
        self._pieces: list[tuple[int, int]] = []  # the number and the first row of each episode
        self._clips: dict[str, list[_Clip]] = {}
        self._follows: dict[str, str] = {}
        self._opened = _Opened()
        self._open: dict[int, _Rows] = {}  # by environment
        self._final: dict[int, _Rows] = {}
        self._is_ours = (path / METADATA).is_file()
        self._videos: dict[str, tuple[Path, Video]] = {}
        try:
            if self._is_ours:
                self._read_ours()
            else:
                self._read_foreign()
            self._try_a_row()
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

    def _read_ours(self) -> None:
        path = self._folder / METADATA
        found = load_json(path.read_bytes(), str(path))
        if not isinstance(found, dict):
            raise ValueError(f"{path}: expected an object, got {found!r}")
        try:
            self.header = header = Header.from_json(found.get(OURS))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        total = int(self._starts[-1])
        if total != header.rows:
            raise ValueError(
                f"{self._folder}: expected {header.rows} rows, as {METADATA} says, got {total}; "
                "without that file it is read as one of LeRobot's own"
            )
        self._features = features_of(header)
        self._follows = {following: name for name, following in header.chained.items()}
        lengths = [episode.length for episode in header.episodes]
        starts = np.cumsum([0, *lengths]).tolist()
        self._pieces = list(enumerate(starts[:-1]))
        if self._follows:
            self._final_path = self._folder / FINAL
            self._final_starts = _starts_of([self._final_path])
            if int(self._final_starts[-1]) != len(lengths):
                raise ValueError(f"{self._final_path}: expected {len(lengths)} rows")

    # ------------------------------------------------------------------ files of others

    def _read_foreign(self) -> None:
        path = self._folder / INFO
        try:
            self._read_features()
        except (AttributeError, KeyError, OverflowError, TypeError) as error:
            raise ValueError(f"{path}: expected features: {error!r}") from None
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        episodes: list[EpisodeRecord] = []
        tables = sorted((self._folder / EPISODES).glob("*/*.parquet"))
        for place in tables:
            file = _arrow.opened(place)
            try:
                with _arrow.reading(place):
                    episodes += self._read_episodes(place, file)
            finally:
                file.close()
        if not episodes:
            raise ValueError(f"{self._folder}: expected an episode with rows, got none")
        self.header = replace(self.header, episodes=tuple(episodes))

    def _read_features(self) -> None:
        found = self._info["features"]
        kept = [column for column in found if column not in DEFAULTS]
        if self._info.get("total_tasks") != 1 and "task_index" in found:
            kept.append("task_index")
        parts = [column for column in kept if _is_part(column, "observation")]
        is_alone = len(parts) == 1 and parts[0] in ALONE
        self._features = {}
        groups: dict[str, dict[str, Parts]] = {"observation": {}, "action": {}}
        for column in kept:
            name, group = _name_of(column, is_alone=is_alone)
            while name in self._features:
                name = f"{NAME}.{name}"
            feature = feature_of(column, name, found[column])
            if feature is None or not self._is_there(feature):
                self.left_out.append(f"{column} ({_told(found[column]['dtype'])})")
                continue
            self._features[name] = feature
            if group:
                groups[group][name] = tuple(column.split(".")[1:])
        if not any(feature.field.nbytes for feature in self._features.values()):
            raise ValueError(f"expected features of numbers or images, got {kept}")
        fields = {name: feature.field for name, feature in self._features.items()}
        for name in groups["observation"]:
            following = f"next_{name}"
            if following in fields:
                continue
            self._follows[following] = name
            fields[following] = replace(fields[name], name=following)
        self.unknown = tuple(self._follows)
        known = [name for name in ("terminated", "done", "truncated") if name in fields]
        known = [name for name in known if fields[name].can_end]
        terminated = next((name for name in known if name != "truncated"), None)
        ends = Ends(terminated, "truncated" if "truncated" in known else None)
        self.header = Header(
            tuple(fields.values()), (), 1, groups["observation"], groups["action"], ends=ends
        )

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
                yield EpisodeRecord(0, stop - start)

    # ------------------------------------------------------------------ rows

    def _columns(self) -> list[str]:
        features = self._features.values()
        stored = [feature.column for feature in features if feature.kind != "video"]
        timed = ["timestamp"] if self._clips else []
        return list(dict.fromkeys(["episode_index", *stored, *timed]))

    def _try_a_row(self) -> None:
        """Read a row, so that sizes that files only claim are known before memory is taken."""
        for _ in self.rows(0, 1):
            break
        for cursors in (self._open, self._final):
            for cursor in cursors.values():
                cursor.close()
            cursors.clear()

    def rows(self, number: int, most: int) -> Iterator[Rows]:
        """The rows of an episode."""
        record = self.header.episodes[number]
        index, start = self._pieces[number]
        if record.env not in self._open:
            self._open[record.env] = _Rows(
                self._opened, self._paths, self._starts, self._columns(), most
            )
        held: Rows | None = None  # until the row after the last one is known
        for path, batch in self._open[record.env].read(start, start + record.length):
            with _arrow.reading(path):
                rows = self._values(batch, number, index)
            if not self._follows:
                yield rows
                continue
            if held is not None:
                yield with_next(held, rows, self._follows)
            held = rows
        if held is not None:
            yield with_next(held, self._final_of(number, most), self._follows)

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
                values = feature.from_arrow(batch.column(feature.column))
                rows[name] = values.reshape(len(batch), *self.header[name].shape)
        for name, clips in self._clips.items():
            times = _arrow.flat(batch.column("timestamp"), "timestamp")[0].astype(np.float64)
            video = self._video(name, clips[number].path)
            frames = video.frames((times + clips[number].start).tolist())
            rows[name] = self._features[name].from_images(frames)
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

    def _final_of(self, number: int, most: int) -> Rows | None:
        """The final observation of an episode, which only our files have."""
        if not self._is_ours:
            return None
        names = self.header.chained
        columns = [self._features[name].column for name in names]
        env = self.header.episodes[number].env
        if env not in self._final:
            paths, starts = [self._final_path], self._final_starts
            self._final[env] = _Rows(self._opened, paths, starts, columns, most)
        rows: Rows = {}
        for path, batch in self._final[env].read(number, number + 1):
            with _arrow.reading(path):
                rows = {
                    name: self._features[name].from_arrow(batch.column(self._features[name].column))
                    for name in names
                }
        return rows

    def close(self) -> None:
        """Close the files."""
        for rows in (*self._open.values(), *self._final.values()):
            rows.close()
        for _, video in self._videos.values():
            video.close()


def _is_part(column: str, role: str) -> bool:
    return column == role or column.startswith(f"{role}.")


def _told(dtype: str) -> str:
    """What is said of a feature that is left out."""
    if dtype != "video":
        return dtype
    return "video of three channels, which needs av: pip install 'cpprb_like[video]'"


def _name_of(column: str, *, is_alone: bool) -> tuple[str, str]:
    """The name of a field, and the group that it is of: observation, action, or none."""
    rest = ".".join(column.split(".")[1:])
    if _is_part(column, "observation"):
        return ("obs" if is_alone or not rest else f"obs.{rest}"), "observation"
    if _is_part(column, "action"):
        return (f"act.{rest}" if rest else "act"), "action"
    return NAMES.get(column, column), ""


class LeRobot(Format):
    """See ``Format``."""

    name = NAME

    def told_by(self, path: Path) -> bool:
        """Whether a path is one of this format."""
        return path.is_dir() and (path / INFO).is_file()

    def open_writer(self, path: Path, header: Header, about: Mapping[str, Any]) -> LerobotWriter:
        """A writer of this format."""
        return LerobotWriter(path, header, about)

    def open_reader(self, path: Path) -> LerobotReader:
        """A reader of this format."""
        return LerobotReader(path)


FORMAT = LeRobot()
