"""Minari with HDF5: a group for each episode, with one observation more than there are steps.

Written as Minari 0.5 does, never as JPEG, which would change images. Fields ``info.x`` are in
``infos``. A field that has no place in Minari, and next values that are not the observation after,
are data sets in a group ``cpprb_like`` of each episode. Not here: ``metadata.json``
(``_minari_metadata``), and Minari with Arrow.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from cpprb_like.datasets import _hdf5, _minari_metadata
from cpprb_like.datasets._files import need
from cpprb_like.datasets._format import Format, Reader, Writer
from cpprb_like.datasets._minari_metadata import INFOS, Leaf, is_tuple
from cpprb_like.datasets._model import (
    Array,
    Ends,
    EpisodeRecord,
    Field,
    Header,
    Rows,
    check_steps,
    is_taken,
    key_of,
    nest,
    only_newest_open,
)
from cpprb_like.datasets._model import Path as Parts

__all__ = ["FORMAT", "MinariReader", "MinariWriter"]

NAME = "minari"
FILE = "main_data.hdf5"
OURS = "cpprb_like"
FLAG = np.dtype(np.bool_)
SEED = "seed"  # of a reset, in each row of its episode; -1 where there is none
ENDS = ("terminations", "truncations")
COLUMNS = {"rewards": "rew", "terminations": "terminated", "truncations": "truncated"}


def places(group: str, parts: Mapping[str, Parts]) -> dict[str, Parts]:
    """Where fields of a nest are: keys one below the other, numbered parts as ``_index_0``."""

    def walk(node: Any, path: Parts) -> Iterator[tuple[str, Parts]]:
        if isinstance(node, str):
            yield node, path
            return
        numbered = is_tuple(node)
        for key, part in node.items():
            yield from walk(part, (*path, f"_index_{key}" if numbered else key_of(key)))

    return dict(walk(nest((path, name) for name, path in parts.items()), (group,)))


class _Layout:
    """Where the fields of a data set are in the group of an episode."""

    def __init__(self, header: Header) -> None:
        self.steps = places("observations", header.observations)  # one more than rows
        self.columns = places("actions", header.actions)
        for name, place in zip(
            (header.reward, header.terminated, header.truncated), COLUMNS, strict=True
        ):
            if name is not None:
                self.columns[name] = (place,)
        self.infos = _minari_metadata.infos(header)  # one more than rows: that of the reset
        for field in header.extras:
            if field.name in self.infos:
                self.columns[field.name] = (INFOS, *self.infos[field.name])
            elif field.nbytes:
                self.columns[field.name] = (OURS, key_of(field.name))


class MinariWriter(Writer):
    """Writes a folder of Minari's."""

    def __init__(self, path: Path, header: Header, about: Mapping[str, Any]) -> None:
        self._folder, self._header, self._about = path / "data", header, about
        self._folder.mkdir()
        self._layout = _Layout(header)
        self._file = _hdf5.opened(self._folder / FILE, NAME, "x")

    def episode(self, number: int, record: EpisodeRecord, chunks: Iterator[Rows]) -> None:
        """Write the group of an episode."""
        header, n = self._header, record.length
        group = self._file.create_group(f"episode_{number}")
        group.attrs["id"] = number
        group.attrs["total_steps"] = n
        group.create_group(INFOS)
        steps = {
            name: _hdf5.create(group, "/".join(place), n + 1, header[name])
            for name, place in self._layout.steps.items()
        }
        columns = {
            name: _hdf5.create(
                group, "/".join(place), n + (name in self._layout.infos), header.stored(name)
            )
            for name, place in self._layout.columns.items()
        }
        for name in self._layout.infos:
            columns[name][:1] = _minari_metadata.info_of_reset(header[name])
        flags = [
            None if name is not None else group.create_dataset(place, (n,), FLAG)
            for name, place in (
                (header.terminated, "terminations"),
                (header.truncated, "truncations"),
            )
        ]
        at = 0
        seeds: set[int | None] = set()
        for rows in chunks:
            count = len(next(iter(rows.values())))
            seeds.add(seed_in(rows, header))
            for name, column in (steps | columns).items():
                shape = (count, *header.stored(name).shape)
                by = at + (name in self._layout.infos)
                _hdf5.write(column, by, rows[name].reshape(shape))
            ends = header.last_flags(rows, count, record, is_last=at + count == n)
            for flag, values in zip(flags, ends, strict=True):
                if flag is not None:
                    flag[at : at + count] = values
            at += count
            if at == n:
                for name, column in steps.items():
                    column[n] = rows[str(header.following(name))][-1]
        if len(seeds) == 1 and None not in seeds:
            group.attrs[SEED] = seeds.pop()

    def close(self) -> None:
        """Close the file, and write the metadata."""
        self._file.close()
        nbytes = (self._folder / FILE).stat().st_size
        _minari_metadata.write(self._folder, self._header, "hdf5", nbytes, self._about)

    def abandon(self) -> None:
        """Close the file."""
        self._file.close()


