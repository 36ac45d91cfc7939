"""Batches on a real CUDA device: they are right while the device and several threads are busy."""

from __future__ import annotations

import threading
from itertools import islice
from typing import Any

import numpy as np
import pytest
from optional import need

from cpprb_like import (
    FrameStacks,
    Mixture,
    NStep,
    PrioritizedReplayBuffer,
    ReplayBuffer,
    Sequences,
)
from cpprb_like.processes import SharedReplay
from cpprb_like.samplers import Prioritized

FIELDS: dict[str, Any] = {
    "obs": {"shape": (84, 84), "dtype": "u1"},
    "act": {"shape": (), "dtype": "i8"},
    "rew": {"shape": ()},
    "half": {"shape": 3, "dtype": "f2"},
    "wide": {"shape": 2, "dtype": "f8"},
    "done": {"shape": (), "dtype": bool},
}
ROWS = 3000


@pytest.fixture
def torch() -> Any:
    """PyTorch, on a machine with a CUDA device."""
    found: Any = need("torch", "make test-torch")
    if not found.cuda.is_available():
        pytest.skip("there is no CUDA device")
    return found


def steps() -> dict[str, Any]:
    """Random steps, of which each differs from the others."""
    rng = np.random.default_rng(0)
    return {
        "obs": rng.integers(0, 256, (ROWS, 84, 84), np.uint8),
        "act": np.arange(ROWS),
        "rew": rng.random(ROWS, np.float32),
        "half": rng.random((ROWS, 3)).astype("f2"),
        "wide": rng.random((ROWS, 2)),
        "done": np.arange(ROWS) % 100 == 99,
    }


def filled(**options: Any) -> ReplayBuffer:
    """A buffer of these steps."""
    rb = ReplayBuffer(ROWS, FIELDS, seed=7, next_of="obs", **options)
    given = steps()
    rb.add(**given, next_obs=given["obs"])
    return rb


SOURCES: dict[str, Any] = {
    "uniform": filled,
    "prioritized": lambda: filled(sampler=Prioritized()),
    "n-step and stacks": lambda: filled().view(NStep(3, 0.9), FrameStacks({"obs": 4})),
    "sequences": lambda: filled().view(Sequences(8)),
    "mixture": lambda: Mixture({"a": filled(), "b": filled()}, {"a": 0.5, "b": 0.5}, seed=3),
}


def occupy(torch: Any) -> Any:
    """Give the present stream work that takes far longer than a batch."""
    matrix = torch.ones(4096, 4096, device="cuda")
    for _ in range(6):
        matrix = matrix @ matrix / 4096
    return matrix


def same(value: Any, expected: Any) -> None:
    """A tensor of the device holds this array."""
    assert value.is_cuda
    np.testing.assert_array_equal(value.cpu().numpy(), expected)


@pytest.mark.parametrize("prefetch", [0, 1, 3])
@pytest.mark.parametrize("name", SOURCES)
def test_batches_are_right_while_the_device_is_busy(torch: Any, name: str, prefetch: int) -> None:
    """Copies are awaited by the learner's stream, and memory is not reused before it was read.

    What is compared was computed on the device, behind long work, after later batches were drawn.
    """
    one, other = SOURCES[name](), SOURCES[name]()
    held: list[tuple[Any, Any]] = []
    with one.batches(32, to="torch", device="cuda", prefetch=prefetch) as batches:
        for batch in islice(batches, 60):
            occupy(torch)
            held.append(
                ({column: value.clone() for column, value in batch.items()}, other.sample(32))
            )
            del batch
            if len(held) == 5:
                for got, expected in held:
                    assert list(got) == list(expected)
                    for column, value in got.items():
                        same(value, expected[column])
                held.clear()


@pytest.mark.parametrize("prefetch", [0, 2])
def test_another_stream_of_the_learner(torch: Any, prefetch: int) -> None:
    """The stream in which ``next`` is called waits for the copies."""
    one, other = filled(), filled()
    stream = torch.cuda.Stream()
    with one.batches(32, to="torch", device="cuda", prefetch=prefetch) as batches:
        for _ in range(50):
            with torch.cuda.stream(stream):
                batch = next(batches)
                occupy(torch)
                sums = batch.obs.sum(dim=(1, 2), dtype=torch.int64)
                del batch
            stream.synchronize()
            np.testing.assert_array_equal(
                sums.cpu().numpy(), other.sample(32)["obs"].sum(axis=(1, 2), dtype=np.int64)
            )


