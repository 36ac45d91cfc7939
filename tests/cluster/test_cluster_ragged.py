"""Values of any length in a cluster: packed on their way, and in batches as those of one buffer."""

from __future__ import annotations

import contextlib
import pickle
from collections import Counter
from typing import Any

import numpy as np
import pytest
from cluster_cases import cluster, each_place, kill_host
from ragged_batches import FIELDS, ROOM, Expected, RaggedHistory, check_batch

from cpprb_like.processes import SharedReplay
from cpprb_like.ray import ClusterActor, ClusterLearner, ClusterReplay
from cpprb_like.ray._adding import read_steps
from cpprb_like.ray._blocks import join_steps, pack, unpack
from cpprb_like.ray._drawing import Drawer
from cpprb_like.ray._hosts import _add_steps
from cpprb_like.samplers import Prioritized
from cpprb_like.views import Layer, NStep, Packed, Padded, Sequences

ROWS = [30, 50]  # of each host
LAYOUTS: list[tuple[tuple[Layer, ...], Expected]] = [
    ((), Expected()),
    (
        (Padded(side={"T": "left"}, value={"ids": -1}, multiple_of=4),),
        Expected(left="T", values={"ids": -1}, multiple_of=4),
    ),
    (
        (Packed(positions=True, segments=True, offsets=np.int64),),
        Expected(packed=True, positions=True, segments=True, offsets=np.int64),
    ),
    (
        (Packed(total={"N": 400, "E": 400}), Sequences(3)),
        Expected(packed=True, length={"N": 400, "E": 400}),
    ),
    ((Sequences(3), NStep(2, gamma=1.0, rew="rew")), Expected()),
    (
        (NStep(3, gamma=1.0, rew="rew"), Packed(dtypes={"ids": "i8"})),
        Expected(packed=True, dtypes={"ids": "i8"}),
    ),
]
TOKENS: dict[str, Any] = {
    "ids": {"shape": ("T",), "dtype": "i4"},
    "text": {"dtype": str},
    "id": {"shape": (), "dtype": "i8"},
    "done": {"shape": (), "dtype": bool},
}


def add_rows(replay: ClusterReplay, history: RaggedHistory) -> None:
    """Add rows to each host: single ones, several at once, and packed ones."""
    for number, count in enumerate(ROWS):
        rows = [history.row(len(history.rows) + k) for k in range(count)]
        history.rows += rows
        with ClusterActor(replay.hosts[number], replay._connection.options, 20.0, None) as actor:
            for row in rows[:-20]:
                given = {name: np.copy(value) for name, value in row.items() if name != "text"}
                actor.add(**given, text=row["text"])
                given["ids"][...] = -7  # the environment writes to its array
            many: dict[str, Any] = {name: [row[name] for row in rows[-20:]] for name in FIELDS}
            offsets = np.cumsum([0, *map(len, many["ids"])])
            actor.add(**{**many, "ids": (np.concatenate(many["ids"]), offsets)})


def check_draws(learner: ClusterLearner, rows: list[dict[str, Any]]) -> None:
    """Draw in each layout, and with each option of ``sample``."""
    for layers, expected in LAYOUTS:
        source = learner.view(*layers) if layers else learner
        for _ in range(5):
            check_batch(source.sample(16), rows, expected)
    packed = learner.view(Packed())
    for names in [("id", "edges"), ("id", "root"), ("id", "text"), ("id",)]:
        check_batch(packed.sample(8, fields=names), rows, Expected(packed=True), fields=names)
    out = {"id": np.empty(8, np.int64), "ids": np.empty(900, np.int32)}
    batch = packed.sample(8, fields=("id", "ids"), out=out)
    assert batch is not out
    assert np.shares_memory(batch["ids"], out["ids"])
    check_batch(batch, rows, Expected(packed=True), fields=("id", "ids"))
    padded, out["ids"] = learner.view(Padded(length={"T": 9})), np.empty((8, 9), np.int32)
    batch = padded.sample(8, fields=("id", "ids"), out=out)
    assert batch is out
    check_batch(batch, rows, Expected(length={"T": 9}), fields=("id", "ids"))
    with pytest.raises(ValueError, match=r"out\['ids'\]: expected shape \(8, 9\)"):
        padded.sample(8, fields=("ids",), out={"ids": np.empty((8, 7), np.int32)})
    with learner.batches(16, prefetch=2) as batches:
        for _ in range(5):
            check_batch(next(batches), rows, Expected())