class MinariReader(Reader):
    """Reads a folder of Minari's, ours or another."""

    header: Header

    def __init__(self, path: Path) -> None:
        folder = _minari_metadata.data_folder(path)
        if folder is None:
            raise ValueError(f"{path}: expected a folder with {_minari_metadata.METADATA}")
        metadata, ours = _minari_metadata.read(folder)
        self.about = _minari_metadata.about_of(metadata)
        self.left_out: list[str] = []
        self._path = folder / FILE
        self._jpeg: dict[str, Leaf] = {}
        self._offsets: dict[str, int] = {}  # of infos, which begin with that of the reset
        self._file = _hdf5.opened(self._path, NAME, "r")
        try:
            with _hdf5.reading(self._path):
                if ours is None:
                    self._read_foreign(metadata)
                else:
                    self._layout = _Layout(ours)
                    self._offsets = dict.fromkeys(self._layout.infos, 1)
                    self._groups = [f"episode_{k}" for k in range(len(ours.episodes))]
                    self.header = with_seeds(ours, self._read_seed)
        except BaseException:
            self._file.close()
            raise

    # ------------------------------------------------------------------ files of others

    def _read_foreign(self, metadata: Mapping[str, Any]) -> None:
        """The fields of the first episode, and the length of each."""
        total = metadata.get("total_episodes", 0)
        if not isinstance(total, int) or not 0 <= total <= len(self._file):
            raise ValueError(
                f"total_episodes: expected as many as there are groups, {len(self._file)}, "
                f"got {total!r}"
            )
        episodes, self._groups = [], []
        for number in range(total):
            group = self._group(f"episode_{number}")
            rewards = _hdf5.member(group, "rewards")
            _hdf5.check_dataset(rewards, f"{group.name}/rewards")
            if len(rewards):
                seed = _seed(group.attrs.get(SEED))
                is_open = not any(
                    flag is not None and bool(flag[-1])
                    for flag in (_hdf5.member(group, name) for name in ENDS)
                )
                episodes.append(EpisodeRecord(0, len(rewards), is_open=is_open, seed=seed))
                self._groups.append(f"episode_{number}")
        if not episodes:
            raise ValueError("expected an episode with rows, got none")
        self._read_fields(episodes, metadata)
        self._look_for_others()
        self.header = replace(self.header, episodes=only_newest_open(episodes, self.left_out))

    def _read_seed(self, number: int) -> int | None:
        return _seed(self._group(self._groups[number]).attrs.get(SEED))

    def _look_for_others(self) -> None:
        """Tell of data sets that later episodes have, and the first has not."""
        known = {place for place, _ in _hdf5.members(self._group(self._groups[0]))}
        later = Counter(
            place
            for name in self._groups[1:]
            for place, _ in _hdf5.members(self._group(name))
            if place not in known
        )
        self.left_out += [f"{'/'.join(place)} of {n} episodes" for place, n in later.items()]

    def _read_fields(self, episodes: list[EpisodeRecord], metadata: Mapping[str, Any]) -> None:
        group, n = self._group(self._groups[0]), episodes[0].length
        spaces = {
            kind: _minari_metadata.leaves(metadata.get(f"{kind[:-1]}_space"), f"{kind[:-1]}_space")
            for kind in ("observations", "actions")
        }
        has_jpeg = bool(metadata.get("jpeg_encoding", True))
        fields: dict[str, Field] = {}
        parts: dict[str, dict[str, Parts]] = {"observations": {}, "actions": {}}
        self._layout = _Layout(Header((), ()))
        own = {"observations", "actions", INFOS, *COLUMNS}
        for place, data in sorted(_hdf5.members(group), key=lambda found: found[0][0] not in own):
            path = tuple(key.removeprefix("_index_") for key in place[1:])
            role = {"observations": "obs", "actions": "act", INFOS: "info", **COLUMNS}.get(place[0])
            name = ".".join((role or place[0], *path))
            if is_taken(name, fields, parts["observations"]):
                self.left_out.append(f"{'/'.join(place)} (another data set is {name!r})")
                continue
            leaf = spaces.get(place[0], {}).get(path)
            field = self._field(data, "/".join(place), name, leaf, has_jpeg)
            extra = len(data) - n if data.ndim else -1
            expected = (1,) if place[0] == "observations" else (0, 1) if role == "info" else (0,)
            if field is None or extra not in expected:
                self.left_out.append(f"{'/'.join(place)} ({data.dtype} of shape {data.shape})")
                continue
            fields[name] = field
            if place[0] == "observations":
                self._layout.steps[name] = place
            else:
                self._layout.columns[name] = place
                self._offsets[name] = extra
            if place[0] in parts:
                parts[place[0]][name] = path
        infos = [name for name, place in self._layout.columns.items() if place[0] == INFOS]
        tell_of_resets([name for name in infos if self._offsets[name]], episodes, self.left_out)
        add_seeds(fields, parts["observations"], episodes, self.left_out)
        self.header = foreign_header(fields, parts["observations"], parts["actions"])

    def _field(
        self, data: Any, place: str, name: str, leaf: Leaf | None, has_jpeg: bool
    ) -> Field | None:
        """The field that a data set of somebody else's makes, if it makes one."""
        is_packed = has_jpeg and leaf is not None and leaf.is_image and data.ndim <= 2
        if leaf is not None and is_packed and len(leaf.shape) + 1 != data.ndim:
            self._jpeg[name] = leaf
            return Field(name, np.dtype(np.uint8), leaf.shape)
        found = _hdf5.field_of(data, place, name)
        return found if isinstance(found, Field) else None

    # ------------------------------------------------------------------ rows

    def _group(self, name: str) -> Any:
        group = _hdf5.member(self._file, name)
        if not _hdf5.is_group(group):
            raise ValueError(f"{name}: expected a group, got {group!r}")
        return group

    def _find(self, group: Any, place: Parts, n: int, field: Field) -> Any:
        found = group
        for key in place:
            found = _hdf5.member(found, key) if _hdf5.is_group(found) else None
        name = f"{group.name}/{'/'.join(place)}"
        if field.name in self._jpeg:
            if found is None or found.ndim not in (1, 2) or len(found) != n:
                raise ValueError(f"{name}: expected {n} images as JPEG, got {found!r}")
        else:
            _hdf5.check(found, name, n, field)
        return found

    def rows(self, number: int, most: int) -> Iterator[Rows]:
        """The rows of an episode."""
        header, n = self.header, self.header.episodes[number].length
        with _hdf5.reading(self._path):
            group = self._group(self._groups[number])
            steps = {
                name: self._find(group, place, n + 1, header[name])
                for name, place in self._layout.steps.items()
            }
            columns = {
                name: self._find(group, place, n + self._offsets.get(name, 0), header.stored(name))
                for name, place in self._layout.columns.items()
            }
        for start in range(0, n, most):
            stop = min(start + most, n)
            rows = {}
            if SEED in header.names and SEED not in columns:
                rows[SEED] = seeds_of(header.episodes[number], stop - start)
            with _hdf5.reading(self._path):
                for name, column in columns.items():
                    by = self._offsets.get(name, 0)
                    values = _hdf5.read(column, start + by, stop + by, header[name])
                    rows[name] = values.reshape(stop - start, *header[name].shape)
                for name, column in steps.items():
                    values = self._read_steps(name, column, start, stop + 1)
                    rows[name] = values[:-1]
                    if name in header.chained:
                        rows[header.chained[name]] = values[1:]
            yield rows

    def _read_steps(self, name: str, column: Any, start: int, stop: int) -> Array:
        if name not in self._jpeg:
            return _hdf5.read(column, start, stop, self.header[name])
        shape = self._jpeg[name].shape
        images = np.empty((stop - start, *shape), np.uint8)
        for k, data in enumerate(column[start:stop]):
            images[k] = decoded(np.asarray(data, np.uint8).tobytes(), shape, name)
        return images

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def foreign_header(
    fields: dict[str, Field], observations: dict[str, Parts], actions: dict[str, Parts]
) -> Header:
    """The header of somebody else's data set: next observations are those of the step after."""
    chained = {name: f"next_{name}" for name in observations}
    for name, following in chained.items():
        fields[following] = replace(fields[name], name=following)
    known = [name for name in ("terminated", "truncated") if name in fields]
    ends = {name: name for name in known if fields[name].can_end}
    order = [*observations, *actions, "rew", *chained.values(), "terminated", "truncated"]
    names = [name for name in order if name in fields]
    names += [name for name in fields if name not in names]
    return Header(
        tuple(fields[name] for name in names),
        (),
        observations=observations,
        actions=actions,
        reward="rew" if "rew" in fields else None,
        chained=chained,
        ends=Ends(**ends),
    )


