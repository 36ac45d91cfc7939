"""``Learner``: batches from the shards of a shared replay, as from one buffer.

Not here: how batches are drawn from shards (``_sharded``), following these (``_followed``), and who
writes rows (``_replay``).
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from cpprb_like._fields.row_options import RowOptions
from cpprb_like._machine.generators import Seed, generator
from cpprb_like._machine.prefetch_state import without_prefetch
from cpprb_like.buffers._replay import ReplayBuffer, check_columns
from cpprb_like.buffers._source import if_prioritized
from cpprb_like.processes._folder import FileLock, Folder
from cpprb_like.processes._followed import FollowedShards
from cpprb_like.processes._learner_view import LearnerView
from cpprb_like.processes._saving import SavedLearner
from cpprb_like.processes._sharded import Sharded
from cpprb_like.processes._update_counts import UpdateCounts
from cpprb_like.samplers._base import Sampler
from cpprb_like.samplers._uniform import Uniform
from cpprb_like.views._layer import Layer

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Learner"]


class Learner(Sharded):
    """The end of a shared replay that draws: ``SharedReplay.learner``.

    A ``Source`` of the rows of all actors: what is drawn has the distribution of one buffer that
    holds them all, and the same columns. It has a sampler, priorities and a generator of its own,
    so several learners do not disturb each other, nor the actors.

    Attributes
    ----------
    number : int
        Of the learner, from 0 on.
    sampler : Sampler
        Which rows are drawn.
    rng : numpy.random.Generator
        The generator in use.

    Notes
    -----
    *Uniform*: each row of all shards has the same probability.

    *Prioritized*: rows have the probabilities, importance-sampling weights and strata that one
    buffer with the rows of all shards gives them; new rows get the greatest priority that this
    learner knows. ``indexes`` are always handles, as with ``check_for_update``.

    *RankBased*: a shard is drawn by the number of its rows, and in it a row by its rank among the
    rows of that shard. Importance-sampling weights correct for the probabilities of both.

    Other samplers raise ``TypeError``: the rows of several processes have no common order of age.

    Batches have the columns that one buffer with all rows gives them. ``indexes`` of batches name a
    shard and a row of it, for ever. Each row is whole, and was in the replay at the time of the
    draw. A row that an actor writes over while it is read makes all rows be drawn again. That try
    passes over the oldest rows of the shard; later draws have them again. Only the batch that was
    read counts as drawn, as for the time of a schedule; the random numbers of the others are used
    up. ``RuntimeError`` says that rows were written over faster than they could be read, in 1,000
    tries and ten seconds: ``capacity`` is far too small.

    Cost of a batch: that of one buffer, and a look at each shard. N-step returns and views are read
    shard by shard, and copied once more; on top of that each shard costs a few microseconds.

    The same seed, and the same rows that came between the same calls, give the same batches.

    Any number of threads may draw and update. A learner belongs to its process, and is not
    pickled: hand on the ``SharedReplay``. In a forked child its methods raise ``RuntimeError``.

    Examples
    --------
    >>> from cpprb_like.processes import SharedReplay
    >>> from cpprb_like.samplers import Prioritized
    >>> replay = SharedReplay(1000, {"x": {"shape": ()}}, writers=2)
    >>> with replay.actor() as one, replay.actor() as other:
    ...     _ = one.add(x=[0, 1]), other.add(x=[10, 11, 12])
    >>> learner = replay.learner(Prioritized(alpha=1.0, eps=0.0), seed=0)
    >>> batch = learner.sample(5)
    >>> sorted(batch["x"].tolist()), batch["weights"].tolist()
    ([0.0, 1.0, 10.0, 11.0, 12.0], [1.0, 1.0, 1.0, 1.0, 1.0])
    >>> learner.update_priorities(batch["indexes"], batch["x"])
    >>> learner.get_max_priority()
    12.0
    """

    _model: ReplayBuffer
    FOLLOWED: ClassVar[type[FollowedShards]] = FollowedShards

    def __init__(
        self,
        folder: Folder,
        shards: list[Path],
        number: int,
        lock: FileLock,
        sampler: Sampler,
        seed: Seed,
        options: RowOptions,
    ) -> None:
        check_columns(sampler, options.schema.names)
        self._folder = folder
        self._membership = lock
        self.number = number
        self.rng = generator(seed)
        self._options = options
        self._model = self._model_of(options.n_envs)
        counts = UpdateCounts(folder.path, number)
        layout = self._model.ring
        followed = self.FOLLOWED(folder.path, shards, sampler, self.rng, options, layout)
        super().__init__(followed, sampler, counts)
        counts.tell(0, 0)
        self._check_size = self._model._check_batch_size
        self._choose = followed.draws.among()
        self._parts = followed.readers
        # All shards have the same layout, so without n-step returns a batch is read in one pass.
        self._columns = self._model.ring.columns if self._model._nstep is None else None

    def _model_of(self, size: int) -> ReplayBuffer:
        """A buffer as each shard is, without rows."""
        return ReplayBuffer._of(self._options.resized(size), Uniform(), np.random.default_rng(0))

    def view(self, *layers: Layer) -> LearnerView:
        """The rows of all shards, read in another way: see ``ReplayBuffer.view``.

        Parameters
        ----------
        *layers : NStep, Sequences, FrameStacks or Hindsight
            As there. What belongs together lies in one stream of one shard: a sequence begins and
            ends within it.

        Returns
        -------
        LearnerView
            It draws from this learner's shards, with its sampler and its generator.

        Raises
        ------
        TypeError, ValueError
            A layer is none, comes twice, or does not fit the fields.

        Notes
        -----
        Cost of a batch: that of one of each shard that it has rows of.

        Examples
        --------
        >>> from cpprb_like.processes import SharedReplay
        >>> from cpprb_like.views import Sequences
        >>> fields = {"x": {"shape": ()}, "done": {"shape": (), "dtype": bool}}
        >>> replay = SharedReplay(100, fields, writers=2)
        >>> with replay.actor() as actor:
        ...     actor.add(x=range(10), done=[False] * 9 + [True])
        0
        >>> view = replay.learner(seed=0).view(Sequences(4, stride=5))
        >>> sorted({tuple(row) for row in view.sample(20)["x"].tolist()})
        [(0.0, 1.0, 2.0, 3.0), (5.0, 6.0, 7.0, 8.0)]
        """
        return LearnerView(self, self._model_of, layers)

    # ------------------------------------------------------------------ state

    def _save(self) -> SavedLearner:
        """What it has of its own, as it is now, and before batches that were drawn ahead."""
        shards = self._shards
        with shards.lock:
            shards.follow()
            rng = copy.deepcopy(without_prefetch(self.rng))
            sampler = copy.deepcopy(without_prefetch(self.sampler))
            heard = np.frombuffer(shards.heard or b"", np.int64).tolist()
            return SavedLearner(rng, sampler, shards.draws.save(), heard)

    def _go_on(self, saved: SavedLearner, *, heard: bool) -> None:
        """Go on with what was saved; ``heard`` says whether it was saved from this replay."""
        self._shards.draws.go_on(saved.rows)
        if self._shards.heard is not None and heard:
            self._shards.heard = np.array(getattr(saved, "heard", ()), np.int64).tobytes()

    @if_prioritized
    def get_max_priority(self) -> float:
        """The priority that new rows get: the greatest that this learner knows, 1.0 at first.

        Only learners with priorities have this method.
        """
        with self._shards.lock:
            self._shards.follow()
            return self._shards.draws.priorities.get_max_priority()

    def close(self) -> None:
        """Leave the replay: the learner's place is free. It is not used afterwards."""
        self._membership.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Learner(number={self.number}, sampler={self.sampler!r}, stored={len(self)})"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a learner belongs to its process; hand on the SharedReplay instead")
