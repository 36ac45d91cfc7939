"""Recorded counts: their file, how new ones compare with them, and how they are replaced."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from .callgrind import Count

TOLERANCE = 0.05


def change(then: int, now: int) -> float:
    """The share by which a count has changed."""
    return (now - then) / max(then, 1)


class NoReasonError(Exception):
    """Counts may not be replaced without a reason; the message says which."""


@dataclass(frozen=True)
class Recorded:
    """What a path costs, and why it came to cost more than before."""

    count: Count
    why: tuple[str, ...] = ()

    def changes(self, counted: Count) -> tuple[float, float]:
        """By what share each of the two counts has changed."""
        then = self.count
        return change(then.all, counted.all), change(then.compiled, counted.compiled)

    def is_dearer(self, counted: Count) -> bool:
        """One of the two counts has risen."""
        return max(self.changes(counted)) > TOLERANCE

    def is_cheaper(self, counted: Count) -> bool:
        """One of the two counts has fallen, and none has risen."""
        return min(self.changes(counted)) < -TOLERANCE and not self.is_dearer(counted)

    def replaced(self, counted: Count, because: str) -> Recorded:
        """With another count, and a reason if that is a rise."""
        if not self.is_dearer(counted):
            return replace(self, count=counted)
        then = self.count
        why = (
            f"{then.all} -> {counted.all}, compiled {then.compiled} -> {counted.compiled}: "
            f"{because}"
        )
        return Recorded(counted, (*self.why, why))


@dataclass(frozen=True)
class Verdict:
    """How counts compare with a record: the names of the paths that do not agree."""

    dearer: tuple[str, ...]
    cheaper: tuple[str, ...]
    unknown: tuple[str, ...]  # not in the record
    gone: tuple[str, ...]  # in the record only

    @property
    def failed(self) -> bool:
        """Something has to be done before the change may land."""
        return bool(self.dearer or self.unknown or self.gone)


@dataclass(frozen=True)
class Record:
    """The counts of all paths, and what they were counted with."""

    toolchain: dict[str, str]
    numpy: str
    cython: str  # another one is compared as well; whoever looks for a reason is told
    why: tuple[str, ...]  # the toolchain was replaced
    paths: dict[str, Recorded]

    @classmethod
    def read(cls, file: Path) -> Record:
        """Read it from its file."""
        held = json.loads(file.read_text(encoding="utf-8"))
        paths = {
            name: Recorded(Count(**path["count"]), tuple(path["why"]))
            for name, path in held["paths"].items()
        }
        return cls(**held | {"why": tuple(held["why"]), "paths": paths})

    def write(self, file: Path) -> None:
        """Write it to its file."""
        file.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    def compare(self, counted: Mapping[str, Count]) -> Verdict:
        """Compare counts that were made with the same toolchain."""
        known = {name: self.paths[name] for name in counted if name in self.paths}
        return Verdict(
            tuple(name for name, path in known.items() if path.is_dearer(counted[name])),
            tuple(name for name, path in known.items() if path.is_cheaper(counted[name])),
            tuple(name for name in counted if name not in known),
            tuple(name for name in self.paths if name not in counted),
        )

    def brought_up_to_date(self, counted: Mapping[str, Count], because: str) -> Record:
        """With the counts that do not agree replaced; a rise needs a reason, a fall none."""
        verdict = self.compare(counted)
        if verdict.dearer and not because:
            raise NoReasonError(f"say why these cost more: {'; '.join(verdict.dearer)}")
        paths = {}
        for name, count in counted.items():
            path = self.paths.get(name, Recorded(count))
            moved = name in verdict.dearer + verdict.cheaper
            paths[name] = path.replaced(count, because) if moved else path
        return replace(self, paths=paths)

    def moved_to(
        self, toolchain: dict[str, str], numpy: str, counted: Mapping[str, Count], because: str
    ) -> Record:
        """With all counts replaced by those of another toolchain, which needs a reason."""
        if not because:
            raise NoReasonError("say why the counts are to be of another toolchain")
        moved = " -> ".join(", ".join(tools.values()) for tools in (self.toolchain, toolchain))
        paths = {
            name: Recorded(count, self.paths[name].why if name in self.paths else ())
            for name, count in counted.items()
        }
        why = (*self.why, f"{moved}: {because}")
        return replace(self, toolchain=toolchain, numpy=numpy, why=why, paths=paths)