# ---------------------------------------------------------------------- seeds, and infos of resets


def add_seeds(
    fields: dict[str, Field],
    observations: Mapping[str, Parts],
    episodes: Sequence[EpisodeRecord],
    left_out: list[str],
) -> None:
    """Add the field of seeds, if somebody else's episodes have some."""
    seeds = [episode.seed for episode in episodes if episode.seed is not None]
    if seeds and (
        is_taken(SEED, fields, observations) or not 0 <= min(seeds) <= max(seeds) < 1 << 63
    ):
        left_out.append(f"the seeds of {len(seeds)} episodes")
    elif seeds:
        fields[SEED] = Field(SEED, np.dtype(np.int64), ())


def seeds_of(record: EpisodeRecord, n: int) -> Array:
    """The seeds of n rows of somebody else's episode."""
    return np.full(n, -1 if record.seed is None else record.seed, np.int64)


def seed_in(rows: Rows, header: Header) -> int | None:
    """The seed that these rows of an episode have, if it is one."""
    if SEED not in header.names or header[SEED].dtype.kind not in "iu" or header[SEED].shape:
        return None
    seed = int(rows[SEED][0])
    return seed if seed >= 0 and bool((rows[SEED] == rows[SEED][0]).all()) else None


def with_seeds(header: Header, read: Callable[[int], int | None]) -> Header:
    """Our header, with the seeds that the files of the episodes say."""
    if SEED not in header.names:
        return header
    episodes = (replace(one, seed=read(number)) for number, one in enumerate(header.episodes))
    return replace(header, episodes=tuple(episodes))


