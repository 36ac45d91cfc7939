"""PyTorch Geometric: graphs in a list, and its batches."""

from __future__ import annotations

from typing import Any

import torch
from contender import Cannot, Contender
from data import Array
from items import GRAPHS, Rows, rows_of
from measure import Work, statement
from torch_geometric.data import Batch, Data
from torch_geometric.utils import to_dense_batch

from .any_length_torch import Recent, adding_graphs
from .common import item_memory_case

theirs = Contender(
    "torch-geometric",
    "A list of Data, and random.choices; Batch.from_data_list packs them, and to_dense_batch pads "
    "its nodes and its edges.",
)
theirs.cannot("item_add_answer", "it is made for graphs")


def graph_of(row: dict[str, Array]) -> Any:
    """A graph with copies of the values of a row."""
    x, edges, weight = (torch.tensor(row[name]) for name in ("nodes", "edges", "weight"))
    return Data(x=x, edge_index=edges, edge_attr=weight)


def filled(rows: Rows) -> Recent:
    """A list of these graphs."""
    return Recent([graph_of(row) for row in rows])


def held(kind: str, rows: int) -> Recent:
    """A list of graphs."""
    if kind != GRAPHS:
        raise Cannot("it is made for graphs")
    return filled(rows_of(kind, rows))


def padded(batch: Any) -> tuple[Any, ...]:
    """Nodes, ends of edges and their weights with an axis for the graphs, and masks."""
    graphs = batch.batch[batch.edge_index[0]]
    edges = batch.edge_index - batch.ptr[graphs]
    n = batch.num_graphs
    return (
        *to_dense_batch(batch.x, batch.batch, batch_size=n),
        *to_dense_batch(edges.T, graphs, batch_size=n),
        to_dense_batch(batch.edge_attr, graphs, batch_size=n)[0],
    )


def packing(rb: Any, n: int) -> Work:
    """A batch of random graphs."""
    return statement(f"batch = collate(rb.sample({n}))", rb=rb, collate=Batch.from_data_list)


def padding(rb: Any, n: int) -> Work:
    """A padded batch of random graphs."""
    return statement(
        f"batch = padded(collate(rb.sample({n})))",
        rb=rb,
        padded=padded,
        collate=Batch.from_data_list,
    )


theirs.works_on(
    held,
    item_add_graph=lambda rb: adding_graphs(rb, graph_of),
    item_packed=packing,
    item_padded=padding,
)
item_memory_case(theirs, filled)
