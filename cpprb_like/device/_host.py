"""Rows of a device as a ``ReplayBuffer``, and the way back, in pieces.

Not here: how rows lie on a device (``_rows``).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpprb_like._core import FLAG_ABSENT, FLAG_END, FLAG_TERMINATED, FLAG_TRUNCATED
from cpprb_like._rows.row_handles import handles
from cpprb_like.buffers import ReplayBuffer
from cpprb_like.device._plan import EPISODE, Plan
from cpprb_like.device._rows import ABSENT, UNKNOWN, Batch, Rows, State, Values
from cpprb_like.samplers import Prioritized
from cpprb_like.views._rows import read_fields

AT_ONCE = 1 << 24  # bytes of a piece, about
WEIGHTS_AT_ONCE = 1 << 16  # 64 weights are read for each
Arrays = dict[str, NDArray[Any]]


def declaration(
    buffer: ReplayBuffer, finals: int | None
) -> tuple[int, dict[str, Any], dict[str, Any]]:
    """The size, the fields and the options of a replay with the fields of a buffer."""
    schema, n = buffer.schema, buffer.n_envs
    if finals is None:
        ends = (buffer.ring.flags() & FLAG_END) == FLAG_END
        most = max(int(ends[env::n].sum()) for env in range(n))
        finals = n * (max(most, buffer.capacity // n // EPISODE) + 1)
    fields = {
        one.name: {"shape": one.declared_shape, "dtype": one.dtype} for one in schema.declared
    }
    options = {
        "n_envs": n,
        "finals": finals,
        "next_of": [source for _, source in schema.next_of] or None,
        "sampler": buffer.sampler,
        "terminated": schema.terminated,
        "truncated": schema.truncated,
    }
    return buffer.capacity, fields, options


def to_host(rows: Rows, state: State, options: Mapping[str, Any]) -> ReplayBuffer:
    """A buffer with the rows of a state: see ``DeviceReplay.to_host``."""
    plan, xp, n = rows.plan, rows.xp, rows.plan.n_envs
    host = ReplayBuffer(
        plan.size,
        {one.name: {"shape": one.shape, "dtype": xp.host_dtype(one.dtype)} for one in plan.fields},
        n_envs=n,
        next_of=list(plan.sources.values()) or None,
        terminated=plan.schema.terminated,
        truncated=plan.schema.truncated,
        sampler=copy.deepcopy(plan.sampler),
        **options,
    )
    stored = min(int(state["stored"]), plan.size) // n
    first = int(state["written"]) // n - stored
    weights = []
    for start, stop in _pieces(plan, stored):
        steps = (first + np.arange(start, stop)) % plan.steps
        places = xp.from_host((steps[:, None] * n + np.arange(n)).reshape(-1))
        flags = xp.to_host(xp.take(state["flags"], places)).reshape(-1, n)
        values = Values(rows, state)
        block = {
            one.name: xp.to_host(values.at(one.name, places)).reshape(-1, n, *one.shape)
            for one in plan.fields
        }
        _add(host, plan, block, flags, flags < UNKNOWN)
        if rows.weights is not None:
            weights.append(xp.to_host(xp.take(state["level_0"], places)))
    sampler = plan.sampler
    if isinstance(sampler, Prioritized) and weights and sampler.alpha:
        priorities = np.concatenate(weights).astype(np.float64) ** (1 / sampler.alpha)
        indexes = handles(host.ring, np.arange(len(priorities)))
        host.update_priorities(indexes, (priorities - sampler.eps).clip(0))
    return host


def _pieces(plan: Plan, steps: int) -> Iterator[tuple[int, int]]:
    """Ranges of steps of about ``AT_ONCE`` bytes."""
    most = max(1, AT_ONCE // (plan.n_envs * sum(one.nbytes for one in plan.fields)))
    for start in range(0, steps, most):
        yield start, min(start + most, steps)


def _add(
    host: ReplayBuffer,
    plan: Plan,
    block: Arrays,
    flags: NDArray[np.uint8],
    known: NDArray[np.bool_],
) -> None:
    """Add a block of steps.

    A row whose next values are not known is absent, and the one before it ends its episode.
    """
    ends = (flags & FLAG_END) == FLAG_END
    said = np.zeros(ends.shape, np.bool_)
    for name, _, _ in plan.ends:
        said |= (block[name] != 0).reshape(said.shape)
    if known.all() and (ends == said).all():
        shape = (len(ends), plan.n_envs) if plan.n_envs > 1 else (len(ends),)
        host.add(**{one.name: block[one.name].reshape(*shape, *one.shape) for one in plan.fields})
        return
    for t in range(len(ends)):
        for env in np.flatnonzero(~known[t]):
            host.on_episode_end(int(env))
        host.add_where(known[t], **{name: values[t] for name, values in block.items()})
        for env in np.flatnonzero(known[t] & ends[t] & ~said[t]):
            host.on_episode_end(int(env))


def blocks(rows: Rows, buffer: ReplayBuffer) -> Iterator[tuple[Batch, Any]]:
    """The newest rows of a buffer as blocks of steps on the device, with their flags."""
    plan, xp, n, ring = rows.plan, rows.xp, rows.plan.n_envs, buffer.ring
    described = [(one.name, xp.host_dtype(one.dtype), one.shape) for one in plan.fields]
    found = [(one.name, one.dtype, one.shape) for one in buffer.schema.declared]
    if buffer.n_envs != n or sorted(map(str, described)) != sorted(map(str, found)):
        raise ValueError(
            f"from_host: expected {n} environments and the fields {described}, got "
            f"{buffer.n_envs} and {found}"
        )
    written, (steps, is_there) = ring.written, _steps(buffer)
    for start, stop in _pieces(plan, len(steps)):
        slots, there = steps[start:stop].reshape(-1), is_there[start:stop].reshape(-1)
        flags = ring.flags_at(slots) & (FLAG_TERMINATED | FLAG_TRUNCATED)
        flags[~there] = ABSENT | FLAG_TRUNCATED
        values = read_fields(ring, slots, frozenset(plan.names))
        if ring.written != written:
            raise RuntimeError("from_host: rows were added meanwhile")
        step = {
            one.name: xp.from_host(values[one.name].reshape(stop - start, n, *one.shape), one.dtype)
            for one in plan.fields
        }
        block, _ = rows.block(step, True)
        yield block, xp.from_host(flags)


def _steps(buffer: ReplayBuffer) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """The slots of the rows of each environment in steps, oldest first, and which are present.

    Absent rows are left out. So environments may lack rows in the first steps: absent ones.
    """
    ring, n = buffer.ring, buffer.n_envs
    ids = np.arange(ring.written - ring.stored, ring.written)
    slots = (ids % ring.capacity).astype(np.intp).reshape(-1, n)
    there = (ring.flags_at(slots.reshape(-1)) & FLAG_ABSENT == 0).reshape(-1, n)
    order = np.argsort(there, axis=0, kind="stable")
    slots, there = np.take_along_axis(slots, order, 0), np.take_along_axis(there, order, 0)
    most = min(there.sum(0).max(), buffer.capacity // n)
    first = len(slots) - most
    return slots[first:], there[first:]


def with_priorities(rows: Rows, state: State, buffer: ReplayBuffer) -> State:
    """The state with the weights of the rows of a buffer, after all ``blocks`` were added."""
    lost = int(rows.stats(state).get("lost", 0))
    if lost:
        raise ValueError(
            f"finals: {rows.plan.finals} have no room for the next values of {lost} rows"
        )
    xp, (steps, is_there) = rows.xp, _steps(buffer)
    slots, there = steps.reshape(-1), is_there.reshape(-1)
    if not there.all():
        state = {**state, "absent": xp.full((), int((~there).sum()), dtype=xp.count)}
    if rows.weights is None or not buffer.has_priorities:
        return state
    weights: Any = buffer.sampler.row_weights(slots)
    weights = np.where(there, weights, 0)
    first = int(state["written"]) - len(slots)
    places = (first + np.arange(len(slots))) % rows.plan.size
    for start in range(0, len(slots), WEIGHTS_AT_ONCE):
        piece = slice(start, start + WEIGHTS_AT_ONCE)
        changed = rows.weights.put(state, xp.from_host(places[piece]), xp.from_host(weights[piece]))
        state = {**state, **changed}
    largest = max(float(state["largest"]), float(weights.max(initial=0.0)))
    return {**state, "largest": xp.keep(state["largest"], state["largest"] * 0 + largest)}
