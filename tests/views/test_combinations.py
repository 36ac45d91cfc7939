"""What goes with what: each sampler with each set of layers and each option, against the twin."""

from __future__ import annotations

import copy
import pickle
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from combinations import OPTIONS, SAMPLERS, VIEWS, Cell, build, reason
from helpers import check_arrays
from reference_layers import History, Reading, items

from cpprb_like._machine.aligned import aligned
from cpprb_like.buffers import Mixture, View
from cpprb_like.processes import SharedReplay
from cpprb_like.samplers import Reverse
from cpprb_like.views import Hindsight

Array = npt.NDArray[Any]
N = 12


# Options that change no row, no priority and no layer: their cells are tried on one view.
READ_ONLY = ("sample", "replace", "out", "fields", "beta", "batches", "epoch", "Mixture")


def played(cell: Cell, seed: int = 0) -> tuple[View, History, Reading]:
    """The view of a cell over a buffer that has wrapped, and its twin."""
    is_shared = cell.option in READ_ONLY or reason(cell) is not None
    return play_once(cell.sampler, cell.view, seed) if is_shared else play(cell, seed)


@lru_cache(maxsize=2)
def play_once(sampler: str, view: str, seed: int) -> tuple[View, History, Reading]:
    """That of all cells that only read."""
    return play(Cell(sampler, view, "sample"), seed)


def play(cell: Cell, seed: int) -> tuple[View, History, Reading]:
    """That of one cell."""
    rb = build(cell, seed)
    history = History(rb, np.random.default_rng(seed))
    history.play(100 if rb.n_envs == 1 else 70)
    layers = VIEWS[cell.view]
    if any(isinstance(layer, Hindsight) for layer in layers) and cell.option == "pickle":
        layers = tuple(copy.copy(layer) for layer in layers)
    return rb.view(*layers), history, Reading(cell, layers, history)


def check_batch(view: View, batch: dict[str, Array], n: int, reading: Reading) -> None:
    """A batch has the columns that the view tells, and the values of the twin."""
    assert set(batch) == set(view.columns)
    for name, spec in view.columns.items():
        if name == "tokens" or name[:2] == "T_":
            assert batch[name].dtype == spec.dtype
        else:
            assert (batch[name].dtype, batch[name].shape) == (spec.dtype, (n, *spec.shape))
    check_arrays({name: values for name, values in batch.items() if name != "T_longest"})
    for item in items(batch):
        reading.check(item)


def out_for(view: View, n: int) -> dict[str, Array]:
    """Arrays for the fields, full of what has to go."""
    out = {
        name: aligned(np.ones((n, *spec.shape), spec.dtype))
        for name, spec in view.columns.items()
        if name in view.fields and name != "tokens"
    }
    if "tokens" in view.fields:
        tokens = view.sample(n, fields=["tokens"])
        shape = tokens["tokens"].shape if "T_mask" in tokens else (4 * len(view.buffer),)
        out["tokens"] = aligned(np.ones(shape, np.int32))
    return out


def check_priorities(view: View, reading: Reading) -> None:
    """A row whose priority is by far the greatest comes far more often than others."""
    rb = view.buffer
    batch = view.sample(N)
    view.update_priorities(batch["indexes"], np.full(N, 1e-9))
    rows = rb.sample(len(rb), replace=False)
    rb.update_priorities(rows["indexes"], np.full(len(rb), 1e-9))
    view.update_priorities(batch["indexes"][:1], [1e9])
    ids = view.sample(500)["id"].reshape(500, -1)[:, 0]
    assert (ids == batch["id"].reshape(N, -1)[0, 0]).mean() > 0.05
    check_batch(view, view.sample(N), N, reading)


def try_shared(cell: Cell) -> None:
    """A learner of two shards draws from both what the twin of each says."""
    layers, model = VIEWS[cell.view], build(cell)
    fields: dict[str, Any] = {
        field.name: {"shape": field.declared_shape, "dtype": field.dtype}
        for field in model.schema.declared
    }
    room = {axis: 2 * items for axis, items in model.schema.rooms.items()}
    with SharedReplay(2 * model.capacity, fields, writers=2, room=room) as replay:
        readings = []
        for number in range(2):
            history = History(replay.actor(number), np.random.default_rng(number))
            history.play(70 + 50 * number)
            readings.append(Reading(cell, layers, history))
        learner = replay.learner(SAMPLERS[cell.sampler](), seed=0)
        view = learner.view(*layers)
        seen = set()
        for _ in range(2):
            batch = view.sample(2 * N, indexes=True)
            check_arrays({name: one for name, one in batch.items() if name != "T_longest"})
            for item in items(batch):
                shard = int(np.ravel(item["indexes"])[0]) & 1
                seen.add(shard)
                readings[shard].check(item)
            if learner.has_priorities:
                view.update_priorities(batch["indexes"], np.linspace(0.5, 1.0, 2 * N))
        assert seen == {0, 1}
        with pytest.raises(TypeError, match="no epoch"):
            view.epoch(7)


