"""A buffer of whole episodes that can be read and deleted one by one: cpprb's class of this name.

Not here: how rows are stored (``buffers._replay``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cpprb_like._arguments.checks import as_int, as_whole
from cpprb_like._machine.generators import Seed
from cpprb_like.buffers import Batch, ReplayBuffer
from cpprb_like.checkpoint import Checkpointed
from cpprb_like.typing import FieldSpec


class SelectiveReplayBuffer(Checkpointed):
    """A buffer of whole episodes in the order of their arrival, with a limited number of steps.

    A full buffer refuses further steps. Call ``delete_episode`` or ``clear`` to make room.

    Parameters
    ----------
    episode_len, Nepisodes : int
        The product of both is the capacity in steps. Episodes may be longer than ``episode_len``.
    obs_dim, act_dim, rew_dim : int
        Lengths of observations, actions and rewards. Their shapes are ``(obs_dim,)``, and so on.
    is_discrete_action : bool
        Store actions as int32 of shape ``(1,)``, and not as float64. ``act_dim`` is then the number
        of actions.
    obs_shape : int or tuple of int, optional
        Shape of observations, in place of ``obs_dim``.
    seed : int, SeedSequence, BitGenerator, Generator, optional
        Seed of the draws: see ``ReplayBuffer``.

    Raises
    ------
    TypeError, ValueError, MemoryError
        An argument has a wrong type or value, or there is not enough memory.

    Notes
    -----
    All fields except discrete actions are float64. A step with nonzero ``done`` ends an episode.
    Unlike ``ReplayBuffer``, the class is for one thread at a time.

    Examples
    --------
    >>> from cpprb_like import SelectiveReplayBuffer
    >>> rb = SelectiveReplayBuffer(3, obs_dim=2, Nepisodes=4, seed=0)
    >>> rb.add([[0, 0], [1, 1]], [0, 0], [1, 1], [[1, 1], [2, 2]], [0, 1])
    0
    >>> rb.add([5, 5], 1, 0.5, [6, 6], 0)
    2
    >>> rb.get_stored_episode_size(), rb.get_episode(0)["obs"].tolist()
    (2, [[0.0, 0.0], [1.0, 1.0]])
    >>> rb.delete_episode(0), rb.get_episode(0)["rew"].tolist()
    (2, [[0.5]])
    """

    def __init__(
        self,
        episode_len: int,
        obs_dim: int = 1,
        act_dim: int = 1,
        *,
        Nepisodes: int = 10,  # noqa: N803 (cpprb's name)
        rew_dim: int = 1,
        is_discrete_action: bool = False,
        obs_shape: int | Iterable[SupportsIndex] | None = None,
        seed: Seed = None,
    ) -> None:
        capacity = as_whole("episode_len", episode_len, 1) * as_whole("Nepisodes", Nepisodes, 1)
        shape: SupportsIndex | Iterable[SupportsIndex] = as_whole("obs_dim", obs_dim, 0)
        self._act_dim = as_whole("act_dim", act_dim, 0)
        self._rew_dim = as_whole("rew_dim", rew_dim, 0)
        if obs_shape is not None:
            shape = tuple(obs_shape) if isinstance(obs_shape, Iterable) else obs_shape
        self._fields: dict[str, FieldSpec] = {
            "obs": {"shape": shape, "dtype": np.float64},
            "act": {"shape": self._act_dim, "dtype": np.float64},
            "rew": {"shape": self._rew_dim, "dtype": np.float64},
            "next_obs": {"shape": shape, "dtype": np.float64},
            "done": {"shape": 1, "dtype": np.float64},
        }
        if is_discrete_action:
            self._fields["act"] = {"shape": 1, "dtype": np.int32}
        self._rows = ReplayBuffer(capacity, self._fields, seed=seed)

    def add(
        self, obs: ArrayLike, act: ArrayLike, rew: ArrayLike, next_obs: ArrayLike, done: ArrayLike
    ) -> int:
        """Add one step, or several with a leading axis; each nonzero ``done`` ends an episode.

        Returns the number of the first written row. Raises ``ValueError`` if there is no room for
        the steps, or for values that ``ReplayBuffer.add`` refuses. Then nothing has changed.
        """
        given = {"obs": obs, "act": act, "rew": rew, "next_obs": next_obs, "done": done}
        fields = self._rows.schema.fields
        steps = {field.name: field.convert(given[field.name], 1) for field in fields}
        first = len(self._rows)
        room = self._rows.capacity - first
        most = max(map(len, steps.values()))
        if most > room:
            raise ValueError(
                f"expected at most {room} steps, got {most}: the buffer holds {first} of "
                f"{self._rows.capacity}; delete_episode or clear makes room"
            )
        self._rows.add(**steps)
        return first

    def _find(self, i: int) -> NDArray[np.intp]:
        """The slots of episode ``i``; no slots if there is no such episode."""
        number, index = as_int("i", i), self._rows._episodes
        if not 0 <= number < len(index):
            return np.empty(0, np.intp)
        return index.slots(number)[0]

    def get_episode(self, i: int, *, fields: str | Iterable[str] | None = None) -> Batch:
        """The rows of an episode, as copies.

        Parameters
        ----------
        i : int
            Number of the episode, 0 for the oldest one. An open episode counts too.
        fields : str or iterable of str, optional
            Fields to read, by default all.

        Returns
        -------
        dict of ndarray
            Each field, with shape ``(n, *shape)``. n is 0 if there is no such episode.
        """
        columns = self._rows._columns(fields)
        return self._rows._read(lambda: self._find(i), columns)

    def delete_episode(self, i: int) -> int:
        """Delete an episode and return its number of rows, or 0 if there is no such episode.

        Later rows and episodes move down. Cost: proportional to the number of rows in the buffer.
        """
        episode = self._find(i)
        removed = len(episode)
        if removed:
            others = np.ones(len(self._rows), np.bool_)
            others[episode] = False
            rest = self._rows[others]
            rows = ReplayBuffer(self._rows.capacity, self._fields, seed=self._rows.rng)
            rows.add(**rest)
            self._rows = rows  # one assignment, so that an interrupt loses no rows
        return removed

    def get_stored_episode_size(self) -> int:
        """Number of episodes, an open episode included."""
        return len(self._rows.episodes)

    def sample(self, batch_size: int, *, fields: str | Iterable[str] | None = None) -> Batch:
        """Draw rows uniformly, with replacement: see ``ReplayBuffer.sample``."""
        return self._rows.sample(batch_size, fields=fields)

    def clear(self) -> None:
        """Delete all episodes."""
        self._rows.clear()

    def __len__(self) -> int:
        """Number of stored rows."""
        return len(self._rows)

    def get_stored_size(self) -> int:
        """Number of stored rows."""
        return len(self._rows)

    def get_next_index(self) -> int:
        """Number of the next row; in a full buffer the number of rows."""
        return len(self._rows)

    def get_buffer_size(self) -> int:
        """Number of rows that the buffer can store."""
        return self._rows.capacity

    def get_obs_shape(self) -> tuple[int, ...]:
        """Shape of an observation."""
        return self._rows.schema.fields[0].shape

    def get_obs_dim(self) -> int:
        """Count of numbers in an observation."""
        return int(np.prod(self.get_obs_shape()))

    def get_act_dim(self) -> int:
        """``act_dim`` of the constructor."""
        return self._act_dim

    def get_rew_dim(self) -> int:
        """``rew_dim`` of the constructor."""
        return self._rew_dim

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(size={self._rows.capacity}, stored={len(self)}, "
            f"episodes={self.get_stored_episode_size()})"
        )
