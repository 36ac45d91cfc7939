"""One measurement of ``processes.py``, in the environment of one package: a line of JSON.

Actors in processes of their own add steps as fast as they can, alone or beside a learner that
draws; or one step at a time, to see when it can be drawn. Its argument is a measurement in JSON.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import multiprocessing
import platform
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from itertools import product
from typing import Any

import numpy as np

SECONDS = 1.0
LATE = 60.0  # seconds that processes have to begin
CHUNK = 16  # steps between two looks at the clock
WARM = {"small": CHUNK, "images": 8_000}  # added before: new memory takes longer
LATENCIES, PAUSE = 200, 0.002

Step = dict[str, Any]
FIELDS: dict[str, dict[str, Any]] = {
    "small": {
        "obs": {"shape": 4, "dtype": "f4"},
        "act": {"shape": (), "dtype": "i4"},
        "rew": {"shape": (), "dtype": "f4"},
        "next_obs": {"shape": 4, "dtype": "f4"},
        "done": {"shape": (), "dtype": "f4"},
    },
    "images": {"obs": {"shape": (84, 84, 4), "dtype": "u1"}},
}
SIZES = {"small": 200_000, "images": 8_000}  # steps that are held
BATCHES = {"small": 256, "images": 32}
DRAWN = (32, 256, 1024)  # rows of the batches that ``draws`` measures
TURNS, IMAGE_TURNS, CALLS = 60, 8, 4096


def step_of(case: str) -> Step:
    """The step that is added, as an environment gives it: arrays and numbers."""
    rng = np.random.default_rng(0)
    if case == "images":
        return {"obs": rng.integers(0, 256, (84, 84, 4)).astype("u1")}
    obs, other = rng.normal(size=(2, 4)).astype("f4")
    return {"obs": obs, "act": 1, "rew": 0.5, "next_obs": other, "done": 0.0}


class Package:
    """A replay that processes share; it is handed to the actors by pickling."""

    def __init__(self, case: str, actors: int) -> None:
        self.case = case
        self.actors = actors

    # Each makes a function for the process of an actor, or of the learner: it adds a step, draws a
    # batch, or counts the rows to draw from.
    adder: Callable[[], Callable[[Step], object]]
    sampler: Callable[[], Callable[[], object]]
    counter: Callable[[], Callable[[], int]]

    def finish(self) -> None:
        """Wait until all steps of an actor have arrived."""

    def close(self) -> None:
        """End the measurement."""


class Ours(Package):
    """``SharedReplay``."""

    def __init__(self, case: str, actors: int) -> None:
        from cpprb_like.processes import SharedReplay  # noqa: PLC0415

        super().__init__(case, actors)
        self.replay = SharedReplay(SIZES[case], FIELDS[case], writers=actors)

    def adder(self) -> Callable[[Step], object]:
        add = self.replay.actor().add
        return lambda step: add(**step)

    def sampler(self) -> Callable[[], object]:
        learner, n = self.replay.learner(seed=0), BATCHES[self.case]
        return lambda: learner.sample(n)

    def counter(self) -> Callable[[], int]:
        return self.replay.learner(seed=0).__len__

    def close(self) -> None:
        self.replay.close()


class OneProcess(Package):
    """A ``ReplayBuffer`` in each process, without the cost of sharing."""

    def adder(self) -> Callable[[Step], object]:
        from cpprb_like import ReplayBuffer  # noqa: PLC0415

        add = ReplayBuffer(SIZES[self.case] // self.actors, FIELDS[self.case]).add
        return lambda step: add(**step)


class Copying(Package):
    """NumPy's copy of a step into memory of the process's own: the floor of ``add``."""

    def adder(self) -> Callable[[Step], object]:
        size = SIZES[self.case] // self.actors
        memory = {
            name: np.ones((size, *np.atleast_1d(spec["shape"])), spec["dtype"])
            for name, spec in FIELDS[self.case].items()
        }
        place = 0

        def add(step: Step) -> None:
            nonlocal place
            for name, rows in memory.items():
                rows[place] = step[name]
            place = (place + 1) % size

        return add


class Cpprb(Package):
    """cpprb's ``MPReplayBuffer``."""

    def __init__(self, case: str, actors: int) -> None:
        from cpprb import MPReplayBuffer  # noqa: PLC0415

        super().__init__(case, actors)
        self.buffer = MPReplayBuffer(
            SIZES[case],
            {name: {**spec, "shape": spec["shape"] or 1} for name, spec in FIELDS[case].items()},
            ctx=multiprocessing.get_context("spawn"),
        )

    def adder(self) -> Callable[[Step], object]:
        add = self.buffer.add
        return lambda step: add(**step)

    def sampler(self) -> Callable[[], object]:
        return lambda: self.buffer.sample(BATCHES[self.case])

    def counter(self) -> Callable[[], int]:
        get: Callable[[], int] = self.buffer.get_stored_size
        return get


