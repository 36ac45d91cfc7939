"""What ``Newest`` has to do, by a look at all rows: the slow, obvious twin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def newest_masses(
    versions: Mapping[int, Any],
    k: int | None = None,
    at_least: Any = None,
    half_life: float | None = None,
) -> dict[int, float]:
    """The mass of each row, by its name; with ``half_life`` in parts of that of the newest."""
    if not versions:
        return {}
    if k is not None:
        chosen = sorted(set(versions.values()), reverse=True)[:k]
        return {row: float(version in chosen) for row, version in versions.items()}
    if half_life is not None:
        newest = max(versions.values())
        return {row: 2.0 ** ((one - newest) / half_life) for row, one in versions.items()}
    return {row: float(version >= at_least) for row, version in versions.items()}
