"""``SourceAround``: base class of a source that draws from another source.

A subclass overrides ``_sample`` and hands the rest to its source. Not here: what it adds to a draw,
such as a limiter (``limiters``) or a log (``_logged``).
"""

from __future__ import annotations

from typing import Any

from numpy.typing import ArrayLike

from cpprb_like.buffers._entry import SampleOptions
from cpprb_like.buffers._source import Source, if_prioritized


def _of_source(name: str) -> Any:
    """A method of ``SourceAround`` that calls the method of this name of its source."""

    def method(around: SourceAround, *arguments: Any) -> Any:
        return getattr(around._source, name)(*arguments)

    return method


class SourceAround(Source):
    """A source around another source, ``_source``. Epochs go past it."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def _read_sample(self, batch_size: int, options: SampleOptions) -> tuple[int, dict[str, Any]]:
        """``batch_size`` as an int, and keyword arguments of ``sample``; checks both."""
        n, names = self._source._read_batch_size(batch_size, options.fields)
        keywords = options.keywords
        if names is not None:  # the option may be an iterator, which is used up
            keywords["fields"] = names
        return n, keywords

    @if_prioritized
    def update_priorities(self, indexes: ArrayLike, priorities: ArrayLike) -> None:
        """Set the priorities of drawn rows, by ``batch["indexes"]``, if rows have priorities."""
        self._source.update_priorities(indexes, priorities)

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields."""
        return self._source.fields

    @property
    def has_priorities(self) -> bool:
        """Whether rows are drawn by priority."""
        return self._source.has_priorities

    def __len__(self) -> int:
        """Number of rows that can be drawn."""
        return len(self._source)

    _stats = _of_source("_stats")
    _field_specs = _of_source("_field_specs")
    _further_specs = _of_source("_further_specs")
    _item_plan = _of_source("_item_plan")
    _group_size = _of_source("_group_size")
    _counts_draws = _of_source("_counts_draws")
    _fewer = _of_source("_fewer")
    _weighs_by_batch = _of_source("_weighs_by_batch")
    _check_epoch = _of_source("_check_epoch")
    _begin_epoch = _of_source("_begin_epoch")
    _read_batch_size = _of_source("_read_batch_size")
    _can_draw = _of_source("_can_draw")
    _check_draw = _of_source("_check_draw")
    _check_update = _of_source("_check_update")
    _to_report = _of_source("_to_report")
