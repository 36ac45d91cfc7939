"""Tensors of other libraries, where arrays go in: ``add``, ``update``, priorities, indexes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers import refused
from optional import need
from strategies import Array
from timing import ratio
from views import update_sequence_priorities

from cpprb_like import PrioritizedReplayBuffer, ReplayBuffer
from cpprb_like.typing import FieldSpec
from cpprb_like.views import FrameStacks, Layer, NStep, Sequences

FIELDS: dict[str, Any] = {
    "obs": {"shape": 3},
    "act": {"shape": (), "dtype": "i8"},
    "rew": {"shape": 1},
    "flag": {"shape": (), "dtype": bool},
    "image": {"shape": (2, 2), "dtype": "u1"},
}
DTYPES = ["float32", "float64", "float16", "int64", "int32", "uint8", "bool"]
CPU, CUDA = 1, 2  # devices by their DLPack numbers


class DLPackOnly:
    """A tensor that nothing but DLPack can read, on some device."""

    def __init__(self, values: Any, device: int = CPU) -> None:
        self.values, self.number = np.array(values), device
        self.device = "cpu" if device == CPU else "cuda:0"

    def __dlpack__(self, **options: Any) -> Any:
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.number, 0


class OnDevice:
    """What a tensor of PyTorch on a GPU does when NumPy asks for it."""

    device = "cuda:0"
    requires_grad = False

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise TypeError(
            "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor "
            "to host memory first."
        )


def by_torch(values: Any) -> Any:
    """A tensor of PyTorch."""
    torch = need("torch", "make test-torch")
    return torch.from_numpy(np.array(values))


def by_jax(values: Any) -> Any:
    """An array of JAX, of the dtype of the values."""
    jax = need("jax", "make test-torch")
    jax.config.update("jax_enable_x64", True)
    return jax.numpy.asarray(np.array(values))


LIBRARIES: dict[str, Callable[[Any], Any]] = {
    "torch": by_torch,
    "jax": by_jax,
    "dlpack": DLPackOnly,
}


@pytest.fixture(params=LIBRARIES)
def tensor(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    """Makes a tensor of values; the test is skipped where the library is not installed."""
    make = LIBRARIES[request.param]
    make(0.0)
    return make


def rows(n: int, dtype: str) -> dict[str, Array]:
    """Values that every field can hold, all of one dtype."""
    rng = np.random.default_rng(n)
    shapes = {"obs": (n, 3), "act": (n,), "rew": (n, 1), "flag": (n,), "image": (n, 2, 2)}
    return {name: rng.integers(0, 2, shape).astype(dtype) for name, shape in shapes.items()}


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_go_in_as_their_arrays_do(tensor: Callable[[Any], Any], dtype: str) -> None:
    """Of every dtype, one step and many; 0-d ones are numbers; indexes and masks too."""
    kinds = (ReplayBuffer, PrioritizedReplayBuffer)
    ours, theirs = (kind(50, FIELDS, seed=0) for kind in kinds)
    for rb in (ours, theirs):
        convert = tensor if rb is ours else np.asarray
        for n in (1, 7):
            rb.add(**{name: convert(values) for name, values in rows(n, dtype).items()})
        rb.add(**{name: convert(values[0]) for name, values in rows(1, dtype).items()})
        slots = np.arange(3)
        rb.update(
            convert(slots), obs=convert(rows(3, dtype)["obs"]), rew=convert(rows(3, dtype)["rew"])
        )
    assert len(ours) == 9
    for name, values in theirs.get_all_transitions().items():
        np.testing.assert_array_equal(ours.get_all_transitions()[name], values)
    np.testing.assert_array_equal(ours[tensor([0, 2])]["obs"], theirs[[0, 2]]["obs"])
    mask = np.arange(9) % 2 == 0
    np.testing.assert_array_equal(ours[tensor(mask)]["obs"], theirs[mask]["obs"])
    stacks = ours.stack("obs", tensor([[0, 1], [2, 3]]))
    np.testing.assert_array_equal(stacks, theirs.stack("obs", [[0, 1], [2, 3]]))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_priorities_may_be_tensors(tensor: Callable[[Any], Any], dtype: str) -> None:
    """Those of new rows, of updates and of sequences, with their indexes and masks."""
    fields: dict[str, FieldSpec] = {"x": {"shape": ()}, "done": {"shape": ()}}
    ours, theirs = (PrioritizedReplayBuffer(20, fields, seed=0) for _ in range(2))
    for rb in (ours, theirs):
        convert = tensor if rb is ours else np.asarray
        numbers = np.arange(1, 9).astype(dtype)
        rb.add(x=np.arange(8), done=np.arange(8) % 4 == 3, priorities=convert(numbers))
        rb.add(x=8, done=1, priorities=convert(numbers[3]))
        rb.update_priorities(convert(np.array([1, 5])), convert(numbers[6:]))
        rb.update_priorities(convert(np.array([[2]])), convert(numbers[:1, None]))
        errors, mask = numbers.reshape(4, 2), np.ones((4, 2), bool)
        update_sequence_priorities(rb, convert(np.arange(4)), convert(errors), convert(mask))
    weights = [rb.sampler.rows.get(np.arange(9)) for rb in (ours, theirs)]  # type: ignore[attr-defined]
    np.testing.assert_array_equal(*weights)


@pytest.mark.parametrize("make", [lambda: DLPackOnly([1.0, 2.0, 3.0], CUDA), OnDevice])
def test_a_tensor_on_a_gpu_is_refused_with_the_way_out(make: Callable[[], Any]) -> None:
    """The message names the field, and ``.cpu()``."""
    rb = PrioritizedReplayBuffer(10, {"obs": {"shape": 3}, "rew": {"shape": ()}})
    rb.add(obs=[1, 2, 3], rew=0)
    with refused(rb, ValueError, "field 'obs'", "cpu()"):
        rb.add(obs=make(), rew=0)
    with refused(rb, ValueError, "field 'obs'", "cpu()"):
        rb.update([0], obs=make())
    with refused(rb, TypeError, "priorities", "cpu()"):
        rb.update_priorities([0], make())
    with refused(rb, TypeError, "indexes", "cpu()"):
        rb.update_priorities(make(), [1.0])
    with refused(rb, TypeError, "priorities", "cpu()"):
        rb.add(obs=[1, 2, 3], rew=0, priorities=make())


def test_tensors_of_pytorch_of_every_kind() -> None:
    """Those that require gradients, and those that lie apart; the tensor stays as it is."""
    torch: Any = need("torch", "make test-torch")
    rb = ReplayBuffer(50, {"x": {"shape": (2, 3)}, "rew": {"shape": ()}})
    leaf = torch.arange(6.0).reshape(2, 3).requires_grad_()
    kinds = {
        "leaf": leaf,
        "result": leaf * 2,
        "transposed": torch.arange(6.0).reshape(3, 2).T,
        "strided": torch.arange(12.0).reshape(2, 6)[:, ::2],
        "expanded": torch.tensor([1.0, 2.0, 3.0]).expand(2, 3),
        "parameter": torch.nn.Parameter(torch.ones(2, 3)),
        "half": torch.ones(2, 3).half(),
        "bfloat16": torch.ones(2, 3).bfloat16().requires_grad_(),
        "empty": torch.zeros(0, 2, 3),
    }
    for name, value in kinds.items():
        before, expected = len(rb), value.detach().float().numpy()
        n = 0 if name == "empty" else 1
        rb.add(x=value, rew=torch.zeros(n) if name == "empty" else leaf.sum())
        assert len(rb) == before + n
        if n:
            np.testing.assert_array_equal(rb[before]["x"], expected)
            assert rb[before]["rew"] == 15
            rb.update([before], x=value[None] + 1, rew=leaf.detach()[0, :1])
            np.testing.assert_array_equal(rb[before]["x"], expected + 1)
    assert leaf.requires_grad
    assert leaf.grad is None


@pytest.mark.parametrize("kind", ["meta", "sparse", "complex", "nan to int"])
def test_tensors_of_pytorch_that_cannot_go_in(kind: str) -> None:
    """A refusal names the field, what it is of, and why; nothing has changed."""
    torch: Any = need("torch", "make test-torch")
    rb = ReplayBuffer(10, {"x": {"shape": 3}, "n": {"shape": (), "dtype": "i8"}})
    rb.add(x=[1, 2, 3], n=0)
    values = {
        "meta": (torch.ones(3, device="meta"), "meta"),
        "sparse": (torch.ones(3).to_sparse(), "to_dense"),
        "complex": (torch.ones(3) * 1j, "complex"),
        "nan to int": (torch.ones(3), "nan"),
    }
    value, word = values[kind]
    number: Any = torch.tensor(float("nan")) if kind == "nan to int" else 1
    field = "'n'" if kind == "nan to int" else "'x'"
    with refused(rb, ValueError, f"field {field}", word):
        rb.add(x=value, n=number)


def test_a_tensor_that_changes_while_others_are_read_is_read_once() -> None:
    """Its memory may be gone when the rows are written, so its numbers are copied at once."""
    rb = ReplayBuffer(10, {"x": {"shape": 3}, "y": {"shape": ()}})
    values = np.arange(3.0, dtype=np.float32)

    class Shared:
        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            return values

    class Changes:
        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            values[:] = -1
            return np.array(5, np.float32)

    rb.add(x=Shared(), y=Changes())
    assert rb[0]["x"].tolist() == [0, 1, 2]


def test_a_tensor_costs_little_more_than_its_array() -> None:
    """Most of what it costs is the library's own: ``tensor.numpy()``, once for each."""
    torch: Any = need("torch", "make test-torch")
    rb = ReplayBuffer(1000, {"obs": {"shape": 11}, "act": {"shape": 3}})
    obs, act = torch.rand(11), torch.rand(3)
    assert ratio(
        lambda: rb.add(obs=obs.numpy(), act=act.numpy()),
        lambda: rb.add(obs=obs, act=act),
        turns=200,
        number=20,
    ) < 4  # fmt: skip


