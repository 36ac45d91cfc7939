"""Draws by what rows say beside the same draws without a rule: ``python benchmarks/rules.py``.

And beside the samplers of TorchRL, and a table of Reverb, that do the same work, where these are
installed. Both take turns in one process. Not here: single steps and draws (``run``).
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from environments import this_machine
from reports.whole_run import rules_table
from result_files import write
from whole_run import in_turns

from cpprb_like import Mixture, ReplayBuffer
from cpprb_like.samplers import Prioritized
from cpprb_like.views import Among, AtMost, Groups, Newest, Sequences, Share

ROOT = Path(__file__).resolve().parent.parent
BATCH, KEYS, LENGTH = 256, 8, 64
Call = Callable[[], Any]
Case = tuple[str, str, Call, Call]  # what, beside what, ours, the other


def columns(n: int) -> dict[str, Any]:
    """Values of n rows: of 1,000 rows one version, of eight rows one prompt, three tasks."""
    rng, numbers = np.random.default_rng(0), np.arange(n)
    return {
        "obs": rng.normal(size=(n, 8)).astype(np.float32),
        "rew": rng.normal(size=n).astype(np.float32),
        "x": numbers,
        "version": numbers // 1000,
        "prompt": numbers // KEYS,
        "task": rng.choice(3, size=n, p=[0.9, 0.09, 0.01]),
    }


def filled(n: int, sampler: Any = None) -> ReplayBuffer:
    """A buffer of n such rows, with priorities if the sampler has them."""
    rows = columns(n)
    fields: Any = {name: {"shape": one.shape[1:], "dtype": one.dtype} for name, one in rows.items()}
    rb = ReplayBuffer(n, fields, sampler=sampler, seed=0)
    rb.add(**rows)
    if sampler is not None:
        rb.update_priorities(np.arange(n), 0.1 + np.random.default_rng(0).random(n))
    return rb


def by_priority(n: int) -> Iterator[Case]:
    """Batches of the rows that a rule leaves, beside batches of all rows."""
    rb = filled(n, Prioritized())
    rules: dict[str, Any] = {
        "`Among`, one row of two": Among(lambda rows: rows["x"] % 2 == 0, "x"),
        "`Among`, one row of 100,000": Among(lambda rows: rows["x"] % 100_000 == 0, "x"),
        '`Newest("version", 4)`': Newest("version", 4),
        '`Groups("prompt", k=8)`': Groups("prompt", k=KEYS),
        '`Share({"task": "equal"})`': Share({"task": "equal"}),
    }
    for what, rule in rules.items():
        view = rb.view(rule)
        view.sample(BATCH)
        draw = partial(view.sample, BATCH), partial(rb.sample, BATCH)
        yield f"{what}, {n:,} rows by priority", "the same draw of all rows", *draw
    for what in ('`Newest("version", 4)`', '`Share({"task": "equal"})`'):
        yield after_add(f"`add`, then {what}, {n:,} rows by priority", rb, rules[what], n)


def after_add(what: str, rb: ReplayBuffer, rule: Any, n: int) -> Case:
    """A row is added before each batch of a view, and before each batch of all rows."""
    view, first = rb.view(rule), columns(1)
    rows = (first | {"version": number // 1000, "task": number % 3} for number in count(n))
    return (
        *(what, "`add`, then the draw of all rows"),
        lambda: (rb.add(**next(rows)), view.sample(BATCH)),
        lambda: (rb.add(**next(rows)), rb.sample(BATCH)),
    )


def beside_torchrl(n: int) -> Iterator[Case]:
    """The samplers of TorchRL for staleness, groups and consumption; uniform, as these are."""
    import torch  # noqa: PLC0415
    from tensordict import TensorDict  # noqa: PLC0415
    from torchrl.data import LazyTensorStorage  # noqa: PLC0415
    from torchrl.data import ReplayBuffer as Theirs  # noqa: PLC0415
    from torchrl.data.replay_buffers import samplers  # noqa: PLC0415

    rows = columns(n)
    torch.set_num_threads(1)
    tensors = TensorDict({name: torch.from_numpy(one) for name, one in rows.items()}, [n])

    def theirs(sampler: Any) -> Any:
        buffer = Theirs(storage=LazyTensorStorage(n), sampler=sampler, batch_size=BATCH)
        buffer.extend(tensors)
        return buffer

    stale = samplers.StalenessAwareSampler(
        max_staleness=3, staleness_weight_fn=torch.ones_like, version_key="version"
    )
    stale.consumer_version = int(rows["version"][-1])
    rb, buffer = filled(n), theirs(stale)
    view = rb.view(Newest("version", 4))
    what = f'`Newest("version", 4)`, {n:,} rows'
    yield what, "TorchRL, `StalenessAwareSampler`", lambda: view.sample(BATCH), buffer.sample

    more, new = {name: one[:BATCH] for name, one in rows.items()}, tensors[:BATCH]
    grouped = theirs(samplers.PromptGroupSampler(samples_per_group=KEYS, group_key="prompt"))
    of_groups = rb.view(Groups("prompt", k=KEYS))
    what = f'`Groups("prompt", k=8)`, {n:,} rows'
    yield what, "TorchRL, `PromptGroupSampler`", lambda: of_groups.sample(BATCH), grouped.sample
    yield (
        *(f"`add` of {BATCH}, then {what}", "TorchRL, `extend`, `PromptGroupSampler`"),
        lambda: (rb.add(**more), of_groups.sample(BATCH)),
        lambda: (grouped.extend(new), grouped.sample()),
    )

    consumed = theirs(samplers.ConsumingSampler(max_sample_count=1))
    once = filled(n)
    queue = once.view(AtMost(1))
    yield (
        f"`add` of {BATCH}, then `AtMost(1)`, {n:,} rows",
        "TorchRL, `extend`, `ConsumingSampler`",
        lambda: (once.add(**more), queue.sample(BATCH)),
        lambda: (consumed.extend(new), consumed.sample()),
    )


def beside_reverb() -> Iterator[Case]:
    """Reverb's ``max_times_sampled``, by its writer and its client. Both add row by row."""
    reverb = importlib.import_module("reverb")
    selectors, limiter = reverb.selectors, reverb.rate_limiters.MinSize(1)
    table = reverb.Table(
        "rows", selectors.Uniform(), selectors.Fifo(), 10_000, limiter, max_times_sampled=1
    )
    server = reverb.Server([table])
    client = reverb.Client(f"localhost:{server.port}")
    writer = client.trajectory_writer(num_keep_alive_refs=1)
    rows = columns(BATCH)
    steps = [{name: values[k] for name, values in rows.items()} for k in range(BATCH)]
    once = filled(10_000)
    queue = once.view(AtMost(1))
    queue.sample(10_000)

    def ours() -> Any:
        for step in steps:
            once.add(**step)
        return queue.sample(BATCH)

    def theirs() -> Any:
        for step in steps:
            writer.append(step)
            last = {name: writer.history[name][-1] for name in step}
            writer.create_item("rows", 1.0, last)
        writer.flush()
        return [*client.sample("rows", BATCH, emit_timesteps=False)]

    what = f"`add` of {BATCH} rows one by one, then `AtMost(1)`, 10,000 rows"
    yield what, "Reverb, `max_times_sampled=1`", ours, theirs
    server.stop()