class Reverb(Package):
    """dm-reverb: a server in a process of its own, a writer of trajectories, a dataset that reads.

    By its documentation these are its fastest clients. They draw ahead as many rows as in its
    examples.
    """

    TABLE = "steps"
    PENDING, FLUSHED = 20, 25  # items under way, at most; steps between two looks at that

    def __init__(self, case: str, actors: int) -> None:
        super().__init__(case, actors)
        context = multiprocessing.get_context("spawn")
        ports, self.stop = context.Queue(), context.Event()
        self.server = context.Process(target=serve, args=(case, ports, self.stop), daemon=True)
        self.server.start()
        self.port = ports.get(timeout=LATE)

    def __getstate__(self) -> dict[str, Any]:
        return {"case": self.case, "actors": self.actors, "port": self.port}

    def _client(self) -> Any:
        return importlib.import_module("reverb").Client(f"localhost:{self.port}")

    def adder(self) -> Callable[[Step], object]:
        self.client = self._client()
        self.writer = writer = self.client.trajectory_writer(num_keep_alive_refs=1)
        fields = FIELDS[self.case]
        added = 0

        def add(step: Step) -> None:
            nonlocal added
            writer.append(
                {name: np.asarray(step[name], spec["dtype"]) for name, spec in fields.items()}
            )
            history = writer.history
            writer.create_item(self.TABLE, 1.0, {name: history[name][-1] for name in fields})
            added += 1
            if added % self.FLUSHED == 0:  # it bounds the items under way
                writer.flush(block_until_num_items=self.PENDING)

        return add

    def finish(self) -> None:
        self.writer.flush()

    def sampler(self) -> Callable[[], object]:
        reverb, n = importlib.import_module("reverb"), BATCHES[self.case]
        dataset = reverb.TrajectoryDataset.from_table_signature(
            f"localhost:{self.port}", self.TABLE, max_in_flight_samples_per_worker=2 * n
        )
        batches = dataset.batch(n).as_numpy_iterator()
        return lambda: next(batches)

    def counter(self) -> Callable[[], int]:
        client = self._client()
        return lambda: int(client.server_info()[self.TABLE].current_size)

    def close(self) -> None:
        self.stop.set()
        self.server.join(LATE)


def serve(case: str, ports: Any, stop: Any) -> None:
    """Run Reverb's server until the end, and put its port into a queue."""
    reverb, tensorflow = map(importlib.import_module, ("reverb", "tensorflow"))
    shapes = {name: np.empty(spec["shape"], spec["dtype"]) for name, spec in FIELDS[case].items()}
    table = reverb.Table(
        name=Reverb.TABLE,
        sampler=reverb.selectors.Uniform(),
        remover=reverb.selectors.Fifo(),
        max_size=SIZES[case],
        rate_limiter=reverb.rate_limiters.MinSize(1),
        signature={
            name: tensorflow.TensorSpec(one.shape, one.dtype) for name, one in shapes.items()
        },
    )
    server = reverb.Server(tables=[table])
    ports.put(server.port)
    stop.wait()
    server.stop()


PACKAGES: dict[str, type[Package]] = {
    "cpprb_like": Ours,
    "one process": OneProcess,
    "copy": Copying,
    "cpprb": Cpprb,
    "reverb": Reverb,
}


