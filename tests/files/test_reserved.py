"""Reserved memory and files: addresses and lengths that cost nothing before they are used."""

from __future__ import annotations

import errno
import faulthandler
import gc
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from forked import outcome

from cpprb_like._machine.reserved import reserve, reserve_file, use, use_file

if sys.platform != "win32":
    import resource

TEBIBYTE = 1 << 40
MEBIBYTE = 1 << 20
needs_forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def status(name: str) -> int:
    """A figure of this process in bytes: VmSize, VmRSS, VmData."""
    match = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match is not None
    return 1024 * int(match[1])


@on_linux
def test_reserved_memory_is_used_in_steps() -> None:
    """A tebibyte takes no memory; steps of it read as zeros, keep their values, and can be used."""
    resident = status("VmRSS")
    memory = reserve(TEBIBYTE)
    assert len(memory) == TEBIBYTE
    stop = 0
    for step in (1, 4095, 1, 10_000, 3 * MEBIBYTE):
        use(memory, stop, stop + step)
        assert not memory[stop : stop + step].any()
        memory[stop : stop + step] = 7
        stop += step
        assert (memory[:stop] == 7).all()
    use(memory, 0, stop)
    assert (memory[:stop] == 7).all()
    assert memory.flags.writeable
    assert memory.ctypes.data % 4096 == 0
    assert status("VmRSS") - resident < 16 * MEBIBYTE


@on_linux
def test_reserved_memory_is_freed_with_its_last_array() -> None:
    """A part of the memory keeps all of it; with the last one the addresses return."""
    before = status("VmSize")
    memory = reserve(TEBIBYTE, 100)
    part = memory[10:20]
    part[:] = 3
    del memory
    gc.collect()
    assert (part == 3).all()
    assert status("VmSize") - before > TEBIBYTE // 2  # other memory comes and goes
    del part
    gc.collect()
    assert status("VmSize") - before < TEBIBYTE // 2


@needs_forks
def test_bytes_that_are_not_in_use_end_the_process() -> None:
    """An access behind the used pages is found at once, and is no silent growth."""
    memory = reserve(64 * MEBIBYTE)
    use(memory, 0, 5)
    memory[4] = 1

    def child() -> None:
        faulthandler.disable()
        _ = memory[MEBIBYTE]

    assert outcome(child) in (-signal.SIGSEGV, -signal.SIGBUS)


@needs_forks
def test_a_forked_child_has_memory_of_its_own() -> None:
    """A child uses more of its copy; neither process sees what the other writes."""
    memory = reserve(TEBIBYTE)
    use(memory, 0, 10)
    memory[:10] = 1

    def child() -> None:
        use(memory, 10, MEBIBYTE)
        assert (memory[:10] == 1).all()
        memory[:MEBIBYTE] = 2
        assert (memory[:MEBIBYTE] == 2).all()

    assert outcome(child) == 0
    use(memory, 10, MEBIBYTE)
    assert (memory[:10] == 1).all()
    assert not memory[10:MEBIBYTE].any()


@needs_forks
@on_linux
def test_too_few_addresses_are_a_memory_error() -> None:
    """With a limit of addresses a reservation is refused, and names the limit."""

    def child() -> None:
        most = status("VmSize") + 64 * MEBIBYTE
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        with pytest.raises(MemoryError, match=r"1,099,511,627,776 bytes.*ulimit -v"):
            reserve(TEBIBYTE)
        reserve(16 * MEBIBYTE, 16 * MEBIBYTE)[:] = 1

    assert outcome(child) == 0


@needs_forks
@on_linux
def test_too_little_memory_is_a_memory_error_and_changes_nothing() -> None:
    """Used memory counts for the limit of data. A refused step leaves all bytes as before."""

    def child() -> None:
        memory = reserve(TEBIBYTE, 100)
        memory[:100] = 5
        most = status("VmData") + 16 * MEBIBYTE
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
        with pytest.raises(MemoryError, match="no memory left for "):
            use(memory, 100, 64 * MEBIBYTE)
        assert (memory[:100] == 5).all()
        use(memory, 100, 4 * MEBIBYTE)
        memory[100 : 4 * MEBIBYTE] = 6
        assert (memory[:100] == 5).all()
        with pytest.raises(MemoryError, match="no memory left for "):
            reserve(TEBIBYTE, 64 * MEBIBYTE)

    assert outcome(child) == 0


def test_memory_of_any_length_is_reserved() -> None:
    """Memory may be empty, and may be used to its last byte, whole pages or not."""
    for nbytes in (0, 1, 4096, 4097, 3 * MEBIBYTE + 5):
        memory = reserve(nbytes, nbytes)
        assert memory.shape == (nbytes,)
        assert not memory.any()
        memory[:] = 1
        use(memory, nbytes, nbytes)


def test_wrong_parts_are_refused() -> None:
    """Parts beyond the memory, and memory that was not reserved, are errors before any change."""
    memory = reserve(100)
    for start, stop in ((-1, 5), (5, 4), (0, 101)):
        with pytest.raises(ValueError, match=f"a part of 100 bytes, got {start} to {stop}"):
            use(memory, start, stop)
    with pytest.raises(ValueError, match="at most 100 bytes to use, got 101"):
        reserve(100, 101)
    with pytest.raises(TypeError, match="memory of reserve"):
        use(np.zeros(10, np.uint8), 0, 10)
    with pytest.raises(TypeError, match="memory of reserve"):
        use(memory[10:], 0, 10)  # its places are not those of the reservation


def blocks(path: Path) -> int:
    """Bytes of a file on the disk."""
    return 512 * path.stat().st_blocks


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="the system reserves no disk space")
def test_a_reserved_file_takes_the_space_that_is_used(tmp_path: Path) -> None:
    """A file of 8 GiB is a hole. Steps of it are on the disk before a byte is written."""
    path = tmp_path / "file"
    with path.open("xb+") as file:
        reserve_file(file.fileno(), 8 << 30)
        assert path.stat().st_size == 8 << 30
        assert blocks(path) < MEBIBYTE
        file.write(b"before")
        file.flush()
        use_file(file.fileno(), 3, 5 * MEBIBYTE)
        use_file(file.fileno(), 5, 5)
        assert 5 * MEBIBYTE <= blocks(path) < 6 * MEBIBYTE
        assert path.stat().st_size == 8 << 30
        file.seek(0)
        assert file.read(8) == b"before\0\0"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system in memory with room for 2 MiB."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(tmp_path)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this user cannot mount a file system")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_full_disk_is_an_error_and_changes_nothing(small_disk: Path) -> None:
    """A step that does not fit is refused; what is there stays, and a smaller step fits."""
    with (small_disk / "file").open("xb+") as file:
        reserve_file(file.fileno(), 1 << 30)
        use_file(file.fileno(), 0, MEBIBYTE)
        file.write(b"before")
        file.flush()
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            use_file(file.fileno(), MEBIBYTE, 64 * MEBIBYTE)
        file.seek(0)
        assert file.read(6) == b"before"
        use_file(file.fileno(), MEBIBYTE, MEBIBYTE + 500_000)
        file.seek(MEBIBYTE)
        file.write(b"x" * 500_000)
        file.flush()
