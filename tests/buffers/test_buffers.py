"""What programs written for cpprb rely on, and each old defect done right."""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from cartpole import CARTPOLE, step
from helpers import refused, snapshot

import cpprb_like
from cpprb_like import (
    MPPrioritizedReplayBuffer,
    MPReplayBuffer,
    NotEnoughDataError,
    PrioritizedReplayBuffer,
    ReplayBuffer,
    ReverseReplayBuffer,
    create_buffer,
)
from cpprb_like.samplers import LegacyUniform
from cpprb_like.typing import FieldSpec

# ---- constructor -------------------------------------------------------------------------


def test_sizes_written_as_floats() -> None:
    """``1e3`` is a size, as programs write it."""
    assert ReplayBuffer(1e3, CARTPOLE).get_buffer_size() == 1000


def test_dtype_is_float32_by_default() -> None:
    """Fields without a dtype are float32, ``done`` too; ``default_dtype`` changes that."""
    rb = ReplayBuffer(10, CARTPOLE)
    rb.add(**step(0))
    dtypes = {name: value.dtype for name, value in rb.sample(1).items()}
    assert dtypes == {"obs": "f4", "act": "i4", "rew": "f4", "next_obs": "f4", "done": "f4"}
    wide = ReplayBuffer(10, CARTPOLE, default_dtype=np.float64)
    wide.add(**step(0))
    assert wide.sample(1)["done"].dtype == np.float64
    assert wide.sample(1)["act"].dtype == np.int32


@pytest.mark.parametrize(
    "kind",
    [
        ReplayBuffer,
        PrioritizedReplayBuffer,
        ReverseReplayBuffer,
        create_buffer,
        MPReplayBuffer,
        MPPrioritizedReplayBuffer,
    ],
    ids=lambda kind: kind.__name__,
)
@pytest.mark.parametrize("default", [None, np.float16])
def test_a_dtype_of_none_is_float64(kind: Any, default: Any) -> None:
    """As in cpprb, where NumPy reads it: it was taken for a field without a dtype."""
    fields: dict[str, FieldSpec] = {"wide": {"dtype": None}, "plain": {}}
    rb = kind(10, fields, default_dtype=default)
    rb.add(wide=1 + 2**-40, plain=1)
    batch = rb.get_all_transitions()
    assert batch["wide"].dtype == np.float64
    assert batch["wide"].tolist() == [[1 + 2**-40]]
    assert batch["plain"].dtype == (np.float16 if default else np.float32)


@pytest.mark.parametrize(
    "spec", [{}, {"shape": 1}, {"shape": (1,)}, {"shape": [1]}, {"shape": np.int64(1)}], ids=str
)
def test_scalars_come_back_with_an_axis(spec: FieldSpec) -> None:
    """Shape 1, the default, and (1,) give batches of shape (batch, 1)."""
    rb = ReplayBuffer(5, {"x": spec})
    rb.add(x=3)
    assert rb.sample(4)["x"].shape == (4, 1)
    assert rb.get_all_transitions()["x"].shape == (1, 1)


def test_shape_of_nothing_gives_scalars() -> None:
    """Shape () gives batches of shape (batch,)."""
    rb = ReplayBuffer(5, {"x": {"shape": ()}})
    rb.add(x=3)
    assert rb.sample(4)["x"].shape == (4,)


def test_env_dict_that_was_used_before() -> None:
    """``add_shape``, which cpprb leaves in the dicts it is given, is accepted and ignored."""
    env_dict: dict[str, Any] = {
        "x": {"shape": (2, 3), "add_shape": np.array([-1, 2, 3])},
        "y": {"add_shape": [-1, 1]},
    }
    keys = {name: list(spec) for name, spec in env_dict.items()}
    for _ in range(2):
        rb = ReplayBuffer(5, env_dict)
        rb.add(x=np.ones((2, 3)), y=1)
        assert rb.sample(1)["x"].shape == (1, 2, 3)
    assert {name: list(spec) for name, spec in env_dict.items()} == keys


def test_env_dict_of_any_mapping() -> None:
    """Read-only and ordered mappings are env_dicts too."""
    spec = MappingProxyType({"shape": 2})
    mappings: list[Any] = [MappingProxyType({"x": spec}), OrderedDict(x=spec)]
    for env_dict in mappings:
        rb = ReplayBuffer(5, env_dict)
        rb.add(x=[1, 2])
        assert rb.sample(3)["x"].shape == (3, 2)


