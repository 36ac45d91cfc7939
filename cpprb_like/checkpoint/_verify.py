"""``verify``: checks every file of a checkpoint, and counts the rows that damage costs.

Each file that a state names is read once and not stored. The length, the checksum and the header
must match the manifest. Rows of a ring are loaded only if one of its files is damaged, to count the
lost rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from cpprb_like.checkpoint import _arrays, _manifest
from cpprb_like.checkpoint._describe import count_lost
from cpprb_like.checkpoint._disk import Disk
from cpprb_like.checkpoint._open_state import OpenState, disk_of, read_state, reading
from cpprb_like.checkpoint._options import LoadOptions
from cpprb_like.checkpoint._state import BESIDE_NAME, File, Ring, State, StoredFile
from cpprb_like.errors import DamagedError


class Damage(NamedTuple):
    """A damaged file: its name, its content in words, and its fault."""

    name: str
    content: str
    message: str

    @property
    def is_beside(self) -> bool:
        """Whether it is a file of ``save(beside=)``, which ``load`` does not read."""
        return BESIDE_NAME.fullmatch(self.name) is not None


class Verdict(NamedTuple):
    """The result of the checks of a state.

    Attributes
    ----------
    number : int
        Number of the state.
    files, nbytes : int
        Number of its files, and their bytes in the manifest.
    damage : list of Damage
        The damaged files.
    lost : dict of int to (int, int)
        Numbers of lost rows and of saved rows, by number of a ring with damaged files. Of a
        ``ClusterReplay`` these rings are numbered from 0.
    fatal : str
        Reason why even ``salvage=True`` cannot load the state; ``""`` if it can.
    """

    number: int
    files: int
    nbytes: int
    damage: list[Damage]
    lost: dict[int, tuple[int, int]]
    fatal: str

    @property
    def is_in_order(self) -> bool:
        """Whether nothing is damaged."""
        return not self.damage and not self.fatal


class Use(NamedTuple):
    """A file of a state, its content in words, and the number of its ring."""

    file: StoredFile
    content: str
    ring: int | None = None


def verify(folder: str | Path) -> list[Verdict]:
    """Read every file of every state of a checkpoint.

    Parameters
    ----------
    folder : str or path
        The folder of ``save``. Of a ``ClusterReplay`` the files of its hosts are read, too.

    Returns
    -------
    list of Verdict
        One for each state, oldest first.

    Raises
    ------
    FileNotFoundError
        There is no checkpoint in this folder.
    ValueError
        A state is of an unknown version of the format.

    Notes
    -----
    Cost: one read of all files, and little memory. A buffer with a damaged file takes memory for
    its rows.
    """
    disk = disk_of(folder)
    there = _manifest.numbers(disk)
    if not there:
        raise FileNotFoundError(f"{folder}: there is no checkpoint")
    known: dict[StoredFile, str] = {}
    while True:
        verdicts = [_judge(disk, number, known) for number in there]
        left = _manifest.numbers(disk)
        verdicts = [one for one in verdicts if one.is_in_order or one.number in left]
        if verdicts:
            return verdicts
        there = left  # a save replaced every state while its files were read


def _judge(disk: Disk, number: int, known: dict[StoredFile, str]) -> Verdict:
    options = LoadOptions(decode=bytes, salvage=True, state=number)
    try:
        return read_state(disk, options, lambda opened: _judge_open(opened, known))
    except (DamagedError, FileNotFoundError) as error:
        return Verdict(number, 0, 0, [], {}, str(error).removeprefix(f"{disk.folder}: "))


def _judge_open(opened: OpenState, known: dict[StoredFile, str]) -> Verdict:
    disk, number = opened.disk, opened.state.number
    with reading(disk.folder):
        uses = list(_uses(opened.state))
    damage, rings, fatal = [], set(), ""
    for use in uses:
        if use.file not in known:
            known[use.file] = _message(disk, use.file)
        if not known[use.file]:
            continue
        damage.append(Damage(use.file.name, use.content, known[use.file]))
        if not isinstance(use.file, File) or (use.ring is None and use.file.dtype.kind == "f"):
            continue  # of the caller; or lost priorities: the rows get the priority of new rows
        if use.ring is None:
            fatal = f"{use.content} is lost"
        else:
            rings.add(use.ring)
    lost = {}
    for ring in sorted(rings):
        saved = opened.state.rings[ring]
        try:
            with reading(disk.folder):
                lost[ring] = count_lost(opened, ring), saved.written - saved.oldest
        except (MemoryError, ValueError) as error:
            fatal = fatal or str(error)
    files = opened.state.files
    nbytes = sum(file.nbytes for file in files)
    verdict = Verdict(number, len(files), nbytes, damage, lost, fatal)
    with reading(disk.folder):
        hosts = opened.hosts
    for folder, state in hosts.items():
        verdict = _with_host(verdict, folder, _judge(Disk(folder), state, {}))
    return verdict


def _with_host(verdict: Verdict, folder: Path, host: Verdict) -> Verdict:
    """The verdict of a cluster, and of one of its hosts."""
    damage = [one._replace(name=f"{folder.name}/{one.name}") for one in host.damage]
    return verdict._replace(
        files=verdict.files + host.files,
        nbytes=verdict.nbytes + host.nbytes,
        damage=verdict.damage + damage,
        lost=verdict.lost | dict(enumerate(host.lost.values(), len(verdict.lost))),
        fatal=verdict.fatal or (host.fatal and f"{folder.name}: {host.fatal}"),
    )


def _message(disk: Disk, file: StoredFile) -> str:
    """The fault of a file; empty for an intact file."""
    pieces: Iterable[Any]
    pieces = _arrays.read(disk, file) if isinstance(file, File) else _arrays.bytes_of(disk, file)
    try:
        for _ in pieces:
            pass
    except (DamagedError, OSError) as error:
        return str(error).removeprefix(f"{file.name}: ")
    return ""


def _uses(state: State) -> Iterator[Use]:
    """Every file of a state, with its content in words."""
    for number, ring in enumerate(state.rings):
        where = f"buffer {number}" if len(state.rings) > 1 else "the buffer"
        yield from _uses_of_ring(number, ring, where)
    for saved in state.arrays:
        yield Use(saved.file, f"the array {saved.path!r}")
    for objects in state.objects:
        for file in (objects.lengths, objects.data):
            yield Use(file, "a list of Python objects")
    for beside in state.beside:
        yield Use(beside, f"{beside.label!r} beside the rows")


def _uses_of_ring(number: int, ring: Ring, where: str) -> Iterator[Use]:
    for segment in ring.segments:
        for name, part in segment.parts.items():
            what = f"{name} of rows {part.first} to {part.stop - 1} of {where}"
            yield Use(part.file, what, number)
        for name, overflow in segment.overflow.items():
            what = f"the overflow of {name.partition(' of ')[2]} of {where}"
            yield from (Use(file, what, number) for file in (overflow.ids, overflow.values))
        for name, objects in segment.objects.items():
            what = f"field {name} of rows {objects.first} to {objects.stop - 1} of {where}"
            yield from (Use(file, what, number) for file in (objects.lengths, objects.data))
        for items in segment.items:
            rows = f"rows {items.first} to {items.stop - 1} of {where}"
            yield Use(items.counts, f"numbers of items of axis {items.axis} of {rows}", number)
            for name, file in items.values.items():
                yield Use(file, f"field {name} of {rows}", number)
    for name, newest in ring.newest.items():
        for file in (newest.values, newest.is_there):
            yield Use(file, f"the newest {name} of {where}", number)