# ---- tensors out of batches ----------------------------------------------------------------


def batches_to_take() -> list[dict[str, Array]]:
    """Batches of all sizes, of rows, n-step returns, sequences and stacks."""
    rb = PrioritizedReplayBuffer(400, FIELDS | {"done": {"shape": ()}}, seed=0)
    for n in (300, 300):
        rb.add(**rows(n, "float32"), done=np.arange(n) % 50 == 49)
    layers: list[tuple[Layer, ...]] = [
        (),
        (NStep(3, rew="rew"),),
        (Sequences(5),),
        (FrameStacks({"image": 4}),),
    ]
    views = [rb.view(*some) for some in layers]
    found = [view.sample(n) for view in views for n in (0, 1, 7, 256, 20_000)]
    return [*found, rb.get_all_transitions(), rb[3:9], *rb.epoch(33)]


def test_torch_takes_batches_without_a_copy() -> None:
    """By their memory and by DLPack: at the same address, and they may be written to."""
    torch: Any = need("torch", "make test-torch")
    for batch in batches_to_take():
        for name, values in batch.items():
            for tensor in (torch.from_numpy(values), torch.from_dlpack(values)):
                assert len(values) == 0 or tensor.data_ptr() == values.ctypes.data, name
                np.testing.assert_array_equal(tensor.numpy(), values)
        if len(batch["rew"]):
            torch.from_numpy(batch["rew"])[:] = 7.0
            assert (batch["rew"] == 7.0).all()


