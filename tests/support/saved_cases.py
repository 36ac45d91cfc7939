"""Small buffers to be saved: a row follows from its ``id`` and how often it was edited."""

from __future__ import annotations

import copy
import hashlib
from functools import cache
from typing import Any

import numpy as np
import pytest
from file_map_cases import unless_full
from strategies import Array

from cpprb_like import Mixture, PrioritizedReplayBuffer, ReplayBuffer
from cpprb_like._core import FLAG_ABSENT
from cpprb_like.buffers import View
from cpprb_like.checkpoint import _segments
from cpprb_like.samplers import RankBased

FIELDS: dict[str, Any] = {
    "id": {"shape": (), "dtype": "i8"},
    "obs": {"shape": (2,), "dtype": "f8"},
    "rew": {"shape": (), "dtype": "f4"},
    "done": {"shape": (), "dtype": bool},
    "goal": {"shape": (2,), "dtype": "i8"},  # (id, version)
    "image": {"shape": (70,), "dtype": "u2"},  # so large that it lies by itself
}
STACK = {"frames": {"shape": (3, 2), "dtype": "i4"}}
RAGGED: dict[str, Any] = {
    "tokens": {"shape": ("T",), "dtype": "i4"},
    "edges": {"shape": (2, "E"), "dtype": "u1", "counts": "T"},
    "features": {"shape": ("E", 3), "dtype": "f8"},
    "text": {"dtype": str},
}
LONGEST = 8  # most items of a row
KINDS = ("plain", "prioritized", "ranked", "next_of", "stacks", "n_envs", "Nstep")


