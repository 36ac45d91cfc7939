"""Packed graphs are PyG's ``Batch.from_data_list`` of the same rows."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from optional import need
from taker_cases import GRAPHS, Row, as_tensors, draw, drawn, filled, graph_rows, graphs, lengths

from cpprb_like.views import Packed

torch = need("torch", "make test-integrations")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its imports use what PyTorch deprecates
    need("torch_geometric", "make test-integrations")
    from torch_geometric.data import Batch, Data
    from torch_geometric.nn import GraphConv, global_add_pool

pytestmark = pytest.mark.filterwarnings("ignore")
PACKED = Packed(segments=True, offsets=np.int64, dtypes={"N_segments": "i8"})


def as_data(row: Row) -> Any:
    """A row as a graph of PyG."""
    return Data(
        x=torch.tensor(row["nodes"]),
        edge_index=torch.tensor(row["edges"]),
        edge_attr=torch.tensor(row["bonds"]),
        y=torch.tensor([row["energy"]]),
    )


@pytest.mark.parametrize("least", [0, 1])
@pytest.mark.parametrize("n", [1, 2, 64])
def test_pyg_collates_the_same(n: int, least: int, rng: np.random.Generator) -> None:
    """Element by element; graphs of one node, without edges and without nodes among them."""
    rows = graph_rows(lengths(100, rng, least=least, most=20), rng)
    batch = draw(filled(GRAPHS, rows).view(PACKED), n)

    ours = Batch(**graphs(batch))
    theirs = Batch.from_data_list([as_data(row) for row in drawn(rows, batch)])

    assert {*ours.keys()} == {*theirs.keys()}
    for name in theirs.keys():  # noqa: SIM118 (it is no dict)
        assert ours[name].dtype == theirs[name].dtype, name
        assert torch.equal(ours[name], theirs[name]), name
    assert ours.num_graphs == theirs.num_graphs == n
    assert ours.num_nodes == theirs.num_nodes
    assert ours.validate()


def test_memory_is_that_of_the_batch(rng: np.random.Generator) -> None:
    """A network reads the arrays that the draw filled."""
    rows = graph_rows(lengths(100, rng), rng)
    batch = filled(GRAPHS, rows).view(PACKED).sample(64)

    ours = Batch(**graphs(as_tensors(batch)))

    names = {"nodes": "x", "edges": "edge_index", "bonds": "edge_attr", "energy": "y"}
    names |= {"N_segments": "batch", "N_offsets": "ptr"}
    for name, spelling in names.items():
        assert ours[spelling].data_ptr() == batch[name].ctypes.data, name
        assert ours[spelling].is_contiguous(), name


def test_a_network_keeps_graphs_apart(rng: np.random.Generator) -> None:
    """The sum over a graph is that of the graph alone."""
    torch.manual_seed(0)
    rows = graph_rows(lengths(100, rng), rng)
    batch = draw(filled(GRAPHS, rows).view(PACKED), 16)
    layer = GraphConv(11, 3)

    together = Batch(**graphs(batch))
    sums = global_add_pool(layer(together.x, together.edge_index), together.batch)

    for k, row in enumerate(drawn(rows, batch)):
        alone = layer(torch.tensor(row["nodes"]), torch.tensor(row["edges"])).sum(0)
        torch.testing.assert_close(sums[k], alone)