def check_budgets(learner: ClusterLearner, rows: list[dict[str, Any]]) -> None:
    """Draw batches by a budget, by draws that are nearly all of one size."""
    for layers, expected in LAYOUTS[:3]:
        sizes = Counter[int]()
        source = learner.view(*layers) if layers else learner
        batches = source.batches(items={"T": 120})
        draw = source.sample

        def counted(n: int, sizes: Counter[int] = sizes, draw: Any = draw, **options: Any) -> Any:
            sizes[n] += 1
            return draw(n, **options)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(source, "sample", counted)
            for _ in range(30):
                batch = next(batches)
                check_batch(batch, rows, expected)
                assert len(batch["id"]) > 5
                assert max(batch["T_mask"].size if "T_mask" in batch else 0, 120) == 120
        assert max(sizes.values()) > 0.8 * sum(sizes.values())


def check_refusals(learner: ClusterLearner, actor: ClusterActor, row: dict[str, Any]) -> None:
    """A batch beyond its ``total`` is gone; a wrong value is refused by name, and nothing added."""
    small, lengths = learner.view(Packed(total={"N": 20})), list[int]()
    for _ in range(60):
        with contextlib.suppress(ValueError):
            lengths.append(len(small.sample(6)["nodes"]))
    assert 3 < len(lengths) < 57
    assert set(lengths) == {20}
    for name, value, message in [
        ("next_ids", np.zeros(2001, np.int32), r"at most room=\{'U': 2000\} items, got 2001"),
        ("weight", np.zeros(99), "'edges' has"),
        ("edges", np.full((2, len(row["weight"])), 77), "expected values of 0 to"),
        ("ids", ["a"], "field 'ids'"),
    ]:
        with pytest.raises(ValueError, match=message):
            actor.add(**{**row, name: value})
    assert actor.stats()["adds"] == 0


