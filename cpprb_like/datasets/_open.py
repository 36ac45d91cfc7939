"""Formats by name, and the calls that users make: ``export``, ``from_dataset``, ``describe``."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cpprb_like._arguments.checks import as_path, warn
from cpprb_like.checkpoint._progress import Progress
from cpprb_like.datasets._files import new_place, reading
from cpprb_like.datasets._format import BOTH, CUT, FINAL, LACKS, OPEN, Format, Reader, Writer
from cpprb_like.datasets._from_buffer import NEXT, Names, Source, ends_of, rows_in_chunk
from cpprb_like.datasets._model import EpisodeRecord, Field, Header, Rows
from cpprb_like.datasets._ragged import blank, items_of
from cpprb_like.errors import DataLossWarning

# Module and object of each format, in the order in which formats are tried for a path.
MODULES = {
    "minari": ("_minari", "HDF5"),
    "minari-arrow": ("_minari", "ARROW"),
    "d4rl": ("_d4rl", "FORMAT"),
    "rlds": ("_rlds", "FORMAT"),
    "lerobot": ("_lerobot", "FORMAT"),
    "dreamerv3": ("_dreamerv3", "FORMAT"),
    "rllib": ("_rllib", "FORMAT"),
}
FORMATS = tuple(MODULES)
NAMED = ["minari", "lerobot", "rlds"]  # whose libraries give local data sets names


class DatasetInfo(NamedTuple):
    """What a data set holds, without its rows.

    Attributes
    ----------
    format : str
        One of ``FORMATS``.
    rows : int
        Steps of all episodes.
    fields : dict of str to (dtype, shape)
        Those that a buffer of it has; the shape is that of a row. Values of any length have a named
        axis, such as ``("ids",)``, and texts the dtype ``str``, as in ``env_dict``.
    episodes : tuple of EpisodeRecord
        ``length``, ``is_cut`` and ``is_open`` of each.
    left_out : list of str
        What is in the files and would not be in a buffer of all fields.
    lacks : tuple of str
        What files of this format cannot say of a buffer.
    about : dict
        What ``export`` takes as ``about``, to write the same metadata again. Of Minari: spaces,
        ``env_spec``, authors and the like; of other formats nothing.
    path : Path
        Where its files are.
    """

    format: str
    rows: int
    fields: dict[str, tuple[np.dtype[Any] | type[str], tuple[int | str, ...]]]
    episodes: tuple[EpisodeRecord, ...]
    left_out: list[str]
    lacks: tuple[str, ...]
    about: dict[str, Any]
    path: Path


def _format(name: str) -> Format:
    if name not in MODULES:
        raise ValueError(f"format: expected one of {list(FORMATS)}, got {name!r}")
    module, attribute = MODULES[name]
    found: Format = getattr(importlib.import_module(f"cpprb_like.datasets.{module}"), attribute)
    return found


def _place(
    path: str | os.PathLike[str],
    format: str | None,  # noqa: A002 (users' word)
    *,
    download: bool = False,
) -> Path:
    """The path, or that of the local data set of this name. ``download`` asks the library for it.

    A path that exists is no name. Raises ``ValueError`` if several libraries have the name.
    """
    place = as_path("path", path)
    if place.exists():
        return place
    name, found = _name(path), _named(path, format)
    if len(found) > 1:
        several = ", ".join(f"{one!r} has {path}" for one, path in found.items())
        raise ValueError(
            f"{name}: expected one data set of this name, and {several}: say format=, or a path"
        )
    if not found and download and not Path(path).is_absolute():
        if format is None or not _format(format).library:
            raise ValueError(
                f"download: expected a format that has names, one of {NAMED}, got {format!r}"
            )
        found = {format: _downloaded(_format(format), name)}
    return next(iter(found.values()), place)


def _named(
    path: str | os.PathLike[str],
    format: str | None,  # noqa: A002 (users' word)
) -> dict[str, Path]:
    """The local data set of this name, of each format that has one."""
    known = {one: _format(one) for one in ([format] if format else NAMED)}
    found = {name: one.find(_name(path)) for name, one in known.items() if one.library}
    return {name: place for name, place in found.items() if place is not None}


def _name(path: str | os.PathLike[str]) -> str:
    return Path(os.fsdecode(path)).as_posix()


def _downloaded(format: Format, name: str) -> Path:  # noqa: A002 (users' word)
    try:
        library = importlib.import_module(format.library)
    except ImportError as error:
        package = format.library.partition(".")[0]
        raise ImportError(
            f"download: {name} needs {package}, which downloads it: {error}"
        ) from error
    format.download(library, name)
    found = format.find(name)
    if found is None:
        raise FileNotFoundError(
            f"{name}: {format.library} was called, and {format.root()} has no files of this name "
            f"that format {format.name!r} can read"
        )
    return found


def _missing(
    path: str | os.PathLike[str],
    format: str | None,  # noqa: A002 (users' word)
) -> FileNotFoundError:
    """The error for a path, or a name, that does not exist: where it was looked for."""
    message = f"{path}: there is no such file or folder"
    for one in [] if Path(path).is_absolute() else [format] if format else NAMED:
        if library := _format(one).library.partition(".")[0]:
            root, names = _format(one).root(), sorted(set(_format(one).names()))
            near = difflib.get_close_matches(_name(path), names, 8, 0)
            more = f" and {len(names) - len(near)} more" * (len(names) > len(near))
            content = f"has {', '.join(near)}{more}" if names else "has no data sets"
            message += f"; {root}, of {library}, {content if root.is_dir() else 'is no folder'}"
    return FileNotFoundError(message)


def detect_format(path: str | os.PathLike[str], *, is_new: bool = False) -> str | None:
    """The format of the files at a path, or None.

    Parameters
    ----------
    path : str or path
        Also the name of a local data set: see ``ReplayBuffer.from_dataset``.
    is_new : bool
        Whether there is nothing yet: then the suffix tells it.

    Returns
    -------
    str or None
        One of ``FORMATS``.

    Examples
    --------
    >>> from cpprb_like.datasets import detect_format
    >>> detect_format("rows.hdf5", is_new=True)
    'd4rl'
    """
    place = as_path("path", path) if is_new else _place(path, None)
    for name in FORMATS:
        found = _format(name)
        if place.suffix in found.suffixes if is_new else found.matches(place):
            return name
    return None


@contextlib.contextmanager
def _reading(
    path: str | os.PathLike[str],
    format: str | None,  # noqa: A002 (the word that users know)
    split: str | None,
    *,
    download: bool,
) -> Iterator[tuple[str, Path, Reader]]:
    """Yield the format, the path and a loaded reader of a data set, or of one of its splits."""
    place = _place(path, format, download=download)
    if not place.exists():
        raise _missing(path, format)
    detected = detect_format(place)
    hidden = {}  # data sets of this name, where the path has none of any format
    if detected is None and not Path(path).is_absolute():
        hidden = {one: it for one, it in _named(path, format).items() if it != place}
    name = detected if format is None else format
    if name is None or hidden:
        also = "".join(
            f"; {_format(one).library.partition('.')[0]} has a data set of this name: {where}"
            for one, where in hidden.items()
        )
        known = list(FORMATS) if format is None else [format]
        raise ValueError(
            f"{place}: expected a data set of one of {known}, found none of them{also}"
        )
    reader = _format(name).open_reader(place, split)
    try:
        with reading(place):
            reader.load()
        yield name, place, reader
    finally:
        reader.close()


def describe(
    path: str | os.PathLike[str],
    format: str | None = None,  # noqa: A002 (the word that users know)
    *,
    split: str | None = None,
    download: bool = False,
) -> DatasetInfo:
    """What a data set holds, without its rows.

    Parameters
    ----------
    path : str or path
        The file or folder, or the name of a local data set: see ``ReplayBuffer.from_dataset``.
    format : str, optional
        One of ``FORMATS``; by default the files say it.
    split : str, optional
        The split that is meant, of format ``"rlds"``.
    download : bool
        Whether the library of ``format`` downloads a data set that is not there yet.

    Returns
    -------
    DatasetInfo

    Raises
    ------
    ValueError, OSError, ImportError
        As for ``ReplayBuffer.from_dataset``.

    Notes
    -----
    Cost: that of the metadata and of the end flags. Observations are read too where they tell how
    episodes end: in recordings of RLlib, and in D4RL's files with ``next_observations`` and without
    ``timeouts``.

    Examples
    --------
    >>> import tempfile
    >>> from cpprb_like import ReplayBuffer
    >>> from cpprb_like.datasets import describe
    >>> number = {"shape": ()}
    >>> fields = {"obs": {"shape": 2}, "act": number, "rew": number, "done": number}
    >>> rb = ReplayBuffer(10, fields, next_of="obs")
    >>> rb.add(
    ...     obs=[[1, 2], [3, 4]], act=[0, 1], rew=[1, 2], next_obs=[[2, 3], [4, 5]], done=[1, 0]
    ... )
    0
    >>> path = tempfile.mkdtemp() + "/episodes"
    >>> rb.export(path, "dreamerv3")
    >>> found = describe(path)
    >>> found.format, found.rows, [episode.is_open for episode in found.episodes]
    ('dreamerv3', 2, [False, True])
    """
    with _reading(path, format, split, download=download) as (name, place, reader):
        header = reader.header
        fields = {field.name: (_dtype(field), field.declared_shape) for field in header.fields}
        left_out = list(reader.left_out)
        if reader.unknown:
            left_out.append(
                f"the last step of each episode that is not terminated (its "
                f"{', '.join(reader.unknown)} is not in the files)"
            )
        return DatasetInfo(
            name,
            header.rows,
            fields,
            header.episodes,
            left_out,
            (*LACKS, *_format(name).lacks),
            dict(reader.about),
            place,
        )


def export(
    buffer: Any,
    path: str | os.PathLike[str],
    format: str | None,  # noqa: A002 (the word that users know)
    *,
    strict: bool,
    observation: Names,
    action: Names,
    reward: str | None,
    about: Mapping[str, Any] | None,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Write the rows of a buffer as a data set: see ``ReplayBuffer.export``.

    The caller holds the buffer's lock.
    """
    path = as_path("path", path)
    name = detect_format(path, is_new=True) if format is None else format
    if name is None:
        raise ValueError(f"format: expected one of {list(FORMATS)}, as {path} tells none")
    found = _format(name)
    source = Source(buffer, found.holds, observation, action, reward)
    _refuse(name, _losses(found, source), strict=strict)
    found.check_fields(source.header)
    if not source.header.rows:
        raise ValueError("expected a buffer with rows, got an empty one")
    entries = found.metadata(path, source.header, about or {})
    count = Progress(progress)
    count.total = 2 * source.header.rows * source.header.row_nbytes
    header = source.look(count)
    lost = _losses(found, source, header)
    _refuse(name, lost, strict=strict)
    found.check_rows(header)
    with new_place(path, is_file=found.is_file) as place:
        writer: Writer = found.writer(place, header, entries)
        _write(found, writer, source, header, count)
    count(count.total - count.done)
    if lost:
        warn(f"{name}: {'; '.join(lost)}", DataLossWarning)