@pytest.mark.parametrize("prefetch", [0, 2])
def test_threads_share_an_iterator(torch: Any, prefetch: int) -> None:
    """No batch is lost, mixed or given to two of them."""
    one, other = filled(), filled()
    found: list[Any] = []

    def learn() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for batch in islice(batches, 50):
                occupy(torch)
                found.append((batch.act.cpu().tolist(), batch.rew.cpu().tolist()))

    with one.batches(32, to="torch", device="cuda", prefetch=prefetch) as batches:
        threads = [threading.Thread(target=learn) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    drawn = [other.sample(32) for _ in range(200)]
    expected = [(batch["act"].tolist(), batch["rew"].tolist()) for batch in drawn]
    assert sorted(found) == sorted(expected)


def test_priorities_of_errors_on_the_device(torch: Any) -> None:
    """Errors and indexes come back by ``.cpu()``; what lies on the device is refused."""
    rb = PrioritizedReplayBuffer(ROWS, FIELDS, seed=0)
    rb.add(**steps())
    with rb.batches(64, to="torch", device="cuda", prefetch=1) as batches:
        for batch in islice(batches, 20):
            error = (batch.rew - 0.5).abs()
            with pytest.raises(TypeError, match=r"cpu\(\)"):
                rb.update_priorities(batch.indexes, error)
            rb.update_priorities(batch.indexes.cpu(), error.cpu())
    rb.check()


def test_an_epoch_and_a_function(torch: Any) -> None:
    """``epoch`` has each row once, and ``to`` may be a function that moves a batch itself."""
    one = filled()
    found = [batch.act.cpu() for batch in one.epoch(256, to="torch", device="cuda:0", prefetch=2)]
    assert sorted(torch.cat(found).tolist()) == list(range(ROWS))
    batches = one.batches(8, to=lambda columns: torch.as_tensor(columns["rew"]).cuda(), prefetch=1)
    with batches:
        assert next(batches).is_cuda


def test_a_batch_that_does_not_fit_is_an_error_of_next(torch: Any) -> None:
    """And the iterator goes on when there is room again."""
    one = filled()
    with one.batches(32, to="torch", device="cuda", prefetch=1) as batches:
        next(batches)
        torch.cuda.set_per_process_memory_fraction(1e-6)
        torch.cuda.empty_cache()
        try:
            with pytest.raises(torch.cuda.OutOfMemoryError):
                list(islice(batches, 5))
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
        for batch in islice(batches, 5):
            assert batch.obs.is_cuda


def test_a_learner_of_a_shared_replay(torch: Any) -> None:
    """Batches of other processes' rows go to the device in the same way."""
    fields = {name: FIELDS[name] for name in ("obs", "act", "rew", "done")}
    with SharedReplay(ROWS, fields, writers=1) as replay:
        with replay.actor() as actor:
            actor.add(**{name: values for name, values in steps().items() if name in fields})
        learner = replay.learner(seed=0)
        with learner.batches(32, to="torch", device="cuda", prefetch=2) as batches:
            given = steps()
            for batch in islice(batches, 20):
                rows = batch.act.cpu().numpy()
                same(batch.obs, given["obs"][rows])
        learner.close()


def test_memory_of_the_device_and_pinned_memory_stay_flat(torch: Any) -> None:
    """Batches that were used give their memory back."""
    one = filled()
    with one.batches(64, to="torch", device="cuda", prefetch=2) as batches:
        for batch in islice(batches, 50):
            batch.obs.float().sum()
        torch.cuda.synchronize()
        before = torch.cuda.memory_reserved()
        for batch in islice(batches, 2000):
            batch.obs.float().sum()
        torch.cuda.synchronize()
        assert torch.cuda.memory_reserved() <= before + (32 << 20)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_jax_on_the_device(torch: Any, prefetch: int) -> None:
    """``to="jax", device="gpu"``: arrays of the device, of the same rows."""
    jax = need("jax", "make test-torch")
    try:
        jax.devices("gpu")
    except RuntimeError:
        pytest.skip("JAX finds no GPU")
    one, other = filled(), filled()
    with one.batches(32, to="jax", device="gpu", prefetch=prefetch) as batches:
        for batch in islice(batches, 30):
            expected = other.sample(32)
            assert {device.platform for device in batch.obs.devices()} == {"gpu"}
            for column in ("obs", "rew", "half", "done"):
                np.testing.assert_array_equal(np.asarray(batch[column]), expected[column])


def test_stable_baselines3_trains_on_the_device(torch: Any) -> None:
    """Its DQN with prioritized replay computes its loss there."""
    need("stable_baselines3", "make test-integrations")
    from stable_baselines3 import DQN  # noqa: PLC0415

    from cpprb_like.integrations import stable_baselines3 as ours  # noqa: PLC0415

    model = DQN("MlpPolicy", "CartPole-v1", device="cuda", seed=0, learning_starts=100,
                buffer_size=2000, replay_buffer_class=ours.ReplayBuffer)  # fmt: skip
    model.learn(400)
    batch = model.replay_buffer.sample(32)
    assert batch.observations.is_cuda
