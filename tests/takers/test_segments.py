"""Packed batches of a fixed size are compiled once by JAX; rows stay apart by their segments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from optional import need
from taker_cases import TOKENS, Array, drawn, filled, lengths, token_rows

from cpprb_like.views import Packed

jax = need("jax", "make test-integrations")
jnp = need("jax.numpy", "make test-integrations")

N, TOTAL = 8, 400  # 8 rows of at most 40 tokens
COLUMNS = ("ids", "T_positions", "T_segments")


@pytest.fixture
def packed() -> Packed:
    """Every column has the same shape in each batch."""
    return Packed(positions=True, segments=True, total=TOTAL)


def attend(library: Any, ids: Any, positions: Any, segments: Any) -> Any:
    """Causal attention of tokens to those of their segment, in JAX or NumPy, without weights."""
    waves = library.arange(1, 9)
    tokens = library.sin(ids[:, None] * waves) + library.cos(positions[:, None] * waves)
    ranks = library.arange(len(ids))
    seen = (segments[:, None] == segments[None]) & (ranks[None] <= ranks[:, None])
    shares = library.where(seen, library.exp(tokens @ tokens.T), 0)
    return shares @ tokens / shares.sum(1, keepdims=True)


def alone(row: dict[str, Array]) -> Array:
    """The same of a row without others. NumPy need not compile it for each length."""
    n = len(row["ids"])
    outputs: Array = attend(np, row["ids"], np.arange(n), np.zeros(n, np.int32))
    return outputs


def test_one_compilation_for_batches_of_all_lengths(
    packed: Packed, rng: np.random.Generator
) -> None:
    """A function is traced once, and gives each row what it gives the row alone."""
    rows = token_rows(lengths(100, rng), rng)
    view = filled(TOKENS, rows).view(packed)
    traces = []

    def traced(ids: Any, positions: Any, segments: Any) -> Any:
        traces.append(ids.shape)
        return attend(jnp, ids, positions, segments)

    compiled = jax.jit(traced)
    totals = set()
    for batch in (view.sample(N) for _ in range(5)):
        outputs = compiled(*(jnp.asarray(batch[name]) for name in COLUMNS))
        starts = batch["T_offsets"].tolist()
        totals.add(starts[N])
        for k, row in enumerate(drawn(rows, batch)):
            ours = outputs[starts[k] : starts[k + 1]]
            np.testing.assert_allclose(ours, alone(row), rtol=1e-3, atol=1e-3)

    assert len(totals) > 1
    assert traces == [(TOTAL,)]


def test_batches_as_arrays_of_jax_go_through_a_compiled_function(
    packed: Packed, rng: np.random.Generator
) -> None:
    """``batches(to="jax")`` gives a container that is compiled once; a sum per segment is one."""
    rows = token_rows(lengths(100, rng), rng)
    view = filled(TOKENS, rows).view(packed)
    traces = []

    def traced(batch: Any) -> Any:
        traces.append(batch.logp.shape)
        return jax.ops.segment_sum(batch.logp, batch.T_segments, num_segments=N + 1)[:N]

    sums = jax.jit(traced)
    with view.batches(N, to="jax") as batches:
        for _, batch in zip(range(5), batches, strict=False):
            numbers = np.asarray(batch["row"])
            expected = [rows[number]["logp"].sum(dtype=np.float64) for number in numbers]
            np.testing.assert_allclose(sums(batch), expected, rtol=1e-4, atol=1e-4)

    assert len(traces) == 1


def test_items_behind_the_rows_are_a_segment_of_their_own(
    packed: Packed, rng: np.random.Generator
) -> None:
    """No row attends to what fills the batch up, and that has no label."""
    rows = token_rows(lengths(100, rng), rng)
    batch = filled(TOKENS, rows).view(packed).sample(N)
    items = sum(len(row["ids"]) for row in drawn(rows, batch))

    segments, positions = batch["T_segments"], batch["T_positions"]

    assert {len(batch[name]) for name in (*COLUMNS, "logp")} == {TOTAL}
    expected = [k for k, row in enumerate(drawn(rows, batch)) for _ in row["ids"]]
    np.testing.assert_array_equal(segments[:items], expected)
    assert {*segments[items:].tolist()} == {N}
    assert positions.min() >= 0
    np.testing.assert_array_equal(positions[items:], np.arange(TOTAL - items))


def test_memory_is_that_of_the_batch(packed: Packed, rng: np.random.Generator) -> None:
    """JAX reads the arrays that the draw filled; it copies what is not aligned to 64 bytes."""
    rows = token_rows(lengths(100, rng), rng)
    batch = filled(TOKENS, rows).view(packed).sample(N)

    for name in (*COLUMNS, "labels", "logp"):
        ours = jax.dlpack.from_dlpack(batch[name])
        assert ours.unsafe_buffer_pointer() == batch[name].ctypes.data, name
