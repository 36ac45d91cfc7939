"""``EpochDataset``, with the real PyTorch."""

from __future__ import annotations

import copy
import os
import pickle
from typing import Any

import numpy as np
import pytest
from optional import need

from cpprb_like import ReplayBuffer
from cpprb_like.buffers import Mixture
from cpprb_like.views import Hindsight, NStep

torch = need("torch", "make test-torch")
from torch.utils.data import DataLoader

from cpprb_like.integrations.torch import EpochDataset

pytestmark = [
    pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:os.fork.. was called:RuntimeWarning"),  # by JAX, if loaded
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),  # of two cores
]

STARTS = ["fork", "spawn"] if hasattr(os, "fork") else ["spawn"]
FIELDS: dict[str, Any] = {
    "x": {"shape": (), "dtype": "i8"},
    "rew": {"shape": ()},
    "done": {"shape": ()},
}


def filled(n: int = 103) -> ReplayBuffer:
    """A buffer of n numbered rows."""
    rb = ReplayBuffer(200, FIELDS, seed=0)
    rb.add(x=np.arange(n), rew=np.arange(n), done=np.arange(n) % 10 == 9)
    return rb


def rows(loader: DataLoader[Any]) -> list[int]:
    """The rows of an epoch, in the order in which they come."""
    return [x for batch in loader for x in batch["x"].tolist()]


@pytest.mark.parametrize(
    ("workers", "start"), [(0, None), (1, "fork"), (3, "fork"), (3, "spawn"), (1, "spawn")]
)
def test_each_row_once_over_all_workers(workers: int, start: str | None) -> None:
    """However many workers there are, and however they begin."""
    if start is not None and start not in STARTS:
        pytest.skip("there is no fork here")
    dataset = EpochDataset(filled(), 8)
    loader: Any = DataLoader(
        dataset, batch_size=None, num_workers=workers, multiprocessing_context=start
    )
    orders = []
    for epoch in range(2):
        dataset.set_epoch(epoch)
        batches = list(loader)
        assert all(torch.is_tensor(value) for batch in batches for value in batch.values())
        orders.append([x for batch in batches for x in batch["x"].tolist()])
        assert sorted(orders[-1]) == list(range(103))
    assert orders[0] != orders[1]
    dataset.set_epoch(0)
    assert rows(loader) == orders[0]


def never(*_: Any) -> Any:
    """A user's function that takes from an iterator which is empty."""
    return next(iter(()))


@pytest.mark.parametrize(("workers", "start"), [(0, None), (1, STARTS[0])])
def test_stopiteration_of_a_users_function_is_an_error(workers: int, start: str | None) -> None:
    """PyTorch took it for the end of the epoch, which had no batches."""
    vector: Any = {"shape": 2}
    rb = ReplayBuffer(20, {"goal": vector, "found": vector, "rew": {}, "done": {}})
    rb.add(goal=np.ones((20, 2)), found=np.ones((20, 2)), rew=np.ones(20), done=np.zeros(20))
    view = rb.view(Hindsight(never, goal="goal", achieved="found", relabel_ratio=1.0))
    loader: Any = DataLoader(
        EpochDataset(view, 8), batch_size=None, num_workers=workers, multiprocessing_context=start
    )
    with pytest.raises(RuntimeError, match="reading a batch raised StopIteration"):
        list(loader)


@pytest.mark.parametrize("start", STARTS)
def test_workers_that_stay_see_the_epoch(start: str) -> None:
    """``set_epoch`` reaches workers that outlive an epoch."""
    dataset = EpochDataset(filled(), 8)
    loader: Any = DataLoader(
        dataset, batch_size=None, num_workers=2, persistent_workers=True,
        multiprocessing_context=start,
    )  # fmt: skip
    orders = []
    for epoch in (0, 1, 0):
        dataset.set_epoch(epoch)
        orders.append(rows(loader))
        assert sorted(orders[-1]) == list(range(103))
    assert orders[0] == orders[2] != orders[1]


@pytest.mark.parametrize("drop_last", [False, True])
def test_workers_share_the_batches(drop_last: bool) -> None:
    """However many there are, the batches are those of an epoch, with one last batch."""
    dataset = EpochDataset(filled(), 8, drop_last=drop_last)
    expected = [batch["x"].tolist() for batch in DataLoader(dataset, batch_size=None)]
    assert [len(batch) for batch in expected] == [8] * 12 + [7] * (not drop_last)
    for workers in (1, 3):
        loader: Any = DataLoader(dataset, batch_size=None, num_workers=workers)
        assert [batch["x"].tolist() for batch in loader] == expected


