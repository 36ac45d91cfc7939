"""flashbax: its item buffers and trajectory buffer, and its tree."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import data
import flashbax
import jax
import jax.numpy as jnp
import numpy as np
from contender import Peer
from flashbax.buffers import sum_tree
from flashbax.vault import Vault
from loop import Add, Sample, loop_cases
from measure import Work, compiled

from .common import after, folder_cases, give_memory_back, importing, memory_cases

BATCH = 256
UNCOMPRESSED = {"id": "zlib", "level": 0}

Step = dict[str, Any]

theirs = Peer(
    "flashbax",
    "Its item buffers, as its README advises for speed, and its trajectory buffer. Each call is "
    "compiled by jax.jit, and gives the state away if it changes it; calls follow one another "
    "without waiting, and time ends when all results are there. JAX has no int64 by default.",
)
theirs.cannot("sample_tensors", "its batches are arrays of JAX")
theirs.cannot("nstep_add nstep_sample", "it has no n-step sums")
theirs.cannot("sequences frame_sequences", "its sequences run across the ends of episodes")
theirs.cannot(
    "stacked_add stacked_sample stacked_sample_contiguous stacked_nbytes",
    "it makes no stacks of frames",
)
theirs.cannot("tree_set_both", "its tree holds sums alone")


class Filled:
    """The state of a full buffer, and what it was made of."""

    def __init__(self, make: Callable[..., Any], rows: int, chunk: Step) -> None:
        self.rows = rows
        self.make = partial(make, max_length=rows, min_length=1)
        whole = self.make(sample_batch_size=1, add_sequences=True)
        self.state = jax.jit(whole.init)({name: column[0] for name, column in chunk.items()})
        self.add_all = jax.jit(whole.add, donate_argnums=0)
        size = len(chunk["done"])
        for start in range(0, rows, size):
            part = {name: column[: rows - start] for name, column in chunk.items()}
            self.state = self.add_all(self.state, part)
        jax.block_until_ready(self.state)

    def changing(self, function: Any, arguments: Callable[[], tuple[Any, ...]]) -> Work:
        """Work that changes the state by this function, with other arguments for each call."""

        def work(calls: int) -> None:
            for _ in range(calls):
                self.state = function(self.state, *arguments())
            jax.block_until_ready(self.state)

        return compiled(work)


def filled(rows: int, kind: str = "small") -> Filled:
    """A full item buffer."""
    return Filled(flashbax.make_item_buffer, rows, data.filling(rows, kind))


def compact(rows: int, kind: str) -> Filled:
    """A full flat buffer: next observations are those of the next step."""
    steps = data.trajectory(min(data.GAME, rows), kind)
    del steps["next_obs"]
    return Filled(flashbax.make_flat_buffer, rows, steps)


def adding(buffer: Filled, kind: str = "small") -> Work:
    """``add`` of a step, its numbers Python's; it is jitted, and the state is given away."""
    single = jax.jit(buffer.make(sample_batch_size=1).add, donate_argnums=0)
    step = data.one_step(kind)
    return buffer.changing(single, lambda: (step,))


def adding_many(buffer: Filled, n: int, kind: str) -> Work:
    """``add`` of a sequence of items."""
    steps = data.random_steps(n, kind)
    return buffer.changing(buffer.add_all, lambda: (steps,))


def with_fresh_key(draw: Any, state: Any, key: Any) -> tuple[Any, Any]:
    """What is drawn with a key split off, and the other key."""
    key, now = jax.random.split(key)
    return key, draw(state, now)


def drawing(draw: Any, state: Any) -> Work:
    """Work that draws from a state, jitted together with the split of its key."""
    turn = jax.jit(partial(with_fresh_key, draw))
    keys = [jax.random.PRNGKey(0)]

    def work(calls: int) -> None:
        key = keys.pop()
        for _ in range(calls):
            key, batch = turn(state, key)
        keys.append(key)
        jax.block_until_ready(batch)

    return compiled(work)


Prioritized = tuple[Filled, Any, data.CycleInputs]


def prioritized(rows: int) -> Prioritized:
    """A full buffer of small steps with priorities, its functions, and priorities to come."""
    inputs = data.CycleInputs(rows, BATCH)
    make = partial(
        flashbax.make_prioritised_item_buffer, priority_exponent=data.ALPHA, device="cpu"
    )
    buffer = Filled(make, rows, data.random_steps(rows))
    functions = buffer.make(sample_batch_size=BATCH)
    renew = jax.jit(functions.set_priorities, donate_argnums=0)
    buffer.state = renew(buffer.state, np.arange(rows), inputs.first.astype(np.float32))
    return buffer, functions, inputs


def weighted(functions: Any, state: Any, key: Any) -> tuple[Any, Any, Any]:
    """A batch, its rows, and importance weights, which are left to the user."""
    batch = functions.sample(state, key)
    weights = batch.probabilities**-data.BETA
    return batch.experience, batch.indices, weights / jnp.max(weights)


def updating(held: Prioritized) -> Work:
    """``set_priorities`` of rows that change from call to call."""
    buffer, functions, inputs = held
    keys = jax.random.split(jax.random.PRNGKey(1), len(inputs.fresh))
    draw = jax.jit(functions.sample)
    drawn = np.array([draw(buffer.state, key).indices for key in keys])
    fresh = data.taking_turns(drawn, inputs.fresh.astype(np.float32))
    return buffer.changing(jax.jit(functions.set_priorities, donate_argnums=0), fresh)


