from collections.abc import Callable, Container, Iterable, Mapping
from threading import RLock
from typing import Any, Final, TypeAlias, TypeVar, final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from typing_extensions import Self, disjoint_base

from cpprb_like._core import Beside, Ring
from cpprb_like._machine.forks import OneProcess
from cpprb_like._rows.column import Column
from cpprb_like.buffers._draw_counts import WORDS as WORDS
from cpprb_like.samplers._base import Sampler
from cpprb_like.samplers._rows import Rows
from cpprb_like.schedules import Schedule

_Choose: TypeAlias = Callable[..., tuple[NDArray[np.intp], dict[str, NDArray[Any]]]]
_Take: TypeAlias = Callable[
    [
        NDArray[np.intp],
        list[NDArray[Any]] | None,
        NDArray[np.intp] | None,
        tuple[Column, ...] | None,
    ],
    dict[str, NDArray[Any]],
]
_T = TypeVar("_T")

def take_drawn(
    sampler: Sampler, hook: str, drawn: object
) -> tuple[NDArray[np.intp], dict[str, NDArray[Any]]]: ...
def check_drawn(
    sampler: Sampler,
    rows: NDArray[np.intp],
    extra: Mapping[str, NDArray[Any]],
    n: int,
    names: Container[str],
    further: Container[str],
) -> None: ...

@final
class SampleOptions:
    beta: Final[float | Schedule | None]
    replace: Final[bool]
    out: Final[dict[str, Any] | None]
    indexes: Final[bool]
    fields: Final[str | Iterable[str] | None]
    def __new__(
        cls,
        beta: float | Schedule | None = None,
        replace: bool = True,
        out: dict[str, Any] | None = None,
        indexes: bool = False,
        fields: str | Iterable[str] | None = None,
    ) -> Self: ...
    def but(self, **changes: Any) -> SampleOptions: ...
    @property
    def keywords(self) -> dict[str, Any]: ...
    @property
    def further(self) -> dict[str, Any]: ...
    @property
    def of_sampler(self) -> dict[str, Any]: ...

DEFAULTS: SampleOptions

@disjoint_base
class BufferBase:
    @property
    def ring(self) -> Ring: ...
    _lock: RLock | OneProcess
    _paused: bool
    def _while_writers_wait(self, attempt: Callable[[], _T | None]) -> _T: ...
    def _prepare_files(self) -> None: ...
    def _warn_of_values_apart(self) -> None: ...
    def _attach(
        self,
        ring: Ring,
        lock: RLock | OneProcess,
        further: tuple[str, ...],
        attributes: dict[str, Any],
    ) -> None: ...
    def _hold(self, pauses: bool, call: Callable[..., _T], *arguments: Any) -> _T: ...
    def _end_episodes(self, first: int, stop: int) -> None: ...
    def _clear(self) -> None: ...
    def _rewind(self, row: int) -> int | None: ...
    def _read_priorities(self, priorities: Any) -> Beside: ...
    def consistently(self, attempt: Callable[[], tuple[NDArray[np.intp], _T] | None]) -> _T: ...
    def add(self, /, **fields: Any) -> int | None: ...
    def add_where(self, present: ArrayLike, /, **fields: Any) -> int | None: ...
    def _check_batch_size(
        self, batch_size: int, columns: tuple[Column, ...] | None = None
    ) -> int: ...
    def _draw_by(
        self, options: SampleOptions
    ) -> tuple[_Choose, _Take | None, tuple[Column, ...] | None]: ...
    def _sample(self, batch_size: int, options: SampleOptions) -> dict[str, NDArray[Any]]: ...
    def _draw_rows(
        self,
        n: int,
        options: SampleOptions,
        starts: Rows | None,
        take: _Take,
        columns: tuple[Column, ...] | None,
        further: Container[str],
    ) -> dict[str, NDArray[Any]]: ...
    def _draw_once(
        self,
        rows: Ring | Rows,
        draw: _Choose,
        n: int,
        replace: bool,
        arrays: list[NDArray[Any]] | None,
        take: _Take | None,
        columns: tuple[Column, ...] | None,
        further: Container[str] | None,
    ) -> dict[str, NDArray[Any]] | None: ...
    def _note_draw(self, slots: NDArray[np.intp], of_all: bool) -> None: ...
    def _stats(self) -> dict[str, float]: ...

@final
class Attachment:
    def __new__(
        cls,
        buffer: BufferBase,
        ring: Ring,
        lock: RLock | OneProcess,
        further: tuple[str, ...],
        attributes: dict[str, Any],
    ) -> Self: ...
    def use(self) -> object: ...

def is_uniform_of(sampler: Sampler) -> bool: ...
def not_initialised(buffer: object) -> str: ...
def at_one_moment(
    ring: Ring, attempt: Callable[[], tuple[NDArray[np.intp], _T] | None]
) -> tuple[NDArray[np.intp], _T] | None: ...
