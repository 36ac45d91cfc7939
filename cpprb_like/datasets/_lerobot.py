"""LeRobot 3.0: a folder of Parquet files with a row for each frame, and ``meta/``.

``observation.*``, ``action``, ``next.reward``, ``next.done``, ``next.terminated``,
``next.truncated``; every other field is a feature of its name. LeRobot has no place for the
observation after the last step of an episode. Not here: what is in a column
(``_lerobot_features``).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

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

__all__ = ["FORMAT"]

VERSION = "v3.0"
INFO, STATS = "meta/info.json", "meta/stats.json"
TASKS, EPISODES = "meta/tasks.parquet", "meta/episodes"
PIECE = "chunk-{chunk_index:03d}/file-{file_index:03d}"
DATA_PATH = f"data/{PIECE}.parquet"
FILES_IN_CHUNK = 1000
FILE_NBYTES = 100 << 20
VIDEO_FILE_MB = 200
TASK = "from_replay_buffer"  # as LeRobot's own replay buffer says
FPS = 1
BYTES_AS_PARQUET = 8  # bytes that an integer of one byte takes while it is written, with its levels
MOST_EPISODES = 256  # whose metadata wait to be written
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
        if any(feature.is_image for feature in found.values()):
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
        self._statistics = {column: Statistics() for column in self._features}

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
            self._statistics[column].add(feature.samples(found[column]))
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


class LerobotReader(Reader):
    """Reads a folder of LeRobot's."""

    def __init__(self, path: Path, split: str | None = None) -> None:
        super().__init__(path, split)
        need("pyarrow.parquet", NAME)
        self._files = _arrow.ParquetFiles(sorted((path / "data").glob("*/*.parquet")))

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
            if feature is None:
                return str(found[columns[path]]["dtype"])
            self._features[name] = feature
            return feature.field

        builder = HeaderBuilder(ROLES, self.left_out, makes_next=True, takes_next=True, mark=".")
        builder.add(columns, field_of)
        if not any(feature.field.nbytes for feature in self._features.values()):
            raise ValueError(
                f"expected features of numbers or images, got {list(columns.values())}"
            )
        return builder

    def read_episodes(self) -> Iterator[tuple[EpisodeRecord, tuple[int, int]]]:
        """The episodes of all files; the number that its rows have, and its first row."""
        columns = ["episode_index", "dataset_from_index", "dataset_to_index"]
        total = int(self._files.starts[-1])
        folder = self.path / EPISODES
        files = _arrow.ParquetFiles(sorted(folder.glob("*/*.parquet")))

        def values_of(batch: Any) -> Rows:
            return {name: _arrow.flat(batch.column(name), name)[0] for name in columns}

        with contextlib.closing(files):
            for rows in files.read(0, int(files.starts[-1]), columns, 1 << 12, values_of):
                found = (rows[name].tolist() for name in columns)
                for number, start, stop in zip(*found, strict=True):
                    if not 0 <= start <= stop <= total:
                        raise ValueError(
                            f"{folder}: episode {number}: expected rows of 0 to {total}, got "
                            f"{start} to {stop}"
                        )
                    yield EpisodeRecord(stop - start), (number, start)

    def read(self, number: int, most: int, skip: int = 0) -> Iterator[Rows]:
        """The rows of an episode from one on, as far as they have columns."""
        (index, start), length = self.spans[number], self.header.episodes[number].length
        columns = ["episode_index", *(one.column for one in self._features.values())]

        def values_of(batch: Any) -> Rows:
            found = _arrow.flat(batch.column("episode_index"), "episode_index")[0]
            if (found != index).any():
                raise ValueError(f"episode_index: expected {index}, got {found[:5].tolist()}")
            return {
                name: feature.from_arrow(batch.column(feature.column))
                for name, feature in self._features.items()
            }

        columns = list(dict.fromkeys(columns))
        return self._files.read(start + skip, start + length, columns, most, values_of)

    def close(self) -> None:
        """Close the file."""
        self._files.close()


def _is_part(column: str, role: str) -> bool:
    return column == role or column.startswith(f"{role}.")


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
