"""Batches in arrays of the caller: of NumPy, of other libraries, and what they cost."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import pytest
from optional import need
from timing import ratio

from cpprb_like import PrioritizedReplayBuffer, ReplayBuffer
from cpprb_like.buffers import Mixture
from cpprb_like.samplers import Uniform
from cpprb_like.typing import FieldSpec
from cpprb_like.views import Hindsight


def many_fields(n: int) -> ReplayBuffer:
    """A full buffer of so many small fields."""
    rb = ReplayBuffer(500, {f"field {k}": {"shape": 3} for k in range(n)}, seed=0)
    rb.add(**{f"field {k}": np.full((500, 3), k) for k in range(n)})
    return rb


@pytest.mark.parametrize("n", [5, 50, 200])
def test_out_costs_no_more_than_fresh_arrays(n: int) -> None:
    """The arrays were compared in Python, each with each: 40 and 130 times a fresh batch."""
    rb = many_fields(n)
    out = rb.sample(32)
    assert ratio(lambda: rb.sample(32), lambda: rb.sample(32, out=out), 60, 10) < 1.5


@pytest.mark.parametrize("first", [0, 7, 49])
@pytest.mark.parametrize("second", [3, 48])
def test_arrays_that_overlap_are_found(first: int, second: int) -> None:
    """Two arrays that share a byte are named, wherever they stand; neighbours are none."""
    rb = many_fields(50)
    memory = np.zeros(50 * 96, np.float32)
    out = {f"field {k}": memory[k * 96 :][:96].reshape(32, 3) for k in range(50)}
    batch = rb.sample(32, out=out)
    assert all((batch[f"field {k}"] == k).all() for k in range(50))
    out[f"field {first}"] = memory[second * 96 + 95 :][:96].reshape(32, 3)
    one, two = sorted((first, second))
    with pytest.raises(ValueError, match="shares memory"):
        rb.sample(32, out=out)
    assert one != two


def test_buffers_of_other_kinds_are_written_into() -> None:
    """What offers writeable memory is written into: bytes, maps of memory."""
    rb = ReplayBuffer(10, {"x": {"shape": 4, "dtype": "u1"}}, seed=0)
    rb.add(x=[[1, 2, 3, 4]])
    view: Any = memoryview(bytearray(12)).cast("B", (3, 4))
    assert rb.sample(3, out={"x": view})["x"] is view
    assert view.tolist() == [[1, 2, 3, 4]] * 3
    with pytest.raises(ValueError, match=r"expected uint8 of shape \(3, 4\), got uint8 of shape"):
        rb.sample(3, out={"x": mmap.mmap(-1, 12)})
    fixed: Any = memoryview(bytes(12)).cast("B", (3, 4))
    with pytest.raises(ValueError, match="read-only"):
        rb.sample(3, out={"x": fixed})
    wrong: Any
    for wrong in ([[0] * 4] * 3, None, "x" * 12, np.ma.zeros((3, 4), "u1")):
        with pytest.raises(TypeError, match=r"out\['x'\]: expected an array, got"):
            rb.sample(3, out={"x": wrong})


class Names(Uniform):
    """Draws, and adds a column of some name and length."""

    def __init__(self, name: str, spare: int) -> None:
        self.name, self.spare = name, spare

    def draw(self, ring: Any, n: int, rng: Any, *, replace: bool) -> Any:
        slots, _ = super().draw(ring, n, rng, replace=replace)
        return slots, {self.name: np.zeros(n + self.spare)}


@pytest.mark.parametrize("nstep", [None, {"size": 2, "rew": "rew", "discount": True}])
@pytest.mark.parametrize(("name", "spare"), [("x", 0), ("discount", 0), ("more", 1)])
@pytest.mark.parametrize("fields", [None, "rew"])
def test_columns_of_a_sampler_are_looked_at_before_anything_is_written(
    nstep: Any, name: str, spare: int, fields: Any
) -> None:
    """``out`` had the rows of a batch that was refused then, for a column of its sampler."""
    declared: dict[str, FieldSpec] = {"x": {"shape": ()}, "rew": {"shape": ()}}
    rb = ReplayBuffer(10, declared, sampler=Names(name, spare), Nstep=nstep, seed=0)
    rb.add(x=[1, 2, 3], rew=[1, 2, 3])
    out = {name: np.full(3, -7.0, np.float32) for name in ("x", "rew")}
    if name == "discount" and nstep is None:
        assert rb.sample(3, out=out)["discount"].tolist() == [0, 0, 0]
        return
    with pytest.raises(
        ValueError, match=f"3 values under a name that is no field, got . as {name!r}"
    ):
        rb.sample(3, out=out, fields=fields)
    assert out.keys() == {"x", "rew"}
    assert all((array == -7).all() for array in out.values())


# ---------------------------------------------------------------------- tensors


def buffers() -> list[Any]:
    """Buffers of each kind of reading, with the same fields."""
    fields: dict[str, Any] = {
        "obs": {"shape": (3, 4), "dtype": "u1"},
        "act": {"shape": (), "dtype": "i8"},
        "rew": {"shape": ()},
        "done": {"shape": (), "dtype": bool},
    }
    made = [
        ReplayBuffer(50, fields, seed=0),
        ReplayBuffer(50, fields, seed=0, stack_compress={"obs": -1}),
        ReplayBuffer(50, fields, seed=0, Nstep={"size": 3, "rew": "rew", "next": "obs"}),
        PrioritizedReplayBuffer(50, fields, seed=0),
    ]
    rng = np.random.default_rng(0)
    for k in range(40):
        obs = rng.integers(0, 255, (3, 4))
        for rb in made:
            rb.add(obs=obs, act=k, rew=k, done=k % 9 == 8)
    return made


def test_tensors_are_written_into() -> None:
    """Tensors on the CPU get what fresh arrays would, and stay in the batch themselves."""
    torch = need("torch", "make test-torch")
    kinds = {"obs": torch.uint8, "act": torch.int64, "rew": torch.float32, "done": torch.bool}
    for mine, theirs in zip(buffers(), buffers(), strict=True):
        expected = theirs.sample(20)
        out = {name: torch.zeros(expected[name].shape, dtype=kind) for name, kind in kinds.items()}
        given = dict(out)
        batch = mine.sample(20, out=out)
        assert batch is out
        assert all(batch[name] is given[name] for name in kinds)
        for name, values in expected.items():
            np.testing.assert_array_equal(np.asarray(batch[name]), values)
    rb = buffers()[0]
    stacks = torch.zeros((2, 3, 4, 2), dtype=torch.uint8)
    assert rb.stack("obs", [[0, 1], [2, -1]], out=stacks) is stacks
    np.testing.assert_array_equal(stacks.numpy(), rb.stack("obs", [[0, 1], [2, -1]]))


def test_tensors_of_mixtures_and_hindsight() -> None:
    """What draws from buffers writes into tensors, too."""
    torch = need("torch", "make test-torch")

    def drawing() -> list[Any]:
        one, _, _, two = buffers()
        options: dict[str, Any] = {"goal": "act", "achieved": "rew", "reward": "done"}
        return [
            Mixture({"one": one, "two": two}, {"one": 1, "two": 1}, seed=0),
            one.view(Hindsight(lambda at, goal, _: at > goal, goal_func=lambda at: at, **options)),
        ]

    for mine, theirs in zip(drawing(), drawing(), strict=True):
        expected = theirs.sample(20)
        names = ("obs", "act", "rew", "done")
        out = {name: torch.from_numpy(np.zeros_like(expected[name])) for name in names}
        given = dict(out)
        batch = mine.sample(20, out=out)
        assert batch is out
        assert all(batch[name] is given[name] for name in names)
        assert batch.keys() == expected.keys()
        for name, values in expected.items():
            np.testing.assert_array_equal(np.asarray(batch[name]), values)


def test_tensors_that_cannot_be_written_into() -> None:
    """Tensors of another kind, place or order are refused, and nothing is written."""
    torch = need("torch", "make test-torch")
    rb = ReplayBuffer(50, {"x": {"shape": 4}}, seed=0)
    rb.add(x=np.ones((50, 4)))
    for wrong, error, words in (
        (torch.zeros(3, 4, device="meta"), TypeError, "Unknown device type meta"),
        (torch.zeros(3, 4, requires_grad=True), TypeError, "that NumPy can share"),
        (torch.zeros(3, 4, dtype=torch.bfloat16), (TypeError, ValueError), "bfloat16|ml_dtypes"),
        (torch.zeros(3, 4, dtype=torch.float64), ValueError, "expected float32"),
        (torch.zeros(4, 3).T, ValueError, "not C-contiguous"),
        (torch.zeros(4, 4), ValueError, "shape"),
        (torch.zeros(3, 4).to_sparse(), TypeError, "out"),
    ):
        with pytest.raises(error, match=words):
            rb.sample(3, out={"x": wrong})