def _refuse(name: str, lost: Sequence[str], *, strict: bool) -> None:
    if lost and strict:
        raise ValueError(f"{name}: {'; '.join(lost)}")


def _losses(format: Format, source: Source, header: Header | None = None) -> list[str]:  # noqa: A002
    """Messages of what an export loses. Some losses are known after ``look``, from ``header``."""
    lost = []
    fields = ", ".join(
        f"{field.name!r} ({field.declared_dtype}{' of any length' if field.is_ragged else ''})"
        for field in source.left_out
    )
    if fields:
        ragged = any(field.is_ragged for field in source.left_out)
        how = "; formats 'rllib' and 'rlds' hold values of any length" if ragged else ""
        lost.append(
            f"{len(source.left_out)} fields cannot be held and are left out, of "
            f"{source.header.rows} rows each: {fields}{how}"
        )
    episodes = source.header.episodes
    for what, n in (
        (CUT, sum(episode.is_cut for episode in episodes)),
        (OPEN, sum(episode.is_open for episode in episodes[:-1])),
    ):
        if n and what in format.lacks:
            lost.append(f"the files do not say {what} ({n} of {len(episodes)})")
    if source.has_both and BOTH in format.lacks:
        lost.append(f"the files do not say {BOTH}")
    if header is not None and header.chained and FINAL in format.lacks:
        lost.append(f"the files do not have {FINAL} ({len(header.episodes)} episodes)")
    return lost