def tell_of_resets(
    infos: Sequence[str], episodes: Sequence[EpisodeRecord], left_out: list[str]
) -> None:
    """Tell of the infos that came with resets: a row has what came with its step."""
    if infos:
        left_out.append(f"{', '.join(infos)} of {len(episodes)} resets")


def _seed(said: Any) -> int | None:
    """The seed that an episode was begun with; Minari writes the text ``None`` if there is none."""
    if said is None or (isinstance(said, (str, bytes)) and said in ("None", b"None")):
        return None
    return int(said)


def decoded(data: bytes, shape: tuple[int, ...], name: str) -> Array:
    """An image of Minari's, which JPEG has changed already."""
    image_module = need("PIL.Image", NAME)
    try:
        with image_module.open(io.BytesIO(data), formats=("JPEG",)) as image:
            if image.size != (shape[1], shape[0]):
                raise ValueError(f"expected an image of {shape[:2]}, got {image.size[::-1]}")
            return np.asarray(image, np.uint8).reshape(shape)
    except (OSError, ValueError, SyntaxError) as error:
        raise ValueError(f"field {name!r}: expected a JPEG image: {error}") from None


class Minari(Format):
    """See ``Format``."""

    name = NAME

    def told_by(self, path: Path) -> bool:
        """Whether a path is one of this format."""
        return path.is_dir() and _minari_metadata.storage_of(path) == "hdf5"

    def check(self, header: Header) -> None:
        """Observations with final ones, actions and rewards are needed."""
        check_steps(header, NAME)

    def find(self, name: str) -> Path | None:
        """Where Minari keeps a local data set of this name, if it does."""
        return _minari_metadata.find(name)

    def metadata(self, path: Path, header: Header, about: Mapping[str, Any]) -> dict[str, Any]:
        """The entries of ``metadata.json``."""
        return _minari_metadata.of_new(path, header, about)

    def open_writer(self, path: Path, header: Header, about: Mapping[str, Any]) -> MinariWriter:
        """A writer of this format."""
        return MinariWriter(path, header, about)

    def open_reader(self, path: Path) -> Reader:
        """A reader of this format, whatever its storage."""
        if _minari_metadata.storage_of(path) in ("arrow", "parquet"):
            from cpprb_like.datasets import _minari_arrow  # noqa: PLC0415 (it needs this module)

            return _minari_arrow.FORMAT.open_reader(path)
        return MinariReader(path)


FORMAT = Minari()
