"""RLlib's columns, as its offline reader takes them, and Parquet files that others wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optional import need

from cpprb_like import ReplayBuffer
from cpprb_like.errors import DataLossWarning

pa = need("pyarrow")
parquet = need("pyarrow.parquet")

Table = dict[str, Any]


def theirs() -> Table:
    """Steps as RLlib records them: two episodes, the second not ended."""
    return {
        "eps_id": ["a"] * 3 + ["b"] * 2,
        "obs": [[float(k), k + 0.5] for k in range(5)],
        "actions": [0, 1, 2, 0, 1],
        "rewards": [0.5] * 5,
        "terminateds": [False, False, True, False, False],
        "truncateds": [False] * 5,
    }


def test_next_observations_are_taken_within_an_episode(tmp_path: Path) -> None:
    """Where the column is lacking; and the last one of an episode is not known."""
    parquet.write_table(pa.table(theirs()), tmp_path / "x.parquet")

    rb = ReplayBuffer.from_dataset(tmp_path / "x.parquet")

    rows = rb.get_all_transitions()
    assert [one.length for one in rb.episodes.list()] == [3, 2]
    assert rb.get_current_episode_len() == 2
    assert rows["has_next"].tolist() == [True, True, False, True, False]
    assert rows["next_obs"].tolist() == [[1, 1.5], [2, 2.5], [0, 0], [4, 4.5], [0, 0]]


def test_a_folder_of_files_is_read(tmp_path: Path) -> None:
    """An episode ends where its file does; a column of text has no place."""
    table = {**theirs(), "new_obs": theirs()["obs"], "note": ["x"] * 5}
    for k in range(2):
        parquet.write_table(pa.table(table), tmp_path / f"{k}.parquet")

    with pytest.warns(DataLossWarning, match="note"):
        rb = ReplayBuffer.from_dataset(tmp_path)

    assert [one.length for one in rb.episodes.list()] == [3, 2, 3, 2]
    assert rb.columns["obs"].shape == (2,)


def test_values_of_several_lengths_are_refused(tmp_path: Path) -> None:
    """The message names the file and the column."""
    table = theirs()
    table["obs"][3] = [1.0]
    parquet.write_table(pa.table(table), tmp_path / "x.parquet")
    with pytest.raises(ValueError, match=r"x\.parquet: obs: expected values of one length"):
        ReplayBuffer.from_dataset(tmp_path / "x.parquet")


def test_ours_has_the_columns_of_rllib(tmp_path: Path) -> None:
    """A row a step, with nested observations as structs, and its own columns as they are."""
    flag: Any = {"shape": (), "dtype": bool}
    fields: Any = {
        "obs.a": {"shape": 2},
        "obs.b": {"shape": (), "dtype": "i8"},
        "act": {"shape": (), "dtype": "i8"},
        "rew": {"shape": 1},
        "terminated": flag,
        "truncated": flag,
        "logp": {"shape": ()},
    }
    rb = ReplayBuffer(10, fields, next_of=["obs.a", "obs.b"])
    for t in range(4):
        step = {"act": t, "rew": [t], "terminated": t == 1, "truncated": False, "logp": -t}
        following = {"next_obs.a": [t + 1, 1], "next_obs.b": t + 1}
        rb.add(**{"obs.a": [t, 0], "obs.b": t}, **step, **following)
    rb.export(tmp_path / "x.parquet")

    found = parquet.read_table(tmp_path / "x.parquet").to_pylist()

    assert found[2] == {
        "eps_id": "1",
        "t": 0,
        "obs": {"a": [2.0, 0.0], "b": 2},
        "new_obs": {"a": [3.0, 1.0], "b": 3},
        "actions": 2,
        "rewards": 2.0,
        "terminateds": False,
        "truncateds": False,
        "logp": -2.0,
    }
    np.testing.assert_array_equal([row["eps_id"] for row in found], ["0", "0", "1", "1"])