def test_names_that_are_no_identifiers() -> None:
    """Any string names a field, also those that are arguments or methods elsewhere."""
    names = [
        "a b",
        "",
        "obs/image",
        "größe",
        "self",
        "size",
        "fields",
        "present",
        "class",
        "0",
        "out",
        "add",
        "x" * 500,
    ]
    rb = ReplayBuffer(5, {name: {"shape": ()} for name in names})
    rb.add(**{name: i for i, name in enumerate(names)})
    assert {name: float(value[0]) for name, value in rb.sample(1).items()} == {
        name: i for i, name in enumerate(names)
    }


def test_names_in_any_order_and_of_any_string_object() -> None:
    """The order of the arguments does not matter, nor whether their names are interned."""
    rb = ReplayBuffer(5, {"first": {"shape": ()}, "second": {"shape": ()}, "third": {"shape": ()}})
    rb.add(third=3, first=1, second=2)
    rb.add(**{str(name, "ascii"): i for i, name in [(2, b"second"), (3, b"third"), (1, b"first")]})

    class Name(str):
        pass

    rb.add(**{Name("first"): 1, Name("third"): 3, Name("second"): 2})
    assert list(rb.sample(1)) == ["first", "second", "third"]
    for name, value in zip(("first", "second", "third"), (1, 2, 3), strict=True):
        assert rb.get_all_transitions()[name].tolist() == [value] * 3


def test_fresh_memory_is_zero(tmp_path: Path) -> None:
    """Rows that were never written are zeros, as a new file shows."""
    rb = ReplayBuffer(100, {"x": {}, "y": {"shape": 50, "dtype": "i8"}}, mmap_prefix=tmp_path / "a")
    rb.add(x=1, y=[1] * 50)
    raw = np.frombuffer((tmp_path / "a.dat").read_bytes(), np.uint8)
    rows = raw[256 : rb._layout.nbytes]
    assert np.count_nonzero(rows) < 100
    assert rows.size > rb.nbytes - 300


def test_create_buffer() -> None:
    """``create_buffer`` makes the class that the options ask for."""
    rb = create_buffer(10, CARTPOLE, prioritized=False, seed=3)
    assert type(rb) is ReplayBuffer
    assert rb.get_buffer_size() == 10
    assert type(create_buffer(10, CARTPOLE, prioritized=True, alpha=0.7)) is PrioritizedReplayBuffer


def test_package_names() -> None:
    """``from cpprb_like import ...`` finds what programs import from cpprb, as far as it exists."""
    for name in ("ReplayBuffer", "PrioritizedReplayBuffer", "create_buffer", "NotEnoughDataError"):
        assert name in dir(cpprb_like)
        assert hasattr(cpprb_like, name)


def test_not_n_step() -> None:
    """A plain buffer says that it is none of n steps."""
    assert ReplayBuffer(5, CARTPOLE).is_Nstep() is False


# ---- add ---------------------------------------------------------------------------------


def test_add_returns_the_first_slot() -> None:
    """``add`` returns the slot of the first row, round the ring, for one row and for several."""
    rb = ReplayBuffer(5, {"x": {}})
    assert [rb.add(x=i) for i in range(7)] == [0, 1, 2, 3, 4, 0, 1]
    assert rb.add(x=np.arange(4)) == 2
    assert rb.add(x=np.arange(0)) == 1
    assert rb.add(x=[5.0]) == 1
    assert type(rb.add(x=1)) is int


def test_one_step_with_or_without_an_axis() -> None:
    """A single step may be given with or without the leading axis, each field in its own way."""
    rb = ReplayBuffer(5, {"a": {"shape": 3}, "b": {}, "c": {"shape": (2, 2)}})
    for a in (np.ones(3), np.ones((1, 3)), [1, 1, 1], [[1, 1, 1]]):
        for b in (1, np.float32(1), np.array(1), [1], np.ones(1), [[1]], np.ones((1, 1))):
            for c in (np.ones((2, 2)), np.ones((1, 2, 2))):
                before = rb.get_next_index()
                rb.add(a=a, b=b, c=c)
                assert rb.get_next_index() == (before + 1) % 5
    assert all((value == 1).all() for value in rb.get_all_transitions().values())


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_all_fields_decide_the_number_of_steps(order: tuple[str, str]) -> None:
    """Whatever the order of the fields, one value for three is refused, not repeated."""
    rb = ReplayBuffer(5, {name: {} for name in order})
    for fields in ({"a": 7, "b": [1, 2, 3]}, {"a": [1, 2, 3], "b": 7}, {"a": [1], "b": [1, 2]}):
        with refused(rb, ValueError):
            rb.add(**fields)