def _write(
    format: Format,  # noqa: A002
    writer: Writer,
    source: Source,
    header: Header,
    count: Progress,
) -> None:
    last = len(header.episodes) - 1

    def chunks(number: int) -> Iterator[Rows]:
        for rows in source.chunks(number):
            yield rows
            count(sum(values.nbytes for values in rows.values()))

    try:
        for number, one in enumerate(header.episodes):
            is_open = one.is_open and (number == last or OPEN not in format.lacks)
            writer.episode(number, replace(one, is_open=is_open), chunks(number))
        writer.close()
    except BaseException:
        writer.abandon()
        raise


def from_dataset(
    make: Callable[..., Any],
    path: str | os.PathLike[str],
    format: str | None,  # noqa: A002 (the word that users know)
    *,
    split: str | None,
    capacity: float | None,
    env_dict: Mapping[str, Any] | None,
    strict: bool,
    resume: bool,
    download: bool,
    progress: Callable[[int, int], None] | None,
    options: Mapping[str, Any],
) -> Any:
    """A buffer with the rows of a data set: see ``ReplayBuffer.from_dataset``."""
    n_envs = options.get("n_envs", 1)
    if n_envs != 1:
        raise ValueError(
            f"n_envs: expected 1, as no data set says the environment of an episode; got {n_envs!r}"
        )
    with _reading(path, format, split, download=download) as (_, _, reader):
        header = reader.header
        lost = []
        if reader.left_out:
            lost.append(
                f"{len(reader.left_out)} data sets have no place in a buffer: "
                + ", ".join(reader.left_out)
            )
            if strict:
                raise ValueError(f"{path}: {lost[0]}")
        fields = _fields(header, env_dict, str(path))
        size = max(1, header.rows) if capacity is None else capacity
        next_of = options.get("next_of")
        if isinstance(next_of, Iterator):
            next_of = list(next_of)  # read twice
            options = {**options, "next_of": next_of}
        room = _room(reader, fields, options.get("room"), next_of)
        chosen = dict(options) if room is None else {**options, "room": room}
        buffer = make(size, fields, **chosen)
        count = Progress(progress)
        count.total = header.rows * header.row_nbytes
        steps = _fill(buffer, reader, count, resume)
        count(count.total - count.done)
    if steps:
        lost.append(
            f"{steps} of {header.rows} steps are left out, as the files do not have their "
            f"{', '.join(reader.unknown)}: the last ones of episodes that are not terminated "
            "(env_dict without next values keeps them)"
        )
        if strict:
            raise ValueError(f"{path}: {lost[-1]}")
    if lost:
        warn(f"{path}: {'; '.join(lost)}", DataLossWarning)
    return buffer


