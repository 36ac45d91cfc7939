"""Description of a checkpoint, without the object that was saved.

All but the rows comes from the manifest, so no class of the caller is needed, nor functions or
environments. The rows of one ring are read into a plain ``ReplayBuffer``, with only the fields that
mark episodes. Not here: checks of files (``_verify``), and loading (``_load``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cpprb_like._core import FLAG_ABSENT
from cpprb_like._fields.schema import Schema
from cpprb_like.checkpoint import _classes, _manifest
from cpprb_like.checkpoint._disk import Disk
from cpprb_like.checkpoint._open_state import OpenState
from cpprb_like.checkpoint._options import LoadOptions, Target
from cpprb_like.checkpoint._values import Node, nodes
from cpprb_like.errors import DamagedError
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
    node: Node


class Rows(NamedTuple):
    """Ages, episodes and priorities of the rows of a buffer.

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
    """Raise errors of missing or wrong values as ``DamagedError`` that names this folder."""
    try:
        yield
    except DamagedError as error:
        if str(folder) in str(error):
            raise
        raise DamagedError(f"{folder}: {error}") from None
    except (AttributeError, AssertionError, LookupError, TypeError) as error:
        raise DamagedError(f"{folder}: the manifest is damaged: {error!r}") from error


def as_it_is(data: bytes) -> bytes:
    """Decode Python objects of the caller as their bytes."""
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
    files : list of File
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
        with reading(folder):
            self._opened = OpenState(Disk(folder), LoadOptions(decode=as_it_is, state=state))
            found = self._opened.state
            self.number = found.number
            self.files = found.files
            self.kind = self._opened.root.cls
            self.objects = sum(objects.stop - objects.first for objects in found.objects)
            tagged = list(nodes(found.root))
            self.external = [node.what for node in tagged if node.kind == "external"]
            self.buffers = [self._held(node) for node in tagged if node.kind == "rows"]

    def _held(self, node: Node) -> Held:
        saved = self._opened.state.rings[node.ring]
        options = saved.layout.native()
        schema, nstep = options.schema, options.nstep
        return Held(
            path=node.path,
            kind=node.cls,
            caller_kind=node.is_callers,
            size=options.size,
            n_envs=options.n_envs,
            written=saved.written,
            fields=tuple(
                Field(field.name, field.dtype, field.shape, schema.stored_nbytes(field))
                for field in schema.fields
            ),
            ends=tuple(_ends(schema)),
            next_of=tuple(source for _, source in schema.next_of),
            stacks=tuple(stack.name for stack in schema.stacks),
            nstep=None if nstep is None else {"size": nstep.size, "gamma": nstep.gamma},
            sampler=Node("", node.attribute("sampler")).cls,
            nbytes=options.layout().total_nbytes,
            ring=node.ring,
            node=node,
        )

    def rows(self, held: Held, reward: str | None = None) -> Rows:
        """Facts about the rows of a buffer; with ``reward``, a field, episodes have returns.

        Raises ``ValueError`` if a file is damaged, or there is no such field of one number a row.
        Cost: all files of the rows are read, and memory is taken for the fields that are needed.
        """
        with reading(self._folder):
            if reward is not None and reward not in [field.name for field in held.fields]:
                names = [field.name for field in held.fields]
                raise ValueError(f"reward: expected one of {names}, got {reward!r}")
            attributes = _attributes(self._opened, held.node)
            nstep = self._opened.state.rings[held.ring].layout.options.nstep
            target = Target(fields=_needed(held, nstep, reward))
            reader = self._opened.reader(held.ring, None)
            buffer = self._opened.open_ring(_plain(), attributes, target, reader)
            return rows_of(buffer, reward)


def _attributes(opened: OpenState, node: Node, *, draws: bool = True) -> dict[str, Any]:
    """The attributes of a plain buffer; with ``draws`` also priorities, if known."""
    sampler: Any = Uniform()
    own = Node("", node.attribute("sampler"))
    if draws and own.cls in BY_PRIORITY and not own.is_callers:
        sampler = opened.part(own.saved, {"beta": 0.0})
    return {"rng": np.random.default_rng(0), "sampler": sampler}


def count_lost(opened: OpenState, ring: int) -> int:
    """Read all rows of a ring; the number of rows that damaged files cost."""
    holders = [node for node in nodes(opened.state.root) if node.kind == "rows"]
    (node,) = [node for node in holders if node.ring == ring]
    reader = opened.reader(ring, lambda _: None)
    opened.open_ring(_plain(), _attributes(opened, node, draws=False), Target(), reader)
    return reader.lost


def _plain() -> type:
    """The class of buffers without anything of the caller's, which is in a room above."""
    found = _classes.class_of("ReplayBuffer")
    assert found is not None
    return found


def rows_of(buffer: Any, reward: str | None = None) -> Rows:
    """Facts about the rows of a buffer: see ``Look.rows``."""
    ring, sampler = buffer.ring, buffer.sampler
    ids = np.arange(ring.first, ring.written, dtype=np.int64)
    slots = (ids % ring.capacity).astype(np.intp)
    there = ring.flags()[slots] & FLAG_ABSENT == 0
    ids, slots = ids[there], slots[there]
    weights, priorities = sampler.row_weights(slots), sampler.row_priorities(slots)
    ages = (ring.written - 1 - ids) // ring.n_envs
    return Rows(ages, buffer.episodes.list(reward), weights, priorities)


def _ends(schema: Schema) -> list[str]:
    return [schema.fields[number].name for number, *_ in schema.end_fields()]


def _needed(held: Held, nstep: Any, reward: str | None) -> tuple[str, ...]:
    """The fields that mark episodes; one of the smallest if there are none."""
    names = {*held.ends, *([] if reward is None else [reward])}
    if nstep is not None:
        names |= {*nstep.rewards, *nstep.last_step_fields}
    names |= {source for source in held.next_of if f"next_{source}" in names}
    if not names:
        of_bytes = [field for field in held.fields if not field.dtype.hasobject and field.nbytes]
        names = {min(of_bytes or held.fields, key=lambda field: field.nbytes).name}
    return tuple(field.name for field in held.fields if field.name in names)
