"""Free memory of the machine, limits of a container included.

A figure that the operating system lacks counts as no limit.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

if sys.platform != "win32":
    import resource

__all__ = ["CHECKED_NBYTES", "available_nbytes", "format_nbytes", "require"]

CHECKED_NBYTES = 1 << 26  # smallest request that is checked: a check reads several files


def require(nbytes: int, what: str) -> None:
    """Raise ``MemoryError`` if ``nbytes`` are more than the machine has free now.

    Requests below ``CHECKED_NBYTES`` are left to the allocator.
    """
    if nbytes < CHECKED_NBYTES:
        return
    available = available_nbytes()
    if nbytes > available:
        raise MemoryError(
            f"{what} needs {format_nbytes(nbytes)} of memory, "
            f"but {format_nbytes(available)} are available"
        )


def available_nbytes() -> int:
    """Bytes that a process can use now without swapping or a kill by the system."""
    found = [
        figure
        for figure in (_from_system(), _from_container(), _from_limit())
        if figure is not None
    ]
    return min(found, default=sys.maxsize)


def format_nbytes(nbytes: int) -> str:
    """A number of bytes as text: ``"1.5 GiB"``."""
    amount = float(min(nbytes, 1 << 1000))  # greater integers cannot become floats
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            return f"{nbytes} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.4g} PiB"


def _from_system() -> int | None:
    if sys.platform == "win32":  # an allocation beyond the limit fails there
        return None
    meminfo = _read("/proc/meminfo")
    if meminfo is not None:
        for line in meminfo.splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None


def _from_container() -> int | None:
    """Bytes that the control group of this process still allows (Linux, version 2 or 1).

    Inactive pages of files count as free, as the system can drop them.
    """
    for folder, limit_name, usage_name in (
        ("/sys/fs/cgroup", "memory.max", "memory.current"),
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        limit, usage = _read(f"{folder}/{limit_name}"), _read(f"{folder}/{usage_name}")
        if limit is not None and usage is not None and limit.strip().isdigit():
            statistics = (_read(f"{folder}/memory.stat") or "").split()
            cached = dict(zip(statistics[::2], statistics[1::2], strict=False))
            return max(0, int(limit) - int(usage) + int(cached.get("inactive_file", 0)))
    return None


def _from_limit() -> int | None:
    """Bytes that the address space limit of this process still allows (``ulimit -v``)."""
    if sys.platform == "win32":
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    pages = (_read("/proc/self/statm") or "0").split()[0]
    return max(0, limit - int(pages) * resource.getpagesize())


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text()
    except OSError:
        return None