def make(kind: str, capacity: int = 40, seed: int = 0) -> ReplayBuffer:
    """An empty buffer of one of the ``KINDS``, or of several, joined by ``+``."""
    options: dict[str, Any] = {"seed": seed}
    fields = dict(FIELDS)
    cls: type[ReplayBuffer] = ReplayBuffer
    for word in kind.split("+"):
        if word == "prioritized":
            cls = PrioritizedReplayBuffer
            options["check_for_update"] = True
        elif word == "ranked":
            cls = PrioritizedReplayBuffer
            options["sampler"] = RankBased(check_for_update=True)
        elif word == "next_of":
            options["next_of"] = ["obs", *RAGGED] if "tokens" in fields else "obs"
        elif word == "stacks":
            fields |= STACK
            options["stack_compress"] = {"frames": 0}
        elif word == "n_envs":
            options["n_envs"] = 2
        elif word == "Nstep":
            options["Nstep"] = {"size": 3, "gamma": 0.5, "rew": "rew", "next": "next_obs"}
            fields["next_obs"] = FIELDS["obs"]
        elif word in ("ragged", "narrow"):  # in narrow ones rows leave early
            fields |= RAGGED
            room = LONGEST * (capacity if word == "ragged" else 2 + capacity // 4)
            options["room"] = dict.fromkeys(("T", "E", "text"), room)
    return cls(capacity, fields, **options)


def ends(ids: Array) -> Array:
    """Whether an episode ends with a row."""
    return ids * 7 % 23 < 2


def obs_of(ids: Array) -> Array:
    """The observation of rows."""
    return np.stack([ids, ids + 0.5], -1).astype(np.float64)


def image_of(ids: Array) -> Array:
    """The image of rows."""
    return (ids[..., None] * 31 + np.arange(70)).astype(np.uint16)


def stacks_of(ids: Array, k: int) -> Array:
    """The stacks of rows: each goes on from the one before, but for some that do not."""
    back = np.arange(2, -1, -1)
    odd = (ids % 11 == 3)[..., None] & (back > 0)
    stack = ids[..., None] - k * back + 500 * odd
    return np.stack([stack, -stack], -1).astype(np.int32)


def next_obs_of(ids: Array, k: int) -> Array:
    """The next observation of rows."""
    found: Array = np.where(ends(ids)[..., None], -1.0 - obs_of(ids), obs_of(ids + k))
    return found


def lengths_of(number: int, version: int = 0) -> tuple[int, int]:
    """Tokens and edges of a row: none, few or many."""
    tokens = (number * 5 + version * 3) % LONGEST
    return tokens, (number + version) % 5 if tokens else 0


@cache
def ragged_of(number: int, version: int = 0) -> dict[str, Any]:
    """The values of any length of a row, which nobody changes."""
    n, m = lengths_of(number, version)
    first = number * 100 + version * 10
    return {
        "tokens": (first + np.arange(n)).astype(np.int32),
        "edges": ((number + np.arange(2 * m)) % max(n, 1)).reshape(2, m).astype(np.uint8),
        "features": (first + np.arange(3.0 * m)).reshape(m, 3),
        "text": "é" * (number % 4) + str(version),
    }


def next_ragged_of(number: int, k: int) -> dict[str, Any]:
    """The next values of any length of a row: those of the next row, or others at an end."""
    return ragged_of(number, 1) if ends(np.array(number)) else ragged_of(number + k)


def add(rb: ReplayBuffer, n: int) -> None:
    """Add ``n`` time steps; the ids go on."""
    k = rb.n_envs
    ids = rb.ring.written + np.arange(n * k).reshape((n, k) if k > 1 else (n,))
    step: dict[str, Any] = {"id": ids, "obs": obs_of(ids), "rew": ids % 1000, "done": ends(ids)}
    step["goal"] = np.stack([ids, np.zeros_like(ids)], -1)
    step["image"] = image_of(ids)
    if "next_obs" in rb.schema.names:
        step["next_obs"] = next_obs_of(ids, k)
    if "frames" in rb.schema.names:
        step["frames"] = stacks_of(ids, k)
    if "tokens" in rb.schema.names:
        numbers = ids.ravel().tolist()
        sources = {"": [ragged_of(number) for number in numbers]}
        if "next_tokens" in rb.schema.names:
            sources["next_"] = [next_ragged_of(number, k) for number in numbers]
        for prefix, rows in sources.items():
            for name in RAGGED:
                values = [row[name] for row in rows]
                blocks = [values[at : at + k] for at in range(0, len(values), k)]
                step[prefix + name] = blocks if k > 1 else values
    rb.add(**step)


def update(rb: ReplayBuffer, n: int) -> None:
    """Edit some rows, and their priorities."""
    batch = rb.sample(n, indexes=True)
    _edit(rb, batch)


def versions_of(rb: ReplayBuffer) -> dict[int, int]:
    """How often each row was edited."""
    rows = rb.get_all_transitions()
    return dict(rows["goal"].tolist())


def _edit(rb: ReplayBuffer, batch: dict[str, Array]) -> None:
    _, first = np.unique(batch["id"], return_index=True)
    batch = {name: column[first] for name, column in batch.items()}
    ids = batch["id"]
    versions = batch["goal"][:, 1] + 1
    # Two values that lie apart in memory, and in files.
    image = image_of(ids) + versions[:, None].astype(np.uint16)
    new: dict[str, Any] = {"goal": np.stack([ids, versions], -1), "image": image}
    if "tokens" in batch and "next_tokens" not in batch:
        pairs = zip(ids.tolist(), versions.tolist(), strict=True)
        rows = [ragged_of(number, version) for number, version in pairs]
        new |= {name: [row[name] for row in rows] for name in RAGGED}
    with unless_full():
        rb.update(batch["indexes"], **new)
    if rb.has_priorities:
        rb.update_priorities(batch["indexes"], ids % 17 / 4.0)


def check_rows(rb: ReplayBuffer, versions: dict[int, int] | None = None) -> None:
    """Each row holds what follows from its id, whatever rows are there.

    ``versions`` says how often rows were edited.
    """
    rows = rb.get_all_transitions()
    ids, k = rows["id"], rb.n_envs
    assert len(set(ids.tolist())) == len(ids)
    np.testing.assert_array_equal(rows["obs"], obs_of(ids))
    edited = rows["goal"][:, 1, np.newaxis].astype(np.uint16)
    np.testing.assert_array_equal(rows["image"], image_of(ids) + edited)
    np.testing.assert_array_equal(rows["goal"][:, 0], ids)
    if versions is not None:
        np.testing.assert_array_equal(
            rows["goal"][:, 1], [versions.get(number, 0) for number in ids.tolist()]
        )
    if "frames" in rows:
        np.testing.assert_array_equal(rows["frames"], stacks_of(ids, k))
    if "next_tokens" in rows:
        check_ragged(rows, [ragged_of(number) for number in ids.tolist()])
        check_ragged(rows, [next_ragged_of(number, k) for number in ids.tolist()], "next_")
    elif "tokens" in rows:
        check_ragged(
            rows, [ragged_of(number, version) for number, version in rows["goal"].tolist()]
        )
    if rb.is_Nstep():
        there = set((rb.ring.written - 1 - np.arange(rb.ring.stored)).tolist())
        slots = np.flatnonzero(rb.ring.flags() & FLAG_ABSENT)
        there -= set(rb.ring.row_ids(slots).tolist())
        last = [_last_row(row, there) for row in ids.tolist()]
        np.testing.assert_array_equal(rows["next_obs"], next_obs_of(np.array(last, np.int64), 1))
        sums = [
            sum(0.5**n * ((row + n) % 1000) for n in range(end - row + 1))
            for row, end in zip(ids.tolist(), last, strict=True)
        ]
        np.testing.assert_array_equal(rows["rew"], np.array(sums, np.float32))
    else:
        np.testing.assert_array_equal(rows["rew"], (ids % 1000).astype(np.float32))
        np.testing.assert_array_equal(rows["done"], ends(ids))
        if "next_obs" in rows:
            np.testing.assert_array_equal(rows["next_obs"], next_obs_of(ids, k))


def check_ragged(rows: dict[str, Array], expected: list[dict[str, Any]], prefix: str = "") -> None:
    """The values of any length of rows, padded, are these."""
    if not expected:
        return
    n, m = rows[f"{prefix}T_mask"], rows[f"{prefix}E_mask"]
    edges = rows[f"{prefix}edges"].swapaxes(1, 2)[m]
    assert n.sum(1).tolist() == [len(row["tokens"]) for row in expected]
    assert m.sum(1).tolist() == [len(row["features"]) for row in expected]
    for mask, name in ((n, "tokens"), (m, "features")):
        values = rows[prefix + name][mask]
        np.testing.assert_array_equal(values, np.concatenate([row[name] for row in expected]))
    np.testing.assert_array_equal(edges, np.concatenate([row["edges"].T for row in expected]))
    assert rows[f"{prefix}text"].tolist() == [row["text"] for row in expected]


def _last_row(row: int, there: set[int]) -> int:
    """The last of the three steps from a row on; fewer at an end, or where rows are lost."""
    for _ in range(2):
        if ends(np.array(row)) or row + 1 not in there:
            return row
        row += 1
    return row


def mixture(seed: int = 0) -> Mixture:
    """One batch from two buffers."""
    first, second = make("next_of+prioritized", 30, seed), make("next_of", 20, seed + 1)
    return Mixture({"first": first, "second": second}, {"first": 0.5, "second": 0.5}, seed=seed)


def parts(thing: Any) -> list[ReplayBuffer]:
    """The buffers of a thing."""
    if isinstance(thing, ReplayBuffer):
        return [thing]
    if isinstance(thing, View):
        return [thing.buffer]
    return list(thing._sources.values())


def digest(thing: Any) -> str:
    """Tells apart what has other rows, or draws others; draws from it."""
    hashed = hashlib.sha256()
    for rb in parts(thing):
        rb.check()
        for name, column in rb.get_all_transitions().items():
            hashed.update(name.encode() + bytes_of(column))
    for source in {id(source): source for source in (*parts(thing), thing)}.values():
        if all(len(rb) for rb in parts(source)):
            for name, column in source.sample(9).items():
                hashed.update(name.encode() + bytes_of(column))
    return hashed.hexdigest()


def bytes_of(column: Array) -> bytes:
    """Bytes that tell apart what is in a column; an array of texts has only references."""
    return repr(column.tolist()).encode() if column.dtype == object else column.tobytes()


def digest_of_copy(thing: Any) -> str:
    """The same; the thing draws what it would have drawn."""
    return digest(copy.deepcopy(thing))


def small_segments(nbytes: int) -> Any:
    """A fixture for all tests of a file: segments so small that small buffers have several."""

    @pytest.fixture(autouse=True)
    def segments_of(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(_segments, "SEGMENT_NBYTES", nbytes)

    return segments_of
