"""Description of a checkpoint, without the object that was saved.

All but the rows comes from the manifest, so no class of the caller is needed, nor functions or
environments. The rows of one ring are read into a plain ``ReplayBuffer``, and only the fields that
tell of episodes. Not here: whether files are in order (``_verify``), and loading (``_load``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cpprb_like._core import FLAG_ABSENT
from cpprb_like._fields.schema import Layout, Schema
from cpprb_like.checkpoint import _classes, _manifest
from cpprb_like.checkpoint._arrays import DamagedError, FileEntry
from cpprb_like.checkpoint._disk import Disk
from cpprb_like.checkpoint._load import Options, State, Target
from cpprb_like.checkpoint._rows_back import schema_of
from cpprb_like.checkpoint._values import OF_CALLER, join
from cpprb_like.samplers._uniform import Uniform

__all__ = ["Field", "Held", "Look", "Rows", "rows_of", "states"]

BY_PRIORITY = ("Prioritized", "RankBased")


class Field(NamedTuple):
    """A field: its name, dtype and shape, and the bytes that are stored of each row."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    nbytes: int


class Held(NamedTuple):
    """A buffer in a checkpoint.

    Attributes
    ----------
    path : str
        Where it was found: ``""`` for the object itself, else as ``sources.demos.buffer``.
    kind : str
        Its class; ``caller_kind`` tells whether that is one of the caller's.
    size, n_envs, written : int
        As those of the buffer.
    fields : tuple of Field
    ends : tuple of str
        The fields that end episodes.
    next_of, stacks : tuple of str
        Fields whose next values, or whose frames, are derived.
    nstep : dict or None
        ``size`` and ``gamma`` of n-step returns.
    sampler : str
        The class of its sampler.
    nbytes : int
        Memory that it takes when it is loaded, without its sampler.
    """

    path: str
    kind: str
    caller_kind: bool
    size: int
    n_envs: int
    written: int
    fields: tuple[Field, ...]
    ends: tuple[str, ...]
    next_of: tuple[str, ...]
    stacks: tuple[str, ...]
    nstep: dict[str, Any] | None
    sampler: str
    nbytes: int
    ring: int
    node: dict[str, Any]


class Rows(NamedTuple):
    """What the rows of a buffer tell.

    Attributes
    ----------
    ages : ndarray of int64, shape (n,)
        Time steps since each row was added, oldest row first; 0 for the newest.
    episodes : list of Episode
    weights, priorities : ndarray of float64, shape (n,), or None
        In proportion to the probability of a row; and its priority. None without priorities, or
        with ``alpha=0``, which forgets them.
    """

    ages: NDArray[np.int64]
    episodes: list[Any]
    weights: NDArray[np.float64] | None
    priorities: NDArray[np.float64] | None


def states(folder: str | Path) -> list[int]:
    """The numbers of the states in a folder, oldest first; none if there is no checkpoint."""
    return _manifest.numbers(Disk(folder))


@contextlib.contextmanager
def reading(folder: str | Path) -> Iterator[None]:
    """What a manifest lacks, or has in a wrong form, is damage; errors name this folder."""
    try:
        yield
    except DamagedError as error:
        if str(folder) in str(error):
            raise
        raise DamagedError(f"{folder}: {error}") from None
    except (AttributeError, AssertionError, LookupError, TypeError) as error:
        raise DamagedError(f"{folder}: the manifest is damaged: {error!r}") from error


def as_it_is(data: bytes) -> bytes:
    """Python objects of other programs: their bytes."""
    return data


class Look:
    """One state of a checkpoint.

    Parameters
    ----------
    folder : str or path
        The folder that ``save`` was given.
    state : int, optional
        Its number; by default the newest.

    Attributes
    ----------
    number : int
        The number of the state.
    kind : str
        The class of what was saved.
    files : list of FileEntry
        ``name``, ``nbytes`` and ``codec`` of each.
    external : list of str
        Functions and environments, which ``load`` wants to be handed over: path and type.
    objects : int
        Python objects of the caller beside those of fields, as a ``ReplayMemory`` has.
    buffers : list of Held

    Raises
    ------
    FileNotFoundError
        There is no checkpoint, or no such state.
    ValueError
        It is damaged, or of an unknown version.
    """

    def __init__(self, folder: str | Path, state: int | None = None) -> None:
        self._folder = folder
        options = Options((), {}, as_it_is, False, state, lambda _: None)
        with reading(folder):
            self._state = State(Disk(folder), options)
            manifest = self._state.manifest
            self.number = int(manifest["number"])
            self.kind, _ = _kind(manifest["root"])
            self.objects = sum(int(n) for *_, n in manifest["objects"])
            nodes = list(_nodes(manifest["root"]))
            self.external = [
                f"{node['path']} ({node['type']})" for _, node in nodes if node["$"] == "external"
            ]
            self.buffers = [self._held(path, node) for path, node in nodes if node["$"] == "rows"]

    @property
    def files(self) -> list[FileEntry]:
        """The files of the state."""
        return self._state.entries

    def _held(self, path: str, node: dict[str, Any]) -> Held:
        saved = self._state.manifest["rings"][node["ring"]]
        layout, schema = saved["layout"], schema_of(saved)
        nstep = node["state"].get("_nstep")
        kind, is_callers = _kind(node)
        return Held(
            path=path,
            kind=kind,
            caller_kind=is_callers,
            size=int(layout["size"]),
            n_envs=int(layout["n_envs"]),
            written=int(saved["written"]),
            fields=tuple(
                Field(field.name, field.dtype, field.shape, schema.stored_nbytes(field))
                for field in schema.fields
            ),
            ends=tuple(_ends(schema)),
            next_of=tuple(source for _, source in schema.next_of),
            stacks=tuple(stack.name for stack in schema.stacks),
            nstep=None
            if nstep is None
            else {"size": nstep["state"]["size"], "gamma": nstep["state"]["gamma"]},
            sampler=_kind(node["state"]["sampler"])[0],
            nbytes=_nbytes(schema, layout),
            ring=int(node["ring"]),
            node=node,
        )

    def rows(self, held: Held, reward: str | None = None) -> Rows:
        """What the rows of a buffer tell; with ``reward``, a field, episodes have their returns.

        Raises ``ValueError`` if a file is damaged, or there is no such field of one number a row.
        Cost: all files of the rows are read, and memory is taken for the fields that are needed.
        """
        with reading(self._folder):
            if reward is not None and reward not in [field.name for field in held.fields]:
                names = [field.name for field in held.fields]
                raise ValueError(f"reward: expected one of {names}, got {reward!r}")
            attributes = _attributes(self._state, held.node)
            target = Target(fields=_needed(held, attributes["_nstep"], reward))
            reader = self._state.reader(held.ring, None)
            buffer = self._state.open_ring(_plain(), held.ring, attributes, target, reader)
            return rows_of(buffer, reward)


