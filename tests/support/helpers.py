"""What several test files need: a full picture of a buffer, and keys for its rows."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from cpprb_like import ReplayBuffer

Array = npt.NDArray[Any]

# For what is measured: against something else, as NumPy, or in parts that lose more or less.
needs_optimised_modules = pytest.mark.skipif(
    os.environ.get("CPPRB_LIKE_DEBUG") == "1", reason="modules that check every index are slower"
)


def snapshot(rb: ReplayBuffer) -> dict[str, Any]:
    """Everything that a caller can see of ``rb``."""
    full = {
        "len": len(rb),
        "stored": rb.get_stored_size(),
        "next index": rb.get_next_index(),
        "episodes": [rb.get_current_episode_len(env) for env in range(rb.n_envs)],
        "rng": repr(rb.rng.bit_generator.state),
    }
    if len(rb):
        for name, column in rb.get_all_transitions().items():
            full[f"field {name!r}"] = (
                column.tolist() if column.dtype.hasobject else column.tobytes()
            )
    return full


def rooms(env_dict: dict[str, Any], items: int = 10_000) -> dict[str, int]:
    """A room of so many items for each axis and each text."""
    texts = [name for name, field in env_dict.items() if field.get("dtype") is str]
    shapes = [field["shape"] for field in env_dict.values() if isinstance(field["shape"], tuple)]
    axes = [length for shape in shapes for length in shape if isinstance(length, str)]
    return dict.fromkeys([*texts, *axes], items)


@contextmanager
def refused(
    rb: ReplayBuffer, error: type[BaseException] | tuple[type[BaseException], ...], *words: str
) -> Iterator[None]:
    """The block raises ``error`` with all ``words`` in its message, and leaves ``rb`` alone."""
    before = snapshot(rb) | {"pickle": pickle.dumps(rb)}
    with pytest.raises(error) as caught:
        yield
    message = str(caught.value)
    missing = [word for word in words if word not in message]
    assert not missing, f"{missing} not in the message: {message}"
    after = snapshot(rb) | {"pickle": pickle.dumps(rb)}
    changed = [key for key in before if before[key] != after[key]]
    assert before == after, f"the refused call changed {changed}"


def check_arrays(batch: dict[str, Array]) -> None:
    """Each array of a batch is one that other libraries take over without a copy."""
    for name, values in batch.items():
        flags = values.flags
        assert flags.c_contiguous, name
        assert flags.aligned, name
        assert flags.writeable, name
        assert values.dtype.hasobject or values.ctypes.data % 64 == 0, name


def row_key(row: dict[str, Array]) -> tuple[Any, ...]:
    """A hashable stand-in for the values of one row."""
    return tuple(_key(np.asarray(value)) for value in row.values())


def rows_of(batch: dict[str, Array]) -> list[dict[str, Array]]:
    """The rows of a batch, as dicts."""
    n = len(next(iter(batch.values())))
    return [{name: column[i, ...] for name, column in batch.items()} for i in range(n)]


def _key(value: Array) -> Any:
    exact = value.dtype.kind in "biufcmMUS" and value.dtype.char not in "gG"
    return value.tobytes() if exact else repr(value.tolist())
