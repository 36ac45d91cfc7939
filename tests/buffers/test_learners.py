"""Batches as tensors: ``to=`` and ``device=`` of ``batches`` and ``epoch``."""

from __future__ import annotations

import copy
import pickle
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from batch_cases import SOURCES, filled, listed
from helpers import refused
from optional import need

from cpprb_like import PrioritizedReplayBuffer, ReplayBuffer
from cpprb_like.buffers import TensorBatch
from cpprb_like.buffers import _tensors as tensors
from cpprb_like.buffers._tensors import OnCuda
from cpprb_like.samplers import Uniform
from cpprb_like.views import Hindsight, Packed

NUMBERS = ["f2", "f4", "f8", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "?", "c8", "c16"]
NUMBERS += [">i2", ">f4"]
OTHERS = ["S3", "U2", "O", "M8[s]", "g", "V3"]


def of_dtypes(dtypes: list[str], n: int = 20) -> ReplayBuffer:
    """A buffer with a field of each dtype."""
    fields: dict[str, Any] = {f"of {dtype}": {"shape": 3, "dtype": dtype} for dtype in dtypes}
    rb = ReplayBuffer(n, fields, seed=0)
    rng = np.random.default_rng(0)
    rb.add(
        **{
            f"of {dtype}": np.frombuffer(
                rng.bytes(n * 3 * np.dtype(dtype).itemsize), dtype
            ).reshape(n, 3)
            if dtype not in ("O", "?", "U2")
            else rng.integers(0, 2, (n, 3)).astype(dtype)
            for dtype in dtypes
        }
    )
    return rb


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("prefetch", [0, 2])
def test_columns_are_attributes_too(name: str, prefetch: int) -> None:
    """``to="numpy"`` gives the arrays that ``sample`` would, by name and as attributes."""
    one, other = SOURCES[name](), SOURCES[name]()
    with one.batches(5, to="numpy", prefetch=prefetch) as batches:
        for batch in islice(batches, 3):
            expected = other.sample(5)
            assert type(batch) is TensorBatch
            assert listed(batch) == listed(expected)
            assert list(batch) == list(expected)
            assert all(getattr(batch, column) is batch[column] for column in batch)


def test_a_batch_of_tensors_is_a_dict() -> None:
    """It is pickled and copied, and says which columns it has."""
    batch = next(filled().batches(3, to="numpy"))
    for again in (pickle.loads(pickle.dumps(batch)), copy.copy(batch), copy.deepcopy(batch)):
        assert type(again) is TensorBatch
        assert listed(again) == listed(batch)
    with pytest.raises(AttributeError, match="'obs': expected one of the columns x, rew, done"):
        batch.obs  # noqa: B018 (what is tested)
    assert not hasattr(batch, "__array__")
    moved = batch.to("cpu")
    assert type(moved) is TensorBatch
    assert moved.x is batch.x


def test_without_to_a_batch_is_what_sample_gives() -> None:
    """Who does not ask for tensors gets a plain dict."""
    assert type(next(filled().batches(3))) is dict
    assert type(next(filled().batches(3, prefetch=1))) is dict
    assert type(next(filled().epoch(3, prefetch=1))) is dict


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_function_makes_what_it_likes_of_a_batch(prefetch: int) -> None:
    """``to`` may be a function of the dict of arrays."""
    other = filled()
    with filled().batches(4, to=lambda batch: batch["x"].sum(), prefetch=prefetch) as sums:
        assert [next(sums) for _ in range(4)] == [other.sample(4)["x"].sum() for _ in range(4)]