def _fields(
    header: Header, env_dict: Mapping[str, Any] | None, path: str
) -> dict[str, dict[str, Any]]:
    """The fields of the buffer: those of the data set, chosen and changed by ``env_dict``."""
    found = {
        field.name: {"shape": field.declared_shape, "dtype": _dtype(field)}
        for field in header.fields
    }
    if env_dict is None:
        return found
    unknown = [name for name in env_dict if name not in found]
    if unknown:
        raise ValueError(f"env_dict: {path} has the fields {list(found)}, and not {unknown}")
    return {name: {**found[name], **spec} for name, spec in env_dict.items()}


def _fill(buffer: Any, reader: Reader, on_read: Callable[[int], None], resume: bool) -> int:
    """Add the rows of a data set to an empty buffer that has some of its fields.

    ``resume`` leaves the newest episode open if it is open in the files. ``on_read`` is called with
    the bytes of the rows. Returns the number of steps left out: the buffer has fields for their
    next values, and the files do not have these values.
    """
    header, names = reader.header, list(buffer.schema.names)
    is_lacking = any(name in names for name in reader.unknown)
    ends = ends_of(buffer.schema, names)
    last, left_out = len(header.episodes) - 1, 0
    if header.episodes and header.episodes[0].is_cut:
        _add_absent(buffer, buffer.ring.capacity + 1 - header.rows)
    for number, episode in enumerate(header.episodes):
        n_read = 0
        for rows in _checked_rows(reader, number, names):
            on_read(sum(values.nbytes for values in rows.values()))
            n = len(rows[names[0]])
            n_read += n
            if is_lacking and n_read == episode.length and not ends.flags(rows, n)[0][-1]:
                # Targets bootstrap from the next value of a step that is not terminated.
                left_out += 1
                n -= 1
            if n:
                buffer.add(**{name: _given(rows[name][:n]) for name in names})
        if not (resume and episode.is_open and number == last):
            buffer.on_episode_end()
    return left_out


