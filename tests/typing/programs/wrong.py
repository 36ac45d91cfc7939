"""Mistakes that a checker finds before a program runs: each line with ``# wrong: WORD``.

``WORD`` stands in what both checkers say about the line; about the other lines they say nothing.
"""

from __future__ import annotations

from typing import Any

from cpprb_like import (
    HindsightReplayBuffer,
    MPPrioritizedReplayBuffer,
    MPReplayBuffer,
    PrioritizedReplayBuffer,
    ReplayBuffer,
    ReverseReplayBuffer,
    create_buffer,
)
from cpprb_like.samplers import Prioritized, Uniform
from cpprb_like.typing import BufferOptions, FieldSpec, NstepSpec


def reward(*arrays: Any) -> Any:
    """What the agent gets."""


# Fields
ReplayBuffer(10, {"obs": {"shap": 4}})  # wrong: shap
ReplayBuffer(10, {"obs": {"shape": "4"}})  # wrong: str
ReplayBuffer(10, {"obs": {"shape": (84, 84.0)}})  # wrong: float
ReplayBuffer(10, {"obs": {"dtype": 32}})  # wrong: int
ReplayBuffer(10, {"obs": (84, 84)})  # wrong: tuple
ReplayBuffer(10, ["obs", "act"])  # wrong: list
ReplayBuffer(10, {1: {"shape": 4}})  # wrong: int
ReplayBuffer("10", {"obs": {}})  # wrong: float
ReplayBuffer(10)  # wrong: env_dict
declared: dict[str, FieldSpec] = {"obs": {"size": 4}}  # wrong: size

# Options
ReplayBuffer(10, {"obs": {}}, nenvs=2)  # wrong: nenvs
MPReplayBuffer(10, {"obs": {}}, explorer=2)  # wrong: explorer
MPPrioritizedReplayBuffer(10, {"obs": {}}, nstep=False)  # wrong: nstep
ReplayBuffer.from_dataset("data", sampler="uniform")  # wrong: sampler
ReplayBuffer(10, {"obs": {}}, n_envs="2")  # wrong: n_envs
ReplayBuffer(10, {"obs": {}}, next_of=3)  # wrong: next_of
ReplayBuffer(10, {"obs": {}}, terminated=True)  # wrong: terminated
ReplayBuffer(10, {"obs": {}}, seed="0")  # wrong: seed
ReplayBuffer(10, {"obs": {}}, sampler="uniform")  # wrong: sampler
ReplayBuffer(10, {"obs": {}}, mmap_mode="b")  # wrong: mmap_mode
ReplayBuffer(10, {"obs": {}}, stack_compress=True)  # wrong: stack_compress
ReplayBuffer(10, {"obs": {}}, Nstep={"gamma": 0.9})  # wrong: Nstep
ReplayBuffer(10, {"obs": {}}, Nstep={"size": 3, "gama": 0.9})  # wrong: Nstep
ReplayBuffer(10, {"obs": {}}, Nstep={"size": "3"})  # wrong: Nstep
ReplayBuffer(10, {"obs": {}}, Nstep=3)  # wrong: Nstep
three: NstepSpec = {"gamma": 0.9}  # wrong: size
options: BufferOptions = {"seeds": 0}  # wrong: seeds

# Of the other classes
PrioritizedReplayBuffer(10, {"obs": {}}, alpha="0.6")  # wrong: alpha
PrioritizedReplayBuffer(10, {"obs": {}}, sampler=Uniform())  # wrong: sampler
PrioritizedReplayBuffer(10, {"obs": {}}, nenvs=2)  # wrong: nenvs
MPReplayBuffer(10, {"obs": {}}, explorer=2)  # wrong: explorer
MPPrioritizedReplayBuffer(10, {"obs": {}}, nstep=False)  # wrong: nstep
ReplayBuffer.from_dataset("data", sampler="uniform")  # wrong: sampler
PrioritizedReplayBuffer(10, {"obs": {}}, n_envs="2")  # wrong: n_envs
ReverseReplayBuffer(10, {"obs": {}}, stride=2.5)  # wrong: stride
ReverseReplayBuffer(10, {"obs": {}}, sampler=Uniform())  # wrong: sampler
create_buffer(10, {"obs": {}}, prioritized=True, alpa=0.6)  # wrong: alpa
create_buffer(10, {"obs": {"shap": 4}})  # wrong: shap
create_buffer(10, {"obs": {}}, sampler=3, prioritized=True)  # wrong: sampler
HindsightReplayBuffer(10, {"obs": {}}, 5, reward, alpa=0.6)  # wrong: alpa
HindsightReplayBuffer(10, {"obs": {}}, 5, reward, strategy="later")  # wrong: strategy
Prioritized("0.6")  # wrong: float

# Calls
rb = PrioritizedReplayBuffer(10, {"obs": {}})
rb.sample("4")  # wrong: int
rb.sample(4, bata=0.4)  # wrong: bata
rb.sample(4, replace=True, out=[])  # wrong: out
rb.sampel(4)  # wrong: sampel
rb.batches("4")  # wrong: batches
rb.batches(4, to="tensorflow")  # wrong: batches
print(next(rb.batches(4))["rew"].shpe)  # wrong: shpe
next(rb.batches(4))["rew"].cuda()  # wrong: cuda
for batch in rb.epoch(4):
    print(batch.rew)  # wrong: rew
rb.epoch(4, to="tensorflow")  # wrong: epoch
