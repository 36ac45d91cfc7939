"""Files as cpprb's ``save_transitions`` writes them, made without cpprb: the slow, obvious twin.

Under NumPy 1 pickles have protocol 3 and name ``numpy.core``, under NumPy 2 protocol 4 and
``numpy._core``; each kind is made here under either version.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

Array = NDArray[Any]
Members = dict[str, bytes]

NEW, OLD = b"numpy._core.multiarray", b"numpy.core.multiarray"


def object_member(item: Any, numpy: int = 1) -> bytes:
    """An array of one object, as a ``.npy`` file."""
    out = io.BytesIO()
    npy.write_array_header_1_0(out, {"descr": "|O", "fortran_order": False, "shape": ()})
    array = np.empty((), object)
    array[()] = item
    data = pickle.dumps(array, protocol=3 if numpy == 1 else 4)
    if numpy == 1:
        data = data.replace(NEW, OLD)
    else:
        data = data.replace(b"\x8c\x15" + OLD, b"\x8c\x16" + NEW)
    return out.getvalue() + data


def array_member(values: Any) -> bytes:
    """An array of numbers or texts, as a ``.npy`` file."""
    out = io.BytesIO()
    npy.write_array(out, np.asanyarray(values), allow_pickle=False)
    return out.getvalue()


def members(
    data: Mapping[str, Array],
    *,
    safe: bool = True,
    version: int = 1,
    nstep: bool = False,
    cache: Any = None,
    next_of: Any = None,
    numpy: int = 1,
) -> Members:
    """The members of a file."""
    return {
        "safe.npy": array_member(safe),
        "version.npy": array_member(version),
        "data.npy": object_member(dict(data), numpy),
        "Nstep.npy": array_member(nstep),
        "cache.npy": object_member(cache, numpy),
        "next_of.npy": object_member(None, numpy) if next_of is None else array_member(next_of),
    }


def zipped(parts: Members, method: int = zipfile.ZIP_DEFLATED) -> io.BytesIO:
    """A file of these members."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, content in parts.items():
            with archive.open(name, "w", force_zip64=True) as member:
                member.write(content)
    out.seek(0)
    return out


def unsafe_members(rows: Mapping[str, Array], newest: int, size: int, **options: Any) -> Members:
    """The members of a file of these rows, with ``next_of="obs"`` and ``safe=False``.

    ``newest`` is the slot that was written last. Rows whose next value is not that of the slot
    after are in the cache, as those are that ended an episode.
    """
    obs, promised = rows["obs"], rows["next_obs"]
    n = len(obs)
    cache = {
        slot: {"next_obs": promised[slot].copy()}
        for slot in range(n)
        if slot == newest or promised[slot].tobytes() != obs[(slot + 1) % size].tobytes()
    }
    data = {name: values for name, values in rows.items() if name != "next_obs"}
    return members(data, safe=False, cache=cache, next_of=np.array(["obs"]), **options)
