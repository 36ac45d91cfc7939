"""Pickles whose numbers were changed: each is refused, or gives a buffer that works."""

from __future__ import annotations

import copy
import dataclasses
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import pytest
from forked import outcome

from cpprb_like import Mixture, NotEnoughDataError, PrioritizedReplayBuffer, ReplayBuffer
from cpprb_like.buffers import ReplayMemory
from cpprb_like.buffers._replay import _blank
from cpprb_like.samplers import Prioritized, PrioritySampler, RankBased, Recency, Reverse

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="a crash would end the tests")

VALUES = [-1, 0, 1, 2, 2**31, 2**62, 2**63 - 1, 2**63, -(2**63)]
FIELDS: dict[str, Any] = {
    "stack": {"shape": (2, 4), "dtype": "u1"},
    "r": {"shape": ()},
    "name": {"dtype": "U2"},
    "wide": {"shape": 40},
    "done": {"shape": (), "dtype": bool},
}
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "plain": (None, {"n_envs": 2}),
    "reverse": (Reverse(3), {}),
    "recency": (Recency(0.9, updates=5, least=2), {}),
    "prioritized": (Prioritized(1.0, check_for_update=True), {"n_envs": 2}),
    "nstep": (Prioritized(0.5), {"Nstep": {"size": 3, "rew": "r"}}),
    "ranks": (RankBased(1.0), {"Nstep": {"size": 3, "rew": "r"}, "n_envs": 2}),
    "chained": (None, {"n_envs": 2, "next_of": "stack", "stack_compress": {"stack": -1}}),
    "object": (None, {}),
    "ragged": (None, {"n_envs": 2, "room": {"T": 40, "say": 30}}),
}
RAGGED: dict[str, Any] = {
    "token": {"shape": ("T",), "dtype": "i8"},
    "node": {"shape": (2, "T"), "dtype": "u1", "counts": "T"},
    "say": {"dtype": str},
}

Change = tuple[str, Callable[[], None]]


def values_of(rb: ReplayBuffer, k: int) -> dict[str, Any]:
    """One step of each environment."""
    fields: dict[str, Any] = {
        "stack": np.arange(8, dtype="u1").reshape(2, 4) + k * (k % 5 > 0),
        "r": float(k),
        "name": f"{k % 99}",
        "wide": np.full(40, k),
        "done": k % 6 == 5,
    }
    if "next_stack" in rb.schema.names:
        fields["next_stack"] = fields["stack"] + 1
    if "thing" in rb.schema.names:
        fields["thing"] = {k}
    items: dict[str, Any] = {}
    if "token" in rb.schema.names:
        n = k % 5 + 1
        token, node = np.full(n, k), np.full((2, n), k % n)
        items = {"token": [token] * 2, "node": [node] * 2, "say": ["é" * (k % 3), f"{k}"]}
    if rb.n_envs == 1:
        return fields
    return items | {name: np.array([value] * rb.n_envs) for name, value in fields.items()}


def buffer_of(kind: str, n: int) -> ReplayBuffer:
    """A buffer after n time steps."""
    sampler, options = KINDS[kind]
    fields = FIELDS | ({"thing": {"shape": (), "dtype": "O"}} if kind == "object" else {})
    if kind == "chained":
        fields = fields | {"next_stack": FIELDS["stack"]}
        options = options | {"next_of": "stack"}
    if kind == "ragged":
        fields = fields | RAGGED
    by_priority = isinstance(sampler, PrioritySampler)
    cls = PrioritizedReplayBuffer if by_priority else ReplayBuffer
    rb = cls(12, fields, sampler=copy.deepcopy(sampler), seed=0, **options)
    for k in range(n):
        rb.add(**values_of(rb, k))
        if by_priority and k > 4:
            batch = rb.sample(3)
            rb.update_priorities(batch["indexes"], [1.0, 2.0, 0.5])
    return rb


def changes(place: Any, path: str = "") -> Iterator[Change]:
    """Everything that can be changed in nested containers: each integer, each array's length."""
    if isinstance(place, np.random.Generator) or path.count(".") > 9:
        return
    items: list[tuple[Any, Any, Callable[[Any, Any], None]]]
    if isinstance(place, dict):
        items = [(key, value, place.__setitem__) for key, value in place.items()]
    elif isinstance(place, list):
        items = [(key, value, place.__setitem__) for key, value in enumerate(place)]
    elif dataclasses.is_dataclass(place) or type(place).__module__.startswith("cpprb_like"):
        names = vars(place)

        def assign(key: Any, value: Any) -> None:
            object.__setattr__(place, key, value)

        items = [(key, value, assign) for key, value in names.items()]
    else:
        return
    for key, value, replace in items:
        here = f"{path}.{key}"
        yield from changes_of(value, here, partial(replace, key))
        yield from changes(value, here)


