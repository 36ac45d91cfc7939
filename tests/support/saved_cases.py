"""Small buffers to be saved: a row follows from its ``id`` and how often it was edited."""

from __future__ import annotations

import copy
import hashlib
from typing import Any

import numpy as np
from strategies import Array

from cpprb_like import Mixture, PrioritizedReplayBuffer, ReplayBuffer

FIELDS: dict[str, Any] = {
    "id": {"shape": (), "dtype": "i8"},
    "obs": {"shape": (2,), "dtype": "f8"},
    "rew": {"shape": (), "dtype": "f4"},
    "done": {"shape": (), "dtype": bool},
    "goal": {"shape": (2,), "dtype": "i8"},  # (id, version)
    "image": {"shape": (70,), "dtype": "u2"},  # so large that it lies by itself
}
STACK = {"frames": {"shape": (3, 2), "dtype": "i4"}}
KINDS = ("plain", "prioritized", "next_of", "stacks", "n_envs", "Nstep")


def make(kind: str, capacity: int = 40, seed: int = 0) -> ReplayBuffer:
    """An empty buffer of one of the ``KINDS``, or of several, joined by ``+``."""
    options: dict[str, Any] = {"seed": seed}
    fields = dict(FIELDS)
    cls: type[ReplayBuffer] = ReplayBuffer
    for word in kind.split("+"):
        if word == "prioritized":
            cls = PrioritizedReplayBuffer
            options["check_for_update"] = True
        elif word == "next_of":
            options["next_of"] = "obs"
        elif word == "stacks":
            fields |= STACK
            options["stack_compress"] = {"frames": 0}
        elif word == "n_envs":
            options["n_envs"] = 2
        elif word == "Nstep":
            options["Nstep"] = {"size": 3, "gamma": 0.5, "rew": "rew", "next": "next_obs"}
            fields["next_obs"] = FIELDS["obs"]
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


def add(rb: ReplayBuffer, n: int) -> None:
    """Add ``n`` time steps; the ids go on."""
    k = rb.n_envs
    ids = rb.ring.written + np.arange(n * k).reshape((n, k) if k > 1 else (n,))
    step: dict[str, Any] = {"id": ids, "obs": obs_of(ids), "rew": ids % 1000, "done": ends(ids)}
    step["goal"] = np.stack([ids, np.zeros_like(ids)], -1)
    step["image"] = image_of(ids)
    if "next_obs" in rb.schema.names:
        step["next_obs"] = np.where(ends(ids)[..., None], -1.0 - obs_of(ids), obs_of(ids + k))
    if "frames" in rb.schema.names:
        back = np.arange(2, -1, -1)
        # Every episode begins with the last frames of the one before, but for some that do not.
        stack = ids[..., None] - k * back
        odd = (ids % 11 == 3)[..., None] & (back > 0)
        step["frames"] = np.stack([stack + 500 * odd, -stack], -1)
    rb.add(**step)


def update(rb: ReplayBuffer, n: int) -> None:
    """Edit some rows, and their priorities."""
    batch = rb.sample(n, indexes=True)
    ids = batch["id"]
    rb.update(batch["indexes"], goal=np.stack([ids, batch["goal"][:, 1] + 1], -1))
    if rb.has_priorities:
        rb.update_priorities(batch["indexes"], ids % 17 / 4.0)


def mixture(seed: int = 0) -> Mixture:
    """One batch from two buffers."""
    first, second = make("next_of+prioritized", 30, seed), make("next_of", 20, seed + 1)
    return Mixture({"first": first, "second": second}, {"first": 0.5, "second": 0.5}, seed=seed)


def parts(thing: Any) -> list[ReplayBuffer]:
    """The buffers of a thing."""
    if isinstance(thing, ReplayBuffer):
        return [thing]
    return list(thing._sources.values())


def digest(thing: Any) -> str:
    """Tells apart what has other rows, or draws others; draws from it."""
    hashed = hashlib.sha256()
    for rb in parts(thing):
        rb.check()
        for name, column in rb.get_all_transitions().items():
            hashed.update(name.encode() + column.tobytes())
    for source in {id(source): source for source in (*parts(thing), thing)}.values():
        if all(len(rb) for rb in parts(source)):
            for name, column in source.sample(9).items():
                hashed.update(name.encode() + column.tobytes())
    return hashed.hexdigest()


def digest_of_copy(thing: Any) -> str:
    """The same; the thing draws what it would have drawn."""
    return digest(copy.deepcopy(thing))
