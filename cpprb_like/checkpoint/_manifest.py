"""Manifests: each names all files of one state of a checkpoint, and is written when they are there.

A manifest ``state-<number>.json`` is one line of JSON and a second line with its checksum. It is
written under another name, synchronised, and renamed last; so whatever a crash leaves, the manifest
with the greatest number is whole, and so are the files that it names. Not here: what the JSON says
(``_values``, ``_rows``).
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import zlib
from typing import Any

from cpprb_like.checkpoint._arrays import DamagedError
from cpprb_like.checkpoint._disk import Disk

__all__ = [
    "FORMAT",
    "VERSION",
    "clean",
    "commit",
    "is_synchronised",
    "numbers",
    "read",
    "unused_number",
]

FORMAT = "cpprb_like checkpoint"
VERSION = 2
NAME = re.compile(r"state-(\d{1,18})\.json")
UNFINISHED = "state.json.new"
OURS = re.compile(r"s\d+-\d+\.npy(\.\w+)?|state-\d+\.json|state\.json\.new")
MOST_NBYTES = 1 << 30
GREATEST = 10**18 - 1  # of 18 digits, as in NAME


def name_of(number: int) -> str:
    """The file of a state."""
    return f"state-{number:06d}.json"


def numbers(disk: Disk) -> list[int]:
    """The numbers of the states that are there, oldest first."""
    found = [NAME.fullmatch(name) for name in disk.names()]
    return sorted(int(match[1]) for match in found if match)


def read(disk: Disk, number: int) -> dict[str, Any]:
    """The manifest of a state. Raises ``DamagedError`` if it is none, or not what was written."""
    (name,) = [
        name for name in disk.names() if (found := NAME.fullmatch(name)) and int(found[1]) == number
    ][:1] or [name_of(number)]
    try:
        with disk.open(name) as file:
            nbytes = file.seek(0, io.SEEK_END)
            file.seek(0)
            if nbytes > MOST_NBYTES:
                raise DamagedError(f"{name}: too large for a manifest")
            data = file.read(nbytes)  # and not what may come while it is read
    except FileNotFoundError as error:
        raise DamagedError(f"{name}: {error.strerror}") from None
    text, _, checksum = data.rstrip(b"\n").rpartition(b"\n")
    if checksum != f"{zlib.crc32(text):08x}".encode():
        raise DamagedError(f"{name}: its checksum is wrong")
    try:
        manifest = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{name}: {error}") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise DamagedError(f"{name}: not a manifest of a checkpoint")
    if manifest.get("version") != VERSION:
        raise ValueError(
            f"{disk.folder / name}: version {manifest.get('version')!r} of the format; this reads "
            f"{VERSION}"
        )
    return manifest


def commit(disk: Disk, number: int, manifest: dict[str, Any]) -> None:
    """Make this the newest state; its files are there and synchronised, but perhaps their names."""
    text = json.dumps(manifest, separators=(",", ":"), allow_nan=False).encode()
    disk.sync_names()
    disk.remove(UNFINISHED)
    output = disk.create(UNFINISHED)
    try:
        output.write(text + f"\n{zlib.crc32(text):08x}\n".encode())
        output.sync()
    finally:
        output.close()
    disk.rename(UNFINISHED, name_of(number))
    disk.sync_names()


def unused_number(disk: Disk) -> int:
    """A number for the next state that no file in the folder has, whatever a crash has left.

    Raises ``ValueError`` if a file has the greatest number: no later state could be found again.
    """
    found = [re.match(r"(?:s|state-)(\d{1,18})\D", name) for name in disk.names()]
    greatest = max((int(match[1]) for match in found if match), default=0)
    if greatest == GREATEST:
        raise ValueError(
            f"{disk.folder}: a file has the number {greatest}, and there is no greater one for a "
            "new state; save to another folder, or remove that file"
        )
    return greatest + 1


def is_synchronised(manifest: dict[str, Any]) -> bool:
    """Whether a state is there after a crash of the machine: all of it was put on the disk.

    Those that do not say so are from when all were.
    """
    return manifest.get("synchronised", True) is True


def files_of(manifest: dict[str, Any]) -> set[str]:
    """The names of the files of a state."""
    return {entry[0] for entry in manifest["files"]}


def clean(disk: Disk, keep: int) -> None:
    """Remove all states but the newest ``keep``, and files of ours that no state names.

    If none of these was synchronised, the newest one that was stays too, as a crash of the machine
    may cost the others. States go first and for good, so that none is ever left without
    its files.
    """
    there = numbers(disk)
    old, recent = there[:-keep], there[-keep:]
    try:
        manifests = [read(disk, number) for number in recent]
    except DamagedError:
        return  # its files may be there still: nothing is removed before it was looked at
    if not any(is_synchronised(manifest) for manifest in manifests):
        safe = _newest_synchronised(disk, old)
        old = [number for number in old if number not in safe]
        manifests += safe.values()
    named = set().union(*(files_of(manifest) for manifest in manifests))
    if old:
        for number in old:
            disk.remove(name_of(number))
        disk.sync_names()
    for name in disk.names():
        if OURS.fullmatch(name) and not NAME.fullmatch(name) and name not in named:
            disk.remove(name)


def _newest_synchronised(disk: Disk, of: list[int]) -> dict[int, dict[str, Any]]:
    """The manifest of the newest of these states that was synchronised, by its number, if any."""
    for number in reversed(of):
        with contextlib.suppress(DamagedError):
            manifest = read(disk, number)
            if is_synchronised(manifest):
                return {number: manifest}
    return {}
