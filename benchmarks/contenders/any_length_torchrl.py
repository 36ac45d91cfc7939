"""TorchRL's buffers of values of any length."""

from __future__ import annotations

from typing import Any

from items import Rows, rows_of
from measure import Work, statement
from torchrl.data import ListStorage, ReplayBuffer

from .any_length_torch import adding_answer, adding_graphs, packed, padded, tensors
from .common import item_memory_case
from .torchrl import theirs

# Draws of 4,000 graphs, packed: 3.4 ms from dicts; 6.2 ms from TensorDicts in a LazyStackStorage by
# torch.cat of the stack's tensordicts, 8.6 ms by get(..., as_nested_tensor=True) of nodes and
# weights alone. pad_sequence of tensordict needs lengths that come first.


def filled(rows: Rows) -> Any:
    """A list storage of dicts of tensors, whose batches are lists of these."""
    rb = ReplayBuffer(storage=ListStorage(len(rows)), collate_fn=list)
    for row in rows:
        rb.add(tensors(row))
    return rb


def held(kind: str, rows: int) -> Any:
    """A full buffer of rows of a kind."""
    return filled(rows_of(kind, rows))


def drawing(source: str, rb: Any, n: int) -> Work:
    """A batch of random rows, which are collated as the rows of a list are."""
    return statement(f"batch = {source}(rb.sample({n}))", rb=rb, packed=packed, padded=padded)


theirs.works_on(
    held,
    item_add_graph=adding_graphs,
    item_add_answer=adding_answer,
    item_packed=lambda rb, n: drawing("packed", rb, n),
    item_padded=lambda rb, n: drawing("padded", rb, n),
)
item_memory_case(theirs, filled)
