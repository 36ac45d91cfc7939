"""Manifests: each names all files of one state of a checkpoint, and is written after them.

A manifest ``state-<number>.json`` is one line of JSON and a second line with its checksum. A
manifest is written under another name, synchronised, and renamed last. So after a crash the
manifest with the greatest number is whole, and so are the files that it names. Not here: the
content of a manifest (``_state``).
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
from typing import NamedTuple

from cpprb_like._files.json_codec import from_json, to_json
from cpprb_like._machine.crc32 import crc32
from cpprb_like.checkpoint._disk import Disk, Signature
from cpprb_like.checkpoint._state import ARRAY_NAME, BESIDE_NAME, State
from cpprb_like.errors import DamagedError

FORMAT = "cpprb_like checkpoint"
VERSION = 6
NAME = re.compile(r"state-(\d{6}|[1-9]\d{6,17})\.json")
UNFINISHED = "state.json.new"
MOST_NBYTES = 1 << 30
GREATEST = 10**18 - 1  # 18 digits, as in NAME
ALL = sys.maxsize  # for ``clean``: keeps all states
MOST_CONTENTS = 512  # manifests whose content a process keeps


def manifest_name(number: int) -> str:
    """The name of the manifest of a state."""
    return f"state-{number:06d}.json"


def numbers(disk: Disk) -> list[int]:
    """The numbers of the states in a folder, oldest first."""
    found = [NAME.fullmatch(name) for name in disk.names()]
    return sorted(int(match[1]) for match in found if match)


def read(disk: Disk, number: int) -> State:
    """The state of this number; ``DamagedError`` if its manifest is missing or damaged."""
    name = manifest_name(number)
    try:
        with disk.open(name) as file:
            nbytes = file.seek(0, io.SEEK_END)
            file.seek(0)
            if nbytes > MOST_NBYTES:
                raise DamagedError(f"{name}: too large for a manifest")
            data = file.read(nbytes)  # without bytes that are appended meanwhile
    except FileNotFoundError as error:
        raise DamagedError(f"{name}: {error.strerror}") from None
    text, _, checksum = data.rstrip(b"\n").rpartition(b"\n")
    if checksum != f"{crc32(text):08x}".encode():
        raise DamagedError(f"{name}: its checksum is wrong")
    try:
        manifest = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{name}: {error}") from None
    if not isinstance(manifest, dict) or manifest.pop("format", None) != FORMAT:
        raise DamagedError(f"{name}: not a manifest of a checkpoint")
    version = manifest.pop("version", None)
    if version != VERSION:
        raise ValueError(
            f"{disk.folder / name}: version {version!r} of the format; this reads {VERSION}"
        )
    try:
        state: State = from_json(State, manifest | {"number": number})  # of the file name
    except DamagedError as error:
        raise DamagedError(f"{name}: {error}") from None
    return state


def commit(disk: Disk, state: State) -> None:
    """Make this state the newest one. Its files must be synchronised; their names need not be."""
    manifest = {"format": FORMAT, "version": VERSION, **to_json(state)}
    text = json.dumps(manifest, separators=(",", ":"), allow_nan=False).encode()
    disk.sync_names()
    disk.remove(UNFINISHED)
    output = disk.create(UNFINISHED)
    try:
        output.write(text + f"\n{crc32(text):08x}\n".encode())
        output.sync()
    finally:
        output.close()
    disk.rename(UNFINISHED, manifest_name(state.number))
    disk.sync_names()


def unused_number(disk: Disk) -> int:
    """The number of the next state: greater than that of any file, even of an unfinished save.

    Raises ``ValueError`` if a file has the greatest number.
    """
    found = [re.match(r"(?:s|state-)(\d{1,18})\D", name) for name in disk.names()]
    greatest = max((int(match[1]) for match in found if match), default=0)
    if greatest == GREATEST:
        raise ValueError(
            f"{disk.folder}: a file has the number {greatest}, and there is no greater one for a "
            "new state; save to another folder, or remove that file"
        )
    return greatest + 1


class Content(NamedTuple):
    """What a save needs to know of an older state."""

    number: int
    synchronised: bool
    names: frozenset[str]  # of its files

    @classmethod
    def of(cls, state: State) -> Content:
        """The content of a state."""
        names = frozenset(sys.intern(file.name) for file in state.files)
        return cls(state.number, state.synchronised, names)


def _content(disk: Disk, number: int, known: State | None = None) -> Content:
    """The content of a manifest. Each process reads a manifest once, as manifests never change.

    A ``known`` state is not read.
    """
    signature = disk.signature(manifest_name(number))
    key = str(disk.folder), number
    seen, content = _contents.get(key, (None, None))
    if content is None or seen != signature or signature is None:
        content = Content.of(read(disk, number) if known is None else known)
    if signature is not None:
        _contents.pop(key, None)  # the entry that was used last is the last
        _contents[key] = signature, content
        while len(_contents) > MOST_CONTENTS:
            _contents.pop(next(iter(_contents)), None)
    return content


_contents: dict[tuple[str, int], tuple[Signature, Content]] = {}


def clean(disk: Disk, keep: int, *known: State | None) -> None:
    """Remove all states but the newest ``keep``, and files that no remaining state names.

    If none of the newest states was synchronised, the newest synchronised state stays too, as a
    crash of the machine may destroy the others. Manifests are removed before their files, so no
    manifest ever lacks a file. Manifests of ``known`` states are not read.
    """
    there = numbers(disk)
    old, new = there[:-keep], there[-keep:]
    try:
        by_number = {state.number: state for state in known if state is not None}
        states = [_content(disk, number, by_number.get(number)) for number in new]
    except DamagedError:
        return  # the files of a damaged manifest stay, for a salvage
    if not any(state.synchronised for state in states):
        states += _newest_synchronised(disk, old)
        old = [number for number in old if number not in [state.number for state in states]]
    named = frozenset().union(*(state.names for state in states))
    if old:
        for number in old:
            disk.remove(manifest_name(number))
        disk.sync_names()
    for name in disk.names():
        is_of_state = ARRAY_NAME.fullmatch(name) or BESIDE_NAME.fullmatch(name)
        if (is_of_state or name == UNFINISHED) and name not in named:
            disk.remove(name)


def _newest_synchronised(disk: Disk, numbers: list[int]) -> list[Content]:
    """A list of the newest synchronised state among these, or an empty list."""
    for number in reversed(numbers):
        with contextlib.suppress(DamagedError):
            state = _content(disk, number)
            if state.synchronised:
                return [state]
    return []