class Exhausted:
    """A user's function that takes from an iterator which is empty for a while."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, given: Any = (), *_: Any) -> Any:
        self.calls += 1
        if self.calls == 2:
            next(iter(()))
        return np.zeros(len(given))


class Taking(Uniform):
    """A sampler that asks such a function."""

    def __init__(self) -> None:
        super().__init__()
        self.take = Exhausted()

    def draw(self, *arguments: Any, **options: Any) -> Any:
        """As that of its base."""
        self.take()
        return super().draw(*arguments, **options)


def relabelled() -> Any:
    """Rows whose rewards come from such a function."""
    vector: Any = {"shape": 2}
    rb = ReplayBuffer(20, {"goal": vector, "found": vector, "rew": {}, "done": {}}, seed=0)
    for t in range(20):
        rb.add(goal=[0, t], found=[0, t], rew=0, done=t % 10 == 9)
    return rb.view(Hindsight(Exhausted(), goal="goal", achieved="found", relabel_ratio=1.0))


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize(
    ("begin", "words"),
    [
        (lambda ahead: filled().batches(4, to=Exhausted(), prefetch=ahead), "to: the function"),
        (lambda ahead: filled().epoch(4, to=Exhausted(), prefetch=ahead), "to: the function"),
        (lambda ahead: filled(sampler=Taking()).batches(4, prefetch=ahead), "the draw of a batch"),
        (lambda ahead: relabelled().batches(4, prefetch=ahead), "the draw of a batch"),
        (lambda ahead: relabelled().epoch(4, prefetch=ahead), "reading a batch"),
    ],
    ids=["batches, to", "epoch, to", "batches, sampler", "batches, reward", "epoch, reward"],
)
def test_stopiteration_of_a_users_code_is_an_error(
    prefetch: int, begin: Callable[[int], Any], words: str
) -> None:
    """It ended the loop over the batches without a word, as if the epoch were over."""
    with begin(prefetch) as batches:
        next(batches)
        with pytest.raises(RuntimeError, match=f"{words}.* raised StopIteration"):
            next(batches)
        next(batches)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"to": "tensorflow"}, TypeError, "to: expected one of numpy, torch, jax, or a function"),
        ({"to": 3}, TypeError, "to: expected one of"),
        ({"to": "numpy", "device": "cuda"}, ValueError, "device: NumPy's arrays are on the CPU"),
        ({"device": "cuda:1"}, ValueError, "device: NumPy's arrays are on the CPU"),
        ({"to": dict, "device": "cpu"}, TypeError, "device: the function to= decides"),
    ],
    ids=repr,
)
def test_wrong_places_are_refused(options: Any, error: type[Exception], words: str) -> None:
    """What batches cannot be made into is said at once."""
    rb = filled()
    for method in (rb.batches, rb.epoch):
        with refused(rb, error, words):
            method(4, **options)
    filled().batches(4, device="cpu")


@pytest.mark.parametrize(("name", "package"), [("torch", "PyTorch"), ("jax", "JAX")])
def test_a_missing_package_is_named(
    name: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sentence says what to install."""

    def missing(module: str) -> Any:
        raise ImportError(f"No module named {module!r}")

    monkeypatch.setattr("importlib.import_module", missing)
    with pytest.raises(ImportError, match=f"needs {package} .pip install 'cpprb_like.{name}.'"):
        filled().batches(4, to=name)


# ---- PyTorch and JAX ---------------------------------------------------------------------------


@pytest.fixture
def torch() -> Any:
    """PyTorch, or a skipped test."""
    return need("torch", "make test-torch")


@pytest.fixture(params=[False, True], ids=["of 32 bits", "of 64 bits"])
def jax(request: pytest.FixtureRequest) -> Iterator[Any]:
    """JAX, with and without numbers of 64 bits, or a skipped test."""
    jax = need("jax", "make test-torch")
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", request.param)
    yield jax
    jax.config.update("jax_enable_x64", before)


