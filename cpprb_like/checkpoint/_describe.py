"""Description of a checkpoint, without the object that was saved: ``inspect`` and ``describe``.

Everything but the rows comes from the manifest, so a description needs no class or function of the
caller. The rows of a ring are read into a plain ``ReplayBuffer``, with only the fields that mark
episodes. Not here: checks of files (``_verify``), and loading (``_load``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from cpprb_like._core import FLAG_ABSENT
from cpprb_like._fields.field import Field
from cpprb_like._fields.layout import Layout
from cpprb_like._fields.schema import Schema
from cpprb_like.checkpoint import _classes, _manifest
from cpprb_like.checkpoint._item_reader import count_items
from cpprb_like.checkpoint._nodes import Node, nodes
from cpprb_like.checkpoint._open_state import OpenState, disk_of, read_folder, reading
from cpprb_like.checkpoint._options import Target
from cpprb_like.checkpoint._ring_reader import RingReader
from cpprb_like.checkpoint._state import File
from cpprb_like.samplers._base import priorities_of, weights_of
from cpprb_like.samplers._prioritized import PrioritySampler
from cpprb_like.samplers._uniform import Uniform

Look = Callable[[Any, str | None], Mapping[str, Any]]

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
SHARED = "processes.SavedReplay"  # class of a saved ``SharedReplay``


@dataclass(frozen=True)
class SavedState:
    """A state of a checkpoint, as ``inspect`` returns it.

    Attributes
    ----------
    state : int
        Its number.
    rows : int or tuple of int
        ``rows`` at the save, for ``rewind``: of a ``SharedReplay`` one for each writer, of a
        ``ClusterReplay`` a tuple with such a tuple of each host, and of a mixture one for each
        buffer, in the order of ``describe``.
    beside : dict of str to int
        Numbers of bytes of the files of ``save(beside=)``, by name.
    """

    state: int
    rows: Any
    beside: dict[str, int]


def inspect(folder: str | Path, *, state: int | None = None) -> SavedState:
    """The number of a state and of its rows, and its files beside, from its manifest alone.

    ``folder``, ``state`` and errors are those of ``describe``. The rows are neither read nor
    checked.

    Examples
    --------
    >>> import tempfile
    >>> from cpprb_like import ReplayBuffer, checkpoint
    >>> folder = tempfile.mkdtemp()
    >>> rb = ReplayBuffer(10, {"x": {"shape": ()}})
    >>> rb.add(x=[1, 2, 3])
    0
    >>> rb.save(folder)
    >>> saved = checkpoint.inspect(folder)
    >>> rb.add(x=[4, 5])
    3
    >>> saved.rows, rb.rewind(saved.rows), len(rb)
    (3, 2, 3)
    """

    def use(opened: OpenState) -> SavedState:
        with reading(folder):
            beside = {file.label: file.nbytes for file in opened.state.beside}
            return SavedState(opened.state.number, _rows_of(opened), beside)

    return read_folder(folder, use, decode=bytes, state=state)


def _rows_of(opened: OpenState) -> int | tuple[Any, ...]:
    if hosts := opened.hosts:
        return tuple(inspect(folder, state=number).rows for folder, number in hosts.items())
    rings = [ring.cleared + ring.written for ring in opened.state.rings]
    if opened.root.cls == SHARED:
        shards = opened.root.attribute("shards")
        return tuple(0 if one is None else rings[Node("", one).ring] for one in shards)
    rows = [rings[node.ring] for node in nodes(opened.state.root) if node.kind == "rows"]
    return rows[0] if len(rows) == 1 else tuple(rows)


def states(folder: str | Path) -> list[int]:
    """The numbers of the states in a folder, oldest first; none if there is no checkpoint."""
    return _manifest.numbers(disk_of(folder))


def describe(
    folder: str | Path,
    *,
    state: int | None = None,
    reward: str | None = None,
    look: Look | None = None,
) -> dict[str, Any]:
    """The content of a checkpoint, without loading the object: see ``cpprb_like inspect --json``.

    Parameters
    ----------
    folder : str or path
        The folder of ``save``.
    state : int, optional
        Number of the state; by default the newest.
    reward : str, optional
        Field that is summed for returns of episodes; by default ``rew``, ``reward`` or ``rewards``.
    look : callable, optional
        ``look(buffer, reward)`` gives the values of a buffer in place of ``statistics``. The buffer
        then has all its fields. It is a ``ReplayBuffer`` for any saved class.

    Returns
    -------
    dict of str to object
        JSON values: class, states and files, and for each buffer its options, fields, episodes and
        priorities. Unknown values are None.

    Raises
    ------
    FileNotFoundError
        There is no checkpoint, or no such state.
    ValueError
        The checkpoint is damaged or of an unknown version, or there is no such reward field.

    Notes
    -----
    Cost: a read of all files of the rows. Memory: the fields that mark episodes, or with ``look``
    all fields of one buffer at a time.
    """

    def use(opened: OpenState) -> dict[str, Any]:
        with reading(folder):
            return _description(folder, opened, reward, look)

    return read_folder(folder, use, decode=bytes, state=state)


def _description(
    folder: str | Path, opened: OpenState, reward: str | None, look: Look | None
) -> dict[str, Any]:
    """The content of a state."""
    found = opened.state
    tagged = list(nodes(found.root))
    description = {
        "path": str(folder),
        "kind": "checkpoint",
        "class": opened.root.cls,
        "state": found.number,
        "states": states(folder),
        "files": len(found.files),
        "nbytes": sum(file.nbytes for file in found.files),
        "codecs": sorted({file.codec or "none" for file in found.files if isinstance(file, File)}),
        "beside": {file.label: {"nbytes": file.nbytes} for file in found.beside},
        "not_saved": [node.what for node in tagged if node.kind == "external"],
        "python_objects": sum(objects.stop - objects.first for objects in found.objects),
        "buffers": [_buffer(opened, node, reward, look) for node in tagged if node.kind == "rows"],
    }
    for host, number in opened.hosts.items():
        there = describe(host, state=number, reward=reward, look=look)
        for buffer in there["buffers"]:
            buffer["path"] = f"{host.name}.{buffer['path']}"
        for key in ("files", "nbytes", "buffers"):
            description[key] += there[key]
    return description


def _buffer(opened: OpenState, node: Node, reward: str | None, look: Look | None) -> dict[str, Any]:
    """The description of a holder of rows."""
    saved = opened.state.rings[node.ring]
    options = saved.layout.native()
    schema, nstep = options.schema, options.nstep
    kinds = {field.name: (field.dtype, field.shape) for field in schema.declared}
    reward = reward_of(kinds, reward)
    found = structure(
        Layout.of(options), saved.written, Node("", node.attribute("sampler")).cls or ""
    )
    rewards = () if nstep is None else (*nstep.rewards, *nstep.last_step_fields)
    needed = None
    if look is None:
        needed = _needed(schema, {*found["ends"], *rewards, *([] if reward is None else [reward])})
    buffer = _open(opened, node, Target(fields=needed), opened.reader(node.ring, None))
    numbers = count_items(opened.disk, saved)
    for axis, left in zip(found.get("axes", ()), saved.left, strict=True):
        axis |= {"items": numbers[axis["name"]], "left": left}
    of_holder = {"path": node.path, "class": node.cls, "class_of_caller": node.is_callers}
    return {**of_holder, **found, **(look or statistics)(buffer, reward)}


def structure(layout: Layout, written: int, sampler: str) -> dict[str, Any]:
    """The options, bytes and fields of a buffer, as JSON values; axes only if there are some."""
    options, schema = layout.options, layout.schema
    sizes = [schema.stored_nbytes(field) for field in schema.fields]
    found: dict[str, Any] = {
        "capacity": options.size,
        "written": written,
        "n_envs": options.n_envs,
        "ends": [schema.fields[number].name for number, *_ in schema.end_fields()],
        "next_of": [source for _, source in schema.next_of],
        "stack_compress": [stack.name for stack in schema.stacks],
        "nstep": options.nstep and {"size": options.nstep.size, "gamma": options.nstep.gamma},
        "sampler": sampler,
        "nbytes_per_step": sum(sizes),
        "nbytes": layout.total_nbytes,
        "fields": [
            _ragged(layout, field)
            if field.is_ragged
            else describe_field(field.name, field.dtype, field.shape, nbytes, options.size)
            for field, nbytes in zip(schema.declared, sizes, strict=False)
        ],
    }
    axes = [
        {"name": axis.name, "room": axis.room, "fields": list(axis.fields)}
        | ({"source": axis.source} if axis.source else {})
        for axis in schema.axes
    ]
    return found | ({"axes": axes} if axes else {})


def _ragged(layout: Layout, field: Field) -> dict[str, Any]:
    """The description of a field with a named axis: a step takes no bytes beside its items."""
    return {
        "name": field.name,
        "dtype": field.declared_dtype,
        "shape": list(field.declared_shape),
        "nbytes_per_step": 0,
        "nbytes": layout.nbytes_of(field),
        "nbytes_per_item": field.item_nbytes,
    }


def describe_field(
    name: str, dtype: np.dtype[Any], shape: tuple[int, ...], nbytes: int, rows: int
) -> dict[str, Any]:
    """The description of a field that takes ``nbytes`` in each of the rows."""
    return {
        "name": name,
        "dtype": str(dtype),
        "shape": list(shape),
        "nbytes_per_step": nbytes,
        "nbytes": nbytes * rows,
    }


def reward_of(
    fields: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]], given: str | None
) -> str | None:
    """The field of rewards: the given one, or a scalar field with a usual name; None if none."""
    if given is not None and given not in fields:
        raise ValueError(f"reward: expected one of {list(fields)}, got {given!r}")
    numbers = [
        name
        for name, (dtype, shape) in fields.items()
        if dtype.kind in "biuf" and math.prod(shape) == 1
    ]
    return given or next((name for name in ("rew", "reward", "rewards") if name in numbers), None)


def _needed(schema: Schema, names: set[str]) -> tuple[str, ...]:
    """These fields, the sources of their next values, and one field of each axis that they count.

    Without any, the smallest field.
    """
    names = names | {source for name, source in schema.next_of if name in names}
    if not names:
        fields = schema.declared
        of_bytes = [field for field in fields if not field.dtype.hasobject and field.nbytes]
        names = {min(of_bytes or fields, key=lambda field: field.nbytes).name}
    while True:
        counted = {field.counts for field in schema.declared if field.name in names}
        axes = [axis for axis in schema.axes if axis.name in counted]
        missing = {axis.fields[0] for axis in axes if names.isdisjoint(axis.fields)}
        if not missing:
            break
        names |= missing
    return tuple(name for name in schema.names if name in names)


def _open(
    opened: OpenState, node: Node, target: Target, reader: RingReader, *, draws: bool = True
) -> Any:
    """A plain buffer with the rows of a holder, and with ``draws`` also the priorities."""
    sampler: Any = Uniform()
    own = Node("", node.attribute("sampler"))
    known = None if own.is_callers else _classes.class_of(own.cls)
    if draws and known is not None and issubclass(known, PrioritySampler):
        sampler = opened.part(own.saved, {"beta": 0.0})
    attributes = {"rng": np.random.default_rng(0), "sampler": sampler}
    kind = _classes.class_of("ReplayBuffer")  # ``buffers`` is above this room
    assert kind is not None
    return opened.open_ring(kind, attributes, target, reader)


def count_lost(opened: OpenState, ring: int) -> int:
    """Read all rows of a ring, and return the number of rows that damage has cost."""
    holders = [node for node in nodes(opened.state.root) if node.kind == "rows"]
    (node,) = [node for node in holders if node.ring == ring]
    reader = opened.reader(ring, lambda _: None)
    _open(opened, node, Target(), reader, draws=False)
    return reader.lost


def statistics(
    buffer: Any, reward: str | None, episodes: Iterable[Any] | None = None
) -> dict[str, Any]:
    """Ages, episodes and priorities of the rows of a buffer, as JSON values.

    ``episodes`` is the result of ``buffer.episodes.list(reward)``, if it is known.
    """
    ring, sampler = buffer.ring, buffer.sampler
    ids = np.arange(ring.first, ring.written, dtype=np.int64)
    slots = (ids % ring.capacity).astype(np.intp)
    there = ring.flags()[slots] & FLAG_ABSENT == 0
    ids, slots = ids[there], slots[there]
    episodes = buffer.episodes.list(reward) if episodes is None else list(episodes)
    complete = [episode for episode in episodes if episode.complete]
    returns = [episode.return_ for episode in complete]
    return {
        "rows": len(ids),
        "ages": spread((ring.written - 1 - ids) // ring.n_envs),
        "episodes": {
            "number": len(episodes),
            "complete": len(complete),
            "terminated": sum(episode.terminated for episode in episodes),
            "truncated": sum(episode.truncated for episode in episodes),
            "length": spread([episode.length for episode in episodes]),
        },
        "reward": reward,
        "returns": None if reward is None else spread(returns),
        "priorities": _priorities(weights_of(sampler, slots), priorities_of(sampler, slots)),
    }


def spread(values: ArrayLike) -> dict[str, float | None] | None:
    """Mean, smallest and greatest value; None without values."""
    numbers = np.asarray(values, np.float64)
    if not len(numbers):
        return None
    with np.errstate(all="ignore"):
        found = {"mean": numbers.mean(), "min": numbers.min(), "max": numbers.max()}
    return {name: _finite(value) for name, value in found.items()}


def _finite(value: Any) -> float | None:
    """The value for JSON: None for infinity and NaN, which JSON lacks."""
    number = float(value)
    return number if math.isfinite(number) else None


def _priorities(weights: Any, priorities: Any) -> dict[str, Any] | None:
    """Statistics of the priorities of rows that can be drawn; None without priorities."""
    if weights is None:
        return None
    can_be_drawn = weights > 0
    weights = weights[can_be_drawn]
    shares = weights / weights.max() if len(weights) else weights
    effective = _finite(shares.sum() ** 2 / (shares**2).sum()) if len(shares) else 0.0
    found: dict[str, Any] = {"rows": len(weights), "effective_sample_size": effective}
    of_priorities = None if priorities is None else spread(priorities[can_be_drawn])
    if of_priorities is None:  # no rows, or alpha=0, which forgets priorities
        return found | {"mean": None, "min": None, "max": None, "quantiles": None}
    quantiles = map(_finite, np.quantile(priorities[can_be_drawn], QUANTILES))
    return (
        found
        | of_priorities
        | {"quantiles": dict(zip(map(str, QUANTILES), quantiles, strict=True))}
    )