def _room(reader: Reader, fields: Mapping[str, Mapping[str, Any]], room: Any, next_of: Any) -> Any:
    """The option ``room``: by default as many items as all rows have. Then they are read.

    Next values of ``next_of`` have the room of their source. They count as well, as the first row
    of a call of ``add`` may store anew what the row before has.
    """
    sources = [next_of] if isinstance(next_of, str) else next_of
    nexts = {f"{NEXT}{name}" for name in sources} if isinstance(sources, Collection) else set()
    axes: dict[str, tuple[str, int]] = {}  # a field of each axis, and the place in its shape
    for name, spec in fields.items():
        shape = (name,) if spec["dtype"] is str else spec["shape"]
        for at, axis in enumerate(shape if isinstance(shape, (list, tuple)) else ()):
            if isinstance(axis, str) and name not in nexts:
                axes.setdefault(axis, (name, at))
    if not axes or not isinstance(room, Mapping | None):
        return room
    found = {axis: 0 for axis in axes if axis not in (room or {})}
    there = nexts.intersection(reader.header.names)
    names = {axis: [axes[axis][0], *there.intersection([NEXT + axes[axis][0]])] for axis in found}
    every = [name for both in names.values() for name in both]
    for number in range(len(reader.header.episodes) if found else 0):
        for rows in _checked_rows(reader, number, every):
            for axis, both in names.items():
                found[axis] += sum(items_of(rows[name], axes[axis][1]) for name in both)
    return {axis: max(1, n) for axis, n in found.items()} | dict(room or {})


def _dtype(field: Field) -> np.dtype[Any] | type[str]:
    """The dtype as ``env_dict`` takes it."""
    return str if field.is_text else field.dtype


def _given(values: Any) -> Any:
    """The values of rows as ``add`` takes them."""
    return values.tolist() if values.dtype == object else values


def _checked_rows(reader: Reader, number: int, names: Sequence[str]) -> Iterator[Rows]:
    """Some fields of an episode; ``ValueError`` unless it has as many rows as the header says."""
    header, n_read = reader.header, 0
    expected = header.episodes[number].length
    with reading(reader.path):
        for rows in reader.rows(number, rows_in_chunk(header.row_nbytes), names):
            n = {len(values) for values in rows.values()}
            if len(n) != 1:
                raise ValueError(f"episode {number}: expected as many rows of each field, got {n}")
            n_read += n.pop()
            if n_read > expected:
                break
            yield rows
        if n_read != expected:
            raise ValueError(f"episode {number}: expected {expected} rows, got {n_read} or more")


def _add_absent(buffer: Any, n_steps: int) -> None:
    """Add time steps without a step of the environment, before a cut episode."""
    fields: Any = buffer.schema.declared
    step = rows_in_chunk(sum(field.nbytes for field in fields))
    for start in range(0, n_steps, step):
        n = min(step, n_steps - start)
        rows = {
            field.name: blank(field, n).tolist()
            if field.is_ragged
            else np.zeros((n, 1, *field.shape), field.dtype)
            for field in fields
        }
        buffer.add_where(np.zeros((n, 1), np.bool_), **rows)
