"""Rows of any length for libraries that take them, and the lines that rename a batch for each.

Tokens, rollouts of GRPO, and graphs. A row has its number in the field ``row``, so a batch says
which rows were drawn. The functions of batches are the lines of the documentation's table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cpprb_like import ReplayBuffer

Array = npt.NDArray[Any]
Row = dict[str, Any]

IGNORED = -100  # label without a loss
PAD = 3  # token that pads: no 0, which a forgotten value would give

TOKENS: dict[str, Any] = {
    "row": {"shape": (), "dtype": "i8"},
    "ids": {"shape": ("T",), "dtype": "i4"},
    "labels": {"shape": ("T",), "dtype": "i4"},
    "logp": {"shape": ("T",)},
}
ROLLOUTS: dict[str, Any] = {
    "row": {"shape": (), "dtype": "i8"},
    "prompt": {"shape": ("P",), "dtype": "i4"},
    "completion": {"shape": ("C",), "dtype": "i4"},
    "old_logp": {"shape": ("C",)},
    "logp": {"shape": ("C",)},
    "advantage": {"shape": ()},
}
GRAPHS: dict[str, Any] = {
    "row": {"shape": (), "dtype": "i8"},
    "nodes": {"shape": ("N", 11)},
    "edges": {"shape": (2, "E"), "dtype": "i8", "counts": "N"},
    "bonds": {"shape": ("E", 4)},
    "energy": {"shape": ()},
}


def lengths(n: int, rng: np.random.Generator, *, least: int = 1, most: int = 40) -> list[int]:
    """Lengths of n rows, the least and the most among them."""
    found = [least, most, *rng.integers(least, most + 1, n - 2).tolist()]
    return [int(length) for length in rng.permutation(found)]


def token_rows(sizes: Sequence[int], rng: np.random.Generator) -> list[Row]:
    """Rows of tokens. Labels begin with some that have no loss, as those of a prompt."""
    rows = []
    for number, length in enumerate(sizes):
        ids = rng.integers(PAD + 1, 32, length)
        labels = np.where(np.arange(length) <= length // 3, IGNORED, ids)
        logp = rng.normal(size=length).astype(np.float32)
        rows.append({"row": number, "ids": ids, "labels": labels, "logp": logp})
    return rows


def graph_rows(sizes: Sequence[int], rng: np.random.Generator) -> list[Row]:
    """Graphs of so many nodes; about two edges a node, none where there is no node."""
    rows = []
    for number, nodes in enumerate(sizes):
        n_edges = int(rng.integers(0, 2 * nodes + 1))
        rows.append(
            {
                "row": number,
                "nodes": rng.normal(size=(nodes, 11)).astype(np.float32),
                "edges": rng.integers(0, max(nodes, 1), (2, n_edges)),
                "bonds": rng.normal(size=(n_edges, 4)).astype(np.float32),
                "energy": np.float32(rng.normal()),
            }
        )
    return rows


def filled(fields: Mapping[str, Any], rows: Sequence[Row]) -> ReplayBuffer:
    """A buffer that holds these rows, and whose items have wrapped once."""
    room: dict[str, int] = {}
    for name, spec in fields.items():
        for place, extent in enumerate(spec["shape"]):
            if isinstance(extent, str):
                room[extent] = max(sum(np.shape(row[name])[place] for row in rows), 1)
    rb = ReplayBuffer(len(rows), fields, room=room, seed=0)
    for row in [*rows[len(rows) // 2 :], *rows]:
        rb.add(**row)
    return rb


def drawn(rows: Sequence[Row], batch: Mapping[str, Any]) -> list[Row]:
    """The rows of a batch, in its order."""
    return [rows[number] for number in batch["row"].tolist()]


def as_tensors(batch: Mapping[str, Array]) -> dict[str, Any]:
    """A batch of arrays as one of tensors over the same memory; numbers stay numbers."""
    import torch  # noqa: PLC0415 (the tests of JAX do not need it)

    return {
        name: torch.from_numpy(values) if np.ndim(values) else values
        for name, values in batch.items()
    }


def draw(view: Any, n: int) -> Any:
    """A batch of tensors of PyTorch."""
    with view.batches(n, to="torch") as batches:
        return next(batches)


# ---- the lines of the table ----------------------------------------------------------------


def padding_free(batch: Mapping[str, Any]) -> dict[str, Any]:
    """What models of transformers take, and TRL's ``SFTTrainer``: one row of all tokens."""
    return {
        "input_ids": batch["ids"][None],
        "labels": batch["labels"][None],
        "position_ids": batch["T_positions"][None],
        "seq_idx": batch["T_segments"][None],
        "cu_seq_lens_q": batch["T_offsets"],
        "cu_seq_lens_k": batch["T_offsets"],
        "max_length_q": int(batch["T_longest"]),
        "max_length_k": int(batch["T_longest"]),
    }


def padded(batch: Mapping[str, Any]) -> dict[str, Any]:
    """What they take otherwise: one row for each sequence."""
    return {
        "input_ids": batch["ids"],
        "labels": batch["labels"],
        "attention_mask": batch["T_mask"],
    }


def grpo(batch: Mapping[str, Any]) -> dict[str, Any]:
    """What the loss of TRL's ``GRPOTrainer`` takes."""
    return {
        "prompt_ids": batch["prompt"],
        "prompt_mask": batch["P_mask"],
        "completion_ids": batch["completion"],
        "completion_mask": batch["C_mask"],
        "advantages": batch["advantage"],
        "old_per_token_logps": batch["old_logp"],
        "sampling_per_token_logps": batch["logp"],
        "num_items_in_batch": batch["C_mask"].sum(),
    }


def graphs(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of PyG's ``Batch``."""
    return {
        "x": batch["nodes"],
        "edge_index": batch["edges"],
        "edge_attr": batch["bonds"],
        "y": batch["energy"],
        "batch": batch["N_segments"],
        "ptr": batch["N_offsets"],
    }
