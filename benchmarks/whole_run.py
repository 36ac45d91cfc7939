"""Rollouts, windows and checkpoints beside their floors: ``python benchmarks/whole_run.py``.

``Advantages`` beside a loop in C over arrays, ``Offsets`` beside ``np.take`` of the same bytes, and
``save(beside=...)`` beside a save, and a file of these bytes that is written and synchronised. Ours
and its floor take turns in one process. Not here: single steps and draws (``run``).
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from timeit import repeat, timeit
from typing import Any

import numpy as np
from environments import this_machine
from floors.steps import build, call
from reports.whole_run import whole_run_table
from result_files import write

from cpprb_like import ReplayBuffer
from cpprb_like.views import Advantages, Offsets

ROOT = Path(__file__).resolve().parent.parent
Case = tuple[str, str, Callable[[], Any], Callable[[], Any]]  # what, its floor, ours, the floor

GAE = r"""
void gae(const float *r, const float *value, const float *next, const uint8_t *done, int64_t steps,
         int64_t envs, double gamma, double lam, double *gain, float *advantage, float *target)
{
    for (int64_t t = steps - 1; t >= 0; t--)
        for (int64_t env = 0, k = t * envs; env < envs; env++, k++) {
            double live = done[k] ? 0.0 : gamma;
            gain[env] = r[k] + live * next[k] - value[k] + live * lam * gain[env];
            advantage[k] = (float)gain[env];
            target[k] = (float)(value[k] + gain[env]);
        }
}
"""


def rollouts(steps: int, envs: int, batch: int) -> Iterator[Case]:
    """Advantages of a rollout: the first batch after an ``add``, and later ones."""
    rng, n, names = np.random.default_rng(0), steps * envs, ("rew", "value", "next_value")
    rows: dict[str, Any] = {name: rng.normal(size=n).astype(np.float32) for name in names}
    rows |= {"done": rng.random(n) < 0.005, "obs": rng.normal(size=(n, 4)).astype(np.float32)}
    fields: Any = {name: {"shape": one.shape[1:], "dtype": one.dtype} for name, one in rows.items()}
    rb = ReplayBuffer(n, fields, n_envs=envs, seed=0)
    rb.add(**{name: one.reshape(steps, envs, *one.shape[1:]) for name, one in rows.items()})
    step = {name: one[:envs] for name, one in rows.items()}
    view, (advantages, returns) = rb.view(Advantages()), np.empty((2, n), np.float32)

    def loop() -> Any:
        given = [rows[name] for name in (*names, "done")]
        results = np.zeros(envs), advantages, returns
        return call(build(GAE).gae, *given, steps, envs, 0.99, 0.95, *results)

    def take() -> Any:
        slots, columns = rng.integers(n, size=batch), (*rows.values(), advantages, returns)
        return [one.take(slots, axis=0) for one in columns]

    loop()
    whole = next(view.epoch(n, shuffle=False))
    np.testing.assert_allclose(whole["advantage"], advantages, rtol=1e-4, atol=1e-5)
    what = f"GAE of {steps:,} steps of {envs} environments, batch of {batch}"
    first = lambda: (rb.add(**step), view.sample(batch))  # noqa: E731
    yield f"{what}, the first one", "loop in C, `np.take`", first, lambda: (loop(), take())
    yield f"{what}, later ones", "`np.take`", lambda: view.sample(batch), take


def windows(what: str, sizes: dict[str, Any], rows: int, batch: int) -> Iterator[Case]:
    """Windows of fields of these shapes, dtypes and offsets, in episodes of 200 steps."""
    rng, data = np.random.default_rng(0), {"done": np.arange(1, rows + 1) % 200 == 0}
    for name, (shape, kind, _) in sizes.items():
        data[name] = rng.integers(99, size=(rows, *shape), dtype=np.uint8).astype(kind)
    fields: Any = {name: {"shape": one.shape[1:], "dtype": one.dtype} for name, one in data.items()}
    rb = ReplayBuffer(rows, fields, seed=0)
    rb.add(**data)
    offsets = {name: found for name, (*_, found) in sizes.items()}
    view, chosen = rb.view(Offsets(offsets)), offsets | {"done": (0,)}

    def take() -> Any:
        slots = rng.integers(40, rows - 40, size=batch)[:, None]
        return [one.take(slots + np.array(chosen[name]), axis=0) for name, one in data.items()]

    yield f"`Offsets`, {what}, batch of {batch}", "`np.take`", lambda: view.sample(batch), take


def checkpoints(folder: Path, nbytes: int) -> Iterator[Case]:
    """A save with a file beside it."""
    model, rb = os.urandom(nbytes), ReplayBuffer(1000, {"obs": {"shape": 4}}, seed=0)
    rb.add(obs=np.ones((1000, 4)))

    def apart() -> None:
        rb.save(folder / "plain")
        with (folder / "model.new").open("wb") as file:
            file.write(model)
            os.fsync(file.fileno())
        (folder / "model.new").replace(folder / "model")

    ours = lambda: rb.save(folder / "beside", beside={"model": model})  # noqa: E731
    yield f"`save(beside=...)` of {nbytes >> 20} MiB", "save, `write`, `fsync`", ours, apart


def cases(folder: Path, scale: int) -> Iterator[Case]:
    """All of them, ``scale`` times as small."""
    numbers = {"obs": ((14,), "f4", (-1, 0)), "act": ((14,), "f4", range(16))}
    images = {"img": ((96, 96, 3), "u1", (-30, 0))}
    yield from rollouts(2048 // scale, 64, 256)
    yield from windows("LeRobot with images", numbers | images, 20_000 // scale, 64)
    yield from windows("states and chunks of actions", numbers, 200_000 // scale, 256)
    yield from windows("a small state", {"obs": ((4,), "f4", (-1, 0))}, 200_000 // scale, 256)
    yield from checkpoints(folder, (64 << 20) // scale)


def in_turns(calls: list[Callable[[], Any]], turns: int, seconds: float) -> list[float]:
    """Median seconds of a call of each."""
    counts = [max(1, int(seconds / min(repeat(one, number=1, repeat=3)))) for one in calls]
    pairs = list(zip(calls, counts, strict=True))
    taken = [[timeit(one, number=count) / count for one, count in pairs] for _ in range(turns)]
    return [statistics.median(passed) for passed in zip(*taken, strict=True)]


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small, once; writes no results")
    parser.add_argument("--folder", type=Path, help="where checkpoints are saved")
    options = parser.parse_args()
    scale, turns, seconds = (32, 1, 0.0) if options.quick else (1, 15, 0.03)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        measured = [
            {"case": what, "floor": floor, "seconds": in_turns(calls, turns, seconds)}
            for what, floor, *calls in cases(Path(folder), scale)
        ]
    results = {"machine": this_machine(), "numpy": np.__version__, "cases": measured}
    print(whole_run_table(results))
    if not options.quick:
        from report import update_page  # noqa: PLC0415 (its pictures need matplotlib)

        write(ROOT / "benchmarks/results/whole-run.json", results)
        update_page(ROOT, "docs/benchmarks-whole-run.md")


if __name__ == "__main__":
    main()
