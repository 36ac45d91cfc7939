"""Random histories of a replay on a device, and the twins that say what it must hold.

The twins are a ``ReplayBuffer`` with the same rows, and a list of the next values that have room
beside the ring. ``play`` calls the same methods for PyTorch and for JAX.
"""

from __future__ import annotations

import warnings
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cpprb_like import ReplayBuffer
from cpprb_like._core import FLAG_ABSENT, FLAG_END
from cpprb_like._rows.row_handles import handles
from cpprb_like.samplers import Prioritized, Sampler
from cpprb_like.views import FrameStacks, Layer, NStep, Sequences
from cpprb_like.views._rows import read_fields

Step = dict[str, NDArray[Any]]
FLAG = {"shape": (), "dtype": "bool"}
NUMBERS = {"obs": {"shape": 2}, "act": {"shape": (), "dtype": "int32"}, "rew": {"shape": ()}}
ENDS = (("done",), ("done", "truncated"), ("terminated", "truncated"), ("terminated",))


@dataclass
class Twin:
    """A buffer with the rows of a device, and which rows have lost or unknown next values."""

    n_envs: int
    steps: int
    ends: tuple[str, ...]
    next_of: bool
    finals: int
    sampler: Sampler | None = None
    written: int = 0  # rows
    kept: dict[int, deque[int]] = field(default_factory=dict)  # of an environment: with finals
    dropped: set[int] = field(default_factory=set)
    unknown: set[int] = field(default_factory=set)
    absent: set[int] = field(default_factory=set)  # rows without a step, older than all others
    first: int = 0  # the oldest row since the last clear
    pending: NDArray[Any] | None = None

    def __post_init__(self) -> None:
        self.fields: dict[str, Any] = {**NUMBERS, **dict.fromkeys(self.ends, FLAG)}
        if not self.next_of:
            self.fields["next_obs"] = {"shape": 2}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.host = ReplayBuffer(
                self.size,
                self.fields,
                n_envs=self.n_envs,
                next_of="obs" if self.next_of else None,
                sampler=self.sampler,
                seed=0,
            )

    @property
    def size(self) -> int:
        return self.n_envs * self.steps

    @property
    def oldest(self) -> int:
        """The oldest row that is stored."""
        return max(self.first, self.written - self.size)

    @property
    def piece(self) -> int:
        """Steps that are written together: rows that they overwrite lose nothing."""
        return min(self.steps, self.finals // self.n_envs + 1) if self.next_of else self.steps

    def add(self, step: Step, final: NDArray[np.bool_] | bool, stop: int) -> None:
        """Add one step of all environments; ``stop`` rows are there after the piece."""
        for env in range(self.n_envs):
            row = self.written + env - self.n_envs
            promised = step["obs"] if self.pending is None else self.pending
            if self.next_of and promised[env].tobytes() != step["obs"][env].tobytes():
                self._keep(env, row, stop)
            cut = any(step[name][env] for name in self.ends) and not _terminates(step, env)
            if cut and not np.broadcast_to(final, (self.n_envs,))[env]:
                self.unknown.add(self.written + env)
        shaped = step if self.n_envs > 1 else {name: one[0] for name, one in step.items()}
        self.host.add(**shaped)
        self.written += self.n_envs
        self.pending = step["next_obs"]
        self.over = np.logical_or.reduce([step[name] for name in self.ends])

    def _keep(self, env: int, row: int, stop: int) -> None:
        kept = self.kept.setdefault(env, deque())
        if len(kept) == self.finals // self.n_envs:
            gone = kept.popleft()
            if gone >= max(self.first, stop - self.size):
                self.dropped.add(gone)
        kept.append(row)

    def end_episodes(self) -> None:
        self.host.on_episode_end()

    def clear(self) -> None:
        self.host.clear()
        self.written += -self.written % self.size
        self.first, self.pending = self.written, None

    def host_slots(self, slots: Any) -> NDArray[np.intp]:
        """The slots of the buffer, which begins anew after a clear, of slots of the device."""
        rows = self.written - 1 - (self.written - 1 - slots) % self.size
        found: NDArray[np.intp] = ((rows - self.first) % self.size).astype(np.intp)
        return found

    def drawable(self, layers: tuple[Layer, ...], fields: Any) -> set[int]:
        """The rows that the device may draw through layers."""
        options: dict[Any, Any] = {type(layer): layer for layer in layers}
        nstep, items, stacks = (options.get(kind) for kind in (NStep, Sequences, FrameStacks))
        n = 1 if nstep is None else nstep.size[1]
        rows = 1 if items is None else items.rows
        across = items is not None and items.across_episodes
        before = 0 if stacks is None else max(stacks.depths.values()) - 1
        is_wrapped = self.written - self.first > self.size
        low = self.oldest + before * self.n_envs * is_wrapped
        bootstraps = (
            (nstep is not None and (n > 1 or nstep.discount))
            or fields is None
            or "next_obs" in fields
        )
        unsound = self.unknown | self.dropped
        found = set()
        for row in {*range(low, self.written - (rows + n - 2) * self.n_envs)} - self.absent:
            item = [row]
            while len(item) < rows and (across or not self._ends(item[-1])):
                item.append(item[-1] + self.n_envs)
            if items is not None and len(item) < items.least:
                continue
            if items is not None and items.stride > 1 and not self._is_start(row, items.stride):
                continue
            lasts = [self._last(one, n) for one in item]
            if bootstraps and {*lasts} & unsound:
                continue
            if self.sampler is not None and row in unsound:  # it has no weight
                continue
            found.add(row)
        return found

    def share(self, rows: set[int]) -> float:
        """The share of some rows in all that are stored: of their weights, if they have some."""
        stored = np.arange(self.oldest, self.written)
        weights: Any = np.ones(len(stored))
        if self.sampler is not None:
            weights = self.sampler.row_weights(self.host_slots(stored))
        return float(weights[np.isin(stored, [*rows])].sum() / max(weights.sum(), 1e-9))

    def _ends(self, row: int) -> bool:
        return row in self.absent or bool(
            self.host.ring.flags_at(self.host_slots(np.array([row])))[0] & 1
        )

    def _last(self, row: int, n: int) -> int:
        for _ in range(n - 1):
            if self._ends(row):
                break
            row += self.n_envs
        return row

    def _is_start(self, row: int, stride: int) -> bool:
        before = row - self.n_envs
        begins = before < self.first if before < self.oldest else self._ends(before)
        return row // self.n_envs % stride == 0 or begins


def _terminates(step: Step, env: int) -> bool:
    if "terminated" in step:
        return bool(step["terminated"][env])
    return bool(step["done"][env]) and not step.get("truncated", np.zeros(env + 1))[env]


def random_twin(rng: np.random.Generator, prioritized: bool) -> Twin:
    """A twin without rows, of random shape."""
    n_envs, steps = int(rng.integers(1, 4)), int(rng.integers(2, 10))
    sampler = None
    if prioritized:
        normalizer: Literal["all", "batch"] = "all" if rng.random() < 0.5 else "batch"
        sampler = Prioritized(
            float(rng.choice([0.0, 0.5, 1.0])), eps=0.01, weights=normalizer, probabilities=True
        )
    ends = ENDS[rng.integers(len(ENDS))]
    finals = n_envs * int(rng.integers(1, steps + 1))
    return Twin(n_envs, steps, ends, bool(rng.random() < 0.8), finals, sampler)


def random_steps(
    rng: np.random.Generator, twin: Twin, count: int, share: float
) -> tuple[Step, NDArray[np.bool_]]:
    """A block of steps (count, n_envs, ...) that go on, and whether finals are known."""
    shape = (count, twin.n_envs)
    step: Step = {
        "obs": rng.integers(0, 50, (*shape, 2)).astype("f4"),
        "act": rng.integers(0, 9, shape).astype("i4"),
        "rew": rng.integers(-8, 9, shape).astype("f4") / 4,
        **{name: rng.random(shape) < share for name in twin.ends},
    }
    if twin.pending is not None:
        goes = ~twin.over & (rng.random(twin.n_envs) < 0.9)
        step["obs"][0][goes] = twin.pending[goes]
    over = np.logical_or.reduce([step[name] for name in twin.ends])
    following = rng.integers(50, 99, step["obs"].shape).astype("f4")
    goes = ~over[:-1] & (rng.random(over[:-1].shape) < 0.9)
    following[:-1][goes] = step["obs"][1:][goes]
    step["next_obs"] = following
    return step, rng.random(shape) < 0.7


def random_layers(rng: np.random.Generator, steps: int) -> tuple[Layer, ...]:
    """Layers whose windows fit into so many steps."""
    layers: list[Layer] = []
    room = steps - 1
    if rng.random() < 0.5 and room:
        n = int(rng.integers(1, room + 1))
        layers.append(
            NStep(n, gamma=float(rng.choice([0.0, 0.5, 1.0])), discount=bool(rng.random() < 0.7))
        )
        room -= n - 1
    if rng.random() < 0.5 and room:
        burn_in, across = int(rng.integers(0, min(room, 3))), bool(rng.random() < 0.3)
        length = int(rng.integers(1, room - burn_in + 2))
        layers.append(
            Sequences(
                length,
                burn_in=burn_in,
                across_episodes=across,
                stride=int(rng.integers(1, 3)),
                first_only=["act"] if rng.random() < 0.3 else (),
            )
        )
        room -= burn_in + length - 1
    if rng.random() < 0.5 and room:
        depth = int(rng.integers(1, min(room, 3) + 1))
        padding: Literal["first", "zeros"] = "first" if rng.random() < 0.5 else "zeros"
        axis = int(rng.choice([-1, 0, 1]))
        layers.append(FrameStacks({"obs": depth}, axis=axis, padding=padding))
    return tuple(layers)


def random_fields(rng: np.random.Generator, twin: Twin) -> list[str] | None:
    """Some of the fields, or all."""
    if rng.random() < 0.6:
        return None
    names = [*twin.host.fields]
    return [str(one) for one in rng.choice(names, int(rng.integers(1, len(names))), replace=False)]


def present_slots(host: ReplayBuffer) -> list[NDArray[np.intp]]:
    """The slots of the rows of each environment, oldest first, without those that are absent."""
    ring = host.ring
    slots = (np.arange(ring.written - ring.stored, ring.written) % ring.capacity).astype(np.intp)
    slots = slots[ring.flags_at(slots) & FLAG_ABSENT == 0]
    return [slots[slots % host.n_envs == env] for env in range(host.n_envs)]


def assert_same_rows(host: ReplayBuffer, other: ReplayBuffer) -> None:
    """Each environment has the same rows in the same order, with the same ends and weights."""
    for slots, others in zip(present_slots(host), present_slots(other), strict=True):
        np.testing.assert_array_equal(host.ring.flags_at(slots), other.ring.flags_at(others))
        rows, found = (
            read_fields(rb.ring, at, frozenset(host.fields))
            for rb, at in ((host, slots), (other, others))
        )
        for name in host.fields:
            np.testing.assert_array_equal(rows[name], found[name], err_msg=name)
        if host.has_priorities:
            weights: Any = host.sampler.row_weights(slots)
            found_weights: Any = other.sampler.row_weights(others)
            np.testing.assert_allclose(found_weights, weights, rtol=1e-4)


def returned(twin: Twin, host: ReplayBuffer) -> Twin:
    """The twin of a replay that ``from_host`` made, given the buffer that its ``to_host`` gives."""
    ring, n = host.ring, twin.n_envs
    new = Twin(n, twin.steps, twin.ends, twin.next_of, finals=twin.size)  # all have room
    new.host, new.sampler = host, None if twin.sampler is None else host.sampler
    new.written = ring.written
    slots = np.arange(ring.written)
    new.absent = {*np.flatnonzero(ring.flags_at(slots) & FLAG_ABSENT).tolist()}
    if ring.written:
        new.pending, new.over = np.zeros((n, 2), "f4"), np.full(n, True)
        newest = np.array([slot for slot in slots[-n:] if slot not in new.absent])
        values = read_fields(ring, newest, frozenset(["next_obs"]))
        new.pending[newest % n] = values["next_obs"]
        new.over[newest % n] = ring.flags_at(newest) & FLAG_END != 0
    return new


class Front:
    """A replay on a device with the calls of ``play``, in arrays of NumPy."""

    rows: Any  # the rows of the replay
    state: Any
    counts: tuple[int, ...] | None = None  # steps of blocks, where few shapes are compiled
    readings: list[tuple[tuple[Layer, ...], list[str] | None]] | None = None  # the same of views

    def add(self, step: Step, final: Any) -> None:
        raise NotImplementedError

    def clear(self) -> None:
        raise NotImplementedError

    def end_episodes(self) -> None:
        raise NotImplementedError

    def sample(self, layers: tuple[Layer, ...], n: int, fields: Any) -> Step | None:
        """A batch with ``indexes``, or None where no row can be drawn."""
        raise NotImplementedError

    def update(self, indexes: Any, act: Any) -> None:
        raise NotImplementedError

    def update_priorities(self, indexes: Any, priorities: Any) -> None:
        raise NotImplementedError

    def handles(self, slots: Any) -> Any:
        xp = self.rows.xp
        return xp.to_host(self.rows.handles(self.state, xp.from_host(slots)))


def declaration_of(twin: Twin) -> tuple[int, dict[str, Any], dict[str, Any]]:
    """The arguments of a replay with the declaration of a twin."""
    options = {
        "n_envs": twin.n_envs,
        "next_of": "obs" if twin.next_of else None,
        "sampler": twin.sampler,
        "finals": twin.finals,
    }
    return twin.size, twin.fields, options


def make_rows_absent(rng: np.random.Generator, twin: Twin, host: ReplayBuffer) -> None:
    """Delete an episode, go back, and add steps of some environments, each now and then."""
    if rng.random() < 0.3 and len(host.episodes):
        host.on_episode_end()
        host.episodes.delete(int(rng.integers(len(host.episodes))))
    if rng.random() < 0.2:
        steps = int(rng.integers(0, 3))
        host.rewind(max(0, host.rows - steps * twin.n_envs))
    for _ in range(int(rng.integers(0, 4))):
        block, _ = random_steps(rng, twin, 1, 0.3)
        present = rng.random(twin.n_envs) < 0.5
        host.add_where(present, **{name: values[0] for name, values in block.items()})


def play(rng: np.random.Generator, twin: Twin, front: Front, calls: int = 12) -> int:
    """Play a random history, and compare batches; returns how many were compared."""
    share, compared = float(rng.choice([0.05, 0.2, 0.5])), 0
    for _ in range(calls):
        if rng.random() < 0.1:
            twin.clear()
            front.clear()
        if rng.random() < 0.1:
            twin.end_episodes()
            front.end_episodes()
        count = int(rng.choice(front.counts or range(1, twin.steps + 1)))
        count = count if rng.random() < 0.4 else 1
        block, known = random_steps(rng, twin, count, share)
        final: Any = True if rng.random() < 0.7 else known
        begin = twin.written
        for t in range(count):
            step = {name: values[t] for name, values in block.items()}
            stop = begin + min(count, (t // twin.piece + 1) * twin.piece) * twin.n_envs
            twin.add(step, final if final is True else final[t], stop)
        if count == 1:
            block = {name: values[0] for name, values in block.items()}
        front.add(block, final)
        if rng.random() < 0.5:
            compared += compare(rng, twin, front)
        if rng.random() < 0.3:
            change(rng, twin, front)
    assert int(front.rows.stats(front.state)["stored"]) == len(twin.host)
    if twin.next_of:
        gone = {row for row in twin.dropped | twin.unknown if row >= twin.oldest}
        assert int(front.rows.stats(front.state)["lost"]) == len(gone)
    return compared


def compare(rng: np.random.Generator, twin: Twin, front: Front) -> int:
    """Compare a batch of random layers and fields."""
    if front.readings is None:
        layers, fields = random_layers(rng, twin.steps), random_fields(rng, twin)
    else:
        layers, fields = front.readings[rng.integers(len(front.readings))]
    wanted = twin.drawable(layers, fields)
    batch = front.sample(layers, 9, fields)
    if batch is None:  # a draw tries some 70 rows, of which a tenth would be enough
        assert twin.share(wanted) < 0.1
        return 0
    assert wanted
    slots = batch.pop("indexes") % twin.size
    rows = twin.written - 1 - (twin.written - 1 - slots) % twin.size
    assert {*rows.tolist()} <= wanted
    slots = twin.host_slots(slots)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = twin.host.view(*layers).read_at(slots, fields)
    assert expected is not None
    if "is_first" in expected:  # the host does not know it behind absent rows, once it wrapped
        before = rows - twin.n_envs
        expected["is_first"][:, 0] |= np.isin(before, [*twin.absent]) & (before >= twin.oldest)
    if isinstance(twin.sampler, Prioritized):
        check_weights(
            twin, twin.sampler, slots, batch, is_plain=twin.host.view(*layers)._now.draws_all
        )
    assert batch.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(batch[name], values, err_msg=name)
    return 1


def check_weights(
    twin: Twin, sampler: Prioritized, slots: Any, batch: Step, *, is_plain: bool
) -> None:
    """Importance-sampling weights and probabilities are those of the host's weights."""
    weights = sampler.row_weights(slots)
    unsound = twin.unknown | twin.dropped | twin.absent
    rows = np.array([row for row in range(twin.oldest, twin.written) if row not in unsound])
    everything = sampler.row_weights(twin.host_slots(rows))
    among = everything if is_plain and sampler.weights == "all" else weights
    beta: Any = sampler.beta
    expected = (weights / among[among > 0].min()) ** -beta
    np.testing.assert_allclose(batch.pop("weights"), expected, rtol=1e-5)
    total = everything.sum()
    np.testing.assert_allclose(batch.pop("probabilities"), weights / total, rtol=1e-5)


def change(rng: np.random.Generator, twin: Twin, front: Front) -> None:
    """Update a field, and priorities, of rows of which some may be gone, and some come twice."""
    rows = np.setdiff1d(np.arange(twin.oldest, twin.written), [*twin.absent])
    rows = rng.choice(rows, 5)
    slots = rows % twin.size
    there, around = rng.random(5) < 0.7, front.rows.period
    indexes = front.handles(slots)
    indexes = np.where(there, indexes, (indexes - twin.size) % around).astype(indexes.dtype)
    known = handles(twin.host.ring, twin.host_slots(slots[there]))
    weighs = there & [row not in twin.unknown | twin.dropped for row in rows.tolist()]
    new, priorities = rng.integers(10, 99, 5).astype("i4"), rng.random(5).astype("f4")
    front.update(indexes, new)
    twin.host.update(known, act=new[there])
    if twin.sampler is not None:
        front.update_priorities(indexes, priorities)
        known = handles(twin.host.ring, twin.host_slots(slots[weighs]))
        twin.host.update_priorities(known, priorities[weighs])
