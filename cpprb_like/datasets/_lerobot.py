"""LeRobot 3.0: a folder of Parquet files with a row for each frame, and ``meta/``.

The features are ``observation.*``, ``action``, ``next.reward``, ``next.done``, ``next.terminated``
and ``next.truncated``. Any other field is a feature of its name: numbers in lists, or images as
PNG. A field of text is the task of each frame, and read as ``task``. Videos are read, and not
written. LeRobot does not store the observation after the last step of an episode. Not here: PNG
(``_images``).
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Collection, Generator, Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cpprb_like._machine.opening import open_regular, read_bytes
from cpprb_like.datasets import _arrow
from cpprb_like.datasets._files import converted, is_native, need, reading
from cpprb_like.datasets._format import CUT, FINAL, LISTS, Format, Reader, Steps, Writer
from cpprb_like.datasets._images import COLORS, decoded, encoded
from cpprb_like.datasets._model import (
    FLAG,
    Array,
    EpisodeRecord,
    Field,
    Header,
    HeaderBuilder,
    Place,
    Rows,
    load_json,
    text_field,
)

NAME = "lerobot"
DEFAULTS = {
    "timestamp": "float32",
    "frame_index": "int64",
    "episode_index": "int64",
    "index": "int64",
    "task_index": "int64",
}
HUB = "datasets--"  # how names of folders begin in the cache of downloads
REWARD, DONE = "next.reward", "next.done"
TERMINATED, TRUNCATED = "next.terminated", "next.truncated"
OBSERVATION = "observation"
ROLES = {
    OBSERVATION: "obs",
    "action": "act",
    REWARD: "rew",
    DONE: "done",
    TERMINATED: "terminated",
    TRUNCATED: "truncated",
}
INDEX, TASK = "task_index", "task"
OF_PANDAS = "__index_level_0__"  # the texts of tasks, which are the index of a DataFrame
TAKEN = {*DEFAULTS, TASK}
MOST_AXES = 5  # limit of LeRobot's arrays
AT_ONCE = 1 << 18  # numbers converted to float64 at a time
VERSION = "v3.0"
INFO, STATS = "meta/info.json", "meta/stats.json"
TASKS, EPISODES = "meta/tasks.parquet", "meta/episodes"
PIECE = "chunk-{chunk_index:03d}/file-{file_index:03d}"
DATA_PATH, DATA_FILES = f"data/{PIECE}.parquet", "data/*/*.parquet"
VIDEO_PATH = f"videos/{{column}}/{PIECE}.mp4"
MOST_DELAYED = 16  # frames that may be decoded before a frame with an earlier time
NO_VIDEO = "video, for which three channels and av are needed: pip install 'cpprb_like[video]'"
FILES_IN_CHUNK, DATA_FILE_MB, VIDEO_FILE_MB = 1000, 100, 200  # LeRobot's defaults
NO_TASK = "from_replay_buffer"  # the task of LeRobot's own replay buffer
FPS = 1
MOST_EPISODES = 256  # episodes whose metadata are written together
ALONE = ("observation", "observation.state", "observation.image")


class Feature(NamedTuple):
    """A column of LeRobot, and its field in a buffer."""

    column: str
    field: Field
    is_image: bool = False

    @property
    def image_shape(self) -> tuple[int, int, int]:
        height, width, channels = (*self.field.shape, 1)[:3]
        return height, width, channels

    @property
    def numbers(self) -> Field:
        """Dtype and shape of the lists; a single number is a list of length 1."""
        return Field(self.column, self.field.dtype, self.field.shape or (1,))

    def to_json(self) -> dict[str, Any]:
        if self.is_image:
            names = ["height", "width", "channels"]
            return {"dtype": "image", "shape": list(self.image_shape), "names": names}
        numbers = self.numbers
        return {"dtype": str(numbers.dtype), "shape": list(numbers.shape), "names": None}

    # ------------------------------------------------------------------ values

    def to_arrow(self, values: Array) -> Any:
        """Values of shape (n, ...) as an array of Arrow."""
        pa = need("pyarrow", NAME)
        if self.is_image:
            data = pa.array([encoded(image, NAME) for image in self._images(values)], pa.binary())
            paths = pa.nulls(len(values), pa.string())
            return pa.StructArray.from_arrays([data, paths], names=["bytes", "path"])
        shape = self.numbers.shape
        made = pa.array(np.ascontiguousarray(values).reshape(-1))
        if shape == (1,):
            return made
        if len(shape) == 1:
            return pa.FixedSizeListArray.from_arrays(made, shape[0])
        for length in reversed(shape):
            offsets = np.arange(0, len(made) + 1, length, dtype=np.int32)
            made = pa.ListArray.from_arrays(pa.array(offsets), made)
        return made

    def from_arrow(self, found: Any) -> Array:
        """The values of an array of Arrow; ``ValueError`` if dtype or shape do not fit."""
        pa = need("pyarrow", NAME)
        if isinstance(found, pa.ExtensionArray):
            found = found.storage
        n, field, numbers = len(found), self.field, self.numbers
        if self.is_image:
            data = _arrow.part(found, ("bytes",), self.column)
            return decoded(data.to_pylist(), self.image_shape, self.column, NAME)
        values, shape = _arrow.flat(found, self.column)
        fits = np.can_cast(values.dtype, numbers.dtype, "same_kind")
        if math.prod(shape) != math.prod(numbers.shape) or not fits:
            raise ValueError(
                f"{self.column}: expected {numbers.dtype} of shape {numbers.shape}, "
                f"got {values.dtype} of shape {shape}"
            )
        if values.dtype != field.dtype:
            values = converted(values, numbers.dtype, self.column)
        whole: Array = np.ascontiguousarray(values).reshape(n, *field.shape)
        return whole

    def _images(self, values: Array) -> Array:
        """Values as images, with an axis of channels."""
        return values.reshape(len(values), *self.image_shape)

    def samples(self, values: Array) -> Array:
        """The samples of statistics: values, or for images the channels of each pixel."""
        if self.is_image:
            return self._images(values).reshape(-1, self.image_shape[2])
        return values.reshape(len(values), *self.numbers.shape)


# ---------------------------------------------------------------------- fields as features


def _is_image(field: Field) -> bool:
    """Whether values are written as images: uint8 of shape (height, width[, 1 or 3])."""
    is_colors = len(field.shape) == 2 or (len(field.shape) == 3 and field.shape[2] in (1, 3))
    return field.dtype == np.uint8 and is_colors and all(field.shape)


def features_of(header: Header) -> dict[str, Feature]:
    """The feature of each field, without derived next observations, flags of ends and the task."""
    made: dict[str, Feature] = {}
    taken: set[str] = set()
    for name, path in header.places(ROLES, TAKEN).items():
        # The number of the task, as it is read, follows from its text.
        if header[name].is_text or (name == INDEX and text_of(header) == TASK):
            continue
        column = ".".join(path)
        if name in header.observations:
            is_image = _is_image(header[name])
            column = ".".join((OBSERVATION, *_observation(path[1:], is_image=is_image)))
            while column in taken:
                column += "_"
            taken.add(column)
        field = header.stored(name)
        made[name] = Feature(column, field, name not in header.actions and _is_image(field))
    return made


def text_of(header: Header) -> str | None:
    """The field of the task of each row; ``ValueError`` if there are several texts."""
    texts = [name for name in header.places(ROLES, TAKEN) if header[name].is_text]
    if len(texts) > 1:
        raise ValueError(
            f"{NAME}: expected one field of text, the task of each frame, got {texts}; formats "
            "'rllib', 'rlds' and 'minari' hold several"
        )
    return texts[0] if texts else None


def _observation(path: Place, *, is_image: bool) -> Place:
    """The path of an observation in LeRobot: ``state``, ``image``, or such as ``images.top``."""
    parts = path
    if not parts:
        return ("image",) if is_image else ("state",)
    return ("images", *parts) if is_image and parts[0] not in ("image", "images") else parts


# ---------------------------------------------------------------------- features as fields


def feature_of(column: str, name: str, found: Any) -> Feature | None:
    """A feature from its entry in ``info.json``; None if a buffer cannot hold its values."""
    if not isinstance(found, dict):
        raise ValueError(f"{column}: expected features as JSON objects, got {found!r}")
    kind, shape = found.get("dtype"), found.get("shape")
    if not isinstance(kind, str) or not isinstance(shape, list) or len(shape) > MOST_AXES:
        raise ValueError(f"{column}: expected a feature with dtype and shape, got {found!r}")
    if not all(type(length) is int and 0 <= length < 1 << 40 for length in shape):
        raise ValueError(f"{column}: expected a shape, got {shape!r}")
    if kind in ("image", "video"):
        names = found.get("names")
        if len(shape) != 3:
            raise ValueError(f"{column}: expected height, width and channels, got {shape}")
        is_first = (
            str(names[0]).startswith("channel")
            if isinstance(names, list) and names
            else (shape[2] not in COLORS)
        )
        lengths = (*shape[1:], shape[0]) if is_first else tuple(shape)
        if lengths[2] not in COLORS:
            raise ValueError(f"{column}: expected 1, 3 or 4 channels, got {shape}")
        return Feature(column, Field(name, np.dtype(np.uint8), lengths), is_image=True)
    try:
        dtype = np.dtype(kind)
    except (TypeError, ValueError, SyntaxError):
        return None
    if not is_native(dtype):
        return None
    return Feature(column, Field(name, dtype, () if shape == [1] else tuple(shape)))


# ---------------------------------------------------------------------- statistics


class Statistics:
    """Minimum, maximum, mean and standard deviation, computed in pieces (Chan et al., 1979)."""

    def __init__(self) -> None:
        self.count = 0
        self._least: Any = np.inf
        self._greatest: Any = -np.inf
        self._mean: Any = 0.0
        self._squares: Any = 0.0

    def add(self, samples: Array) -> None:
        """Add samples of shape (n, ...)."""
        step = max(1, AT_ONCE // max(1, samples[:1].size))
        for start in range(0, len(samples), step):
            piece = samples[start : start + step].astype(np.float64)
            with np.errstate(all="ignore"):
                self._merge(piece)

    def _merge(self, piece: Array) -> None:
        n, mean = self.count + len(piece), piece.mean(axis=0)
        away = mean - self._mean
        self._least = np.minimum(self._least, piece.min(axis=0))
        self._greatest = np.maximum(self._greatest, piece.max(axis=0))
        self._mean = self._mean + away * (len(piece) / n)
        between = np.square(away) * (self.count * len(piece) / n)
        self._squares = self._squares + np.square(piece - mean).sum(axis=0) + between
        self.count = n

    def to_json(self, feature: Feature) -> dict[str, list[Any]]:
        """The entry of ``stats.json``. Statistics of images are by channel, scaled to 0 to 1."""
        count, scale, shape = self.count, 1.0, np.shape(self._mean) or (1,)
        if feature.is_image:
            height, width, channels = feature.image_shape
            count, scale, shape = count // (height * width), 255.0, (channels, 1, 1)
        with np.errstate(all="ignore"):
            found = {
                "min": self._least,
                "max": self._greatest,
                "mean": self._mean,
                "std": np.sqrt(self._squares / max(1, self.count)),
            }
            made = {name: np.reshape(one / scale, shape).tolist() for name, one in found.items()}
        return {**made, "count": [count]}


# ---------------------------------------------------------------------- writing


class LerobotWriter(Writer):
    """Writes a LeRobot data set."""

    flags = ((TERMINATED,), (TRUNCATED,))

    def __init__(self, path: Path, header: Header, about: Mapping[str, Any]) -> None:
        need("pyarrow.parquet", NAME)
        found = features_of(header)
        text = text_of(header)
        places = {name: (feature.column,) for name, feature in found.items()}
        super().__init__(header, places | ({} if text is None else {text: (TASK,)}))
        self._folder, self._about = path, {"robot_type": None, **about}
        self._fps, self._task = self._about.pop("fps", FPS), self._about.pop("task", NO_TASK)
        if not isinstance(self._fps, int) or isinstance(self._fps, bool) or self._fps < 1:
            raise ValueError(f"about: fps: expected an integer of at least 1, got {self._fps!r}")
        if not isinstance(self._task, str) or not self._task:
            raise ValueError(f"about: task: expected text, got {self._task!r}")
        if text is not None and TASK in about:
            raise ValueError(f"about: task: expected none, as {text!r} is the task of each frame")
        self._tasks: dict[str, int] = {} if text is not None else {self._task: 0}
        if any(feature.is_image for feature in found.values()):
            need("PIL.Image", NAME)
        made = {column: np.dtype(dtype) for column, dtype in DEFAULTS.items()}
        made |= dict.fromkeys((DONE, TERMINATED, TRUNCATED), FLAG)
        features = [*found.values()]
        features += [Feature(column, Field(column, dtype, ())) for column, dtype in made.items()]
        self._features = {feature.column: feature for feature in features}
        most = _arrow.rows_in_group(header)
        where = {"chunk_index": 0, "file_index": 0}
        self._file = self._new_file(path / DATA_PATH.format(**where), most)
        place = path / EPISODES / f"{PIECE.format(**where)}.parquet"
        self._episodes = self._new_file(place, MOST_EPISODES)
        self._row = 0  # number of rows of all episodes written
        self._statistics = {column: Statistics() for column in self._features}

    def _new_file(self, path: Path, most: int) -> _arrow.ParquetWriter:
        known = ["episode_index"]
        return _arrow.ParquetWriter(path, most, use_dictionary=False, write_statistics=known)

    def begin(self) -> None:
        self._of_episode: dict[str, None] = {}  # its tasks

    def steps(self, at: int, steps: Steps) -> None:
        terminated, truncated = (steps[path] for path in self.flags)
        n = len(terminated)
        frames = np.arange(at, at + n, dtype=np.int64)
        texts = steps.pop((TASK,), [self._task] * n)
        tasks = [self._tasks.setdefault(text, len(self._tasks)) for text in texts]
        self._of_episode |= dict.fromkeys(texts)
        found: Rows = {column: values for (column,), values in steps.items()}
        found |= {
            DONE: terminated | truncated,
            "timestamp": (frames / self._fps).astype(np.float32),
            "frame_index": frames,
            "episode_index": np.full(n, self.number, np.int64),
            "index": self._row + frames,
            INDEX: np.array(tasks, np.int64),
        }
        columns = {}
        for column, feature in self._features.items():
            columns[column] = feature.to_arrow(found[column])
            self._statistics[column].add(feature.samples(found[column]))
        self._file.add(columns)

    def end(self, final: Steps) -> None:
        pa = need("pyarrow", NAME)
        stop = self._row + self.record.length
        row: dict[str, Any] = {
            "episode_index": self.number,
            "tasks": list(self._of_episode),
            "length": self.record.length,
            "data/chunk_index": 0,
            "data/file_index": 0,
            "dataset_from_index": self._row,
            "dataset_to_index": stop,
            "meta/episodes/chunk_index": 0,
            "meta/episodes/file_index": 0,
        }
        self._episodes.add({key: pa.array([value]) for key, value in row.items()})
        self._row = stop

    def close(self) -> None:
        self._file.close()
        self._episodes.close()
        info = {
            **self._about,
            "codebase_version": VERSION,
            "total_episodes": len(self.header.episodes),
            "total_frames": self._row,
            "total_tasks": len(self._tasks),
            "chunks_size": FILES_IN_CHUNK,
            "data_files_size_in_mb": DATA_FILE_MB,
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
        """Write the table of tasks, whose texts are the index of a pandas DataFrame."""
        pa, parquet = need("pyarrow", NAME), need("pyarrow.parquet", NAME)
        numbers = pa.array(range(len(self._tasks)), pa.int64())
        table = pa.table({INDEX: numbers, OF_PANDAS: pa.array([*self._tasks], pa.string())})
        kinds = (INDEX, INDEX, "int64", "int64"), (None, OF_PANDAS, "unicode", "object")
        keys = "name", "field_name", "pandas_type", "numpy_type"
        columns = [{**dict(zip(keys, kind, strict=True)), "metadata": None} for kind in kinds]
        pandas = {"index_columns": [OF_PANDAS], "column_indexes": [], "columns": columns}
        pandas |= {"creator": {"library": "pyarrow", "version": pa.__version__}}
        schema = table.schema.with_metadata({"pandas": json.dumps(pandas)})
        parquet.write_table(table.cast(schema), self._folder / TASKS)

    def abandon(self) -> None:
        self._file.abandon()
        self._episodes.abandon()


# ---------------------------------------------------------------------- reading


class LerobotReader(Reader):
    """Reads a LeRobot data set."""

    def __init__(self, path: Path, split: str | None = None) -> None:
        super().__init__(path, split)
        need("pyarrow.parquet", NAME)
        self._files = _arrow.ParquetFiles(sorted(path.glob(DATA_FILES)))
        self._tasks: dict[int, str] = {}  # texts by ``task_index``; none if they are no field

    def load(self) -> None:
        """Read everything but the rows; and the first row, as sizes in the files may be wrong.

        The last row is read too. The newest episode is open if the files have flags of ends, and
        its last row has none.
        """
        super().load()
        for _ in self.rows(0, 1, self.header.names):
            break
        header = self.header
        if DONE in self._info["features"]:
            last = header.episodes[-1]
            (rows,) = self.read(len(self.spans) - 1, 1, header.ends.names, last.length - 1)
            if not np.any(header.ends.flags(rows, 1)):
                episodes = (*header.episodes[:-1], replace(last, is_open=True))
                self.header = replace(header, episodes=episodes)
        self.close()

    def read_fields(self) -> HeaderBuilder:
        path = self.path / INFO
        info = load_json(read_bytes(path), str(path))
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
            passed.add(DONE)  # follows from both
        parts = [column for column in found if _is_part(column, OBSERVATION)]
        is_alone = len(parts) == 1 and parts[0] in ALONE
        columns = {_path_of(column, is_alone=is_alone): column for column in found}
        columns = {path: column for path, column in columns.items() if column not in passed}
        tasks = self._read_tasks() if INDEX in found else {}
        if INDEX in passed and set(tasks.values()) == {NO_TASK}:
            tasks = {}
        if tasks:
            columns[TASK,], self._tasks = TASK, tasks
        self._features: dict[str, Feature] = {}
        self._videos: dict[str, Feature] = {}

        def field_of(path: Place, name: str) -> Field | str:
            column = columns[path]
            if path == (TASK,) and tasks:
                return text_field(name)
            feature = feature_of(column, name, found[column])
            if feature is None:
                return str(found[column]["dtype"])
            is_video = found[column]["dtype"] == "video"
            is_read = feature.field.shape[-1:] == (3,) and not set(column) & set("/\\")
            if is_video and not (is_read and find_spec("av")):
                return NO_VIDEO
            (self._videos if is_video else self._features)[name] = feature
            return feature.field

        builder = HeaderBuilder(ROLES, self.left_out, derives_next=True, reads_next=True, mark=".")
        builder.add(columns, field_of)
        if not any(one.field.nbytes for one in (self._features | self._videos).values()):
            raise ValueError(
                f"expected features of numbers or images, got {list(columns.values())}"
            )
        fps = self._info.get("fps")
        if self._videos and not (isinstance(fps, int | float) and 0 < fps < math.inf):
            raise ValueError(f"expected fps above 0, got {fps!r}")
        return builder

    def read_episodes(self) -> Iterator[tuple[EpisodeRecord, tuple[int, int, list[Any]]]]:
        """Episodes, each with its ``episode_index``, its first row, and its places in videos."""
        columns = ["episode_index", "dataset_from_index", "dataset_to_index"]
        for one in self._videos.values():
            keys = "chunk_index", "file_index", "from_timestamp"
            columns += [f"videos/{one.column}/{key}" for key in keys]
        total = int(self._files.starts[-1])
        folder = self.path / EPISODES
        files = _arrow.ParquetFiles(sorted(folder.glob("*/*.parquet")))

        def values_of(batch: Any) -> Rows:
            return {name: _arrow.flat(batch.column(name), name)[0] for name in columns}

        ended = self._ended(total)
        with contextlib.closing(files):
            for rows in files.read(0, int(files.starts[-1]), columns, 1 << 12, values_of):
                found = (rows[name].tolist() for name in columns)
                for number, start, stop, *places in zip(*found, strict=True):
                    if not 0 <= start <= stop <= total:
                        raise ValueError(
                            f"{folder}: episode {number}: expected rows of 0 to {total}, got "
                            f"{start} to {stop}: data files are missing, or damaged"
                        )
                    # The row after an end flag belongs to another episode.
                    inner = np.flatnonzero(ended[start : max(start, stop - 1)])
                    begins = [start, *(inner + start + 1).tolist()]
                    for first, last in zip(begins, [*begins[1:], stop], strict=True):
                        yield EpisodeRecord(last - first), (number, first, places)

    def _ended(self, n: int) -> Array:
        """Which of all rows have an end flag."""
        ends = self.header.ends
        features = {name: self._features[name] for name in ends.names}

        def values_of(batch: Any) -> Rows:
            return {
                name: one.from_arrow(batch.column(one.column)) for name, one in features.items()
            }

        if not features:
            return np.zeros(n, np.bool_)
        columns = [one.column for one in features.values()]
        found = [
            np.logical_or(*ends.flags(rows, len(next(iter(rows.values())))))
            for rows in self._files.read(0, n, columns, 1 << 16, values_of)
        ]
        return np.concatenate([np.zeros(0, np.bool_), *found])

    def read(self, number: int, most: int, names: Collection[str], skip: int = 0) -> Iterator[Rows]:
        """The rows of an episode, without the first ``skip`` rows and derived fields."""
        (index, start, places), length = self.spans[number], self.header.episodes[number].length
        features = {name: one for name, one in self._features.items() if name in names}
        wanted = [name for name in self._videos if name in names]
        columns = ["episode_index", *(one.column for one in features.values())]
        columns += ["timestamp"] if wanted else []
        has_task = bool(self._tasks) and TASK in names
        columns += [INDEX] if has_task else []
        times: list[list[float]] = [[] for _ in self._videos]  # times of frames, by video
        with contextlib.ExitStack() as stack:
            videos: dict[str, Generator[Array, None, None]] = {}
            for k, (name, one) in enumerate(self._videos.items()):
                if name not in wanted:
                    continue
                chunk, file = places[3 * k : 3 * k + 2]
                path = VIDEO_PATH.format(column=one.column, chunk_index=chunk, file_index=file)
                found = _frames(self.path / path, one.field.shape, times[k], self._info["fps"])
                videos[name] = stack.enter_context(contextlib.closing(found))

            def values_of(batch: Any) -> Rows:
                found = _arrow.flat(batch.column("episode_index"), "episode_index")[0]
                if (found != index).any():
                    raise ValueError(f"episode_index: expected {index}, got {found[:5].tolist()}")
                rows = {
                    name: feature.from_arrow(batch.column(feature.column))
                    for name, feature in features.items()
                }
                if has_task:
                    rows[TASK] = self._tasks_of(batch.column(INDEX))
                for k, name in enumerate(self._videos):
                    if name not in videos:
                        continue
                    seconds = _arrow.flat(batch.column("timestamp"), "timestamp")[0]
                    times[k] += (places[3 * k + 2] + seconds.astype(np.float64)).tolist()
                    rows[name] = np.stack(list(islice(videos[name], len(batch))))
                return rows

            columns = list(dict.fromkeys(columns))
            yield from self._files.read(start + skip, start + length, columns, most, values_of)

    def _tasks_of(self, found: Any) -> Array:
        """The texts of the tasks with some numbers."""
        numbers = _arrow.flat(found, INDEX)[0].tolist()
        if others := set(numbers) - self._tasks.keys():
            raise ValueError(f"{INDEX}: expected a task of {TASKS}, got {min(others)}")
        return np.array([self._tasks[number] for number in numbers], object)

    def _read_tasks(self) -> dict[int, str]:
        """The texts of the table of tasks, by number; none without a file or a column of them."""
        path = self.path / TASKS
        if not path.is_file():
            return {}
        with contextlib.closing(_arrow.ParquetFiles([path])) as files, reading(path):
            table = files.open(0).read()
            names = [name for name in table.column_names if name != INDEX]
            known = [name for name in names if name in (TASK, OF_PANDAS)] or names
            texts = [name for name in known if _arrow.is_text(table.column(name))]
            if len(texts) != 1 or table.column(texts[0]).null_count:
                self.left_out.append(f"{TASK} (expected a column of texts in {TASKS}, got {names})")
                return {}
            numbers, found = (table.column(name).to_pylist() for name in (INDEX, texts[0]))
            return dict(zip(numbers, found, strict=True))

    def close(self) -> None:
        self._files.close()


def _frames(
    path: Path, shape: tuple[int, ...], times: list[float], fps: float
) -> Generator[Array, None, None]:
    """Yield the frame of a video at each of ascending times. ``times`` may grow between frames."""
    av = need("av", NAME)
    with open_regular(path) as file, reading(path):
        try:
            with av.open(file, format="mp4") as container:  # a format without links to files
                stream, frame = container.streams.video[0], None
                for time in times:
                    first = time - 0.5 / fps
                    if frame is None:
                        start = max(0, int((first - MOST_DELAYED / fps) / stream.time_base))
                        container.seek(start, stream=stream)  # by times of decoding
                        frames = container.decode(stream)
                    while frame is None or frame.time < first:
                        frame = next(frames, None)
                        if frame is None:
                            raise ValueError(f"expected a frame at {time:.4f} s, got the end")
                        if (frame.height, frame.width, 3) != shape:
                            raise ValueError(f"expected images of {shape[:2]}, got {frame}")
                    if not abs(frame.time - time) <= 0.5 / fps:  # also if a time is NaN
                        raise ValueError(f"expected a frame at {time:.4f} s, got {frame.time} s")
                    yield frame.to_ndarray(format="rgb24")
        except av.FFmpegError as error:
            raise ValueError(f"expected a video: {error}") from None


def _has_data(path: Path) -> bool:
    """Whether there is more than metadata, which LeRobot downloads first."""
    return any(path.glob(DATA_FILES))


def _is_part(column: str, role: str) -> bool:
    return column == role or column.startswith(f"{role}.")


def _path_of(column: str, *, is_alone: bool) -> Place:
    """The path of a column. Its first part is a key of ``ROLES``, or else the whole name."""
    for role in (OBSERVATION, "action"):
        if _is_part(column, role):
            is_whole = is_alone and role == OBSERVATION
            return (role,) if is_whole else tuple(column.split("."))
    return (column,)


class LeRobot(Format):
    """See ``Format``."""

    name = NAME
    reader, writer = LerobotReader, LerobotWriter
    lacks = (CUT, FINAL, LISTS)
    library = "lerobot.datasets.lerobot_dataset"

    def holds(self, field: Field) -> bool:
        """Whether LeRobot has such values: neither uint64 nor more than five axes."""
        return super().holds(field) and field.dtype != np.uint64 and len(field.shape) <= MOST_AXES

    def check_rows(self, header: Header) -> None:
        super().check_rows(header)
        text_of(header)

    def matches(self, path: Path) -> bool:
        return path.is_dir() and (path / INFO).is_file()

    def root(self) -> Path:
        caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        home = os.environ.get("HF_HOME") or str(Path(caches, "huggingface"))
        own = os.environ.get("HF_LEROBOT_HOME") or Path(os.path.expandvars(home), NAME)
        return Path(own).expanduser()

    def names(self) -> list[str]:
        places = [file for n in (1, 2) for file in self.root().glob("*/" * n + INFO)]
        names = {file: file.parents[1].relative_to(self.root()).as_posix() for file in places}
        for file in self.root().glob(f"hub/{HUB}*/snapshots/*/{INFO}"):
            names[file] = file.parents[3].name[len(HUB) :].replace("--", "/")
        return [
            name if _has_data(file.parents[1]) else f"{name} (its data files are missing)"
            for file, name in names.items()
        ]

    def find(self, name: str) -> Path | None:
        """Path of a local data set with data files; or of a snapshot that was downloaded.

        That is of ``main``, or else of the newest version. Without a record of either it is the
        newest snapshot.
        """
        hub = self.root() / "hub" / (HUB + name.replace("/", "--"))
        refs = [path for path in hub.glob("refs/*") if path.is_file()]
        refs.sort(key=lambda path: (path.name == "main", path.name), reverse=True)
        found = [hub / "snapshots" / read_bytes(path).decode().strip() for path in refs]
        if not refs:
            found = sorted(hub.glob("snapshots/*"), key=lambda path: -path.stat().st_mtime)
        places = [self.root() / name, *found]
        return next((path for path in places if self.matches(path) and _has_data(path)), None)

    def download(self, library: Any, name: str) -> None:
        library.LeRobotDataset(name)


FORMAT = LeRobot()