@pytest.mark.parametrize("workers", [(2, 2), (2, 3), (0, 3)], ids=str)
@pytest.mark.parametrize("drop_last", [False, True])
def test_processes_share_an_epoch(workers: tuple[int, int], drop_last: bool) -> None:
    """With ``shard`` each has its part, also where one has more workers: rows came twice there."""
    found: list[int] = []
    sizes = []
    for rank in range(2):
        dataset = EpochDataset(filled(), 8, shard=(rank, 2), seed=3, drop_last=drop_last)
        loader: Any = DataLoader(dataset, batch_size=None, num_workers=workers[rank])
        batches = [batch["x"].tolist() for batch in loader]
        found += [x for batch in batches for x in batch]
        sizes.append([len(batch) for batch in batches])
    if drop_last:
        assert sizes == [[8] * 6] * 2
        assert len(set(found)) == 96
    else:
        assert sizes == [[8] * 6 + [4], [8] * 6 + [3]]
        assert sorted(found) == list(range(103))


def test_views_and_fields() -> None:
    """A view is a source too; what is not asked for is not read."""
    dataset = EpochDataset(filled().view(NStep(3)), 8, fields="rew", shuffle=False)
    batch = next(iter(DataLoader(dataset, batch_size=None)))
    assert list(batch) == ["rew"]
    assert batch["rew"][0] == pytest.approx(0 + 0.99 + 2 * 0.99**2)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("start", STARTS)
def test_layers_draw_anew_in_each_epoch_and_worker(start: str, persistent: bool) -> None:
    """A worker has a copy of its parent's generator, which drew the same goals each time."""
    fields: dict[str, Any] = {
        name: {"shape": ()} for name in ("achieved_goal", "desired_goal", "rew", "done")
    }
    rb = ReplayBuffer(100, fields, next_of="achieved_goal", seed=0)
    at = np.arange(50.0)
    rb.add(achieved_goal=at, next_achieved_goal=at + 1, desired_goal=-at - 1, rew=at, done=at == 49)
    dataset = EpochDataset(rb.view(Hindsight(reached)), 25, shuffle=False)
    loader: Any = DataLoader(
        dataset, batch_size=None, num_workers=2, multiprocessing_context=start,
        persistent_workers=persistent,
    )  # fmt: skip
    goals = []
    for epoch in (0, 1, 0):
        dataset.set_epoch(epoch)
        batches = sorted(loader, key=lambda batch: float(batch["achieved_goal"][0]))
        goals.append([batch["desired_goal"].tolist() for batch in batches])
    assert goals[0] == goals[2]
    for one, other in zip(goals[0], goals[1], strict=True):
        assert one != other
    relabelled = [[goal > 0 for goal in worker] for worker in goals[0]]
    assert relabelled[0] != relabelled[1]


def reached(achieved: Any, goal: Any, *_: Any) -> Any:
    """1 where the goal is reached; a function that workers can be sent."""
    return (achieved == goal).astype(np.float32)


def test_a_data_set_is_pickled_and_copied() -> None:
    """With its source and its epoch."""
    dataset = EpochDataset(filled(), 8, seed=1)
    dataset.set_epoch(4)
    expected = rows(DataLoader(dataset, batch_size=None))
    for again in (pickle.loads(pickle.dumps(dataset)), copy.deepcopy(dataset)):
        assert rows(DataLoader(again, batch_size=None)) == expected


def test_workers_may_be_forked_while_batches_are_drawn_ahead() -> None:
    """A thread of the parent that draws ahead holds nothing that a worker waits for."""
    rb = filled()
    with rb.batches(4, prefetch=3) as batches:
        for _ in range(3):
            next(batches)
            loader: Any = DataLoader(EpochDataset(rb, 8), batch_size=None, num_workers=2)
            assert sorted(rows(loader)) == list(range(103))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"fields": "y"}, "y"),
        ({"seed": -1}, "seed"),
        ({"shard": (2, 2)}, "shard"),
        ({"shard": 3}, r"shard: expected \(i, k\), part i of k, got 3"),
        ({"source": [1]}, "source: expected a buffer or a view, got list"),
        ({"source": Mixture({"a": filled()}, {"a": 1})}, "a mixture has no epoch"),
    ],
    ids=repr,
)
def test_wrong_arguments_are_refused_at_once(options: Any, words: str) -> None:
    """And not in a worker."""
    with pytest.raises((TypeError, ValueError), match=words):
        EpochDataset(**({"source": filled(), "batch_size": 8} | options))
    with pytest.raises(ValueError, match="epoch"):
        EpochDataset(filled(), 8).set_epoch(-1)
