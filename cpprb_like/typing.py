"""Types of a buffer's arguments, for editors and type checkers.

Keys of ``env_dict: dict[str, FieldSpec] = {...}``, or of a dict in the call, are completed and
checked. When a program runs, the types are plain dicts, and arguments need not have these types.
Not here: the checks of a running program (``_fields.schema``, ``_fields.derived``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal, SupportsIndex, TypedDict

from numpy.typing import DTypeLike

if TYPE_CHECKING:
    from cpprb_like._files.file_maps import FileMode
    from cpprb_like._machine.generators import Seed
    from cpprb_like.samplers._base import Sampler

__all__ = [
    "BufferOptions",
    "FieldSpec",
    "NstepSpec",
    "PrioritizedOptions",
    "RowOptions",
    "SharedOptions",
]


class FieldSpec(TypedDict, total=False):
    """A field of ``env_dict``: ``{"shape": ..., "dtype": ...}``, both optional.

    Parameters
    ----------
    shape : int or iterable of int, or tuple of int and str
        Shape of one step, by default ``(1,)``. One of its axes may be a name, as in ``("T",)`` or
        ``("N", 11)``: the length of this axis differs from row to row.
    dtype : dtype, optional
        Any argument of ``numpy.dtype``, by default the buffer's ``default_dtype``. None is float64,
        as in NumPy. Batches have the dtype in the machine's byte order. ``str`` is one text of any
        length.
    counts : str, optional
        The named axis whose items the integers of the field count, such as the nodes at the ends of
        an edge.

    Examples
    --------
    >>> from cpprb_like import ReplayBuffer
    >>> from cpprb_like.typing import FieldSpec
    >>> fields: dict[str, FieldSpec] = {"obs": {"shape": 4, "dtype": "f8"}, "rew": {"shape": ()}}
    >>> ReplayBuffer(1000, fields).schema.names
    ('obs', 'rew')
    """

    shape: SupportsIndex | Iterable[SupportsIndex] | tuple[SupportsIndex | str, ...]
    dtype: DTypeLike | None
    counts: str | None


class _NstepSize(TypedDict):
    size: int


class NstepSpec(_NstepSize, total=False):
    """The option ``Nstep``: ``{"size": ...}`` and optional keys.

    Parameters
    ----------
    size : int
        Number of steps of a transition, at least 1. It has no default.
    gamma : float
        Discount factor, by default 0.99.
    rew : str or iterable of str, optional
        Fields of rewards, which are summed up.
    next : str or iterable of str, optional
        Fields whose values come from the last step.
    discount : bool
        Whether batches have ``discount``, by default false.

    See Also
    --------
    cpprb_like.ReplayBuffer : the option ``Nstep`` in full.

    Examples
    --------
    >>> from cpprb_like import ReplayBuffer
    >>> from cpprb_like.typing import NstepSpec
    >>> three: NstepSpec = {"size": 3, "gamma": 0.9}
    >>> ReplayBuffer(9, {"obs": {"shape": 4}, "rew": {"shape": ()}}, Nstep=three).is_Nstep()
    True
    """

    gamma: float
    rew: str | Iterable[str] | None
    next: str | Iterable[str] | None
    discount: bool


class RowOptions(TypedDict, total=False):
    """Options of ``ReplayBuffer`` for the stored and the read values of a step."""

    terminated: str | Literal[False] | None
    truncated: str | Literal[False] | None
    next_of: str | Iterable[str] | None
    stack_compress: str | Iterable[str] | Mapping[str, int] | None
    Nstep: NstepSpec | Literal[False] | None
    room: Mapping[str, float] | None


class SharedOptions(RowOptions, total=False):
    """Options of ``MPReplayBuffer``."""

    default_dtype: DTypeLike | None
    n_envs: int
    seed: Seed
    logger: object
    ctx: object
    backend: str
    explorers: int | None


class BufferOptions(RowOptions, total=False):
    """Options of ``ReplayBuffer`` except its sampler.

    A function that passes the options on as ``**options`` annotates them with
    ``typing_extensions.Unpack[BufferOptions]``.

    Examples
    --------
    >>> from cpprb_like import ReplayBuffer
    >>> from cpprb_like.typing import BufferOptions
    >>> options: BufferOptions = {"n_envs": 4, "seed": 0}
    >>> ReplayBuffer(1000, {"obs": {"shape": 4}}, **options).n_envs
    4
    """

    default_dtype: DTypeLike | None
    n_envs: int
    seed: Seed
    mmap_prefix: str | Path | None
    mmap_mode: FileMode


class PrioritizedOptions(BufferOptions, total=False):
    """Options of ``ReplayBuffer``, and further options of ``PrioritizedReplayBuffer``."""

    alpha: float | None
    eps: float | None
    check_for_update: bool | None
    sampler: Sampler | None
