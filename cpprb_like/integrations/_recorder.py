"""``Recorder``: base class of the recorders of Gymnasium and of dm_env.

It has the fields, the buffer, and the state between two steps. Not here: the form of steps and
ends, which each recorder reads for its environments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from cpprb_like._arguments.arrays import Array, Flags
from cpprb_like.buffers import ReplayBuffer
from cpprb_like.integrations._infos import InfoFields
from cpprb_like.integrations._libraries import refuse_bad
from cpprb_like.integrations._nests import Tree, field_name, names_of
from cpprb_like.integrations._steps import SpaceParts, Steps
from cpprb_like.typing import FieldSpec

FloatType: TypeAlias = npt.DTypeLike | None
BufferT = TypeVar("BufferT", bound=ReplayBuffer)
ENDS = ("terminated", "truncated")


class Recorder:
    """Base class of recorders: see ``GymnasiumRecorder`` and ``DmEnvRecorder``."""

    n_envs: int
    _infos: InfoFields | None = None  # fields of infos, which only some recorders read
    _nest: ClassVar[str]  # "spaces" or "specs", for messages
    _keeps_floats: ClassVar[str]  # the value of ``float_type`` that keeps dtypes
    _restored: ClassVar[tuple[str, ...]]  # roots that ``restore`` nests
    _optional: ClassVar[tuple[str, ...]] = ()  # fields that a buffer may lack
    _begin_hint: ClassVar[str]  # message before the first reset
    _reset_hint: ClassVar[str]  # end of the message after an end without a reset

    def _set_up(
        self,
        trees: dict[str, Tree],
        n_rows: int | None,
        float_type: FloatType,
        mode: str,
        parts: tuple[SpaceParts | None, SpaceParts | None, SpaceParts | None] = (None, None, None),
    ) -> None:
        """Set the attributes. ``trees`` has the nest of each root, in the order of fields.

        ``n_rows`` is the length of the leading axis, None without one. ``mode`` and ``parts`` are
        arguments of ``Steps``.
        """
        self._float_type = self._read_float_type(float_type)
        self._trees, self._n_rows = trees, n_rows
        self.n_envs = 1 if n_rows is None else n_rows
        roots = (names_of(tree, root, self._nest) for root, tree in trees.items())
        self._names = (*(name for names in roots for name in names), *ENDS)
        self._steps = Steps(self._names, *parts, n_rows, mode)

    def _read_float_type(self, float_type: FloatType) -> np.dtype[Any] | None:
        """The dtype of floating-point fields; None to keep the dtype of each leaf."""
        keep = self._keeps_floats
        if isinstance(float_type, str) and float_type == keep:
            return None
        try:
            dtype = np.dtype(np.float32 if float_type is None else float_type)
        except TypeError as error:
            raise TypeError(
                f"float_type: expected a dtype or {keep!r}, got {float_type!r}"
            ) from error
        if dtype.kind != "f":
            raise ValueError(
                f"float_type: expected a floating-point dtype or {keep!r}, got {dtype}"
            )
        return dtype

    @property
    def buffer(self) -> ReplayBuffer | None:
        """The attached buffer; None before ``attach``."""
        return self._steps.buffer

    @property
    def env_dict(self) -> dict[str, FieldSpec]:
        """Fields for ``ReplayBuffer``, as a new dict at each access."""
        found: dict[str, FieldSpec] = {}
        for root, tree in self._trees.items():
            for leaf in tree.leaves():
                dtype = leaf.dtype
                if self._float_type is not None and dtype.kind == "f":
                    dtype = self._float_type
                named = partial(field_name, root)
                found[named(leaf.path)] = leaf.declaration(named, dtype)
        for name in ENDS:
            found[name] = {"shape": (), "dtype": np.dtype(np.bool_)}
        return found

    def attach(self, buffer: BufferT) -> BufferT:
        """Record into ``buffer`` from the next ``reset`` on, and return it.

        Parameters
        ----------
        buffer : ReplayBuffer
            Buffer with the fields of ``env_dict`` and of ``info_fields``. The field ``discount`` is
            optional. The buffer may have further fields, and other dtypes or shapes that suit the
            values. Values with any number of items need a named axis. An empty buffer that was made
            without ``n_envs`` takes ``n_envs`` of the recorder. A buffer with rows in a file keeps
            its own ``n_envs``.

        Raises
        ------
        ValueError
            A field is missing or lacks a named axis, or the number of environments differs.
        """
        known = buffer.schema.names
        lacking = [name for name in self._names if name not in known]
        infos = () if self._infos is None else tuple(self._infos.keys)
        missing = [name for name in lacking if name not in self._optional]
        missing += [name for name in infos if name not in known]
        if missing:
            raise ValueError(f"the buffer lacks the fields {missing}")
        ragged = [field.name for field in buffer.schema.declared if field.is_ragged]
        items = [
            field_name(root, leaf.path)
            for root, tree in self._trees.items()
            for leaf in tree.leaves()
            if leaf.axis is not None
        ]
        fixed = [name for name in items if name not in ragged]
        if fixed:
            raise ValueError(f"expected a named axis of the fields {fixed}, as in env_dict")
        if buffer.n_envs != self.n_envs and isinstance(buffer, ReplayBuffer):
            buffer._take_n_envs(self.n_envs)
        if buffer.n_envs != self.n_envs:
            raise ValueError(f"expected a buffer of n_envs={self.n_envs}, got {buffer.n_envs}")
        self._steps.attach(buffer)
        self._lacking = lacking
        if self._infos is not None:
            self._infos.nexts = [name for name in infos if f"next_{name}" in known]
        return buffer

    def restore(self, batch: Mapping[str, Array]) -> dict[str, Any]:
        """Return a batch with values nested like their spaces or specs.

        Graphs are a ``GraphInstance`` of Gymnasium. Masks and offsets stay beside it.

        Parameters
        ----------
        batch : mapping of str to ndarray
            Batch drawn from the buffer.

        Returns
        -------
        dict
            ``obs``, ``act`` and ``next_obs``, and ``rew`` of dm_env, as dicts and tuples of the
            batch's own arrays. A plain value is one array. All other entries are unchanged.

        Raises
        ------
        KeyError
            The batch lacks one of these fields.
        """
        trees = {root: self._trees[root] for root in self._restored}
        flat = {
            field_name(root, leaf.path) for root, tree in trees.items() for leaf in tree.leaves()
        }
        nested = {root: tree.restore(batch, root) for root, tree in trees.items()}
        return nested | {name: column for name, column in batch.items() if name not in flat}

    # ------------------------------------------------------------------ steps

    def _attached(self) -> ReplayBuffer:
        if self._steps.buffer is None:
            raise RuntimeError("no buffer to record into: call attach(buffer) first")
        return self._steps.buffer

    def _collect(self, root: str, value: object, unset: Flags | None = None) -> list[Array]:
        """Copies of a value's parts, in the order of fields. Rows in ``unset`` become 0."""
        return list(self._trees[root].collect(value, root, self._n_rows, unset))

    def _begin(self, arrived: list[Array], chosen: Flags) -> None:
        """Begin new episodes of the chosen environments with observations of all."""
        buffer, steps = self._attached(), self._steps
        refuse_bad(buffer, dict(zip(self._names, arrived, strict=False)))  # observations come first
        for env in np.flatnonzero(chosen).tolist():
            buffer.on_episode_end(env)
        steps.obs = arrived
        steps.wait_for(steps.waiting & ~chosen)

    def _before_step(self, stuck: Flags) -> list[Array]:
        """The observations before a step; ``RuntimeError`` before a reset, or if any are ``stuck``.

        ``stuck`` are environments whose episode has ended and that were not reset.
        """
        if self._steps.obs is None:
            raise RuntimeError(self._begin_hint)
        if np.count_nonzero(stuck):
            raise RuntimeError(f"the episode of {names_of_envs(stuck)} has ended{self._reset_hint}")
        return self._steps.obs

    def _store(
        self, values: Iterable[object], extra: dict[str, Any], absent: Flags | None
    ) -> int | None:
        """Add a step, values in the order of fields. ``absent`` environments have no step."""
        buffer = self._attached()
        fields: dict[str, Any] = dict(zip(self._names, values, strict=True))
        for name in self._lacking:
            del fields[name]
        if absent is None:
            return buffer.add(**fields, **extra)
        if self._n_rows is None:
            fields = {name: np.expand_dims(value, 0) for name, value in fields.items()}
            extra = {name: np.expand_dims(value, 0) for name, value in extra.items()}
        return buffer.add_where(~np.atleast_1d(absent), **fields, **extra)


def names_of_envs(envs: Flags) -> str:
    """The numbers of environments, for a message."""
    return f"environments {np.flatnonzero(envs).tolist()}"
