"""Large batches: copied by several threads and past the caches, with not a byte another.

The thresholds are lowered for these tests, so small batches take the ways of large ones.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from forked import outcome
from optional import need
from strategies import Array

import cpprb_like
from cpprb_like import ReplayBuffer
from cpprb_like._machine.blocks import share_from, stream_from
from cpprb_like.buffers import Mixture
from cpprb_like.views import FrameStacks, NStep, Sequences

SIZES = [0, 1, 2, 3, 5, 64, 129]
# Of rows: below and above a piece of 512 bytes, whole cache lines and not, above 65536.
ROWS = [1, 200, 511, 512, 513, 576, 4095, 70001]
ENDS: dict[str, Any] = {"done": {"shape": ()}}
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks are of Unix")


@pytest.fixture(params=[1, 2, 3, 7], ids="{} threads".format)
def lowered(request: pytest.FixtureRequest) -> Iterator[Callable[[bool], None]]:
    """A switch between the ways of large batches and of small ones."""
    shared, streamed = share_from(1), stream_from(0)

    def switch(to_large: bool) -> None:
        share_from(1 if to_large else shared)
        stream_from(0 if to_large else streamed)

    cpprb_like.set_num_threads(request.param)
    yield switch
    switch(False)
    cpprb_like.set_num_threads(None)


def filled(nbytes: int = 600, depth: int = 3, **options: Any) -> ReplayBuffer:
    """A wrapped buffer whose values are images of so many bytes, and stacks of them."""
    rng = np.random.default_rng(nbytes)
    frames = rng.integers(0, 256, (211, nbytes), dtype=np.uint8)
    stacks = np.stack([np.roll(frames, k, axis=0) for k in reversed(range(depth))], axis=1)
    rb = ReplayBuffer(
        150,
        {
            "obs": {"shape": (nbytes,), "dtype": "u1"},
            "next_obs": {"shape": (nbytes,), "dtype": "u1"},
            "first": {"shape": (depth, nbytes), "dtype": "u1"},
            "last": {"shape": (nbytes, depth), "dtype": "u1"},
            "wide": {"shape": (40,), "dtype": "f8"},
            "rew": {"shape": ()},
            **ENDS,
        },
        seed=0,
        **options,
    )
    n = 210
    rb.add(
        obs=frames[:n],
        next_obs=frames[1:],
        first=stacks[:n],
        last=np.moveaxis(stacks[:n], 1, -1),
        wide=rng.normal(size=(n, 40)),
        rew=rng.normal(size=n),
        done=np.arange(n) % 23 == 22,
    )
    return rb


Read = Callable[[ReplayBuffer, int], dict[str, Array]]


def into(rb: ReplayBuffer, n: int) -> dict[str, Array]:
    """A batch in arrays that begin anywhere."""
    out = {}
    for k, (name, spec) in enumerate(rb.columns.items()):
        size = n * spec.dtype.itemsize * int(np.prod(spec.shape))
        memory = np.full(size + 64, 99, np.uint8)
        at = spec.dtype.itemsize * (k % 3 + 1)
        out[name] = memory[at : at + size].view(spec.dtype).reshape(n, *spec.shape)
    return rb.sample(n, out=out)


READS: dict[str, Read] = {
    "rows": lambda rb, n: rb.sample(n),
    "some": lambda rb, n: rb.sample(n, fields=["wide", "obs", "rew"]),
    "into": into,
    "whole": lambda rb, n: rb[: min(n, len(rb))],
    "n-step": lambda rb, n: rb.view(NStep(3, 0.9, rew="rew", next=["next_obs"])).sample(n),
    "sequences": lambda rb, n: rb.view(Sequences(4)).sample(n),
    "across": lambda rb, n: rb.view(Sequences(5, across_episodes=True)).sample(n),
    "first of sequences": lambda rb, n: rb.view(Sequences(4, first_only="obs")).sample(n),
    "stacks": lambda rb, n: rb.view(FrameStacks({"obs": 4}, axis=0)).sample(n),
    "stacks, last": lambda rb, n: rb.view(FrameStacks({"obs": 4, "wide": 2})).sample(n),
    "stack": lambda rb, n: {"stack": rb.stack("obs", np.arange(2 * n).reshape(n, 2) % 150 - 3)},
    "mixture": lambda rb, n: Mixture({"a": rb, "b": filled()}, {"a": 1, "b": 2}, seed=0).sample(n),
}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "chained": {"next_of": "obs"},
    "compressed": {"stack_compress": {"first": 0, "last": -1}},
    "n-step": {"Nstep": {"size": 3, "gamma": 0.9, "rew": "rew", "next": "next_obs"}},
}


def check_same(
    switch: Callable[[bool], None], make: Callable[[], ReplayBuffer], read: Read
) -> None:
    """Equal buffers give equal batches, whichever way they are copied."""
    ours, twin = make(), make()
    for n in SIZES:
        switch(True)
        batch = read(ours, n)
        switch(False)
        expected = read(twin, n)
        assert batch.keys() == expected.keys()
        for name, values in expected.items():
            np.testing.assert_array_equal(batch[name], values, err_msg=f"{name}, {n} rows")


@pytest.mark.once
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("read", READS)
def test_every_reading_has_the_same_bytes(
    lowered: Callable[[bool], None], kind: str, read: str
) -> None:
    """Of every kind of buffer; of no rows, of fewer than threads, and of more."""
    check_same(lowered, lambda: filled(**KINDS[kind]), READS[read])


@pytest.mark.once
@pytest.mark.parametrize("nbytes", ROWS)
@pytest.mark.parametrize("kind", ["plain", "chained"])
def test_rows_of_every_size(lowered: Callable[[bool], None], kind: str, nbytes: int) -> None:
    """Around the sizes at which the loops change, into arrays that begin anywhere."""
    small = {"depth": 2} if nbytes > 4096 else {}
    check_same(lowered, lambda: filled(nbytes, **small, **KINDS[kind]), into)


def test_what_is_drawn_is_what_was_added(lowered: Callable[[bool], None]) -> None:
    """Not only the same bytes as otherwise: those that were added."""
    lowered(True)
    rb = ReplayBuffer(
        90, {"id": {"shape": (), "dtype": "i8"}, "x": {"shape": 1001, "dtype": "u2"}}, seed=0
    )
    ids = np.arange(200)
    rb.add(id=ids, x=ids[:, np.newaxis] * 7 + np.arange(1001))
    for n in SIZES:
        batch = rb.sample(n)
        expected = batch["id"][:, np.newaxis] * 7 + np.arange(1001)
        np.testing.assert_array_equal(batch["x"], expected)


def test_neighbouring_memory_stays_as_it_is(lowered: Callable[[bool], None]) -> None:
    """Nothing is written before or behind an array, however it is aligned."""
    lowered(True)
    rb = ReplayBuffer(10, {"x": {"shape": 777, "dtype": "u1"}}, seed=0)
    rb.add(x=np.full((10, 777), 5))
    for at in range(1, 66):
        memory = np.full(3 * 777 + 200, 9, np.uint8)
        inside = memory[at : at + 3 * 777]
        rb.sample(3, out={"x": inside.reshape(3, 777)})
        assert (inside == 5).all()
        assert (memory == 5).sum() == inside.size


@pytest.mark.parametrize("n", [0, -3, True, 2.0, "2", 1.5])
def test_wrong_numbers_of_threads(n: Any) -> None:
    """They are refused by name, and nothing has changed."""
    before = cpprb_like.get_num_threads()
    with pytest.raises((TypeError, ValueError), match="n: expected"):
        cpprb_like.set_num_threads(n)
    assert cpprb_like.get_num_threads() == before


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_environment_names_the_default() -> None:
    """Of this process and its children; what is no number of threads is refused when it is read."""
    code = """
        import cpprb_like
        print(cpprb_like.get_num_threads())
        cpprb_like.set_num_threads(5)
        print(cpprb_like.get_num_threads())
        cpprb_like.set_num_threads(None)
        print(cpprb_like.get_num_threads())
    """
    assert run(code, CPPRB_LIKE_NUM_THREADS="3").stdout.split() == ["3", "5", "3"]
    for wrong in ("0", "many", "-1", "2.5"):
        refused = run("import cpprb_like", CPPRB_LIKE_NUM_THREADS=wrong)
        assert refused.returncode == 1
        assert f"CPPRB_LIKE_NUM_THREADS: expected an integer of at least 1, got {wrong!r}" in (
            refused.stderr
        )


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="masks of cores are of Linux")
def test_the_default_is_not_more_than_the_cores_of_the_process() -> None:
    """As it is now: a worker may be tied to one core after the package was imported."""
    code = """
        import os, cpprb_like
        print(cpprb_like.get_num_threads() == min(4, len(os.sched_getaffinity(0))))
        os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
        print(cpprb_like.get_num_threads())
    """
    assert run(code, CPPRB_LIKE_NUM_THREADS="").stdout.split() == ["True", "1"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks /proc for the memory in use")
def test_where_no_thread_can_be_started_the_caller_does_all() -> None:
    """There is no memory for the stack of a thread: the batch is the same."""
    need("resource")
    code = """
        import resource, numpy as np, cpprb_like
        from cpprb_like._machine.blocks import share_from
        rb = cpprb_like.ReplayBuffer(100, {"x": {"shape": 1000, "dtype": "u1"}}, seed=0)
        rb.add(x=np.arange(100)[:, None].repeat(1000, axis=1))
        out = {"x": np.zeros((64, 1000), "u1")}
        cpprb_like.set_num_threads(4)
        share_from(1)
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 2**20, used + 2**20))
        rb.sample(64, out=out)
        resource.setrlimit(resource.RLIMIT_AS, (used + 2**20, used + 2**20))
        assert (out["x"] == out["x"][:, :1]).all() and len(set(out["x"][:, 0])) > 20
        print("done")
    """
    found = run(code)
    assert found.stdout == "done\n", found.stderr


@pytest.mark.once
@needs_fork
def test_forks_while_others_draw(lowered: Callable[[bool], None]) -> None:
    """A child has none of the threads, needs none, and draws with its own."""
    lowered(True)
    rb = filled()
    done = threading.Event()

    def draw() -> None:
        while not done.is_set():
            rb.sample(64)

    drawing = [threading.Thread(target=draw) for _ in range(2)]
    for thread in drawing:
        thread.start()
    try:
        for _ in range(5):
            assert outcome(lambda: [rb.sample(64) for _ in range(5)]) == 0
    finally:
        done.set()
        for thread in drawing:
            thread.join()


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="timers are of Unix")
def test_signals_come_through(lowered: Callable[[bool], None]) -> None:
    """Handlers run, in the main thread and between calls; one that raises spoils nothing."""
    lowered(True)
    rb, twin = filled(), filled()
    seen = []
    inside = False

    def handle(number: int, frame: Any) -> None:
        nonlocal inside
        del frame
        seen.append(number)
        if len(seen) % 2 and inside:  # where it is caught
            inside = False
            raise InterruptedError

    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
    try:
        while len(seen) < 20:
            with contextlib.suppress(InterruptedError):
                inside = True
                rb.sample(129)
                inside = False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    for name, values in twin.get_all_transitions().items():
        np.testing.assert_array_equal(rb.get_all_transitions()[name], values)
