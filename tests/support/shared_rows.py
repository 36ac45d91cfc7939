"""Rows of a shared replay that prove themselves, and processes that add them.

Every value of a row follows from the number of its actor and its own, so whoever reads one can tell
whether it is whole, and whose it is.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
import numpy.typing as npt

from cpprb_like.processes import SharedReplay

Array = npt.NDArray[Any]

METHODS = [
    method
    for method in ("fork", "forkserver", "spawn")
    if method in multiprocessing.get_all_start_methods()
]
EPISODE = 7  # steps of each episode
GAMMA = 0.5
SECONDS = 60.0  # that a process has

FIELDS: dict[str, Any] = {
    "id": {"shape": (), "dtype": "i8"},
    "obs": {"shape": (3,), "dtype": "f4"},
    "half": {"shape": (2, 2), "dtype": "f2"},
    "text": {"shape": (), "dtype": "S12"},
    "pixels": {"shape": (16, 16), "dtype": "u1"},
    "rew": {"shape": (), "dtype": "f8"},
    "done": {"shape": (), "dtype": bool},
}
CHAINED: dict[str, Any] = {
    "id": {"shape": (), "dtype": "i8"},
    "frames": {"shape": (4, 4, 3), "dtype": "u1"},
    "rew": {"shape": (), "dtype": "f8"},
    "done": {"shape": (), "dtype": bool},
}
CHAINED_OPTIONS: dict[str, Any] = {"next_of": "frames", "stack_compress": {"frames": 0}}
EACH = 1_000_000  # numbers of rows that an actor has


def ids(actor: int, start: int, stop: int) -> Array:
    """The ids of some rows of an actor."""
    return np.arange(actor * EACH + start, actor * EACH + stop)


def plain(numbers: Array) -> dict[str, Array]:
    """The values of rows of ``FIELDS``."""
    numbers = np.asarray(numbers)
    step = numbers % EACH
    return {
        "id": numbers,
        "obs": np.stack([step, -step, step % 17], axis=-1).astype(np.float32),
        "half": np.broadcast_to((step % 1000)[..., None, None], (*step.shape, 2, 2)).astype("f2"),
        "text": np.char.encode(np.char.mod("%d", numbers)).astype("S12"),
        "pixels": np.broadcast_to((step % 251)[..., None, None], (*step.shape, 16, 16)).astype(
            "u1"
        ),
        "rew": step.astype(np.float64),
        "done": step % EPISODE == EPISODE - 1,
    }


def chained(numbers: Array) -> dict[str, Array]:
    """The values of rows of ``CHAINED``, with next stacks."""
    numbers = np.asarray(numbers)
    step = numbers % EACH
    first = step - step % EPISODE
    return {
        "id": numbers,
        "frames": _stacks(step, first),
        "next_frames": _stacks(step + 1, first),
        "rew": step.astype(np.float64),
        "done": step % EPISODE == EPISODE - 1,
    }


def _stacks(newest: Array, first: Array) -> Array:
    """Stacks of the four newest frames of an episode, each frame of one number."""
    frames = np.maximum(newest[..., None] + np.arange(-3, 1), first[..., None])
    return np.broadcast_to(frames[..., None, None] % 251, (*frames.shape, 4, 3)).astype("u1")


def check(batch: dict[str, Array], make: Callable[[Array], dict[str, Array]] = plain) -> None:
    """Each row of a batch is one that an actor added, whole."""
    for name, values in make(batch["id"]).items():
        if name in batch:
            np.testing.assert_array_equal(values, batch[name], err_msg=name)


def check_returns(batch: dict[str, Array], size: int) -> None:
    """Sums of up to ``size`` rewards that are numbers of steps, as far as the episode goes."""
    step = batch["id"] % EACH
    steps = np.minimum(size, EPISODE - step % EPISODE)
    wanted = sum(np.where(k < steps, GAMMA**k * (step + k), 0.0) for k in range(size))
    np.testing.assert_allclose(batch["rew"], wanted)
    np.testing.assert_array_equal(batch["done"], (step + steps) % EPISODE == 0)


def add_rows(
    replay: SharedReplay, number: int, stop: int, make: Callable[[Array], dict[str, Array]] = plain
) -> None:
    """An actor that adds its rows one by one, or so many at once, and ends."""
    with replay.actor(number) as actor:
        start = 0
        while start < stop:
            count = min(stop - start, 1 + start % 5)
            actor.add(**make(ids(number, start, start + count)))
            start += count


def add_streams(replay: SharedReplay, number: int, stop: int, n_envs: int) -> None:
    """An actor with several environments, whose rows have ids by environment."""
    with replay.actor(number) as actor:
        for step in range(stop):
            numbers = np.array(
                [ids(number * n_envs + env, step, step + 1)[0] for env in range(n_envs)]
            )
            actor.add(**plain(numbers))


def add_for_ever(replay: SharedReplay, number: int, pause: float) -> None:
    """An actor that adds until it is terminated."""
    actor = replay.actor(number)
    step = 0
    while True:
        actor.add(**plain(ids(number, step, step + 4)))
        step += 4
        if pause:
            time.sleep(pause)


@contextmanager
def started(method: str, job: Callable[..., object], *arguments: Any) -> Iterator[BaseProcess]:
    """A process that runs a job; it is gone afterwards."""
    context: Any = multiprocessing.get_context(method)
    process = context.Process(target=job, args=arguments)
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()
        process.close()


def finish(method: str, jobs: list[tuple[Any, ...]]) -> None:
    """Run jobs in a process each, until all have ended well."""
    context: Any = multiprocessing.get_context(method)
    processes = [context.Process(target=job, args=arguments) for job, *arguments in jobs]
    for process in processes:
        process.start()
    for process in processes:
        process.join(SECONDS)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
        process.join()
    assert codes == [0] * len(jobs)
