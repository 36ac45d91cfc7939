"""TorchRL: its buffers of tensors, and its trees in C++."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import data
import numpy as np
import torch
from contender import Cannot, Peer
from loop import Add, Sample, loop_cases
from measure import Work, statement
from tensordict import TensorDict
from torchrl._torchrl import MinSegmentTreeFp64, SumSegmentTreeFp64
from torchrl.data import LazyTensorStorage, PrioritizedReplayBuffer, ReplayBuffer, SliceSampler
from torchrl.envs.transforms import CatFrames, MultiStepTransform, NextStateReconstructor

from .common import file_cases, importing, memory_cases, priority_cases, tree_cases

Steps = dict[str, Any]

BATCH = 256
NSTEPS = 3
TRANSFORMED = 1000  # steps that its n-step transform gets at once: it compares each with each
DRAW = "batch, info = rb.sample(return_info=True)"

logging.getLogger("torchrl").setLevel(logging.WARNING)

theirs = Peer(
    "torchrl",
    "Tensors in a LazyTensorStorage; of a ListStorage it says that it is inefficient. Steps are "
    "added as dicts, which takes less than TensorDicts; these are drawn, by torch.compile of "
    "sample with compilable=True, which takes less than without. Trees get NumPy arrays.",
)
theirs.cannot("stacked_sample_contiguous", "CatFrames fails where frames are the last axis")


def tensors(steps: Steps) -> Steps:
    """The same steps as tensors, on the same memory."""
    return {name: torch.as_tensor(column) for name, column in steps.items()}


def nested(steps: Steps) -> TensorDict:
    """The same steps as its environments give them: results of a step are under "next"."""
    columns = tensors(steps)
    n = len(columns["act"])
    after = {
        "obs": columns["next_obs"],
        "reward": columns["rew"][:, None],
        "done": columns["done"][:, None],
    }
    return TensorDict(
        {"obs": columns["obs"], "act": columns["act"], "next": TensorDict(after, [n])}, [n]
    )


def fill(rb: Any, steps: Any, rows: int) -> Any:
    """Add these steps again and again until the buffer is full."""
    while len(rb) < rows:
        rb.extend(steps)
    return rb


def compilable(rows: int, **options: Any) -> Any:
    """An empty buffer whose ``sample`` can be compiled."""
    return ReplayBuffer(
        storage=LazyTensorStorage(rows, compilable=True), compilable=True, **options
    )


def of_dicts(rows: int, kind: str) -> Any:
    """A full buffer of steps that were added as dicts."""
    return fill(compilable(rows), tensors(data.filling(rows, kind)), rows)


def filled(rows: int, kind: str = "small") -> Any:
    """A full buffer of steps that were added as TensorDicts."""
    columns = tensors(data.filling(rows, kind))
    return fill(compilable(rows), TensorDict(columns, [len(columns["act"])]), rows)


def adding(rb: Any, kind: str = "small") -> Work:
    """``add`` of a dict of tensors, made of the numbers that an agent has."""
    return statement("rb.add(tensors(step))", rb=rb, tensors=tensors, step=data.one_step(kind))


def adding_many(rb: Any, n: int, kind: str) -> Work:
    """``extend`` by a dict of tensors on the memory of the arrays."""
    return statement(
        "rb.extend(tensors(steps))", rb=rb, tensors=tensors, steps=data.random_steps(n, kind)
    )


def drawing(rb: Any, n: int = BATCH, length: int = 1) -> Work:
    """``sample`` of so many rows, compiled for this number; sequences follow on one axis."""
    torch.compiler.reset()
    draw = torch.compile(lambda: rb.sample(n * length))
    draw()
    return statement("batch = draw()", draw=draw)


def prioritized(rows: int) -> tuple[Any, data.CycleInputs]:
    """A full buffer of small steps with priorities, and those to come."""
    inputs = data.CycleInputs(rows, BATCH)
    rb = PrioritizedReplayBuffer(
        alpha=data.ALPHA,
        beta=data.BETA,
        eps=data.EPS,
        storage=LazyTensorStorage(rows),
        batch_size=BATCH,
    )
    fill(rb, tensors(data.random_steps(rows)), rows)
    rb.update_priority(torch.arange(rows), torch.from_numpy(inputs.first).float())
    return rb, inputs


def as_given(values: np.ndarray[Any, Any]) -> Any:
    """Rows as they are, and priorities of float32, as a tensor."""
    return torch.from_numpy(values.astype(np.float32) if values.dtype.kind == "f" else values)


def trees(leaves: int, n: int) -> tuple[dict[str, Any], data.TreeInputs]:
    """Its trees of sums and of minima with the same weights, and inputs of calls."""
    inputs = data.TreeInputs(leaves, n)
    both = SumSegmentTreeFp64(leaves), MinSegmentTreeFp64(leaves)
    for tree in both:
        tree[np.arange(leaves)] = inputs.weights
    return dict(zip(("sums", "least"), both, strict=True)), inputs


def summing(rows: int) -> Any:
    """A full buffer that sums three steps when they are added."""
    steps = data.random_steps(min(rows, 100 * TRANSFORMED))
    rb = compilable(rows, transform=MultiStepTransform(n_steps=NSTEPS, gamma=data.GAMMA))
    chunks = nested(steps).split(TRANSFORMED)
    while len(rb) < rows:
        for chunk in chunks:
            rb.extend(chunk)
    return rb


def slices(steps: Steps, rows: int, length: int) -> Any:
    """A full buffer of sequences, which caches the ends of episodes, as nothing is added."""
    sampler = SliceSampler(slice_len=length, end_key="done", cache_values=True, truncated_key=None)
    rb = compilable(rows, sampler=sampler)
    whole = {name: np.resize(column, (rows, *column.shape[1:])) for name, column in steps.items()}
    rb.extend(TensorDict(tensors(whole), [rows]))
    return rb


def small_slices(rows: int, length: int) -> Any:
    """Sequences of small steps."""
    return slices(data.long_episode(), rows, length)


def frame_slices(rows: int, length: int) -> Any:
    """Sequences of frames."""
    return slices(data.frames_of_episode(), rows, length)


def frames_of(steps: Steps) -> Steps:
    """Of each stack the newest frame alone."""
    return steps | {name: steps[name][:, -1:] for name in ("obs", "next_obs")}


def stacked(rows: int, frames_first: bool) -> Any:
    """A full buffer of frames, of which draws make stacks. Raises Cannot for frames last.

    It stores each frame twice, as next observations are stored. Stacks need no padding, and the
    option that takes less time than the default is set.
    """
    if not frames_first:
        raise Cannot("CatFrames fails where frames are the last axis")
    frames = CatFrames(
        N=data.DEPTH,
        dim=-3,
        in_keys=["obs"],
        out_keys=["stack"],
        reset_key="_reset",
        padding="constant",
    )
    transform, sampler = frames.make_rb_transform_and_sampler(
        batch_size=None, end_key=("next", "done"), cache_values=True, truncated_key=None
    )
    rb = ReplayBuffer(storage=LazyTensorStorage(rows), sampler=sampler, transform=transform)
    steps = data.game(np.random.default_rng(0), min(data.GAME, rows), frames_first=True)
    return fill(rb, nested(frames_of(steps)), rows)


def adding_frames(rb: Any) -> Work:
    """``extend`` by a newest frame, an episode in a cycle; its TensorDicts are made before."""
    steps = nested(frames_of(data.game(np.random.default_rng(1), frames_first=True)))
    return statement("rb.extend(fresh())", rb=rb, fresh=data.taking_turns(steps.split(1)))


def compact(rows: int, kind: str) -> Any:
    """Small steps without next observations, drawn in pairs of neighbours; or stacked frames."""
    if kind == "images":
        return stacked(rows, True)
    rb = ReplayBuffer(
        storage=LazyTensorStorage(rows),
        sampler=SliceSampler(slice_len=2, end_key=("next", "done"), truncated_key=None),
        transform=NextStateReconstructor(["obs"], traj_key=None),
    )
    steps = nested(data.trajectory(min(rows, 100 * data.GAME), "small")).exclude(("next", "obs"))
    return fill(rb, steps, rows)


theirs.works_on(of_dicts, add_one=adding, add_many=adding_many, add_envs=adding_many)
theirs.works_on(filled, sample=drawing, sample_tensors=drawing)
# Its trees cannot be compiled.
update = "rb.update_priority"
priority_cases(theirs, prioritized, adding, DRAW, "info['index']", update, as_given=as_given)
tree_cases(
    theirs,
    trees,
    tree_find="sums.scan_lower_bound(targets)",
    tree_set="sums[slots] = values",
    tree_set_both="sums[slots] = values\nleast[slots] = values",
)
theirs.works_on(
    summing,
    nstep_add=lambda rb: statement(
        "rb.extend(nested(step))", rb=rb, nested=nested, step=data.random_steps(1)
    ),
    nstep_sample=drawing,
)
theirs.works_on(small_slices, sequences=drawing)
theirs.works_on(frame_slices, frame_sequences=drawing)
theirs.works_on(
    stacked,
    stacked_add=adding_frames,
    stacked_sample=lambda rb, n: statement(f"batch = rb.sample({n})", rb=rb),
    stacked_nbytes=lambda rb, rows: float(rb.storage[:].bytes()) / rows,
)
# ``dumps`` takes longer.
file_cases(
    theirs,
    filled,
    save=lambda rb, file: torch.save(rb.state_dict(), file),
    load=lambda rb, file: rb.load_state_dict(torch.load(file, weights_only=False)),
)
theirs.does("import_time")(partial(importing, "torchrl.data"))  # with PyTorch
memory_cases(theirs, memory=filled, memory_compact=compact)


def replay(capacity: int) -> tuple[Add, Sample]:
    """Nothing is compiled: a compiled draw after an add takes longer."""
    rb = ReplayBuffer(storage=LazyTensorStorage(capacity))

    def sample(n: int) -> Steps:
        return {name: column.numpy() for name, column in rb.sample(n).items()}

    return lambda step, _: rb.add(tensors(step)), sample


loop_cases(theirs, replay)