@pytest.mark.parametrize("n", [5, 6, 9, 10, 11, 23, 100])
def test_more_steps_than_the_ring_holds(n: int) -> None:
    """Any number of steps may come at once; the last ones stay, each in the slot of its number."""
    rb = ReplayBuffer(5, {"x": {"shape": (), "dtype": "i8"}, "y": {"shape": 200, "dtype": "i8"}})
    rb.add(x=[-1, -2], y=np.zeros((2, 200)))
    assert rb.add(x=np.arange(n), y=np.arange(n)[:, None] * np.ones(200, int)) == 2
    stored = rb.get_all_transitions()["x"]
    assert sorted(stored.tolist()) == list(range(n - 5, n))
    assert all((x + 2) % 5 == slot for slot, x in enumerate(stored))
    assert (rb.get_all_transitions()["y"] == stored[:, None]).all()
    assert rb.get_next_index() == (n + 2) % 5
    assert rb.get_stored_size() == 5


def test_refused_add_moves_nothing() -> None:
    """After a missing name or a bad shape the next index and size are as before."""
    rb = ReplayBuffer(8, {"a": {}, "b": {"shape": 2}})
    for i in range(4):
        rb.add(a=i, b=[i, i])
    with refused(rb, TypeError, "a"):
        rb.add(b=[1, 1])
    with refused(rb, ValueError, "'b'"):
        rb.add(a=1, b=[1, 1, 1])
    assert rb.get_stored_size() == rb.get_next_index() == 4


def test_dicts_and_strings_as_values() -> None:
    """A field of objects takes a dict as one value, a field of strings takes a string."""
    rb = ReplayBuffer(
        5, {"info": {"shape": (), "dtype": object}, "name": {"shape": (), "dtype": "U8"}}
    )
    rb.add(info={"a": [1, 2]}, name="one")
    rb.add(info=np.array([{"b": 1}, None], object), name=["two", "three"])
    rb.add(info="text", name=np.str_("four"))
    assert rb.get_all_transitions()["info"].tolist() == [{"a": [1, 2]}, {"b": 1}, None, "text"]
    assert rb.get_all_transitions()["name"].tolist() == ["one", "two", "three", "four"]


def test_objects_in_a_field_of_the_default_shape() -> None:
    """With shape 1, too, one object is one step."""
    rb = ReplayBuffer(5, {"info": {"dtype": object}})
    rb.add(info={"a": 1})
    rb.add(info=[{"b": 1}])
    rb.add(info=np.array([[{"c": 1}], [None]], object))
    assert rb.get_all_transitions()["info"].tolist() == [[{"a": 1}], [{"b": 1}], [{"c": 1}], [None]]


# ---- sizes and clear ---------------------------------------------------------------------


def test_sizes() -> None:
    """Stored size grows to the capacity; the next index is 0 right after filling exactly."""
    rb = ReplayBuffer(4, CARTPOLE)
    seen = []
    for i in range(6):
        seen.append((rb.get_stored_size(), rb.get_next_index(), rb.get_buffer_size()))
        rb.add(**step(i))
    assert seen == [(0, 0, 4), (1, 1, 4), (2, 2, 4), (3, 3, 4), (4, 0, 4), (4, 1, 4)]


def test_clear_starts_anew() -> None:
    """``clear`` resets index, size and episode length; the buffer goes on as a new one."""
    rb, fresh = ReplayBuffer(4, CARTPOLE, seed=1), ReplayBuffer(4, CARTPOLE, seed=1)
    for i in range(6):
        rb.add(**step(i))
    rb.clear()
    assert (
        rb.get_stored_size() == rb.get_next_index() == rb.get_current_episode_len() == len(rb) == 0
    )
    for i in range(3):
        assert rb.add(**step(i)) == fresh.add(**step(i)) == i
    for name, column in fresh.get_all_transitions().items():
        np.testing.assert_array_equal(column, rb.get_all_transitions()[name])
    rb.clear()
    rb.clear()


