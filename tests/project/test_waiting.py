"""The contenders of ``benchmarks/waiting.py`` hand out the steps that they were given."""

from __future__ import annotations

from contextlib import ExitStack, closing
from itertools import islice
from typing import Any

import numpy as np
import pytest
from optional import need

torch = need("torch", "make test-torch")
need("tqdm", "benchmarks/run.py shows its progress with tqdm")
import waiting
from run import WAITING_FOR


def test_each_contender_is_measured_in_an_environment() -> None:
    """Or it would be missing in the table without a word."""
    measured = [package for packages in WAITING_FOR.values() for package in packages]
    assert sorted(measured) == sorted({package for package, _ in waiting.CONTENDERS.values()})


@pytest.mark.parametrize(
    "name", [name for name, (package, _) in waiting.CONTENDERS.items() if package == "torch"]
)
def test_batches_are_of_steps_that_were_given(name: str) -> None:
    """As tensors of the dtypes of the fields, over more than one epoch."""
    given = waiting.steps(12)
    rows = {step.tobytes(): row for row, step in enumerate(given["obs"])}
    with ExitStack() as stack:
        batches: Any = waiting.CONTENDERS[name][1](12, 4, stack)
        if name not in {"cpprb_like", "cpprb_like, prefetch=1", "cpprb_like, prefetch=2"}:
            stack.enter_context(closing(batches))
        for batch in islice(batches, 5):
            drawn = [rows[step.numpy().tobytes()] for step in batch["obs"]]
            for field, values in given.items():
                assert torch.is_tensor(batch[field])
                np.testing.assert_array_equal(batch[field].numpy(), values[drawn])
                assert batch[field].numpy().dtype == values.dtype
