"""flashbax: priorities, its tree, sequences."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import flashbax
import jax
import jax.numpy as jnp
import numpy as np
from contender import MEASURED_SMALL
from data import ALPHA, BETA, GAME, CycleInputs, TreeInputs, random_steps, taking_turns
from flashbax.buffers import sum_tree
from measure import Work, compiled

from .flashbax_uniform import Filled, adding, drawing, shelf, theirs, with_fresh_key

__all__ = ["theirs"]

BATCH = 256

theirs.cannot("save_large load_large save_again", MEASURED_SMALL)
theirs.cannot("record", "it leaves to the program which observation came before a step")
theirs.cannot("nstep_add nstep_sample", "it has no n-step sums")
theirs.cannot("sequences frame_sequences", "its sequences run across the ends of episodes")
theirs.cannot(
    "stacked_add stacked_sample stacked_sample_contiguous stacked_nbytes",
    "it makes no stacks of frames",
)
theirs.cannot("tree_set_both", "its tree holds sums alone")


def prioritized(rows: int) -> tuple[Filled, Any, CycleInputs]:
    """A full buffer of small steps with priorities, its functions, and priorities to come."""
    inputs = CycleInputs(rows, BATCH)
    make = partial(flashbax.make_prioritised_item_buffer, priority_exponent=ALPHA, device="cpu")
    buffer = Filled(make, rows, random_steps(rows))
    functions = buffer.make(sample_batch_size=BATCH)
    buffer.state = jax.jit(functions.set_priorities, donate_argnums=0)(
        buffer.state, np.arange(rows), inputs.first.astype(np.float32)
    )
    return buffer, functions, inputs


@theirs.does("prioritized_add")
def prioritized_add(rows: int) -> Work:
    """New steps get the greatest priority."""
    return adding(shelf.get(prioritized, rows)[0], "small")


def weighted(functions: Any, state: Any, key: Any) -> tuple[Any, Any, Any]:
    """A batch, its rows, and importance weights of their probabilities, the greatest 1."""
    batch = functions.sample(state, key)
    weights = batch.probabilities**-BETA
    return batch.experience, batch.indices, weights / jnp.max(weights)


@theirs.does("prioritized_draw")
def prioritized_draw(rows: int) -> Work:
    """``sample``, and importance weights, which are left to the user."""
    buffer, functions, _ = shelf.get(prioritized, rows)
    return drawing(partial(weighted, functions), buffer.state)


@theirs.does("prioritized_update")
def prioritized_update(rows: int) -> Work:
    """``set_priorities`` of rows that change from call to call."""
    buffer, functions, inputs = shelf.get(prioritized, rows)
    renew = jax.jit(functions.set_priorities, donate_argnums=0)
    keys = jax.random.split(jax.random.PRNGKey(1), len(inputs.fresh))
    draw = jax.jit(functions.sample)
    drawn = np.array([draw(buffer.state, key).indices for key in keys])
    fresh = taking_turns(drawn, inputs.fresh.astype(np.float32))

    def work(calls: int) -> None:
        for _ in range(calls):
            buffer.state = renew(buffer.state, *fresh())
        jax.block_until_ready(buffer.state)

    return compiled(work)


@theirs.does("prioritized_cycle")
def prioritized_cycle(rows: int) -> Work:
    """Both, one behind the other: in one function, XLA copies the state."""
    buffer, functions, inputs = shelf.get(prioritized, rows)
    draw = jax.jit(partial(with_fresh_key, partial(weighted, functions)))
    renew = jax.jit(functions.set_priorities, donate_argnums=0)
    fresh = taking_turns(inputs.fresh.astype(np.float32))
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
    """JAX computes with 64 bits meanwhile."""
    jax.config.update("jax_enable_x64", True)
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", False)


def tree(inputs: TreeInputs) -> Any:
    """Its tree with these weights, in float64: in float32 it finds other leaves of so many."""
    leaves = inputs.weights.size
    set_all = jax.jit(sum_tree.set_batch_bincount, donate_argnums=0)
    return set_all(sum_tree.init(leaves), np.arange(leaves), inputs.weights)


@theirs.does("tree_find")
def tree_find(leaves: int, n: int) -> Work:
    """``sample`` for many fractions of the sum."""
    inputs = TreeInputs(leaves, n)
    find = jax.jit(jax.vmap(sum_tree.sample, in_axes=(None, None, 0)))
    fresh = taking_turns(inputs.targets / inputs.weights.sum())
    with float64():
        sums = tree(inputs)

    def work(calls: int) -> None:
        with float64():
            for _ in range(calls):
                found = find(sums, None, fresh())
            jax.block_until_ready(found)

    return compiled(work)


@theirs.does("tree_set")
def tree_set(leaves: int, n: int) -> Work:
    """``set_batch_scan``: of its two functions the one for CPUs."""
    inputs = TreeInputs(leaves, n)
    renew = jax.jit(sum_tree.set_batch_scan, donate_argnums=0)
    fresh = taking_turns(inputs.slots, inputs.values)
    with float64():
        sums = [tree(inputs)]

    def work(calls: int) -> None:
        with float64():
            for _ in range(calls):
                sums[0] = renew(sums[0], *fresh())
            jax.block_until_ready(sums)

    return compiled(work)


def long_episodes(rows: int, n: int, length: int) -> tuple[Any, Any]:
    """A trajectory buffer's functions, and its state, full of steps of long episodes."""
    functions = flashbax.make_trajectory_buffer(
        add_batch_size=1,
        sample_batch_size=n,
        sample_sequence_length=length,
        period=1,
        min_length_time_axis=length,
        max_length_time_axis=rows,
    )
    steps = random_steps(rows) | {"done": np.arange(rows) % GAME == GAME - 1}
    state = jax.jit(functions.init)({name: column[0] for name, column in steps.items()})
    add = jax.jit(functions.add, donate_argnums=0)
    return functions, add(state, {name: column[None] for name, column in steps.items()})


@theirs.does("sequences_across")
def sequences_across(rows: int, n: int, length: int) -> Work:
    """``sample`` of a trajectory buffer, which knows of no episodes."""
    functions, state = shelf.get(long_episodes, rows, n, length)
    return drawing(functions.sample, state)
