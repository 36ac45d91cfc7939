"""Rows in tensors on a GPU: ``python benchmarks/device_on_cuda.py``.

``add`` of a step of 4,096 environments, and draws of 8,192 of 4,096 x 1,024 rows with observations
of 64 numbers: eagerly, in a CUDA graph, and compiled. ``set_sync_debug_mode("error")`` makes a call
that waits for the device an error. Beside these are copies and ``index_select`` of the same bytes,
and TorchRL where it is installed. ``--device cpu`` is a trial without a GPU: it has no CUDA graphs,
and its times say nothing of one.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from device import NUMBERS, Step, declared, random_step
from reports.wording import grid, quantity

from cpprb_like.device import DeviceReplay
from cpprb_like.samplers import Prioritized
from cpprb_like.views import NStep

TURNS, CALLS = 9, 30
Call = Callable[[], Any]
# A case: its name, the case whose time its own is divided by, the bound of the ratio, the call.
Case = tuple[str, str | None, float | None, Call]


def replay_of(options: argparse.Namespace, steps: list[Step], sampler: Any = None) -> DeviceReplay:
    """A full replay."""
    size = options.envs * options.steps
    fields = declared({"obs": NUMBERS}, torch.float32, 8)
    replay = DeviceReplay(
        size, fields, n_envs=options.envs, next_of="obs", device=options.device, sampler=sampler
    )
    for k in range(options.steps):
        replay.add(**steps[k % len(steps)])
    return replay


def floors(options: argparse.Namespace, step: Step) -> tuple[Call, Call]:
    """A copy of the bytes of a step, and one ``index_select`` of the bytes of a batch."""
    width = sum(one[0].numel() * one.element_size() for one in step.values()) // 4
    rows = torch.randn(options.envs * options.steps, width, device=options.device)
    new, size = torch.randn(options.envs, width, device=options.device), options.batch

    def select() -> Any:
        return rows.index_select(0, torch.randint(len(rows), (size,), device=rows.device))

    return lambda: rows[: len(new)].copy_(new), select


def of_torchrl(options: argparse.Namespace, step: Step) -> tuple[Call, Call]:
    """``extend`` and ``sample`` of a full ``LazyTensorStorage``."""
    from tensordict import TensorDict  # noqa: PLC0415
    from torchrl.data import LazyTensorStorage, ReplayBuffer  # noqa: PLC0415

    storage = LazyTensorStorage(options.envs * options.steps, device=options.device)
    buffer = ReplayBuffer(storage=storage)

    def add() -> None:
        buffer.extend(TensorDict(step, [options.envs]))

    for _ in range(options.steps):
        add()
    return add, partial(buffer.sample, options.batch)


def cases_of(options: argparse.Namespace) -> list[Case]:
    """All calls, eagerly."""
    steps = [
        {name: one.to(options.device) for name, one in random_step(options.envs).items()}
        for _ in range(4)
    ]
    for before, after in zip(steps, steps[1:] + steps[:1], strict=True):  # as in episodes
        over = before["terminated"][:, None]
        before["next_obs"] = torch.where(over, before["next_obs"], after["obs"])
    copy, select = floors(options, steps[0])
    uniform, weighted = replay_of(options, steps), replay_of(options, steps, Prioritized(0.6))
    view = uniform.view(NStep(3, gamma=0.99, discount=True))
    batch = weighted.sample(options.batch)
    priorities = torch.rand(options.batch, device=options.device)
    # A step whose observations are the next ones of the last step that was added, as at each step.
    step = dict(steps[options.steps % len(steps)])
    step["next_obs"] = torch.where(step["terminated"][:, None], step["next_obs"], step["obs"])
    draw, n = "index_select", options.batch
    return [
        ("copy", None, None, copy),
        ("index_select", None, None, select),
        ("add", "copy", 1.5, partial(uniform.add, **step)),
        ("add, Prioritized", "copy", None, partial(weighted.add, **step)),
        ("sample", draw, 1.2, partial(uniform.sample, n)),
        ("sample, NStep(3)", draw, None, partial(view.sample, n)),
        ("sample, Prioritized", "sample", 3.0, partial(weighted.sample, n)),
        (
            "update_priorities",
            "sample",
            None,
            partial(weighted.update_priorities, batch["indexes"], priorities),
        ),
    ]


def in_graph(call: Call) -> Call:
    """The same call in a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    replay: Call = graph.replay
    return replay


