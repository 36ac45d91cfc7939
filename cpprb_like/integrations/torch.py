"""``EpochDataset``: batches of a source for a ``DataLoader`` of PyTorch.

Not here: ``batches(to="torch")`` and ``epoch(to="torch")`` of every source, which return batches of
tensors without a ``DataLoader``, mostly faster.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from cpprb_like._arguments.checks import as_int
from cpprb_like.buffers import Source
from cpprb_like.integrations._libraries import missing

try:
    import torch
    from torch.utils.data import IterableDataset, get_worker_info
except ImportError as error:
    raise missing(__name__, "PyTorch", "torch", error) from error

__all__ = ["EpochDataset"]


class EpochDataset(IterableDataset[Any]):  # type: ignore[misc]
    """Epochs of a source, for a ``torch.utils.data.DataLoader``: each row once over all workers.

    Use the dataset with ``DataLoader(dataset, batch_size=None)``, as its items are batches. Workers
    share the batches among them, so any number of workers gives the same batches.

    Parameters
    ----------
    source : Source
        A buffer, or a view of one.
    batch_size : int
        Number of rows in a batch, at least 1.
    shuffle, drop_last, fields
        As for ``Source.epoch``.
    seed : int
        Seed of the epochs, at least 0. Seed and number of an epoch determine its order.
    shard : (int, int)
        Part i of k of the rows, for training by several processes with the same ``seed``. Each
        process may have any number of workers, which share the batches of its part. If processes
        wait for one another, set ``drop_last`` too. Then all parts have equally many batches.

    Raises
    ------
    TypeError, ValueError
        An argument has a wrong type or value.

    Notes
    -----
    Workers read the rows that the source had when they began, so the class is for offline training.
    Workers started by ``fork`` read the memory of their parent. Workers started by ``spawn`` or
    ``forkserver`` each have a separate copy. Layers of a view may draw at random, such as the goals
    of ``Hindsight``. In a worker, these draws depend on the seed, the epoch, the shard and the
    number of the worker.

    Examples
    --------
    >>> from torch.utils.data import DataLoader
    >>> from cpprb_like import ReplayBuffer
    >>> from cpprb_like.integrations.torch import EpochDataset
    >>> rb = ReplayBuffer(10, {"rew": {"shape": ()}})
    >>> rb.add(rew=[1, 2, 3, 4, 5])
    0
    >>> dataset = EpochDataset(rb, 2, shuffle=False)
    >>> for epoch in range(2):
    ...     dataset.set_epoch(epoch)
    ...     [batch["rew"].tolist() for batch in DataLoader(dataset, batch_size=None)]
    [[1.0, 2.0], [3.0, 4.0], [5.0]]
    [[1.0, 2.0], [3.0, 4.0], [5.0]]
    """

    def __init__(
        self,
        source: Source,
        batch_size: int,
        *,
        shuffle: bool = True,
        drop_last: bool = False,
        fields: str | Iterable[str] | None = None,
        seed: int = 0,
        shard: tuple[int, int] = (0, 1),
    ) -> None:
        super().__init__()
        if not isinstance(source, Source):
            raise TypeError(f"source: expected a buffer or a view, got {type(source).__name__}")
        self.source = source
        self.batch_size = batch_size
        self.shuffle = bool(shuffle)
        self.drop_last = bool(drop_last)
        self.fields = fields if fields is None or isinstance(fields, str) else tuple(fields)
        self.seed = as_int("seed", seed, 0)
        self.shard = shard
        # Shared memory: workers that outlive an epoch see the next number.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()
        self._batches(0, 1).close()  # checks the arguments

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next epoch, an int of at least 0; the first epoch is 0.

        Each epoch has a different random order. Call this method before each iteration, like
        ``set_epoch`` of ``DistributedSampler``.
        """
        self._epoch.fill_(as_int("epoch", epoch, 0))

    def _batches(self, worker: int, workers: int) -> Any:
        return self.source._batches_of(
            self.shard,
            (worker, workers),
            self.batch_size,
            shuffle=self.shuffle,
            drop_last=self.drop_last,
            fields=self.fields,
            seed=np.random.default_rng([self.seed, int(self._epoch)]),
            to="torch",
        )

    def __iter__(self) -> Iterator[Any]:
        """The batches of this worker, or all batches without workers."""
        info = get_worker_info()
        if info is not None:  # else every worker would draw as its parent, in every epoch
            numbers = [self.seed, int(self._epoch), *self.shard, info.id]
            self.source.reseed(np.random.SeedSequence(numbers))
        batches: Iterator[Any] = self._batches(
            0 if info is None else info.id, 1 if info is None else info.num_workers
        )
        return batches
