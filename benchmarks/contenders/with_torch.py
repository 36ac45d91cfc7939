"""This package in a process that has torch loaded, which changes how memory is given back."""

from __future__ import annotations

from typing import Any

import torch
from budgets import FLOOR, OURS
from contender import Contender
from measure import Work, statement

from . import uniform
from .cpprb_calls import drawing

ours = Contender(OURS, uniform.ours.how)
floor = Contender(FLOOR, uniform.floor.how, ours.shelf)


def drawing_tensors(rb: Any, n: int) -> Work:
    """A fresh batch, and tensors on its memory."""
    return statement(
        f"batch = {{name: from_numpy(column) for name, column in rb.sample({n}).items()}}",
        rb=rb,
        from_numpy=torch.from_numpy,
    )


ours.works_on(uniform.filled, sample_torch_loaded=drawing, sample_tensors=drawing_tensors)
floor.works_on(uniform.filled, sample_torch_loaded=uniform.drawing_floor)
