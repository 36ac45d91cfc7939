"""What users write, and what they get: neither checker has anything to say about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from typing_extensions import assert_type

from cpprb_like import (
    HindsightReplayBuffer,
    Mixture,
    MPPrioritizedReplayBuffer,
    MPReplayBuffer,
    PrioritizedReplayBuffer,
    ReplayBuffer,
    ReverseReplayBuffer,
    create_buffer,
)
from cpprb_like.buffers import Batches, TensorBatch
from cpprb_like.samplers import Prioritized, RankBased, Recency, Uniform
from cpprb_like.typing import BufferOptions, FieldSpec, NstepSpec, PrioritizedOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

# A dict in the call is checked there; shapes are numbers or sequences of them, dtypes anything.
rb = ReplayBuffer(
    1e6,
    {
        "obs": {"shape": (84, 84), "dtype": np.uint8},
        "act": {"shape": [], "dtype": "int64"},
        "goal": {"shape": np.int64(3), "dtype": np.dtype("f4")},
        "info": {"shape": (), "dtype": object},
        "rew": {},
        "done": {"dtype": bool},
        "note": {"dtype": [("a", "i4"), ("b", "f8")]},
    },
    default_dtype=np.float32,
    n_envs=2,
    next_of=("obs", "goal"),
    stack_compress={"obs": 0},
    Nstep={"size": 3, "gamma": 0.99, "rew": "rew", "next": [], "discount": True},
    sampler=Recency(0.999),
    seed=np.random.default_rng(0),
    truncated=False,
)
assert_type(rb, ReplayBuffer)
assert_type(rb.sample(0, replace=True), dict[str, NDArray[Any]]) if len(rb) else None

# One that has a name says what it is.
number: FieldSpec = {"shape": ()}
fields: dict[str, FieldSpec] = {"obs": {"shape": 4}, "rew": number, "done": number}
fields["act"] = {"shape": (), "dtype": np.int64}
three: NstepSpec = {"size": 3}
ReplayBuffer(10, fields, Nstep=three)
ReplayBuffer(10, {**fields, "log_prob": number}, Nstep=False, sampler=Uniform(), seed=0)
ReplayBuffer(10, dict.fromkeys(["obs", "act"], number), mmap_prefix=None, mmap_mode="w")


# Buffers that processes share, and buffers out of data sets, have options too.
def others() -> None:
    """Checked, and not run."""
    MPReplayBuffer(10, fields, n_envs=2, Nstep=three, explorers=2, seed=0)
    MPPrioritizedReplayBuffer(10, fields, alpha=0.7, next_of="obs", backend="SharedMemory")
    found = PrioritizedReplayBuffer.from_dataset("data", alpha=0.7, next_of="obs", seed=0)
    found = PrioritizedReplayBuffer.from_dataset("data", "rlds", split="train")
    assert_type(found, PrioritizedReplayBuffer)


# What was read from a file may be anything.
configuration: dict[str, Any] = {"obs": {"shape": 4}}
ReplayBuffer(10, configuration)

# Options of the classes, and of functions that pass them on.
per = PrioritizedReplayBuffer(10, fields, alpha=0.6, check_for_update=True, seed=1, n_envs=1)
assert_type(per, PrioritizedReplayBuffer)
PrioritizedReplayBuffer(10, fields, sampler=RankBased(0.7), default_dtype="f8")
ReverseReplayBuffer(10, fields, stride=3, seed=1)
assert_type(create_buffer(10, fields, seed=0, sampler=Uniform()), ReplayBuffer)
assert_type(create_buffer(10, fields, prioritized=False), ReplayBuffer)
assert_type(create_buffer(10, fields, prioritized=True, eps=1e-4), ReplayBuffer)
create_buffer(10, fields, prioritized=True, sampler=Prioritized(0.6))
HindsightReplayBuffer(
    100,
    {"obs": {"shape": 2}, "act": number, "next_obs": {"shape": 2}, "done": number},
    5,
    lambda next_state, action, goal: (next_state == goal).all(axis=1) - 1.0,
    strategy="episode",
    alpha=0.5,
    seed=0,
)


def by_options(*, prioritized: bool, **options: Unpack[PrioritizedOptions]) -> ReplayBuffer:
    """A buffer as the options of a program say."""
    return create_buffer(10, fields, prioritized=prioritized, **options)


options: BufferOptions = {"n_envs": 2, "seed": 3, "Nstep": {"size": 2}, "truncated": False}
ReplayBuffer(10, {"obs": {"shape": 4}, "rew": {}}, **options)
by_options(prioritized=True, alpha=0.5, seed=1)

per.add(obs=np.zeros(4), act=1, rew=0.5, done=False, priorities=2.0)
batch = per.sample(4, beta=0.4, fields=["obs"], indexes=True)
assert_type(batch["obs"], NDArray[Any])
per.update_priorities(batch["indexes"], np.ones(4))
mixture = Mixture({"all": per}, {"all": 1.0}, seed=0)
for batch in mixture.batches(4, beta=0.5, prefetch=2):
    print(batch["obs"].shape)
    break
columns: TensorBatch = next(per.batches(4, to="numpy"))
print(columns.obs.shape, columns["obs"].shape)

# Batches are dicts of arrays, batches of tensors, or what a function makes of the dict.
assert_type(next(per.batches(4)), dict[str, NDArray[Any]])
assert_type(next(per.batches(4, to=None)), dict[str, NDArray[Any]])
assert_type(next(per.batches(4, to="numpy")), TensorBatch)
assert_type(next(per.batches(4, to=len)), int)
assert_type(list(per.epoch(4)), list[dict[str, NDArray[Any]]])
assert_type(list(per.epoch(4, seed=0, to="numpy", prefetch=2)), list[TensorBatch])
assert_type(next(mixture.batches(4)), dict[str, NDArray[Any]])
with per.epoch(4, to=sorted) as parts:
    assert_type(next(parts), list[str])


def of_any_kind(to: Literal["numpy", "torch"] | None) -> Batches[Any]:
    """What is known when the program runs."""
    return per.batches(4, to=to)


print(next(of_any_kind(None))["obs"].shape)
assert_type(mixture.sample(2)["obs"], NDArray[Any])
