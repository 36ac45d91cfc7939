"""LeRobot 3.0: a folder of Parquet files with a row for each frame, and ``meta/``.

``observation.*``, ``action``, ``next.reward``, ``next.done``, ``next.terminated``,
``next.truncated``; every other field is a feature of its name. LeRobot has no place for the
observation after the last step of an episode. Not here: what is in a column
(``_lerobot_features``).
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cpprb_like.datasets import _arrow
from cpprb_like.datasets._files import need, reading
from cpprb_like.datasets._format import CUT, FINAL, Format, Reader, Steps, Writer
from cpprb_like.datasets._from_buffer import rows_in_chunk
from cpprb_like.datasets._header_builder import HeaderBuilder
from cpprb_like.datasets._lerobot_features import (
    DEFAULTS,
    DONE,
    NAME,
    OBSERVATION,
    ROLES,
    TERMINATED,
    TRUNCATED,
    Feature,
    Statistics,
    feature_of,
    features_of,
    is_held,
)
from cpprb_like.datasets._model import (
    FLAG,
    EpisodeRecord,
    Field,
    Header,
    Place,
    Rows,
    load_json,
)
from cpprb_like.datasets._video import Video

__all__ = ["FORMAT"]

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
BYTES_AS_PARQUET = 8  # bytes that an integer of one byte takes while it is written, with its levels
MOST_EPISODES = 256  # whose metadata wait to be written
MOST_STATISTICS = 256  # numbers of a feature that has statistics of each episode
ALONE = ("observation", "observation.state", "observation.image")


# ---------------------------------------------------------------------- writing


class LerobotWriter(Writer):
    """Writes a folder of LeRobot's."""

    flags = ((TERMINATED,), (TRUNCATED,))

    def __init__(self, path: Path, header: Header, about: Mapping[str, Any]) -> None:
        need("pyarrow.parquet", NAME)
        found = features_of(header)
        super().__init__(header, {name: (feature.column,) for name, feature in found.items()})
        self._folder, self._about = path, {"robot_type": None, **about}
        self._fps, self._task = self._about.pop("fps", FPS), self._about.pop("task", TASK)
        if not isinstance(self._fps, int) or isinstance(self._fps, bool) or self._fps < 1:
            raise ValueError(f"about: fps: expected an integer of at least 1, got {self._fps!r}")
        if not isinstance(self._task, str) or not self._task:
            raise ValueError(f"about: task: expected text, got {self._task!r}")
        if any(feature.kind == "image" for feature in found.values()):
            need("PIL.Image", NAME)
        made = {column: np.dtype(dtype) for column, dtype in DEFAULTS.items()}
        made |= dict.fromkeys((DONE, TERMINATED, TRUNCATED), FLAG)
        features = [*found.values()]
        features += [Feature(column, Field(column, dtype, ())) for column, dtype in made.items()]
        self._features = {feature.column: feature for feature in features}
        self._most = rows_in_chunk(header.row_nbytes, BYTES_AS_PARQUET)
        self._file = self._new_file(self._data_path(0), self._most)
        where = PIECE.format(chunk_index=0, file_index=0)
        self._episodes = self._new_file(path / EPISODES / f"{where}.parquet", MOST_EPISODES)
        self._number = self._row = 0  # of the file, and of all rows
        self._statistics: dict[str, Statistics] = {}

    def _new_file(self, path: Path, most: int) -> _arrow.ParquetWriter:
        known = ["episode_index"]
        return _arrow.ParquetWriter(path, most, use_dictionary=False, write_statistics=known)

    def _data_path(self, number: int) -> Path:
        chunk, file = divmod(number, FILES_IN_CHUNK)
        return self._folder / DATA_PATH.format(chunk_index=chunk, file_index=file)

    def begin(self) -> None:
        """Begin a file if the last one is full: an episode is in one."""
        if self._file.nbytes() >= FILE_NBYTES:
            self._file.close()
            self._number += 1
            self._file = self._new_file(self._data_path(self._number), self._most)
        self._samples: dict[str, Statistics] = {column: Statistics() for column in self._features}

    def steps(self, at: int, steps: Steps) -> None:
        """Write rows behind those before."""
        terminated, truncated = (steps[path] for path in self.flags)
        n = len(terminated)
        frames = np.arange(at, at + n, dtype=np.int64)
        found: Rows = {column: values for (column,), values in steps.items()}
        found |= {
            DONE: terminated | truncated,
            "timestamp": (frames / self._fps).astype(np.float32),
            "frame_index": frames,
            "episode_index": np.full(n, self.number, np.int64),
            "index": self._row + frames,
            "task_index": np.zeros(n, np.int64),
        }
        columns = {}
        for column, feature in self._features.items():
            columns[column] = feature.to_arrow(found[column])
            self._samples[column].add(feature.samples(found[column]))
        self._file.add(columns)

    def end(self, final: Steps) -> None:
        """Write the row that LeRobot has of an episode."""
        del final
        pa = need("pyarrow", NAME)
        stop = self._row + self.record.length
        chunk, file = divmod(self._number, FILES_IN_CHUNK)
        row: dict[str, Any] = {
            "episode_index": self.number,
            "tasks": [self._task],
            "length": self.record.length,
            "data/chunk_index": chunk,
            "data/file_index": file,
            "dataset_from_index": self._row,
            "dataset_to_index": stop,
            "meta/episodes/chunk_index": 0,
            "meta/episodes/file_index": 0,
        }
        for column, found in self._samples.items():
            feature = self._features[column]
            sizes = () if feature.kind == "image" else feature.numbers.shape
            if math.prod(sizes) <= MOST_STATISTICS:
                made = found.to_json(feature)
                row |= {f"stats/{column}/{name}": values for name, values in made.items()}
            self._statistics.setdefault(column, Statistics()).merge(found)
        self._episodes.add({key: pa.array([value]) for key, value in row.items()})
        self._row = stop

    def close(self) -> None:
        """Write the last rows, and what says what they are."""
        self._file.close()
        self._episodes.close()
        info = {
            **self._about,
            "codebase_version": VERSION,
            "total_episodes": len(self.header.episodes),
            "total_frames": self._row,
            "total_tasks": 1,
            "chunks_size": FILES_IN_CHUNK,
            "data_files_size_in_mb": FILE_NBYTES >> 20,
            "video_files_size_in_mb": VIDEO_FILE_MB,
            "fps": self._fps,
            "splits": {"train": f"0:{len(self.header.episodes)}"},
            "data_path": DATA_PATH,
            "video_path": None,
            "features": {column: one.to_json() for column, one in self._features.items()},
        }
        statistics = {
            column: found.to_json(self._features[column])
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


class _Clip(NamedTuple):
    """Where the images of an episode are in a video."""

    path: Path
    start: float


class _Span(NamedTuple):
    """Where an episode is: the number that its rows have, its first row, and its images."""

    number: int
    start: int
    clips: dict[str, _Clip]


class LerobotReader(Reader):
    """Reads a folder of LeRobot's."""

    def __init__(self, path: Path, split: str | None = None) -> None:
        super().__init__(path, split)
        need("pyarrow.parquet", NAME)
        self._files = _arrow.ParquetFiles(sorted((path / "data").glob("*/*.parquet")))
        self._videos: dict[str, tuple[Path, Video]] = {}

    def load(self) -> None:
        """Read all but the rows, and a row, before memory is taken for sizes that files claim.

        Read the last one too: the newest episode is open if the files mark ends, and none there.
        """
        super().load()
        for _ in self.rows(0, 1):
            break
        header = self.header
        if DONE in self._info["features"]:
            last = header.episodes[-1]
            (rows,) = self.read(len(self.spans) - 1, 1, last.length - 1)
            if not np.any(header.ends.flags(rows, 1)):
                episodes = (*header.episodes[:-1], replace(last, is_open=True))
                self.header = replace(header, episodes=episodes)
        self.close()

    def read_fields(self) -> HeaderBuilder:
        """The features of ``info.json``."""
        path = self.path / INFO
        info = load_json(path.read_bytes(), str(path))
        if not isinstance(info, dict) or not isinstance(info.get("features"), dict):
            raise ValueError(f"{path}: expected an object with features")
        version = info.get("codebase_version")
        if not isinstance(version, str) or not version.startswith("v3."):
            raise ValueError(
                f"{path}: expected codebase_version {VERSION}, got {version!r}; LeRobot's "
                "convert_dataset_v21_to_v30 makes one of the other"
            )
        self._info = info
        with reading(path):
            return self._read_features(info["features"])

    def _read_features(self, found: Mapping[str, Any]) -> HeaderBuilder:
        passed = set(DEFAULTS)
        if self._info.get("total_tasks") != 1:
            passed.discard("task_index")
        if {TERMINATED, TRUNCATED} <= found.keys():
            passed.add(DONE)  # says the same as both
        parts = [column for column in found if _is_part(column, OBSERVATION)]
        is_alone = len(parts) == 1 and parts[0] in ALONE
        columns = {_path_of(column, is_alone=is_alone): column for column in found}
        columns = {path: column for path, column in columns.items() if column not in passed}
        self._features: dict[str, Feature] = {}

        def field_of(path: Place, name: str) -> Field | str:
            feature = feature_of(columns[path], name, found[columns[path]])
            if feature is None or not self._is_there(feature):
                return _reason(found[columns[path]]["dtype"])
            self._features[name] = feature
            return feature.field

        builder = HeaderBuilder(ROLES, self.left_out, makes_next=True, takes_next=True, mark=".")
        builder.add(columns, field_of)
        if not any(feature.field.nbytes for feature in self._features.values()):
            raise ValueError(
                f"expected features of numbers or images, got {list(columns.values())}"
            )
        return builder

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
        return True

    def read_episodes(self) -> Iterator[tuple[EpisodeRecord, _Span]]:
        """The episodes of all files, and where their rows and their frames are."""
        numbers = ["episode_index", "dataset_from_index", "dataset_to_index"]
        filmed = [name for name, feature in self._features.items() if feature.kind == "video"]
        videos = {
            name: [
                f"videos/{self._features[name].column}/{key}"
                for key in ("chunk_index", "file_index", "from_timestamp")
            ]
            for name in filmed
        }
        columns = [*numbers, *(column for found in videos.values() for column in found)]

        def values_of(batch: Any) -> Rows:
            lacking = [column for column in columns if column not in batch.schema.names]
            if lacking:
                raise ValueError(f"expected the columns {lacking}")
            return {column: _arrow.flat(batch.column(column), column)[0] for column in columns}

        total = int(self._files.starts[-1])
        files = _arrow.ParquetFiles(sorted((self.path / EPISODES).glob("*/*.parquet")))
        with contextlib.closing(files):
            for rows in files.read(0, int(files.starts[-1]), columns, 1 << 12, values_of):
                found = {column: values.tolist() for column, values in rows.items()}
                indexes = zip(*(found[column] for column in numbers), strict=True)
                for k, (number, start, stop) in enumerate(indexes):
                    if not 0 <= start <= stop <= total:
                        raise ValueError(
                            f"{self.path / EPISODES}: episode {number}: expected rows of 0 to "
                            f"{total}, got {start} to {stop}"
                        )
                    clips = {}
                    for name, keys in videos.items():
                        chunk, piece, when = (found[key][k] for key in keys)
                        where = VIDEO_PATH.format(
                            video_key=self._features[name].column,
                            chunk_index=chunk,
                            file_index=piece,
                        )
                        clips[name] = _Clip(self.path / where, float(when))
                    yield EpisodeRecord(stop - start), _Span(number, start, clips)

    def read(self, number: int, most: int, skip: int = 0) -> Iterator[Rows]:
        """The rows of an episode from one on, as far as they have columns."""
        span, length = self.spans[number], self.header.episodes[number].length
        stored = [one.column for one in self._features.values() if one.kind != "video"]
        timed = ["timestamp"] if span.clips else []
        columns = list(dict.fromkeys(["episode_index", *stored, *timed]))

        def values_of(batch: Any) -> Rows:
            lacking = [name for name in columns if name not in batch.schema.names]
            if lacking:
                raise ValueError(f"expected the columns {lacking}")
            found = _arrow.flat(batch.column("episode_index"), "episode_index")[0]
            if (found != span.number).any():
                raise ValueError(f"episode_index: expected {span.number}, got {found[:5].tolist()}")
            rows = {
                name: feature.from_arrow(batch.column(feature.column))
                for name, feature in self._features.items()
                if feature.kind != "video"
            }
            for name, clip in span.clips.items():
                times = _arrow.flat(batch.column("timestamp"), "timestamp")[0].astype(np.float64)
                rows[name] = self._video(name, clip.path).frames((times + clip.start).tolist())
            return rows

        return self._files.read(span.start + skip, span.start + length, columns, most, values_of)

    def _video(self, name: str, path: Path) -> Video:
        if name not in self._videos or self._videos[name][0] != path:
            if name in self._videos:
                self._videos.pop(name)[1].close()
            fps = self._info.get("fps")
            if isinstance(fps, bool) or not isinstance(fps, int | float) or not fps > 0:
                raise ValueError(f"{self.path / INFO}: expected fps, got {fps!r}")
            shape = self._features[name].image_shape
            self._videos[name] = path, Video(path, shape, 0.5 / fps)
        return self._videos[name][1]

    def close(self) -> None:
        """Close the files."""
        self._files.close()
        for _, video in self._videos.values():
            video.close()
        self._videos.clear()


def _is_part(column: str, role: str) -> bool:
    return column == role or column.startswith(f"{role}.")


def _reason(dtype: str) -> str:
    """The reason why a feature is left out."""
    if dtype != "video":
        return dtype
    return "video of three channels, which needs av: pip install 'cpprb_like[video]'"


def _path_of(column: str, *, is_alone: bool) -> Place:
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

    def matches(self, path: Path) -> bool:
        """Whether the files at a path are of this format."""
        return path.is_dir() and (path / INFO).is_file()


FORMAT = LeRobot()