def beside_dreamer(n: int) -> Iterator[Case]:
    """The online queue of DreamerV3: of each 64 steps a sequence is in a batch at once."""
    replay = importlib.import_module("replay")
    rng, numbers = np.random.default_rng(0), count(n)
    steps: list[dict[str, Any]] = [
        {"obs": rng.normal(size=8).astype(np.float32), "is_first": t == 0} for t in range(LENGTH)
    ]
    fields: Any = {
        "obs": {"shape": 8},
        "is_first": {"shape": (), "dtype": bool},
        "step": {"shape": (), "dtype": "i8"},
    }
    rb = ReplayBuffer(n, fields, seed=0)
    begins = Among(lambda rows: rows["step"] % LENGTH == 0, "step")
    fresh, every = rb.view(begins, AtMost(1), Sequences(LENGTH)), rb.view(Sequences(LENGTH))
    mixture = Mixture({"fresh": fresh, "all": every}, {"fresh": 1, "all": 15}, seed=0)
    buffer = replay.Replay(LENGTH, capacity=n, online=True)
    batches = buffer.dataset(16)
    for t in range(n):
        step = steps[t % LENGTH]
        rb.add(**step, step=t)
        buffer.add(step)
    fresh.sample(n // LENGTH)
    buffer.queue.clear()

    def ours() -> Any:
        for step in steps:
            rb.add(**step, step=next(numbers))
        return mixture.sample(16)

    def theirs() -> Any:
        for step in steps:
            buffer.add(step)
        return next(batches)

    what = f"`add` of {LENGTH} steps, then 16 sequences, one of which is new, {n:,} rows"
    yield what, "DreamerV3, `Replay(online=True)`", ours, theirs


def cases(scale: int) -> Iterator[Case]:
    """All of them, ``scale`` times as small."""
    for n in (10_000, 1_000_000, 10_000_000):
        yield from by_priority(n // scale)
    if importlib.util.find_spec("torchrl") is not None:
        yield from beside_torchrl(1_000_000 // scale)
    if importlib.util.find_spec("reverb") is not None:
        yield from beside_reverb()
    if importlib.util.find_spec("replay") is not None:
        yield from beside_dreamer(LENGTH * 8192 // scale)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small, once; writes no results")
    quick = parser.parse_args().quick
    scale, turns, seconds = (10, 1, 0.0) if quick else (1, 15, 0.02)
    measured = [
        {"case": what, "floor": beside, "seconds": in_turns(calls, turns, seconds)}
        for what, beside, *calls in cases(scale)
    ]
    results = {"machine": this_machine(), "numpy": np.__version__, "cases": measured}
    print(rules_table(results))
    if not quick:
        from report import update_page  # noqa: PLC0415 (its pictures need matplotlib)

        write(ROOT / "benchmarks/results/rules.json", results)
        update_page(ROOT, "docs/benchmarks-rules.md")


if __name__ == "__main__":
    main()
