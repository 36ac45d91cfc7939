"""Next values of any length: what is stored once, and that every way of a row keeps its values."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cpprb_like import Mixture, ReplayBuffer, SharedReplay
from cpprb_like._fields.layout import Layout
from cpprb_like.views import NStep, Packed, Sequences

Values = dict[str, Any]

FIELDS: dict[str, Any] = {
    "id": {"shape": (), "dtype": "i8"},
    "nodes": {"shape": ("N", 2)},
    "edges": {"shape": (2, "E"), "dtype": "i8", "counts": "N"},
    "say": {"dtype": str},
    "rew": {"shape": ()},
    "done": {"shape": (), "dtype": bool},
}
NEXT_OF = ["nodes", "edges", "say"]
ROOM = {"N": 400, "E": 600, "say": 800}


def graph(rng: np.random.Generator) -> Values:
    """A graph with a text, which may be empty."""
    n, m = int(rng.integers(1, 6)), int(rng.integers(0, 7))
    return {
        "nodes": rng.normal(size=(n, 2)).astype("f4"),
        "edges": rng.integers(0, n, (2, m)),
        "say": "x" * int(rng.integers(0, 4)),
    }


def steps(n: int, *, p_end: float = 0.1, seed: int = 0, first: int = 0) -> list[Values]:
    """Rows of one stream: each goes on with the next graph of the one before, unless that ended."""
    rng, rows, now = np.random.default_rng(seed), [], None
    for number in range(first, first + n):
        now, following = graph(rng) if now is None else now, graph(rng)
        row = {"id": number, **now, **{f"next_{name}": one for name, one in following.items()}}
        rows.append(row | {"rew": 1.0, "done": bool(rng.random() < p_end)})
        now = None if rows[-1]["done"] else following
    return rows


def buffer(size: int = 100, room: dict[str, int] = ROOM, **options: Any) -> ReplayBuffer:
    """An empty buffer of graphs and next graphs."""
    return ReplayBuffer(size, FIELDS, next_of=NEXT_OF, room=room, seed=0, **options)


def filled(n: int = 40, **options: Any) -> tuple[ReplayBuffer, list[Values]]:
    """A buffer, and its rows by id."""
    rb, rows = buffer(**options), steps(n)
    for row in rows:
        rb.add(**row)
    return rb, rows


def expect(batch: Values, rows: list[Values], last: list[int] | None = None) -> None:
    """The items of a padded batch are those of its rows; next ones of the rows ``last``."""
    ids = batch["id"].tolist()
    for k, (number, end) in enumerate(zip(ids, ids if last is None else last, strict=True)):
        for prefix, row in (("", rows[number]), ("next_", rows[end])):
            is_node, is_edge = batch[f"{prefix}N_mask"][k], batch[f"{prefix}E_mask"][k]
            np.testing.assert_array_equal(
                batch[f"{prefix}nodes"][k][is_node], row[f"{prefix}nodes"]
            )
            np.testing.assert_array_equal(
                batch[f"{prefix}edges"][k][:, is_edge], row[f"{prefix}edges"]
            )
            assert batch[f"{prefix}say"][k] == row[f"{prefix}say"]


def everything(rb: Any, rows: list[Values]) -> list[int]:
    """The ids of all rows of a buffer, whose values are right."""
    if hasattr(rb, "check"):
        rb.check()
    batch = rb.get_all_transitions() if hasattr(rb, "get_all_transitions") else rb.sample(200)
    expect(batch, rows)
    return sorted(set(batch["id"].tolist()))


def stored_once(rows: list[Values], name: str) -> int:
    """Items of the rows, where each graph that goes on is one."""
    own = [len(row[name]) for row in rows]
    return own[0] + sum(
        len(row[f"next_{name}"]) + (own[k + 1] if row["done"] and k + 1 < len(rows) else 0)
        for k, row in enumerate(rows)
    )


# ---- memory ------------------------------------------------------------------------------


def test_a_chain_of_graphs_is_stored_once() -> None:
    """The room counts each graph of an episode once, and one more at its end."""
    rb, rows = filled()
    stats = rb.stats()
    assert stats["items of N"] == stored_once(rows, "nodes")
    assert everything(rb, rows) == list(range(40))
    declared = {f"next_{name}": FIELDS[name] for name in ("nodes", "edges", "say")}
    assert Layout.of(rb._layout.options).items_nbytes == sum(
        room * size for room, size in zip(ROOM.values(), (8, 16, 1), strict=True)
    )
    assert "(next_N: in the room of N)" in repr(rb)
    assert declared.keys() <= set(rb.schema.names)


def test_a_full_room_has_as_many_rows_of_a_chain_as_without_next_values() -> None:
    """All but one: its next value is the only one that no row has."""
    rb = buffer(room={"N": 30, "E": 60, "say": 60})
    nodes = [np.full((3, 2), t, "f4") for t in range(21)]
    none = {"edges": np.zeros((2, 0), "i8"), "say": ""}
    none |= {f"next_{name}": value for name, value in none.items()}
    for t in range(20):
        rb.add(id=t, nodes=nodes[t], next_nodes=nodes[t + 1], rew=0, done=False, **none)
    assert len(rb) == 30 // 3 - 1
    batch = rb.get_all_transitions()
    assert (batch["nodes"][:, 0, 0] == batch["id"]).all()
    assert (batch["next_nodes"][:, 0, 0] == batch["id"] + 1).all()
    assert rb.stats()["left_for_room"] == 11


@pytest.mark.parametrize("as_block", [False, True])
def test_environments_that_step_together_have_chains_of_their_own(as_block: bool) -> None:
    """A row goes on with the next value of the row before in its stream, in a call or before."""
    rb, n = buffer(n_envs=3), 8
    streams = [steps(n, seed=env, first=env * n) for env in range(3)]
    rows = [row for stream in streams for row in stream]
    calls = [[[stream[t] for stream in streams] for t in range(n)]]
    for call in calls if as_block else [[step] for step in calls[0]]:
        names = call[0][0].keys()
        nested = {name: [[row[name] for row in step] for step in call] for name in names}
        rb.add(**(nested if as_block else {name: one[0] for name, one in nested.items()}))
    assert everything(rb, rows) == list(range(3 * n))
    expected = sum(stored_once(stream, "nodes") for stream in streams)
    assert rb.stats()["items of N"] == expected


def test_a_value_of_other_bytes_is_stored_anew() -> None:
    """A zero of the other sign, and a row of another length, are no next value."""
    rb, rows = buffer(), steps(3, p_end=0.0)
    rows[0]["next_nodes"] = np.zeros((2, 2), "f4")
    rows[1] |= {"nodes": -rows[0]["next_nodes"], "edges": np.zeros((2, 0), "i8")}
    rows[2]["nodes"] = np.concatenate([rows[1]["next_nodes"], [[7, 7]]]).astype("f4")
    for row in rows:
        rb.add(**row)
    assert rb.stats()["items of N"] == sum(
        len(row["nodes"]) + len(row["next_nodes"]) for row in rows
    )
    assert np.signbit(rb.get_all_transitions()["nodes"][1, :2]).all()
    assert everything(rb, rows) == [0, 1, 2]


def test_a_step_of_more_items_than_the_room_is_refused() -> None:
    """Own and next items of a row are there at once; nothing has changed."""
    rb, (row,) = buffer(room={"N": 5, "E": 99, "say": 99}), steps(1)
    row |= {"nodes": np.zeros((3, 2)), "next_nodes": np.ones((3, 2))}
    row |= {name: np.zeros((2, 0), "i8") for name in ("edges", "next_edges")}
    with pytest.raises(ValueError, match=r"'nodes' and 'next_nodes': .*'N': 5.* got 6 in row 0"):
        rb.add(**row)
    assert len(rb) == rb.stats()["items of N"] == 0


@pytest.mark.parametrize("name", ["nodes", "next_nodes", "say"])
def test_values_that_rows_may_share_are_not_updated(name: str) -> None:
    """They would change in the row beside; the error names the field."""
    rb, _ = filled()
    with pytest.raises(ValueError, match=f"field '{name}' cannot be replaced"):
        rb.update([3], **{name: [np.zeros((2, 2))]})
    rb.update([3], rew=[5.0])


# ---- every way of a row ------------------------------------------------------------------


@pytest.mark.parametrize("how", ["pickle", "copy", "file", "save"])
def test_copies_have_all_values_and_share_them(how: str, tmp_path: Path) -> None:
    """A copy has the rows of a full room, goes on where the buffer was, and none is lost."""
    room = {"N": 60, "E": 80, "say": 99}
    path: dict[str, Any] = {"mmap_prefix": tmp_path / "rows", "mmap_mode": "a"}
    in_file = path | {"mmap_mode": "x"} if how == "file" else {}
    rb, rows = filled(60, room=room, **in_file)
    kept, used = everything(rb, rows), rb.stats()["items of N"]
    assert 2 < len(kept) < 60
    if how == "save":
        rb.save(tmp_path / "saved")
        other = ReplayBuffer.load(tmp_path / "saved")
    elif how == "file":
        del rb
        other = buffer(room=room, **path)
    else:
        other = pickle.loads(pickle.dumps(rb)) if how == "pickle" else copy.deepcopy(rb)
    assert everything(other, rows) == kept
    assert other.stats()["items of N"] == used
    more = steps(20, seed=5, first=60)
    for row in more:
        other.add(**row)
    kept = everything(other, rows + more)
    assert kept == list(range(80 - len(kept), 80))


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("room", [13, 40, 400])
def test_a_checkpoint_is_loaded_into_another_room(n_envs: int, room: int, tmp_path: Path) -> None:
    """The newest rows that fit stay, in segments that were written at different times."""
    rb = buffer(n_envs=n_envs)
    streams = [steps(16, seed=env, first=16 * env) for env in range(n_envs)]
    rows = [row for stream in streams for row in stream]
    for t in range(16):
        step = {name: [stream[t][name] for stream in streams] for name in rows[0]}
        rb.add(**step)
        if t == 9:
            rb.save(tmp_path / "saved")
    if rb.episodes.list()[0].complete:
        rb.episodes.delete(0)
    rb.save(tmp_path / "saved")
    rooms = {"N": n_envs * room, "E": n_envs * 600, "say": 800}
    loaded = ReplayBuffer.load(tmp_path / "saved", room=rooms)
    kept = everything(loaded, rows)
    assert set(kept) <= set(everything(rb, rows))
    if room == 400:
        assert kept == everything(rb, rows)
        assert loaded.stats()["items of N"] <= rb.stats()["items of N"]
    assert loaded.stats()["items of N"] <= rooms["N"]
    step = {name: [row[name]] * n_envs for name, row in ((name, rows[0]) for name in rows[0])}
    for _ in range(5):
        loaded.add(**step)
        everything(loaded, rows)


def test_next_values_may_be_left_out_of_a_load(tmp_path: Path) -> None:
    """Then own items are read from their files; some fields of an axis alone are refused."""
    rb, rows = filled()
    rb.save(tmp_path / "saved")
    loaded = ReplayBuffer.load(tmp_path / "saved", fields=["id", "nodes", "done"])
    batch = loaded.get_all_transitions()
    for number, nodes, mask in zip(batch["id"], batch["nodes"], batch["N_mask"], strict=True):
        np.testing.assert_array_equal(nodes[mask], rows[number]["nodes"])


def test_shards_of_actors_have_next_values() -> None:
    """A learner reads them where two rows have one place."""
    rows = steps(30)
    with SharedReplay(60, FIELDS, writers=1, next_of=NEXT_OF, room=ROOM) as replay:
        with replay.actor() as actor:
            for row in rows:
                actor.add(**row)
        learner = replay.learner(seed=0)
        assert len(everything(learner, rows)) == 30
        batch = learner.view(NStep(2), Packed()).sample(9)
        assert len(batch["next_nodes"]) == batch["next_N_offsets"][-1]


# ---- batches -----------------------------------------------------------------------------


def test_next_items_of_n_steps_are_those_of_the_last_row() -> None:
    """Own items are those of the first row."""
    rb, rows = filled()
    batch = rb.view(NStep(3, 0.9)).sample(32)
    last = [
        next(k for k in range(i, i + 3) if k == i + 2 or rows[k]["done"])
        for i in batch["id"].tolist()
    ]
    expect(batch, rows, last)


def test_packed_next_edges_count_the_next_nodes_of_the_batch() -> None:
    """They are shifted by the offsets of their own axis; sequences have them for each row."""
    rb, rows = filled()
    batch = rb.view(Packed(segments=True)).sample(16)
    starts = batch["next_N_offsets"]
    expected = [
        rows[number]["next_edges"] + starts[k] for k, number in enumerate(batch["id"].tolist())
    ]
    np.testing.assert_array_equal(batch["next_edges"], np.concatenate(expected, axis=1))
    assert batch["next_N_segments"].tolist() == np.repeat(np.arange(16), np.diff(starts)).tolist()
    found = rb.view(Sequences(3), Packed()).sample(4)
    assert len(found["next_N_offsets"]) == 4 * 3 + 1


def test_a_mixture_draws_them() -> None:
    """Parts of several buffers are one batch."""
    one, rows = filled()
    two, _ = filled()
    expect(Mixture({"one": one, "two": two}, {"one": 0.5, "two": 0.5}, seed=0).sample(16), rows)