def test_batches_have_the_values_of_their_rows() -> None:
    """Of both hosts, in each layout, here and from another node, and after a host was killed."""
    history = RaggedHistory.of(0)
    rooms = {axis: 2 * room for axis, room in ROOM.items()}
    with cluster(2, 400, env_dict=FIELDS, room=rooms, writers=1) as replay:
        add_rows(replay, history)
        sampler = Prioritized(alpha=1.0, eps=0.0)
        for _ in each_place():
            with replay.learner(sampler, seed=0) as learner:
                check_draws(learner, history.rows)
                with replay.learner(seed=0) as uniform:
                    check_budgets(uniform, history.rows)
                handles = learner.sample(2000)
                assert set(handles["id"].tolist()) == set(range(80))
                learner.update_priorities(handles["indexes"], handles["id"] // 40 * 1.0)
                learner.flush()
                learner.sample(1, fields=("id",))  # what was asked for before is forgotten
                batch = learner.sample(50)
                assert set(batch["id"] // 40) == {1}
                check_batch(batch, history.rows, Expected())
                row = next(row for row in history.rows if row["weight"].size)
                with ClusterActor(replay.hosts[1], replay._connection.options, 20.0, None) as actor:
                    check_refusals(learner, actor, row)
        with ClusterActor(replay.hosts[0], replay._connection.options, 60.0, None) as actor:
            for number in range(80, 150):
                history.rows.append(history.row(number))
                actor.add(**history.rows[-1])
                if number in (90, 110):
                    actor.flush(wait=False)
                    kill_host(replay.hosts[0]) if number == 90 else None
            actor.flush()
        about = replay.hosts[0].call("about", timeout=30.0)
        assert sum(about.written) == 100
        found = {name for name in replay.stats() if name.startswith("left_for_room")}
        assert found == {f"left_for_room{host}" for host in ("", "_of_host_0", "_of_host_1")}
        with replay._connection.opened(about).learner() as own:
            batch = own.sample(len(own), replace=False)
        check_batch(batch, history.rows, Expected())
        assert sorted(batch["id"].tolist()) == [*range(30), *range(80, 150)]


def steps(first: int, n: int, n_envs: int) -> dict[str, Any]:
    """Steps whose values follow from their number, of some environments."""
    ids = np.arange(first * n_envs, (first + n) * n_envs)
    rows = [np.arange(k % 5, dtype=np.int32) + k for k in ids]
    texts = ["é" * (k % 3) + str(k) for k in ids]
    if n_envs == 1:
        return {"id": ids, "done": ids % 7 == 6, "ids": rows, "text": texts}
    by_step = {
        "ids": [rows[k : k + n_envs] for k in range(0, len(ids), n_envs)],
        "text": [texts[k : k + n_envs] for k in range(0, len(ids), n_envs)],
    }
    table = ids.reshape(n, n_envs)
    return {"id": table, "done": table % 7 == 6, **by_step}


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("some", [False, True])
@pytest.mark.parametrize("next_of", [[], ["ids", "text", "id"]])
def test_a_block_of_which_a_part_was_added_before(
    n_envs: int, some: bool, next_of: list[str]
) -> None:
    """Its other steps follow, with their own items, also of some environments only."""
    options: dict[str, Any] = {"room": {"T": 400, "text": 800}, "next_of": next_of}
    whole = SharedReplay(60, TOKENS, writers=2, n_envs=n_envs, **options)
    with whole, whole.actor() as one, whole.actor() as other:
        given, later = steps(0, 6, n_envs), steps(1, 6, n_envs)
        given |= {f"next_{name}": later[name] for name in next_of}
        present = np.arange(6 * n_envs).reshape(6, n_envs) % 2 == 0
        entries = {"present": present.ravel()} if some else {}
        columns = read_steps(whole._options, given, entries.get("present"))
        joined = join_steps([{**columns, **entries}], whole._options.schema)
        block = pickle.loads(pickle.dumps(pack(0, n_envs, joined, (), whole._options.schema)))
        one.add_where(present, **given) if some else one.add(**given)
        for begin, stop in [(0, 2), (2, 3), (3, 6)]:
            _add_steps(other, unpack(block), begin, stop)
        for name, values in one.get_all_transitions().items():
            np.testing.assert_array_equal(values, other.get_all_transitions()[name], err_msg=name)


def test_bytes_on_the_way() -> None:
    """A row takes its items, and few bytes for each axis; what is not asked for does not travel."""
    fields = {name: TOKENS[name] for name in ("ids", "id", "done")}
    with SharedReplay(400, fields, room={"T": 200_000}, writers=1) as replay:
        rng = np.random.default_rng(0)
        rows = [rng.integers(0, 9, rng.integers(0, 900)).astype("i4") for _ in range(256)]
        payload = sum(row.nbytes for row in rows)
        given = {"ids": rows, "id": np.arange(256), "done": np.zeros(256, bool)}
        columns = join_steps([read_steps(replay._options, given, None)], replay._options.schema)
        block = pickle.dumps(pack(0, 1, columns, (), replay._options.schema), protocol=5)
        assert len(block) < payload + 256 * (8 + 9) + 1500
        with replay.actor() as actor:
            actor.add(**given)
        drawer = Drawer(replay, Prioritized(), 0)
        reply = drawer.draw("", 256, {"indexes": True}, 1.0)
        drawn = sum(rows[k].nbytes for k in reply.columns["id"])  # type: ignore[union-attr]
        # Of a row: a number of items, id, done, index and mass.
        assert len(pickle.dumps(reply, protocol=5)) < drawn + 256 * (4 + 9 + 16) + 1500
        few = drawer.draw("", 256, {"indexes": False, "fields": ("id",)}, 1.0)
        assert len(pickle.dumps(few, protocol=5)) < 256 * 24 + 1500
        drawer.close()