def test_clear_forgets_absent_rows() -> None:
    """After ``clear`` no slot counts as absent."""
    rb = ReplayBuffer(4, {"x": {"shape": ()}}, n_envs=2)
    rb.add_where([False, True], x=[1, 2])
    rb.clear()
    rb.add(x=[3, 4])
    assert len(rb) == 2
    assert rb.get_all_transitions()["x"].tolist() == [3, 4]


# ---- reading -----------------------------------------------------------------------------


def test_batch_of_nothing() -> None:
    """``sample(0)`` gives empty arrays of the right shape and dtype."""
    rb = ReplayBuffer(4, CARTPOLE)
    rb.add(**step(0))
    batch = rb.sample(0)
    assert batch["obs"].shape == (0, 4)
    assert batch["act"].dtype == np.int32


def test_numpy_seed_controls_the_legacy_sampler() -> None:
    """With ``LegacyUniform``, ``np.random.seed`` gives the rows that cpprb gave."""
    rb = ReplayBuffer(100, {"x": {"shape": (), "dtype": "i8"}}, sampler=LegacyUniform())
    rb.add(x=np.arange(70))
    np.random.seed(5)
    drawn = rb.sample(32)["x"]
    np.random.seed(5)
    np.testing.assert_array_equal(drawn, np.random.randint(0, 70, 32))


def test_all_transitions_come_in_slot_order() -> None:
    """``get_all_transitions`` gives copies in slot order, not in order of age."""
    rb = ReplayBuffer(4, {"x": {"shape": (), "dtype": "i8"}})
    rb.add(x=np.arange(6))
    everything = rb.get_all_transitions()["x"]
    assert everything.tolist() == [4, 5, 2, 3]
    everything[:] = 0
    assert rb.get_all_transitions()["x"].tolist() == [4, 5, 2, 3]


@pytest.mark.parametrize(
    "slots", [[3, 0, 0], np.array([3, 0, 0]), np.array([3, 0, 0], "u8"), (3, 0, 0), range(3)]
)
def test_encode_sample(slots: Any) -> None:
    """``_encode_sample`` gives the rows of the given slots."""
    rb = ReplayBuffer(4, {"x": {"shape": (), "dtype": "i8"}, "y": {}})
    rb.add(x=np.arange(10, 14), y=np.arange(4))
    rows = rb._encode_sample(slots)
    assert rows["x"].tolist() == [10 + slot for slot in slots]
    assert rows["y"].shape == (3, 1)


# ---- copies ------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickle(protocol: int) -> None:
    """A pickled buffer comes back whole, generator included, and lives on its own."""
    rb = ReplayBuffer(7, CARTPOLE, seed=3)
    for i in range(11):
        rb.add(**step(i))
    twin = pickle.loads(pickle.dumps(rb, protocol))
    assert type(twin) is ReplayBuffer
    assert snapshot(twin) == snapshot(rb)
    before = snapshot(rb)
    twin.add(**step(11))
    twin.clear()
    assert snapshot(rb) == before


def test_copy_of_subclass_and_attributes() -> None:
    """Subclasses and attributes of one's own survive copying."""
    rb = Mine(7, CARTPOLE, seed=3)
    rb.note = "hello"
    rb.add(**step(0))
    for twin in (copy.deepcopy(rb), pickle.loads(pickle.dumps(rb))):
        assert type(twin) is Mine
        assert twin.note == "hello"
        assert twin.get_next_index() == 1


class Mine(ReplayBuffer):
    """A subclass with nothing of its own."""

    note: str


def test_subclass_may_extend_add() -> None:
    """A subclass that overrides ``add`` reaches the compiled one."""

    class Counting(ReplayBuffer):
        count = 0

        def add(self, /, **fields: Any) -> int | None:
            self.count += 1
            return super().add(**fields)

    rb = Counting(5, {"x": {}})
    rb.add(x=1)
    assert rb.count == len(rb) == 1


def test_empty_error_suits_old_except_clauses() -> None:
    """What sampling an empty buffer raises is caught as ValueError and as RuntimeError."""
    assert issubclass(NotEnoughDataError, ValueError)
    assert issubclass(NotEnoughDataError, RuntimeError)