def drawing_and_updating(held: Prioritized) -> Work:
    """Both, one behind the other: in one function, XLA copies the state."""
    buffer, functions, inputs = held
    draw = jax.jit(partial(with_fresh_key, partial(weighted, functions)))
    renew = jax.jit(functions.set_priorities, donate_argnums=0)
    fresh = data.taking_turns(inputs.fresh.astype(np.float32))
    keys = [jax.random.PRNGKey(0)]

    def work(calls: int) -> None:
        key = keys.pop()
        for _ in range(calls):
            key, (_, indices, weights) = draw(buffer.state, key)
            buffer.state = renew(buffer.state, indices, fresh())
        keys.append(key)
        jax.block_until_ready((buffer.state, weights))

    return compiled(work)


@contextmanager
def float64() -> Iterator[None]:
    """JAX computes with 64 bits within: in float32 its tree finds other leaves of so many."""
    jax.config.update("jax_enable_x64", True)
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", False)


def tree(leaves: int, n: int) -> tuple[list[Any], data.TreeInputs]:
    """Its tree of sums, and inputs of calls."""
    inputs = data.TreeInputs(leaves, n)
    set_all = jax.jit(sum_tree.set_batch_bincount, donate_argnums=0)
    with float64():
        return [set_all(sum_tree.init(leaves), np.arange(leaves), inputs.weights)], inputs


def finding(held: tuple[list[Any], data.TreeInputs]) -> Work:
    """``sample`` for many fractions of the sum."""
    sums, inputs = held
    find = jax.jit(jax.vmap(sum_tree.sample, in_axes=(None, None, 0)))
    fresh = data.taking_turns(inputs.targets / inputs.weights.sum())

    def work(calls: int) -> None:
        with float64():
            for _ in range(calls):
                found = find(sums[0], None, fresh())
            jax.block_until_ready(found)

    return compiled(work)


def setting(held: tuple[list[Any], data.TreeInputs]) -> Work:
    """``set_batch_scan``: of its two functions the one for CPUs."""
    sums, inputs = held
    renew = jax.jit(sum_tree.set_batch_scan, donate_argnums=0)
    fresh = data.taking_turns(inputs.slots, inputs.values)

    def work(calls: int) -> None:
        with float64():
            for _ in range(calls):
                sums[0] = renew(sums[0], *fresh())
            jax.block_until_ready(sums)

    return compiled(work)


def long_episodes(rows: int, n: int, length: int) -> tuple[Any, Any]:
    """A trajectory buffer's function that draws, and its state, full of steps of long episodes."""
    functions = flashbax.make_trajectory_buffer(
        add_batch_size=1,
        sample_batch_size=n,
        sample_sequence_length=length,
        period=1,
        min_length_time_axis=length,
        max_length_time_axis=rows,
    )
    steps = data.random_steps(rows) | {"done": np.arange(rows) % data.GAME == data.GAME - 1}
    state = jax.jit(functions.init)({name: column[0] for name, column in steps.items()})
    add = jax.jit(functions.add, donate_argnums=0)
    return functions.sample, add(state, {name: column[None] for name, column in steps.items()})


def vault(buffer: Filled, folder: str) -> Vault:
    """A new vault with all rows of a buffer, without compression."""
    structure = buffer.state.experience
    made = Vault("steps", structure, rel_dir=folder, compression=UNCOMPRESSED)
    made.write(buffer.state, source_interval=(0, buffer.rows))
    return made


def loading(buffer: Filled) -> Work:
    """``read`` of a Vault that is open."""
    folder = TemporaryDirectory()
    stored = vault(buffer, folder.name)

    def read() -> None:
        assert Path(folder.name).exists()  # as long as the work lives
        jax.block_until_ready(stored.read().experience)

    return after(give_memory_back, read)


theirs.works_on(
    filled,
    add_one=adding,
    add_many=adding_many,
    add_envs=adding_many,
    sample=lambda buffer, n: drawing(buffer.make(sample_batch_size=n).sample, buffer.state),
    load=loading,
)
theirs.works_on(
    prioritized,
    prioritized_add=lambda held: adding(held[0]),
    prioritized_draw=lambda held: drawing(partial(weighted, held[1]), held[0].state),
    prioritized_update=updating,
    prioritized_cycle=drawing_and_updating,
)
theirs.works_on(tree, tree_find=finding, tree_set=setting)
# A trajectory buffer knows of no episodes.
theirs.works_on(long_episodes, sequences_across=lambda held: drawing(*held))
folder_cases(theirs, filled, vault)
theirs.does("import_time")(partial(importing, "flashbax"))  # with JAX
memory_cases(  # of the state; the functions of a buffer hold compiled programs
    theirs,
    memory=lambda rows, kind: filled(rows, kind).state,
    memory_compact=lambda rows, kind: compact(rows, kind).state,
)


def replay(capacity: int) -> tuple[Add, Sample]:
    """Its item buffer; each call waits for its results, which NumPy sees without a copy."""
    make = partial(flashbax.make_item_buffer, max_length=capacity, min_length=1)
    single = make(sample_batch_size=1)
    write = jax.jit(single.add, donate_argnums=0)
    state, key = jax.jit(single.init)(data.one_step("small")), jax.random.PRNGKey(0)
    draw: Any = None

    def add(step: Step, _: bool) -> None:
        nonlocal state
        state = jax.block_until_ready(write(state, step))

    def sample(n: int) -> Step:
        nonlocal draw, key
        if draw is None:
            draw = jax.jit(partial(with_fresh_key, make(sample_batch_size=n).sample))
        key, batch = draw(state, key)
        return {name: np.asarray(column) for name, column in batch.experience.items()}

    return add, sample


loop_cases(theirs, replay)