def test_jax_takes_batches_without_a_copy() -> None:
    """By DLPack; what is not aligned to 64 bytes JAX copies without a word."""
    jax: Any = need("jax", "make test-torch")
    jax.config.update("jax_enable_x64", True)
    for batch in batches_to_take():
        for name, values in batch.items():
            tensor = jax.dlpack.from_dlpack(values)
            np.testing.assert_array_equal(np.asarray(tensor), values)
            if len(values):
                assert tensor.unsafe_buffer_pointer() == values.ctypes.data, name


@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
def test_fields_that_are_declared_in_any_byte_order_are_taken(library: str) -> None:
    """Batches are in that of the machine; of a structure the parts are taken, of times integers."""
    fields: dict[str, Any] = {
        "x": {"shape": 3, "dtype": ">f4"},
        "n": {"shape": (), "dtype": ">i8"},
        "t": {"shape": (), "dtype": ">M8[s]"},
        "s": {"shape": (), "dtype": [("x", ">f4", (2,)), ("n", ">i8")]},
    }
    rb = ReplayBuffer(10, fields)
    rb.add(x=np.array([1, 2, 3], ">f4"), n=4, t=np.datetime64(5, "s"), s=([6, 7], 8))
    batch = rb.sample(2)
    parts = {"x": batch["s"]["x"], "n": batch["s"]["n"]}
    arrays = {"x": batch["x"], "n": batch["n"], "t": batch["t"].view("i8")}
    take: Any = np.from_dlpack
    if library != "numpy":
        module = need(library, "make test-torch")
        take = module.from_numpy if library == "torch" else module.dlpack.from_dlpack
    if library == "jax":
        module.config.update("jax_enable_x64", True)
    if library != "jax":  # which takes no array with gaps
        np.testing.assert_array_equal(np.asarray(take(parts["x"])), [[6, 7], [6, 7]])
        np.testing.assert_array_equal(np.asarray(take(parts["n"])), [8, 8])
    for name, value in {"x": [1, 2, 3], "n": 4, "t": 5}.items():
        found = np.asarray(take(arrays[name]))
        np.testing.assert_array_equal(found, [value, value])
        assert found.ctypes.data == arrays[name].ctypes.data


@pytest.mark.parametrize("form", ["list", "dict", "tuple", "array of objects"])
def test_tensors_that_keep_their_graphs_are_named(form: str) -> None:
    """An object field held each graph in memory, without a word; without grad nothing is said."""
    torch: Any = need("torch", "make test-torch")
    loss = torch.ones(3, requires_grad=True) * 2

    def step(tensor: Any) -> Any:
        forms: dict[str, Any] = {
            "list": [tensor],
            "dict": {"value": tensor},
            "tuple": [(1, tensor)],
            "array of objects": np.empty(1, object),
        }
        forms["array of objects"][0] = tensor
        return forms[form]

    rb = ReplayBuffer(10, {"rew": {"shape": ()}, "log": {"shape": (), "dtype": object}})
    with pytest.warns(UserWarning, match=r"field 'log': a tensor requires grad.*\.detach\(\)$"):
        rb.add(rew=1, log=step(loss))
    rb.add(rew=1, log=step(loss.detach()))
    assert len(rb) == 2
