"""This package in a process that has torch loaded, which changes how memory is given back."""

import torch
from budgets import FLOOR, OURS
from contender import Contender
from measure import Work, statement

from . import uniform

ours = Contender(OURS, uniform.ours.how)
floor = Contender(FLOOR, uniform.floor.how)
ours.does("sample_torch_loaded")(uniform.sample)
floor.does("sample_torch_loaded")(uniform.sample_floor)


@ours.does("sample_tensors")
def sample_tensors(kind: str, rows: int, n: int) -> Work:
    """A fresh batch, and tensors on its memory."""
    return statement(
        f"batch = {{name: from_numpy(column) for name, column in rb.sample({n}).items()}}",
        rb=uniform.shelf.get(uniform.filled, kind, rows),
        from_numpy=torch.from_numpy,
    )
