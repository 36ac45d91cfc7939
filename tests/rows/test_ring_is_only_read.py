"""What users see as ``rb.ring`` gives no way to change rows past the buffer and its lock."""

from __future__ import annotations

import inspect
import pickle
import threading
from typing import Any

import numpy as np
import pytest

from cpprb_like import ReplayBuffer
from cpprb_like._core import Ring

FIELDS: dict[str, Any] = {
    "obs": {"shape": (2, 4), "dtype": "u1"},
    "info": {"shape": (), "dtype": object},
    "first": {"shape": (), "dtype": bool},
    "ids": {"shape": ("T",), "dtype": "i4"},
    "rew": {"shape": ()},
    "done": {"shape": (), "dtype": bool},
}


def of_each_kind() -> ReplayBuffer:
    """Objects, items, stacks, next values, incomplete rows; more rows than there is room for."""
    rb = ReplayBuffer(
        20,
        FIELDS,
        room={"T": 30},
        next_of="obs",
        stack_compress={"obs": -1},
        Nstep={"size": 3, "gamma": 0.9, "rew": "rew", "next": "next_obs"},
        seed=0,
    )
    for i in range(50):
        obs = np.full((2, 4), i)
        values = {"obs": obs, "info": {i}, "ids": np.full(i % 3, i), "next_obs": obs + 1}
        rb.add(**values, first=i % 7 == 0, rew=i, done=i % 7 == 6)
    return rb


SLOTS = np.array([1, 2])
CALLS: dict[str, tuple[Any, ...]] = {
    "absent_at": (SLOTS,),
    "episode_len": (0,),
    "flags": (),
    "flags_at": (SLOTS,),
    "holds": ("now", SLOTS),
    "is_now": ("now",),
    "newest_slots": (5,),
    "now": (),
    "present_slots": (),
    "row_ids": (SLOTS,),
    "windows": (SLOTS, 2, 2),
}
ATTRIBUTES = {
    *("absent", "capacity", "chains", "cleared", "clears", "columns", "first", "handle_base"),
    *("n_envs", "row_nbytes", "rows", "size", "span", "stop", "stored", "stored_columns"),
    *("index_nbytes", "items", "left_before", "lookahead", "rereads", "written"),
}


def test_each_name_of_the_ring_is_known() -> None:
    """A method that is added to the ring has to be tried below."""
    names = {name for name in dir(Ring) if not name.startswith("_")}
    assert names == CALLS.keys() | ATTRIBUTES


def test_no_method_of_the_ring_changes_rows() -> None:
    """Nor does writing to what it returns."""
    rb = of_each_kind()
    before = pickle.dumps(rb)
    for name, arguments in CALLS.items():
        given = [rb.ring.now() if isinstance(given, str) else given for given in arguments]
        found = getattr(rb.ring, name)(*given)
        for array in found if isinstance(found, tuple) else [found]:
            if isinstance(array, np.ndarray):
                array.fill(77)
        assert pickle.dumps(rb) == before, name
    rb.check()


@pytest.mark.parametrize("name", sorted(ATTRIBUTES))
def test_no_attribute_of_the_ring_can_be_set(name: str) -> None:
    """Numbers and tuples, which can only be read."""
    ring = of_each_kind().ring
    assert isinstance(getattr(ring, name), (int, tuple))
    with pytest.raises(AttributeError):
        setattr(ring, name, 5)


def test_parts_of_the_ring_are_read_only_too() -> None:
    """The rows of a field of Python objects; chained fields and items have no method that loads."""
    rb = of_each_kind()
    (column,) = [column for column in rb.ring.columns if column.objects is not None]
    assert column.objects is not None
    with pytest.raises(ValueError, match="read-only"):
        column.objects[0] = None
    copy = pickle.loads(pickle.dumps(rb))
    assert copy.sample(5)["info"].flags.writeable
    (column,) = [column for column in copy.ring.columns if column.objects is not None]
    assert not column.objects.flags.writeable
    for part in (*rb.ring.columns, *rb.ring.chains, *rb.ring.items):
        methods = {name for name, _ in inspect.getmembers(part, callable) if name[0] != "_"}
        assert methods <= {"cast", "newest", "pack", "save"}


@pytest.mark.parametrize(
    "change",
    [ReplayBuffer.clear, ReplayBuffer.on_episode_end, lambda rb: rb.episodes.delete(0)],
    ids=["clear", "on_episode_end", "delete"],
)
def test_the_ways_of_the_buffer_wait_for_its_lock(change: Any) -> None:
    """They change rows when the thread that has the lock lets them."""
    rb = of_each_kind()
    before = pickle.dumps(rb)
    done = threading.Event()

    def work() -> None:
        change(rb)
        done.set()

    worker = threading.Thread(target=work)
    with rb._lock:
        worker.start()
        assert not done.wait(0.05)
        assert pickle.dumps(rb) == before
    worker.join(30)
    assert done.is_set()
    assert pickle.dumps(rb) != before
