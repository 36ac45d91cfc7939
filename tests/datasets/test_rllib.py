"""RLlib's columns, as its offline reader takes them, and Parquet files that others wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optional import need

from cpprb_like import ReplayBuffer
from cpprb_like.datasets import describe
from cpprb_like.errors import DataLossWarning

pa = need("pyarrow")
parquet = need("pyarrow.parquet")

Table = dict[str, Any]


ids_are_told = pytest.mark.filterwarnings("ignore:.*eps_id:cpprb_like.errors.DataLossWarning")


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


@ids_are_told
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
    """Without ``t`` an episode ends where its file does; a column of text has no place."""
    table = {**theirs(), "new_obs": theirs()["obs"], "note": ["x"] * 5}
    for k in range(2):
        parquet.write_table(pa.table(table), tmp_path / f"{k}.parquet")

    with pytest.warns(DataLossWarning, match="note"):
        rb = ReplayBuffer.from_dataset(tmp_path)

    assert [one.length for one in rb.episodes.list()] == [3, 2, 3, 2]
    assert rb.columns["obs"].shape == (2,)


@pytest.mark.parametrize("column", ["eps_id", "agent_id", "module_id"])
def test_names_of_episodes_and_agents_are_kept_or_told(column: str, tmp_path: Path) -> None:
    """Numbers are a field, and text has no place; both were left out without a word."""
    table = {**theirs(), "eps_id": [3, 3, 3, 7, 7], column: [3, 3, 3, 7, 7]}
    parquet.write_table(pa.table(table), tmp_path / "x.parquet")
    rb = ReplayBuffer.from_dataset(tmp_path / "x.parquet", strict=True)
    assert rb.get_all_transitions()[column].tolist() == [3, 3, 3, 7, 7]
    rb.export(tmp_path / "z.parquet")
    again = ReplayBuffer.from_dataset(tmp_path / "z.parquet", strict=True)
    assert again.get_all_transitions()[column].tolist() == [3, 3, 3, 7, 7]
    parquet.write_table(pa.table({**table, column: list("aaabb")}), tmp_path / "y.parquet")
    assert describe(tmp_path / "y.parquet").left_out == [f"{column} (string)"]
    with pytest.raises(ValueError, match=rf"{column} \(string\)"):
        ReplayBuffer.from_dataset(tmp_path / "y.parquet", strict=True)


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


def timed(ids: list[str], times: list[int], **columns: Any) -> Any:
    """Rows whose observation tells the episode and the step."""
    n = len(ids)
    table: Table = {
        "eps_id": ids,
        "t": times,
        "obs": [[100.0 * int(name) + t] for name, t in zip(ids, times, strict=True)],
        "actions": [0.0] * n,
        "rewards": [1.0] * n,
        "terminateds": [False] * n,
        "truncateds": [False] * n,
    }
    return pa.table({**table, **columns})


@pytest.mark.parametrize(
    ("ids", "times", "match"),
    [
        (["0", "1"] * 3, [0, 0, 1, 1, 2, 2], "'0': expected its rows in a row"),
        (["0"] * 4, [3, 2, 1, 0], "t to count the steps, got 2 after 3"),
        (["0"] * 4, [0, 1, 7, 8], "got 7 after 1"),
    ],
)
@pytest.mark.parametrize("new_obs", [False, True])
def test_rows_out_of_order_are_refused(
    ids: list[str], times: list[int], match: str, new_obs: bool, tmp_path: Path
) -> None:
    """No transition is made of rows that do not follow one another."""
    more = {"new_obs": [[0.0]] * len(ids)} if new_obs else {}
    parquet.write_table(timed(ids, times, **more), tmp_path / "x.parquet")
    with pytest.raises(ValueError, match=rf"x\.parquet: .*{match}.*: sort .* by eps_id and t$"):
        ReplayBuffer.from_dataset(tmp_path / "x.parquet")


@ids_are_told
def test_rows_of_several_agents_are_told_apart(tmp_path: Path) -> None:
    """Those of one agent are an episode; side by side they are refused."""
    path = tmp_path / "x.parquet"
    parquet.write_table(timed(["0"] * 4, [0, 1, 0, 1], agent_id=["a", "a", "b", "b"]), path)
    assert [one.length for one in describe(path).episodes] == [2, 2]
    parquet.write_table(timed(["0"] * 4, [0, 0, 1, 1], agent_id=["a", "b"] * 2), path)
    with pytest.raises(ValueError, match=r"by eps_id, agent_id and t$"):
        ReplayBuffer.from_dataset(path)


def test_an_episode_goes_on_in_the_next_file(tmp_path: Path) -> None:
    """Where its ``t`` does; one of the same name that begins anew is another."""
    parquet.write_table(timed(["0", "1", "1"], [0, 0, 1]), tmp_path / "0.parquet")
    parquet.write_table(timed(["1", "1"], [2, 3]), tmp_path / "1.parquet")
    parquet.write_table(timed(["1", "1"], [0, 1]), tmp_path / "2.parquet")

    with pytest.warns(DataLossWarning, match="that 2 episodes before the newest have no end"):
        rb = ReplayBuffer.from_dataset(tmp_path)

    rows = rb.get_all_transitions()
    assert [one.length for one in rb.episodes.list()] == [1, 4, 2]
    assert rows["has_next"].tolist() == [False, True, True, True, False, True, False]
    assert rows["next_obs"].ravel().tolist() == [0, 101, 102, 103, 0, 101, 0]


def test_an_episode_that_lies_in_files_apart_is_refused(tmp_path: Path) -> None:
    """When the rows of another one come between."""
    parquet.write_table(timed(["0", "1"], [0, 0]), tmp_path / "0.parquet")
    parquet.write_table(timed(["0", "1"], [1, 1]), tmp_path / "1.parquet")
    with pytest.raises(ValueError, match="'0': expected its rows in a row"):
        ReplayBuffer.from_dataset(tmp_path)


def test_steps_without_names_of_episodes_begin_at_0(tmp_path: Path) -> None:
    """``t`` alone tells where an episode begins."""
    table = timed(["0"] * 5, [0, 1, 2, 0, 1]).drop_columns("eps_id")
    parquet.write_table(table, tmp_path / "x.parquet")
    assert [one.length for one in describe(tmp_path / "x.parquet").episodes] == [3, 2]


def test_two_columns_of_one_name_are_told(tmp_path: Path) -> None:
    """RLlib's own has the field; and no other has that of a next observation."""
    more = {"terminated": [True, False], "next_obs": [5.0, 6.0], "rewards": [1.0, 2.0]}
    table = timed(["0", "0"], [0, 1], **more, has_next=[True, True])
    parquet.write_table(table, tmp_path / "x.parquet")

    with pytest.warns(DataLossWarning, match=r"terminated .*next_obs .*has_next "):
        rb = ReplayBuffer.from_dataset(tmp_path / "x.parquet")

    rows = rb.get_all_transitions()
    assert not rows["terminated"].any()
    assert rows["next_obs"].ravel().tolist() == [1, 0]
    assert rows["has_next"].tolist() == [True, False]