def changes_of(value: Any, here: str, put: Callable[[Any], None]) -> Iterator[Change]:
    """What can be put in place of a value."""
    if type(value) is int:
        for new in VALUES:
            yield f"{here} = {new}", partial(put, new)
    elif isinstance(value, tuple):
        for k, part in enumerate(value):

            def put_part(new: Any, k: int = k) -> None:
                put((*value[:k], new, *value[k + 1 :]))

            yield from changes_of(part, f"{here}.{k}", put_part)
        yield f"{here} shorter", lambda: put(value[:-1])
    elif isinstance(value, np.ndarray):
        yield f"{here} shorter", lambda: put(value[:-1])
        yield f"{here} empty", lambda: put(value[:0])
        yield f"{here} longer", lambda: put(np.concatenate([value, value]))
        yield f"{here} of floats", lambda: put(np.zeros(value.shape, "f4"))
        if value.dtype == np.int64:
            for where in np.ndindex(value.shape):
                for number in VALUES:
                    if -(2**63) <= number < 2**63:
                        changed = value.copy()
                        changed[where] = number
                        yield f"{here}{where} = {number}", partial(put, changed)
        if value.dtype == np.float64 and 0 < value.size < 100:
            for bad in (-1.0, np.nan, np.inf, 1e300):
                wrong = value.copy()
                wrong[..., -1] = bad
                yield f"{here} has {bad}", partial(put, wrong)
    elif isinstance(value, list):
        yield f"{here} shorter", lambda: put(value[:-1])


def use(rb: ReplayBuffer) -> None:
    """Read all, draw, add, change."""
    rb.check()
    for _ in range(3):
        try:
            rb.sample(7)
        except NotEnoughDataError:
            assert len(rb) == 0
        rb.add(**values_of(rb, 3))
    rb.get_all_transitions()
    rb.clear()
    rb.add(**values_of(rb, 1))
    rb.check()


def try_all(cls: Any, blank: Callable[[Any], Any], state: Any, use: Callable[[Any], None]) -> None:
    """Load the state with each change in turn."""
    raw = pickle.dumps(state)
    count = len(list(changes(pickle.loads(raw))))
    assert count > 10
    refused = 0
    for number in range(count):
        state = pickle.loads(raw)
        what, change = next(islice(changes(state), number, None))
        print(what, file=sys.stderr, flush=True)  # the last one is to blame
        change()
        try:
            state = pickle.loads(pickle.dumps(state))
            loaded = blank(cls)
            loaded.__setstate__(state)
        except (ValueError, MemoryError, TypeError):
            refused += 1
            continue
        use(loaded)
    assert refused > 0


@pytest.mark.slow
@pytest.mark.parametrize("n", [0, 5, 20])
@pytest.mark.parametrize("kind", list(KINDS))
def test_changed_numbers_of_a_pickled_buffer(kind: str, n: int) -> None:
    """No change of a number or a length crashes the process, or gives garbage.

    Numbers of a pickle were believed: a changed header wrote beyond its memory.
    """
    rb = buffer_of(kind, n)
    use(pickle.loads(pickle.dumps(rb)))
    assert outcome(lambda: try_all(type(rb), _blank, rb.__getstate__(), use), seconds=300) == 0


def test_changed_numbers_of_a_pickled_memory_of_objects() -> None:
    """Places and counts of objects are checked against each other."""

    def use_memory(memory: ReplayMemory) -> None:
        for _ in range(3):
            memory.append((1, 2))
            memory.sample(5)
        assert len(memory[:]) == len(memory)

    for n in (3, 9):
        memory = ReplayMemory(5, seed=0)
        for i in range(n):
            memory.append((i, i))
        state = memory.__getstate__()
        blank: Any = ReplayMemory.__new__

        def job(state: Any = state, blank: Any = blank) -> None:
            small = [value for value in VALUES if value < 2**31]
            VALUES[:] = [*small, 2**62, 2**63 - 1, 2**63]
            try_all(ReplayMemory, blank, state, use_memory)

        assert outcome(job, seconds=300) == 0


def test_a_changed_mixture_is_refused() -> None:
    """Its numbers are those of draws that it made."""
    a, b = buffer_of("plain", 5), buffer_of("plain", 5)
    mixture = Mixture({"a": a, "b": b}, {"a": 1, "b": 1}, seed=0)
    for name, value in (("draws", -1), ("_numbers", [7.0])):
        state = mixture.__dict__ | {name: value}
        with pytest.raises(ValueError):
            Mixture.__new__(Mixture).__setstate__(state)