class Seen:
    """Remembers the arrays that a source draws, and makes its batches of them."""

    def __init__(self, rb: ReplayBuffer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.arrays: list[dict[str, Any]] = []
        sample = rb.sample

        def noted(*args: Any, **options: Any) -> Any:
            self.arrays.append(sample(*args, **options))
            return self.arrays[-1]

        monkeypatch.setattr(rb, "sample", noted)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_tensors_of_pytorch_share_the_memory(
    torch: Any, prefetch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the CPU a tensor is its array, by address, of the same dtype and shape."""
    rb = of_dtypes(NUMBERS)
    seen = Seen(rb, monkeypatch)
    with rb.batches(6, to="torch", prefetch=prefetch) as batches:
        for number, batch in enumerate(islice(batches, 4)):
            for name, tensor in batch.items():
                array = seen.arrays[number][name]
                assert isinstance(tensor, torch.Tensor)
                assert tensor.data_ptr() == array.ctypes.data
                assert tensor.numpy().dtype == array.dtype
                np.testing.assert_array_equal(tensor.numpy(), array)


def test_what_pytorch_has_no_dtype_for_stays_an_array(torch: Any) -> None:
    """Objects, texts, times."""
    rb = of_dtypes([*OTHERS, "f4"])
    batch = next(rb.batches(6, to="torch"))
    assert [name for name, value in batch.items() if not isinstance(value, np.ndarray)] == ["of f4"]
    moved = batch.to("meta")
    assert moved["of f4"].device.type == "meta"
    assert moved["of O"] is batch["of O"]
    assert torch.is_tensor(batch["of f4"])


def test_batches_on_another_device(torch: Any) -> None:
    """``device`` is any that PyTorch has."""
    for device in ("meta", torch.device("meta")):
        batch = next(filled().batches(6, to="torch", device=device))
        assert {value.device.type for value in batch.values()} == {"meta"}
    assert next(filled().batches(6, to="torch", device="cpu")).x.device.type == "cpu"
    with pytest.raises(ValueError, match="device: "):
        filled().batches(6, to="torch", device="nowhere")


def test_handles_come_back_as_tensors(torch: Any) -> None:
    """A learner on tensors updates priorities with what the batch has."""
    rb = filled(PrioritizedReplayBuffer, check_for_update=True)
    for batch in islice(rb.batches(8, to="torch", prefetch=1), 5):
        assert batch.indexes.dtype == torch.int64
        rb.update_priorities(batch.indexes, batch.weights * 2)
    assert rb.get_max_priority() == 2.0


def test_numbers_of_jax_are_those_of_the_arrays(jax: Any) -> None:
    """Each column is an array of JAX of the same dtype, or stays that of NumPy."""
    rb, other = of_dtypes(NUMBERS + OTHERS), of_dtypes(NUMBERS + OTHERS)
    wide = jax.config.jax_enable_x64
    with rb.batches(6, to="jax", prefetch=1) as batches:
        for batch in islice(batches, 3):
            expected = other.sample(6)
            for name, value in batch.items():
                dtype = name.removeprefix("of ")
                fits = dtype in NUMBERS and (wide or dtype not in ("f8", "i8", "u8", "c16"))
                assert isinstance(value, jax.Array) == fits, name
                assert value.dtype == expected[name].dtype
                np.testing.assert_array_equal(np.asarray(value), expected[name])


@pytest.mark.parametrize("prefetch", [0, 2])
def test_arrays_of_jax_share_the_memory(
    jax: Any, prefetch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the CPU an array of JAX is that of NumPy, by address."""
    rb = of_dtypes(NUMBERS)
    seen = Seen(rb, monkeypatch)
    with rb.batches(6, to="jax", prefetch=prefetch) as batches:
        for number, batch in enumerate(islice(batches, 4)):
            for name, value in batch.items():
                if isinstance(value, jax.Array):
                    address = seen.arrays[number][name].ctypes.data
                    assert value.unsafe_buffer_pointer() == address, name


def test_arrays_of_jax_live_as_long_as_they_are_used(jax: Any) -> None:
    """Their memory is not used for later batches while somebody has them."""
    rb = ReplayBuffer(1000, {"x": {"shape": 500, "dtype": "i4"}}, seed=0)
    rb.add(x=np.arange(1000)[:, None] + np.zeros(500))
    kept = list(islice(rb.batches(64, to="jax", prefetch=2), 8))  # 128 kB: from the pool
    values = [np.array(batch.x) for batch in kept]
    for _ in islice(rb.batches(64, to="jax"), 50):
        pass
    for batch, value in zip(kept, values, strict=True):
        np.testing.assert_array_equal(np.asarray(batch.x), value)


def test_a_device_of_jax(jax: Any) -> None:
    """``device`` is a device of JAX, or the name of a kind."""
    for device in ("cpu", jax.devices()[0]):
        batch = next(filled().batches(6, to="jax", device=device))
        assert batch.rew.devices() == {jax.devices("cpu")[0] if device == "cpu" else device}
        assert batch.to(jax.devices()[0]).rew.devices() == {jax.devices()[0]}
    with pytest.raises(ValueError, match="device: "):
        filled().batches(6, to="jax", device="nowhere")


class TreeUtil:
    """Refuses what is registered twice, as JAX does, and takes its time."""

    def __init__(self) -> None:
        self.known: list[type] = []

    def register_pytree_node(self, kind: type, *_: Any) -> None:
        """One kind of container."""
        known = kind in self.known
        time.sleep(0.05)
        self.known.append(kind)
        if known or self.known.count(kind) > 1:
            raise ValueError(f"Duplicate custom PyTreeDef type registration for {kind}.")


def test_threads_that_begin_with_jax_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches are made known to JAX once; a thread that was second got JAX's error."""
    fake = ModuleType("jax")
    fake.__dict__["tree_util"] = tree_util = TreeUtil()
    monkeypatch.setitem(sys.modules, "jax", fake)
    rb = filled()
    with ThreadPoolExecutor(4) as threads:
        for made in [threads.submit(rb.batches, 4, to="jax") for _ in range(4)]:
            made.result()
    assert sorted(kind.__name__ for kind in tree_util.known) == ["JaxBatch", "TensorBatch"]


@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("wide", [False, True])
def test_numbers_of_64_bits_go_by_the_thread_of_the_learner(
    jax: Any, prefetch: int, wide: bool, device: str | None
) -> None:
    """The thread that draws ahead has not the settings that a ``with`` of the learner makes."""
    rb = of_dtypes(NUMBERS)
    with (
        jax.enable_x64(wide),
        rb.batches(6, to="jax", prefetch=prefetch, device=device) as batches,
    ):
        batch = [next(batches) for _ in range(4)][-1]
        assert list(batch) == list(rb.fields)
        for name in ("of f8", "of i8", "of u8", "of c16"):
            assert isinstance(batch[name], jax.Array) == wide
            assert batch[name].dtype == np.dtype(name[3:])
        assert isinstance(batch["of f4"], jax.Array)
        assert isinstance(batch["of c8"], jax.Array)


def test_jitted_functions_take_batches(jax: Any) -> None:
    """A batch is a tree of arrays for JAX once it is a dict."""
    loss = jax.jit(lambda batch: (batch["rew"] * 2).sum())
    for batch in islice(filled().batches(6, to="jax", prefetch=1), 3):
        assert float(loss(dict(batch))) == 12.0


# ---- CUDA, which is played by arrays -------------------------------------------------------------


class FakeTensor:
    """A tensor on the CPU or on the device, whose copies take until they are waited for."""

    def __init__(self, log: list[Any], array: Any, place: str = "cpu") -> None:
        self.log, self.array, self.place = log, array, place
        self.shape, self.dtype = array.shape, array.dtype

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, index: Any) -> FakeTensor:
        return FakeTensor(self.log, self.array[index], self.place)

    def numpy(self) -> Any:
        assert self.place != "cuda:0"
        return self.array

    def view(self, kind: Any) -> FakeTensor:
        """Of another dtype or shape, over the same memory."""
        array = self.array.reshape(kind) if isinstance(kind, tuple) else self.array.view(kind)
        return FakeTensor(self.log, array, self.place)

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.array  # which can be written to, as older versions of DLPack do not say

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def to(self, device: Any, *, non_blocking: bool) -> FakeTensor:
        assert non_blocking
        assert self.place == "pinned"
        return FakeTensor(self.log, self.array.copy(), str(device))

    def record_stream(self, stream: Any) -> None:
        self.log.append(("keep for", stream))


class FakeEvent:
    """An event that says when somebody waits for it."""

    def __init__(self, log: list[Any]) -> None:
        self.log = log
        self.number = -1

    def record(self, stream: Any) -> None:
        self.number = sum(entry[0] == "record" for entry in self.log)
        self.log.append(("record", stream))


class SideStream(NamedTuple):
    """Of copies, beside that of the learner."""

    device: str


class FakeCuda:
    """As much of PyTorch as copies to CUDA take."""

    Tensor = FakeTensor
    uint8 = np.uint8

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.inside = ""
        learner = SimpleNamespace(
            wait_event=lambda event: self.log.append(("learner waits for", event.number))
        )
        self.cuda = SimpleNamespace(
            Stream=lambda device: SideStream("cuda:0"),
            stream=self.stream,
            Event=lambda: FakeEvent(self.log),
            current_stream=lambda device: learner,
        )

    def stream(self, stream: SideStream) -> Any:
        fake = self

        class Inside:
            def __enter__(self) -> None:
                fake.inside = "side"

            def __exit__(self, *error: object) -> None:
                fake.inside = ""

        return Inside()

    def empty(self, nbytes: int, *, dtype: Any, pin_memory: bool) -> FakeTensor:
        assert pin_memory
        return FakeTensor(self.log, np.zeros(nbytes, dtype), "pinned")

    def from_numpy(self, array: Any) -> FakeTensor:
        if not isinstance(array, np.ndarray) or array.dtype.kind in "OT":
            raise TypeError("can't convert")
        return FakeTensor(self.log, array)


def on_cuda(fake: FakeCuda) -> OnCuda:
    """The conversion, with a fake for PyTorch."""
    return OnCuda(fake, "cuda:0", lambda array: tensors.as_torch(fake, array))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """CUDA, wherever ``to="torch"`` is asked for."""
    fake = FakeCuda()
    monkeypatch.setattr(tensors, "_by_torch", lambda device: on_cuda(fake))
    return fake


def events(fake: FakeCuda, *kinds: str) -> list[Any]:
    """The entries of the log of these kinds."""
    return [entry for entry in fake.log if entry[0] in kinds]


MAKERS: dict[str, Callable[[], ReplayBuffer]] = {
    "plain": filled,
    "prioritized": lambda: filled(PrioritizedReplayBuffer),
    "with objects": lambda: of_dtypes(["f4", "O"]),
}


@pytest.mark.parametrize("large", [1, tensors.LARGE])
@pytest.mark.parametrize("prefetch", [0, 1, 3])
@pytest.mark.parametrize("name", MAKERS)
def test_batches_on_cuda_are_the_same(
    fake: FakeCuda, monkeypatch: pytest.MonkeyPatch, name: str, prefetch: int, large: int
) -> None:
    """Each batch arrives whole, drawn into pinned memory or copied there."""
    monkeypatch.setattr(tensors, "LARGE", large)
    one, other = MAKERS[name](), MAKERS[name]()
    with one.batches(6, to="torch", device="cuda", prefetch=prefetch) as batches:
        for batch in islice(batches, 10):
            expected = other.sample(6)
            assert list(batch) == list(expected)
            for column, value in batch.items():
                if column == "of O":
                    assert value.tolist() == expected[column].tolist()
                    continue
                assert value.place == "cuda:0"
                np.testing.assert_array_equal(value.array, expected[column])


@pytest.mark.parametrize("prefetch", [0, 2])
def test_the_stream_of_the_learner_waits_for_copies(fake: FakeCuda, prefetch: int) -> None:
    """For those of its own batch, whose memory stays allocated."""
    with filled().batches(6, to="torch", device="cuda", prefetch=prefetch) as batches:
        for _ in range(9):
            next(batches)
    assert {entry[1] for entry in events(fake, "record")} == {SideStream("cuda:0")}
    assert [entry[1] for entry in events(fake, "learner waits for")] == list(range(9))
    assert len(events(fake, "keep for")) == 9


@pytest.mark.parametrize("prefetch", [0, 2])
def test_values_of_any_length_on_cuda(fake: FakeCuda, prefetch: int) -> None:
    """Texts and the greatest length stay on the CPU as they were: a number is no array."""
    fields: Any = {"ids": {"shape": ("T",), "dtype": "i4"}, "text": {"dtype": str}}
    rb = ReplayBuffer(8, fields, room={"T": 99, "text": 99}, seed=0)
    for n in range(8):
        rb.add(ids=np.arange(n), text="a" * n)
    with rb.view(Packed()).batches(3, to="torch", device="cuda", prefetch=prefetch) as batches:
        for batch in islice(batches, 5):
            assert batch.ids.place == batch.T_offsets.place == "cuda:0"
            lengths = [len(text) for text in batch.text.tolist()]
            assert np.diff(batch.T_offsets.array).tolist() == lengths
            assert type(batch.T_longest) is np.int64
            assert batch.T_longest == max(lengths)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_epoch_on_cuda(fake: FakeCuda, prefetch: int) -> None:
    """The last batch is smaller."""
    one, other = filled(), filled()
    for _ in range(2):
        found = one.epoch(7, to="torch", device="cuda", prefetch=prefetch)
        expected = [batch["x"].tolist() for batch in other.epoch(7)]
        assert [batch.x.array.tolist() for batch in found] == expected


def test_batches_on_a_real_cuda_device(torch: Any) -> None:
    """The same on the thing itself, where there is one."""
    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    one, other = filled(PrioritizedReplayBuffer), filled(PrioritizedReplayBuffer)
    with one.batches(6, to="torch", device="cuda", prefetch=2) as batches:
        for batch in islice(batches, 20):
            expected = other.sample(6)
            for column, value in batch.items():
                assert value.is_cuda
                np.testing.assert_array_equal(value.cpu().numpy(), expected[column])


def test_a_cuda_device_that_is_not_there_is_refused(torch: Any) -> None:
    """When batches are asked for, in words that name the argument; PyTorch's name a driver call."""
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(ValueError, match="device: PyTorch finds no CUDA device here, got 'cuda'"):
        filled(ReplayBuffer).batches(4, to="torch", device="cuda")


def test_jitted_functions_of_jax_take_batches() -> None:
    """A batch is a container to JAX, as a dict is, and stays one where it is mapped over."""
    jax = need("jax", "make test-torch")
    rb = ReplayBuffer(10, {"obs": {"shape": 2}, "rew": {"shape": ()}}, seed=0)
    rb.add(obs=np.ones((4, 2)), rew=np.arange(4))
    with rb.batches(8, to="jax") as batches:
        batch = next(batches)
    total = jax.jit(lambda given: given["rew"].sum() + given["obs"].sum())(batch)
    assert float(total) == float(batch.rew.sum()) + 16
    twice = jax.tree.map(lambda values: 2 * values, batch)
    assert type(twice) is type(batch)
    assert isinstance(twice, TensorBatch)
    assert list(twice) == ["obs", "rew"]
    assert (twice.obs == 2).all()
