"""What is measured, in groups; each group runs in a process of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from floor import ENV_DICT, Batch, Floor
from measure import Effort, Row, compiled, interleave, statement

from cpprb_like import ReplayBuffer

__all__ = ["ADD", "GROUPS", "Group", "filled", "filled_pairs", "random_steps"]

IMAGE_SHAPE = (84, 84, 4)
IMAGE = {"shape": IMAGE_SHAPE, "dtype": np.uint8}
IMAGE_PAIR = {"obs": IMAGE, "next_obs": IMAGE}
ADD = "target.add(obs=obs, act=act, rew=rew, next_obs=next_obs, done=done)"
FIXED_COST = 3.0  # microseconds that a call of sample may take besides its rows


class Empty:
    """A method that takes the fields of a step and does nothing."""

    def add(self, *, obs: object, act: object, rew: object, next_obs: object, done: object) -> None:
        """Nothing."""


def random_steps(n: int) -> Batch:
    """Steps of five small fields; episodes of 50 steps on average."""
    rng = np.random.default_rng(0)
    return {
        "obs": rng.random((n, 4), np.float32),
        "act": rng.integers(0, 4, n),
        "rew": rng.random(n, np.float32),
        "next_obs": rng.random((n, 4), np.float32),
        "done": rng.random(n) < 0.02,
    }


def filled(rows: int, nstep: dict[str, Any] | None = None) -> ReplayBuffer:
    """A full buffer of random steps, which may be read as several steps."""
    rb = ReplayBuffer(rows, ENV_DICT, Nstep=nstep, seed=0)
    chunk = random_steps(min(rows, 100_000))
    while rb.ring.stored < rows:
        left = rows - rb.ring.stored
        rb.add(**{name: column[:left] for name, column in chunk.items()})
    return rb


def filled_pairs(rows: int) -> ReplayBuffer:
    """A full buffer of pairs of stacked images, all of their bytes stored."""
    rb = ReplayBuffer(rows, IMAGE_PAIR, seed=0)
    chunk = np.random.default_rng(0).integers(0, 256, (100, *IMAGE_SHAPE), np.uint8)
    while len(rb) < rb.capacity:
        rb.add(obs=chunk, next_obs=chunk)
    return rb


def add(effort: Effort, library: Path) -> Iterator[Row]:
    """One step against an empty method, several against C."""
    rb = filled(effort.rows)
    row = {name: column[0] for name, column in random_steps(1).items()}
    numbers = {"act": 1, "rew": 0.5, "done": False}
    doubles = {name: row[name].astype(np.float64) for name in ("obs", "next_obs")}
    for what, fields, budget in (
        ("add 1 step, Python scalars", row | numbers, 2.0),
        ("add 1 step, NumPy scalars", row, 2.0),
        ("add 1 step, float64 arrays to convert", row | numbers | doubles, None),
    ):
        nothing, empty, ours = interleave(
            effort,
            statement("pass"),
            statement(ADD, target=Empty(), **fields),
            statement(ADD, target=rb, **fields),
        )
        yield Row.of(what, ours - nothing, empty - nothing, budget)
    for n, budget in ((64, 2.0), (1024, 1.5)):
        batch = random_steps(n)
        floor = Floor(library, rb)
        ours, by_table, by_hand = interleave(
            effort,
            statement(ADD, target=rb, **batch),
            compiled(floor.scatter(batch)),
            compiled(floor.scatter_steps(batch)),
        )
        yield Row.of(f"add {n} steps", ours, by_table, budget)
        yield Row.of(f"add {n} steps, against C for these very fields", ours, by_hand)


def sample(effort: Effort, library: Path) -> Iterator[Row]:
    """Batches of small steps against C."""
    rb = filled(effort.rows)
    (fixed,) = interleave(effort, statement("batch = rb.sample(0)", rb=rb))
    held = fixed <= FIXED_COST
    yield Row("sample(0): the cost of the call", fixed, None, f"<= {FIXED_COST:g} us", held)
    for n in (32, 256, 2048, 16384):
        yield _sample(effort, library, rb, n, 1.5 if n == 256 else None)
    yield _sample(effort, library, rb, 256, None, "sample({n}, replace=False)")
    yield _sample(effort, library, rb, 256, None, "sample({n}, out=batch)")


def growth(effort: Effort, library: Path) -> Iterator[Row]:
    """The same batch from smaller and larger buffers."""
    for rows in effort.growth:
        yield _sample(effort, library, filled(rows), 256, 1.5)


def _sample(
    effort: Effort,
    library: Path,
    rb: ReplayBuffer,
    n: int,
    budget: float | None,
    call: str = "sample({n})",
) -> Row:
    call = call.format(n=n)
    batch = rb.sample(n)
    ours, in_c = interleave(
        effort,
        statement(f"fresh = rb.{call}", rb=rb, batch=rb.sample(n)),
        compiled(Floor(library, rb).sample(batch)),
    )
    return Row.of(f"{call} of {len(rb):.0e} rows", ours, in_c, budget, FIXED_COST)


def images(effort: Effort, library: Path) -> Iterator[Row]:
    """Batches of large rows against memcpy into memory that is warm."""
    rb = filled_pairs(effort.image_pairs)
    batch = rb.sample(32)
    ours, in_c = interleave(
        effort,
        statement("batch = rb.sample(32)", rb=rb),
        compiled(Floor(library, rb).copy_pairs(batch)),
    )
    yield Row.of("sample(32) of image pairs", ours, in_c, 1.15)


def memory(effort: Effort, library: Path) -> Iterator[Row]:
    """Bytes of a row: what the buffer says, and what the process uses for it."""
    del library
    for what, env_dict, rows in (
        ("small steps", ENV_DICT, effort.rows),
        ("image pairs", IMAGE_PAIR, effort.image_pairs),
    ):
        before = _resident_nbytes()
        rb = ReplayBuffer(rows, env_dict)
        columns = rb.ring.columns
        step = {column.name: np.zeros((1, *column.shape), column.dtype) for column in columns}
        for _ in range(rows):
            rb.add(**step)
        declared = sum(column.nbytes for column in columns)
        limit = 1.05 * (declared + 16)
        budget = f"<= {limit:.5g} B"
        said = rb.nbytes / rows
        yield Row(f"memory of {what}", said, declared, budget, said <= limit, "B", said / declared)
        used = (_resident_nbytes() - before) / rows
        del rb, columns
        if used > 0:
            label = f"memory of {what}, resident when full"
            yield Row(label, used, declared, "", None, "B", used / declared)


def _resident_nbytes() -> int:
    """Memory of this process that is in use, 0 where the system does not tell."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.exists() else 0


Group = Callable[[Effort, Path], Iterator[Row]]
GROUPS: dict[str, Group] = {
    "add": add,
    "sample": sample,
    "growth": growth,
    "memory": memory,
    "images": images,
}
