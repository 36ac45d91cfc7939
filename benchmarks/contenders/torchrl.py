"""TorchRL: its buffers of tensors, and its trees in C++."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import numpy as np
import torch
from contender import IMPORTS_MORE, MEASURED_SMALL, Cannot, Contender
from data import (
    ALPHA,
    BETA,
    DEPTH,
    EPS,
    FRAME,
    GAME,
    GAMMA,
    CycleInputs,
    TreeInputs,
    filling,
    game,
    one_step,
    random_steps,
    taking_turns,
    trajectory,
)
from loop import Add, Sample, loop_cases
from measure import Work, statement
from tensordict import TensorDict
from torchrl._torchrl import MinSegmentTreeFp64, SumSegmentTreeFp64
from torchrl.data import LazyTensorStorage, PrioritizedReplayBuffer, ReplayBuffer, SliceSampler
from torchrl.envs.transforms import CatFrames, MultiStepTransform, NextStateReconstructor

from .common import file_cases, importing, memory_cases

__all__ = ["theirs"]

Steps = dict[str, Any]

BATCH = 256
NSTEPS = 3
TRANSFORMED = 1000  # steps that its n-step transform gets at once: it compares each with each
DRAW = "batch, info = rb.sample(return_info=True)"

logging.getLogger("torchrl").setLevel(logging.WARNING)

theirs = Contender(
    "torchrl",
    "Tensors in a LazyTensorStorage; of a ListStorage it says that it is inefficient. Steps are "
    "added as dicts, which takes less than TensorDicts; these are drawn, by torch.compile of "
    "sample with compilable=True, which takes less than without. Trees get NumPy arrays.",
)
theirs.cannot("first_batch_time", IMPORTS_MORE)
theirs.cannot("save_large load_large save_again", MEASURED_SMALL)
theirs.cannot("record", "it leaves to the program which observation came before a step")
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
    return fill(compilable(rows), tensors(filling(rows, kind)), rows)


def filled(rows: int, kind: str = "small") -> Any:
    """A full buffer of steps that were added as TensorDicts."""
    columns = tensors(filling(rows, kind))
    return fill(compilable(rows), TensorDict(columns, [len(columns["act"])]), rows)


def adding(rb: Any, kind: str = "small") -> Work:
    """``add`` of a dict of tensors, made of the numbers that an agent has."""
    return statement("rb.add(tensors(step))", rb=rb, tensors=tensors, step=one_step(kind))


def adding_many(rb: Any, n: int, kind: str) -> Work:
    """``extend`` by a dict of tensors on the memory of the arrays."""
    return statement(
        "rb.extend(tensors(steps))", rb=rb, tensors=tensors, steps=random_steps(n, kind)
    )


def drawing(rb: Any, n: int = BATCH, length: int = 1) -> Work:
    """``sample`` of so many rows, compiled for this number; sequences follow on one axis."""
    torch.compiler.reset()
    draw = torch.compile(lambda: rb.sample(n * length))
    draw()
    return statement("batch = draw()", draw=draw)


def prioritized(rows: int) -> tuple[Any, CycleInputs]:
    """A full buffer of small steps with priorities, and those to come."""
    inputs = CycleInputs(rows, BATCH)
    rb = PrioritizedReplayBuffer(
        alpha=ALPHA, beta=BETA, eps=EPS, storage=LazyTensorStorage(rows), batch_size=BATCH
    )
    fill(rb, tensors(random_steps(rows)), rows)
    rb.update_priority(torch.arange(rows), torch.from_numpy(inputs.first).float())
    return rb, inputs


def updating(held: tuple[Any, CycleInputs]) -> Work:
    """``update_priority`` of rows of earlier batches."""
    rb, inputs = held
    drawn = [rb.sample(return_info=True)[1]["index"].numpy() for _ in inputs.fresh]
    fresh = taking_turns(torch.from_numpy(np.array(drawn)), torch.from_numpy(inputs.fresh).float())
    return statement("rb.update_priority(*fresh())", rb=rb, fresh=fresh)


def drawing_and_updating(held: tuple[Any, CycleInputs]) -> Work:
    """A batch, and new priorities for its steps."""
    fresh = taking_turns(torch.from_numpy(held[1].fresh).float())
    return statement(f"{DRAW}\nrb.update_priority(info['index'], fresh())", rb=held[0], fresh=fresh)


def trees(leaves: int, n: int) -> tuple[Any, Any, TreeInputs]:
    """Its trees of sums and of minima with the same weights, and inputs of calls."""
    inputs = TreeInputs(leaves, n)
    both = SumSegmentTreeFp64(leaves), MinSegmentTreeFp64(leaves)
    for tree in both:
        tree[np.arange(leaves)] = inputs.weights
    return *both, inputs


def finding(held: tuple[Any, Any, TreeInputs]) -> Work:
    """``scan_lower_bound``."""
    sums, _, inputs = held
    return statement(
        "sums.scan_lower_bound(fresh())", sums=sums, fresh=taking_turns(inputs.targets)
    )


def setting(then: str, held: tuple[Any, Any, TreeInputs]) -> Work:
    """Assignment to items of the tree of sums, and a further statement."""
    sums, least, inputs = held
    return statement(
        f"slots, values = fresh()\nsums[slots] = values\n{then}",
        sums=sums,
        least=least,
        fresh=taking_turns(inputs.slots, inputs.values),
    )


def summing(rows: int) -> Any:
    """A full buffer that sums three steps when they are added."""
    steps = random_steps(min(rows, 100 * TRANSFORMED))
    rb = compilable(rows, transform=MultiStepTransform(n_steps=NSTEPS, gamma=GAMMA))
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
    return slices(random_steps(GAME) | {"done": np.arange(GAME) == GAME - 1}, rows, length)


def frame_slices(rows: int, length: int) -> Any:
    """Sequences of frames."""
    frames = np.random.default_rng(0).integers(0, 256, (GAME, *FRAME), np.uint8)
    return slices({"obs": frames, "done": np.arange(GAME) == GAME - 1}, rows, length)


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
        N=DEPTH, dim=-3, in_keys=["obs"], out_keys=["stack"], reset_key="_reset", padding="constant"
    )
    transform, sampler = frames.make_rb_transform_and_sampler(
        batch_size=None, end_key=("next", "done"), cache_values=True, truncated_key=None
    )
    rb = ReplayBuffer(storage=LazyTensorStorage(rows), sampler=sampler, transform=transform)
    steps = game(np.random.default_rng(0), min(GAME, rows), frames_first=True)
    return fill(rb, nested(frames_of(steps)), rows)


def adding_frames(rb: Any) -> Work:
    """``extend`` by a newest frame, an episode in a cycle; its TensorDicts are made before."""
    steps = nested(frames_of(game(np.random.default_rng(1), frames_first=True)))
    return statement("rb.extend(fresh())", rb=rb, fresh=taking_turns(steps.split(1)))


def compact(rows: int, kind: str) -> Any:
    """Small steps without next observations, drawn in pairs of neighbours; or stacked frames."""
    if kind == "images":
        return stacked(rows, True)
    rb = ReplayBuffer(
        storage=LazyTensorStorage(rows),
        sampler=SliceSampler(slice_len=2, end_key=("next", "done"), truncated_key=None),
        transform=NextStateReconstructor(["obs"], traj_key=None),
    )
    steps = nested(trajectory(min(rows, 100 * GAME), "small")).exclude(("next", "obs"))
    return fill(rb, steps, rows)


theirs.works_on(
    of_dicts,
    add_one=adding,
    add_many=adding_many,
    add_envs=adding_many,
)
theirs.works_on(filled, sample=drawing, sample_tensors=drawing)
theirs.works_on(
    prioritized,
    prioritized_add=lambda held: adding(held[0]),
    prioritized_draw=lambda held: statement(DRAW, rb=held[0]),  # its trees cannot be compiled
    prioritized_update=updating,
    prioritized_cycle=drawing_and_updating,
)
theirs.works_on(
    trees,
    tree_find=finding,
    tree_set=partial(setting, ""),
    tree_set_both=partial(setting, "least[slots] = values"),
)
theirs.works_on(
    summing,
    nstep_add=lambda rb: statement(
        "rb.extend(nested(step))", rb=rb, nested=nested, step=random_steps(1)
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

    def add(step: Steps, truncated: bool) -> None:
        del truncated
        rb.add(tensors(step))

    def sample(n: int) -> Steps:
        return {name: column.numpy() for name, column in rb.sample(n).items()}

    return add, sample


loop_cases(theirs, replay)