def _attributes(state: State, node: dict[str, Any], *, draws: bool = True) -> dict[str, Any]:
    """What a plain buffer needs beside rows; with ``draws`` also priorities, if known."""
    sampler: Any = Uniform()
    if draws and node["state"]["sampler"].get("class") in BY_PRIORITY:
        sampler = state.part(node["state"]["sampler"], {"beta": 0.0})
    nstep = state.part(node["state"].get("_nstep"), {})
    return {"rng": np.random.default_rng(0), "sampler": sampler, "_nstep": nstep}


def count_lost(state: State, ring: int) -> int:
    """Read all rows of a ring, in spite of damaged files; how many rows these cost."""
    nodes = [node for _, node in _nodes(state.manifest["root"]) if node["$"] == "rows"]
    (node,) = [node for node in nodes if node["ring"] == ring]
    reader = state.reader(ring, lambda _: None)
    state.open_ring(_plain(), ring, _attributes(state, node, draws=False), Target(), reader)
    return reader.lost


def _plain() -> type:
    """The class of a buffer without anything of the caller's, which stands in a room above."""
    found = _classes.class_of("ReplayBuffer")
    assert found is not None
    return found


def rows_of(buffer: Any, reward: str | None = None) -> Rows:
    """What the rows of a buffer tell: see ``Look.rows``."""
    ring, sampler = buffer.ring, buffer.sampler
    ids = np.arange(ring.first, ring.written, dtype=np.int64)
    slots = (ids % ring.capacity).astype(np.intp)
    there = ring.flags()[slots] & FLAG_ABSENT == 0
    ids, slots = ids[there], slots[there]
    weights, priorities = sampler.row_weights(slots), sampler.row_priorities(slots)
    ages = (ring.written - 1 - ids) // ring.n_envs
    return Rows(ages, buffer.episodes.list(reward), weights, priorities)


def _kind(node: Any) -> tuple[str, bool]:
    """The class that a node of the manifest names, and whether it is one of the caller's."""
    name = str(node.get("class", node["$"]))
    return name.removeprefix(OF_CALLER), name.startswith(OF_CALLER)


def _nodes(root: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """What has a path in the JSON of an object: nodes with a tag, in order."""
    waiting = [("", root)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, list):
            waiting += [(join(path, str(k)), entry) for k, entry in enumerate(value)][::-1]
        elif isinstance(value, dict) and "$" not in value:
            waiting += [(join(path, key), entry) for key, entry in value.items()][::-1]
        elif isinstance(value, dict):
            yield path, value
            if value["$"] == "dict":
                waiting += [(path, entry) for _, entry in value["pairs"]][::-1]
            else:
                waiting.append((path, value.get("state", value.get("values"))))


def _ends(schema: Schema) -> list[str]:
    return [schema.fields[number].name for number, *_ in schema.end_fields()]


def _nbytes(schema: Schema, layout: dict[str, Any]) -> int:
    size, capacity = int(layout["size"]), int(layout["capacity"])
    return Layout.of(schema, size, int(layout["n_envs"]), 0, capacity - size).total_nbytes


def _needed(held: Held, nstep: Any, reward: str | None) -> tuple[str, ...]:
    """The fields that tell of episodes; one of the smallest if there are none."""
    names = {*held.ends, *([] if reward is None else [reward])}
    if nstep is not None:
        names |= {*nstep.rewards, *nstep.last_step_fields}
    names |= {source for source in held.next_of if f"next_{source}" in names}
    if not names:
        of_bytes = [field for field in held.fields if not field.dtype.hasobject and field.nbytes]
        names = {min(of_bytes or held.fields, key=lambda field: field.nbytes).name}
    return tuple(field.name for field in held.fields if field.name in names)