def try_option(cell: Cell) -> None:
    """The cell does what the twin does."""
    if cell.option == "shared":
        try_shared(cell)
        return
    view, history, reading = played(cell)
    rb, option = view.buffer, cell.option
    check_batch(view, view.sample(N), N, reading)
    if option == "replace":
        n = min(N, sum(map(reading.can_start, history.by_id().values())))
        batch = view.sample(n, replace=False)
        check_batch(view, batch, n, reading)
        assert len(np.unique(batch["id"].reshape(n, -1)[:, 0])) == n
    elif option == "out":
        out = out_for(view, N)
        arrays = dict(out)
        batch = view.sample(N, out=out)
        assert (batch is out) is ("T_offsets" not in batch)
        assert all(out[name] is array for name, array in arrays.items())
        assert all(np.shares_memory(batch[name], array) for name, array in arrays.items())
        check_batch(view, batch, N, reading)
    elif option == "indexes":
        batch = view.sample(N, indexes=True)
        first = batch["id"].reshape(N, -1)[:, 0]
        rb.update(batch["indexes"], rew=first + 5000.0)
        for step in history.by_id().values():
            if step.values["id"] in first:
                step.values["rew"] = step.values["id"] + 5000.0
        check_batch(view, view.sample(N), N, reading)
    elif option == "fields":
        names = ["id", "obs", "goal", *(["tokens"] if "tokens" in view.fields else [])]
        batch = view.sample(N, fields=names)
        assert set(batch) == set(names) | set(view.columns) - set(view.fields)
        for item in items(batch):
            reading.check(item)
    elif option == "beta":
        batch = view.sample(N, 1.0)
        check_batch(view, batch, N, reading)
        assert batch["weights"].max() <= 1.0
    elif option == "updates":
        check_priorities(view, reading)
    elif option == "batches":
        for _, batch in zip(range(2), view.batches(N), strict=False):
            check_batch(view, batch, N, reading)
    elif option == "epoch":
        drawn = []
        for batch in view.epoch(7):
            check_arrays({name: one for name, one in batch.items() if name != "T_longest"})
            drawn += batch["id"].reshape(len(batch["id"]), -1)[:, 0].tolist()
            for item in items(batch):
                reading.check(item)
        there = set(rb.get_all_transitions(fields="id")["id"].tolist())
        steps = history.by_id()
        assert sorted(drawn) == sorted(i for i in there if reading.can_start(steps[i]))
    elif option == "Mixture":
        other, _, theirs = played(cell, 1)
        mixture = Mixture({"one": view, "two": other}, {"one": 1, "two": 2}, seed=0)
        batch = mixture.sample(3 * 4)
        check_arrays({name: one for name, one in batch.items() if name != "T_longest"})
        for item in items(batch):
            (reading, theirs)[int(item.pop("source"))].check(item)
    elif option == "pickle":
        twin = copy.deepcopy(view)
        same = pickle.loads(pickle.dumps(view))
        expected = view.sample(N)
        for one in (twin, same):
            batch = one.sample(N)
            if cell.sampler != "LegacyUniform":  # that draws from NumPy's global generator
                for name, values in expected.items():
                    np.testing.assert_array_equal(batch[name], values)


def refusal(cell: Cell) -> None:
    """The cell is refused with a sentence."""
    view, _, _ = played(cell)
    if cell.option == "beta":
        with pytest.raises(TypeError, match="priorities"):
            view.sample(N, 0.5)
    elif cell.option == "updates":
        with pytest.raises(AttributeError, match="rows have priorities where"):
            view.update_priorities([0], [1.0])
    elif cell.option == "shared":
        with (
            SharedReplay(10, {"x": {}}, writers=2) as replay,
            pytest.raises(TypeError, match="Uniform or Prioritized, and with"),
        ):
            replay.learner(SAMPLERS[cell.sampler]())
    else:
        assert cell.option == "replace"
        assert isinstance(view.buffer.sampler, Reverse)
        with pytest.raises(ValueError, match="distinct"):
            view.sample(len(view.buffer), replace=False)


# A quarter of a second each: 'make check' tries one sampler with each view, each of them in turn.
@pytest.mark.once
@pytest.mark.parametrize(
    ("sampler", "view"),
    [
        pytest.param(sampler, view, marks=[] if j % len(SAMPLERS) == i else [pytest.mark.slow])
        for i, sampler in enumerate(SAMPLERS)
        for j, view in enumerate(VIEWS)
    ],
)
def test_what_goes_with_what(sampler: str, view: str) -> None:
    """Each option works as the twin says, or is refused for the reason on the page."""
    failed: list[tuple[str, Exception]] = []
    for option in OPTIONS:
        cell = Cell(sampler, view, option)
        try:
            refusal(cell) if reason(cell) is not None else try_option(cell)
        except Exception as error:
            failed.append((option, error))
    for option, reason_why in failed:
        print(f"{sampler} x {view} x {option}: {reason_why!r}")
    if failed:
        raise failed[0][1]
