"""Values and offsets of a packed batch are a nested tensor of PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from optional import need
from taker_cases import TOKENS, as_tensors, draw, drawn, filled, lengths, token_rows

from cpprb_like.views import Packed

torch = need("torch", "make test-integrations")

pytestmark = pytest.mark.filterwarnings("ignore")  # nested tensors are a prototype, it says


def jagged(batch: dict[str, Any], name: str) -> Any:
    """The nested tensor of a column."""
    return torch.nested.nested_tensor_from_jagged(
        batch[name], batch["T_offsets"], min_seqlen=0, max_seqlen=int(batch["T_longest"])
    )


@pytest.mark.parametrize("offsets", [np.int32, np.int64])
@pytest.mark.parametrize("least", [0, 1])
def test_torch_nests_the_same(offsets: Any, least: int, rng: np.random.Generator) -> None:
    """Values, offsets and rows are those of a nested tensor that is made of a list of tensors."""
    rows = token_rows(lengths(100, rng, least=least), rng)
    view = filled(TOKENS, rows).view(Packed(offsets=offsets, dtypes={"ids": "i8"}))
    batch = draw(view, 64)

    for name in ("ids", "logp"):
        ours = jagged(batch, name)
        list_of_rows = [torch.tensor(row[name]) for row in drawn(rows, batch)]
        theirs = torch.nested.nested_tensor(list_of_rows, layout=torch.jagged)

        assert ours.dtype == theirs.dtype
        assert torch.equal(ours.values(), theirs.values())
        assert torch.equal(ours.offsets().long(), theirs.offsets())
        assert (ours.offsets().dtype == theirs.offsets().dtype) == (offsets is np.int64)
        for mine, row in zip(ours.unbind(), list_of_rows, strict=True):
            assert torch.equal(mine, row)
        assert torch.equal(ours.to_padded_tensor(-1), theirs.to_padded_tensor(-1))


def test_memory_is_that_of_the_batch(rng: np.random.Generator) -> None:
    """Values and offsets are the arrays that the draw filled."""
    rows = token_rows(lengths(100, rng), rng)
    batch = filled(TOKENS, rows).view(Packed()).sample(64)

    for name in ("ids", "labels", "logp"):
        ours = jagged(as_tensors(batch), name)
        assert ours.values().data_ptr() == batch[name].ctypes.data
        assert ours.offsets().data_ptr() == batch["T_offsets"].ctypes.data


def test_a_sum_of_each_row(rng: np.random.Generator) -> None:
    """What is computed of a nested tensor is computed of its rows."""
    rows = token_rows(lengths(100, rng), rng)
    batch = draw(filled(TOKENS, rows).view(Packed()), 64)

    sums = jagged(batch, "logp").sum(1)

    expected = [row["logp"].sum(dtype=np.float64) for row in drawn(rows, batch)]
    np.testing.assert_allclose(sums.numpy(), expected, rtol=1e-4, atol=1e-5)
