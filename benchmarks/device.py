"""Rows in tensors on the CPU beside peers, and bytes of a row: ``python benchmarks/device.py``.

``add`` of a step of many environments, and ``sample``, of ``DeviceReplay``, of plain tensors
(slices and ``index_select``), and of TorchRL and skrl where they are installed. All take turns in
one process with one thread. Beside these are the bytes of a row for the fields of some tasks, and
those of the same fields in FastTD3's buffer. Not here: a GPU (``device_on_cuda``).
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from environments import this_machine
from reports.device import device_tables
from result_files import write

from cpprb_like.device import DeviceReplay

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "device.json"
NUMBERS = 64  # of an observation
TURNS, SECONDS = 15, 0.03  # of each contender, in turns with the others
Step = dict[str, torch.Tensor]
Calls = tuple[Callable[[Step], Any], Callable[[int], Any]]

# Tasks: the shapes of observations, the dtype of their numbers, and the size of an action. For Go1
# and G1 of MuJoCo Playground, FastTD3 can store the part of critic observations that is no
# observation, too ("playground mode").
TASKS: dict[str, tuple[dict[str, Any], Any, int]] = {
    "Pendulum": ({"obs": 3}, torch.float32, 1),
    "G1, flat terrain, 123 numbers": ({"obs": 123}, torch.float32, 37),
    "Go1, 48 numbers, critic 123": ({"obs": 48, "critic_obs": 123}, torch.float32, 12),
    "Go1, 48 numbers, critic 75 more": ({"obs": 48, "critic_obs": 75}, torch.float32, 12),
    "pixels, 64 x 64 x 3 bytes": ({"obs": (64, 64, 3)}, torch.uint8, 6),
}


def declared(observations: dict[str, Any], dtype: Any, actions: int) -> dict[str, Any]:
    """The fields of a replay."""
    return {
        **{name: {"shape": shape, "dtype": dtype} for name, shape in observations.items()},
        "act": {"shape": actions},
        "rew": {"shape": ()},
        "terminated": {"shape": (), "dtype": torch.bool},
        "truncated": {"shape": (), "dtype": torch.bool},
    }


def random_step(n: int) -> Step:
    """A step of n environments; one of 200 ends its episode."""
    return {
        "obs": torch.randn(n, NUMBERS),
        "next_obs": torch.randn(n, NUMBERS),
        "act": torch.randn(n, 8),
        "rew": torch.randn(n),
        "terminated": torch.rand(n) < 0.005,
        "truncated": torch.zeros(n, dtype=torch.bool),
    }


def ours(steps: int, n: int) -> Calls:
    """``DeviceReplay`` with ``next_of``."""
    fields = declared({"obs": NUMBERS}, torch.float32, 8)
    replay = DeviceReplay(steps * n, fields, n_envs=n, next_of="obs")
    return lambda step: replay.add(**step), replay.sample


def compiled(steps: int, n: int) -> Calls:
    """The same, compiled."""
    add, sample = ours(steps, n)
    return torch.compile(add, fullgraph=True), torch.compile(sample, fullgraph=True)


def plain(steps: int, n: int) -> Calls:
    """A tensor of each field, next observations too: slices, and ``index_select``."""
    rows = {name: one.new_zeros(steps * n, *one.shape[1:]) for name, one in random_step(n).items()}
    at = 0

    def add(step: Step) -> None:
        nonlocal at
        for name, one in step.items():
            rows[name][at : at + n] = one
        at = (at + n) % (steps * n)

    def sample(size: int) -> Step:
        indexes = torch.randint(steps * n, (size,))
        return {name: one.index_select(0, indexes) for name, one in rows.items()}

    return add, sample


def of_torchrl(steps: int, n: int) -> Calls:
    """``ReplayBuffer`` with ``LazyTensorStorage`` and ``RandomSampler``."""
    from tensordict import TensorDict  # noqa: PLC0415
    from torchrl.data import LazyTensorStorage, RandomSampler, ReplayBuffer  # noqa: PLC0415

    buffer = ReplayBuffer(storage=LazyTensorStorage(steps * n), sampler=RandomSampler())
    return lambda step: buffer.extend(TensorDict(step, [n])), buffer.sample


def of_skrl(steps: int, n: int) -> Calls:
    """``RandomMemory`` with replacement."""
    from skrl.memories.torch import RandomMemory  # noqa: PLC0415

    memory = RandomMemory(memory_size=steps, num_envs=n, device="cpu", replacement=True)
    names = []
    for name, one in random_step(n).items():
        memory.create_tensor(name, size=one[0].numel(), dtype=one.dtype)
        names.append(name)

    def add(step: Step) -> None:
        memory.add_samples(**{name: one.view(n, -1) for name, one in step.items()})

    return add, lambda size: memory.sample(names, batch_size=size)


CONTENDERS: dict[str, tuple[str, Callable[[int, int], Calls]]] = {
    "cpprb_like": ("torch", ours),
    "plain tensors": ("torch", plain),
    "torchrl": ("torchrl", of_torchrl),
    "skrl": ("skrl", of_skrl),
}


def in_turns(calls: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
    """Median seconds of a call of each contender."""
    turns: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(TURNS):
        for name, call in calls.items():
            count, start = 0, time.perf_counter()
            while (passed := time.perf_counter() - start) < SECONDS or not count:
                call()
                count += 1
            turns[name].append(passed / count)
    return {name: statistics.median(passed) for name, passed in turns.items()}


def measured(n: int, rows: int, batches: list[int]) -> list[dict[str, Any]]:
    """``add`` and ``sample`` of all contenders that are installed, with n environments."""
    steps = max(2, rows // n)
    block = [random_step(n) for _ in range(8)]
    for before, after in zip(block, block[1:] + block[:1], strict=True):  # as in episodes
        over = before["terminated"][:, None]
        before["next_obs"] = torch.where(over, before["next_obs"], after["obs"])
    made = {
        name: make(steps, n)
        for name, (package, make) in CONTENDERS.items()
        if importlib.util.find_spec(package) is not None
    }
    adds = {name: partial(added, add, itertools.cycle(block)) for name, (add, _) in made.items()}
    for add in adds.values():
        for _ in range(steps):
            add()
    cases = [{"call": "add", "envs": n, "rows": n, "seconds": in_turns(adds)}]
    for size in batches:
        draws = {name: partial(draw, size) for name, (_, draw) in made.items()}
        cases.append({"call": "sample", "envs": n, "rows": size, "seconds": in_turns(draws)})
    return cases


def added(add: Callable[[Step], Any], steps: Iterator[Step]) -> None:
    """Add the next one of some steps."""
    add(next(steps))


def nbytes_of(task: str) -> dict[str, Any]:
    """Bytes of a row of a task: ours as allocated, and those of the same fields of FastTD3.

    FastTD3's ``SimpleReplayBuffer`` has observations, next observations, actions (float32), rewards
    (float32), dones and truncations (int64 each), and critic observations and the next ones.
    Ours has room for next observations at the ends of episodes of 16 steps, or of 200 steps.
    """
    observations, dtype, actions = TASKS[task]
    fields = declared(observations, dtype, actions)
    values = [torch.empty(shape, dtype=dtype).nbytes for shape in observations.values()]
    n = 8 if sum(values) > 4096 else 512
    found = {"task": task, "fast_td3": 2 * sum(values) + 4 * actions + 4 + 8 + 8}
    for name, finals in (("ours", None), ("ours_long", n * (1000 // 200 + 1))):
        replay = DeviceReplay(n * 1000, fields, n_envs=n, next_of=[*observations], finals=finals)
        found[name] = round(replay.stats()["nbytes"] / (n * 1000), 1)
    return found


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--envs", type=int, nargs="+", default=[64, 1024, 4096])
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[256, 8192])
    parser.add_argument("--compiled", action="store_true", help="ours compiled, too: takes minutes")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.compiled:
        CONTENDERS["cpprb_like, compiled"] = ("torch", compiled)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    cases = [case for n in options.envs for case in measured(n, options.rows, options.batch_sizes)]
    peers = {package for package, _ in CONTENDERS.values() if importlib.util.find_spec(package)}
    results = {
        "machine": this_machine(),
        "packages": {package: version(package) for package in sorted(peers)},
        "rows": options.rows,
        "cases": cases,
        "nbytes": [nbytes_of(task) for task in TASKS],
    }
    print(device_tables(results))
    write(options.output, results)
    if options.output == RESULTS:
        from report import update_page  # noqa: PLC0415 (with its pictures, it needs matplotlib)

        update_page(ROOT, "docs/benchmarks-device.md")


if __name__ == "__main__":
    main()