def compiled(call: Call) -> Call:
    """The same call, compiled as a whole."""
    found: Call = torch.compile(call, fullgraph=True)
    for _ in range(3):
        found()
    return found


def microseconds(call: Call, cuda: bool) -> float:
    """Of a call, on average over some in a row; the device is waited for at the end only."""
    start = time.perf_counter()
    if not cuda:
        for _ in range(CALLS):
            call()
        return 1e6 * (time.perf_counter() - start) / CALLS
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(CALLS):
            call()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    return 1e6 * (time.perf_counter() - start) / CALLS


def made(ways: dict[str, Callable[[Call], Call]], cases: list[Case]) -> dict[tuple[str, str], Any]:
    """The call of each case in each way, or the error that making it raised."""
    found: dict[tuple[str, str], Any] = {}
    for name, _, _, call in cases:
        for way, make in ways.items():
            start = time.perf_counter()
            try:
                found[name, way] = make(call)
            except Exception as error:  # noqa: BLE001 (the others are measured)
                found[name, way] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            print(f"{name}, {way}: made in {time.perf_counter() - start:.1f} s", flush=True)
    return found


def main() -> None:
    """Measure all in turns, and print a table and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--envs", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=8192)
    parser.add_argument("--no-compile", action="store_true")
    options = parser.parse_args()
    cuda = torch.device(options.device).type == "cuda"
    ways: dict[str, Callable[[Call], Call]] = {"eager": lambda call: call}
    ways |= {"graph": in_graph} if cuda else {}
    ways |= {} if options.no_compile else {"compiled": compiled}
    cases = cases_of(options)
    calls = made(ways, cases)
    if importlib.util.find_spec("torchrl") is not None:
        add, sample = of_torchrl(options, random_step_on(options))
        cases += [
            ("TorchRL, extend", "copy", None, add),
            ("TorchRL, sample", "sample", None, sample),
        ]
        calls |= {("TorchRL, extend", "eager"): add, ("TorchRL, sample", "eager"): sample}

    turns: dict[tuple[str, str], list[float]] = {}
    for _ in range(TURNS):
        for key, call in calls.items():
            if not isinstance(call, str):
                try:
                    turns.setdefault(key, []).append(microseconds(call, cuda))
                except RuntimeError as error:
                    calls[key] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    times = {key: statistics.median(one) for key, one in turns.items() if one}
    table = [["call", *ways, "beside", *(f"{way} / it" for way in ways), "wanted"]]
    for name, beside, bound, _ in cases:
        row = [times.get((name, way)) for way in ways]
        of = [times.get((beside, way)) if beside else None for way in ways]
        ratios = [f"{a / b:.2f}" if a and b else "-" for a, b in zip(row, of, strict=True)]
        said = [quantity(one / 1e6, "s") if one else "-" for one in row]
        table.append([name, *said, beside or "-", *ratios, f"<= {bound}" if bound else "-"])
    print(grid(table))
    for (name, way), call in calls.items():
        if isinstance(call, str):
            print(f"{name}, {way}: {call}")
    about = {
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "torch": torch.__version__,
        "rows": [options.envs, options.steps],
        "batch": options.batch,
        "least_nbytes_of_a_batch": options.batch * (2 * NUMBERS * 4 + 8 * 4 + 4 + 2),
    }
    print(json.dumps({"about": about, "us": {", ".join(key): one for key, one in times.items()}}))


def random_step_on(options: argparse.Namespace) -> Step:
    """A step on the device."""
    return {name: one.to(options.device) for name, one in random_step(options.envs).items()}


if __name__ == "__main__":
    main()