def act(package: Package, begun: Any, stop: Any, found: Any) -> None:
    """Add until the end; put the steps in a second into a queue."""
    add, step = package.adder(), step_of(package.case)
    for _ in range(WARM[package.case] // package.actors):
        add(step)
    for _ in range(2):  # until all actors have rows, and until the learner has drawn
        begun.wait(LATE)
    count, began = 0, time.perf_counter()
    while not stop.is_set():
        for _ in range(CHUNK):
            add(step)
        count += CHUNK
    package.finish()
    found.put(count / (time.perf_counter() - began))


def throughput(package: Package, beside: bool) -> dict[str, float]:
    """Steps that an actor adds a second, and batches that a learner draws beside the actors."""
    context = multiprocessing.get_context("spawn")
    begun, stop = context.Barrier(package.actors + 1), context.Event()
    found = context.Queue()
    actors = [
        context.Process(target=act, args=(package, begun, stop, found), daemon=True)
        for _ in range(package.actors)
    ]
    for actor in actors:
        actor.start()
    begun.wait(LATE)
    sample = package.sampler() if beside else partial(time.sleep, 0.01)
    sample()
    begun.wait(LATE)
    began, count = time.perf_counter(), 0
    while (passed := time.perf_counter() - began) < SECONDS:
        sample()
        count += 1
    stop.set()
    rates = [found.get(timeout=LATE) for _ in actors]
    for actor in actors:
        actor.join(LATE)
    return {"adds": float(np.mean(rates)), "batches": count / passed if beside else 0.0}


def act_slowly(package: Package, begun: Any, seen: Any, when: Any) -> None:
    """Add a step after the learner saw the one before, and note the time."""
    add, step = package.adder(), step_of(package.case)
    begun.wait(LATE)
    for number in range(LATENCIES):
        while seen.value < number:
            time.sleep(PAUSE / 10)
        time.sleep(PAUSE)
        when[number] = time.monotonic_ns()
        add(step)
        package.finish()


def latency(package: Package) -> dict[str, float]:
    """Seconds from a call of ``add`` to the moment when a learner can draw the step: the median."""
    context = multiprocessing.get_context("spawn")
    begun, seen, when = context.Barrier(2), context.Value("q", 0), context.Array("q", LATENCIES)
    actor = context.Process(target=act_slowly, args=(package, begun, seen, when), daemon=True)
    actor.start()
    begun.wait(LATE)
    count = package.counter()
    found = []
    for number in range(LATENCIES):
        deadline = time.monotonic() + LATE
        while count() <= number:
            if time.monotonic() > deadline:
                raise TimeoutError("a step did not arrive")
        found.append(time.monotonic_ns() - when[number])
        seen.value = number + 1
    actor.join(LATE)
    return {"latency": float(np.median(found)) / 1e9}


def draws(case: str) -> dict[str, float]:
    """Seconds of a learner's calls and of a buffer's, in turns: the least of each, by what it is.

    No actor adds. Keys are the sampler, the number of shards (0: a buffer), the call, and
    the rows of the batch.
    """
    found: dict[str, float] = {}
    for sampler in ("uniform", "prioritized"):
        with contextlib.ExitStack() as stack:
            sources = {shards: source(case, sampler, shards, stack) for shards in (0, 1, 2, 4)}
            for n in DRAWN:
                turns = range(TURNS if case == "small" else IMAGE_TURNS)
                for _, (shards, drawn) in product(turns, sources.items()):
                    for what, seconds in timed(drawn, n, sampler == "prioritized").items():
                        key = f"{sampler} {shards} {what} {n}"
                        found[key] = min(seconds, found.get(key, seconds))
    return found


def source(case: str, sampler: str, shards: int, stack: contextlib.ExitStack) -> Any:
    """A full buffer, or a learner of a full replay of so many shards."""
    ours = importlib.import_module("cpprb_like")
    fields, size = FIELDS[case], SIZES[case] // 2
    step, count = step_of(case), size // max(shards, 1)
    rows = {
        name: np.repeat(np.asarray(step[name], spec["dtype"])[np.newaxis], count, axis=0)
        for name, spec in fields.items()
    }
    if shards == 0:
        kind = ours.ReplayBuffer if sampler == "uniform" else ours.PrioritizedReplayBuffer
        buffer = kind(size, fields, seed=0)
        buffer.add(**rows)
        return buffer
    processes = importlib.import_module("cpprb_like.processes")
    samplers = importlib.import_module("cpprb_like.samplers")
    replay = stack.enter_context(processes.SharedReplay(size, fields, writers=shards))
    for number in range(shards):
        with replay.actor(number) as actor:
            actor.add(**rows)
    chosen = samplers.Uniform() if sampler == "uniform" else samplers.Prioritized()
    learner = replay.learner(chosen, seed=0)
    for _ in range(4 * size // 256):  # its process touches each page of the memory
        learner.sample(256)
    return learner


def timed(drawn: Any, n: int, has_priorities: bool) -> dict[str, float]:
    """Seconds of one draw of n rows, and of an update of their priorities."""
    calls = max(1, CALLS // n)
    batch = drawn.sample(n)
    began = time.perf_counter()
    for _ in range(calls):
        batch = drawn.sample(n)
    found = {"sample": (time.perf_counter() - began) / calls}
    if has_priorities:
        indexes, priorities = batch["indexes"], np.linspace(0.1, 1.0, n)
        began = time.perf_counter()
        for _ in range(calls):
            drawn.update_priorities(indexes, priorities)
        found["update"] = (time.perf_counter() - began) / calls
    return found


def about(package: str) -> dict[str, str]:
    """Which release is measured, on which Python."""
    name = {"reverb": "dm-reverb", "cpprb": "cpprb"}.get(package, "numpy")
    return {"python": platform.python_version(), "release": f"{name} {version(name)}"}


MEASURES: dict[str, Callable[[Package], dict[str, float]]] = {
    "adds": partial(throughput, beside=False),
    "beside": partial(throughput, beside=True),
    "latency": latency,
}


def measured(wanted: dict[str, Any]) -> dict[str, Any]:
    """The results of a measurement."""
    if wanted["what"] == "about":
        return about(wanted["package"])
    if wanted["what"] == "draws":
        return draws(wanted["case"])
    package = PACKAGES[wanted["package"]](wanted["case"], wanted["actors"])
    try:
        return MEASURES[wanted["what"]](package)
    finally:
        package.close()


if __name__ == "__main__":
    print(json.dumps(measured(json.loads(sys.argv[1]))))
