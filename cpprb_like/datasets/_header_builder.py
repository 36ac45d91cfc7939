"""``HeaderBuilder``: the columns of a data set as fields, whatever its format.

Not here: which columns a file has, and what values they hold (the readers).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from urllib.parse import unquote

from cpprb_like.datasets._model import ENDS, FLAG, Ends, Field, Header, Place

OBS, ACT, REW = "obs", "act", "rew"


class HeaderBuilder:
    """Fields of a data set, collected column by column.

    Parameters
    ----------
    roles : dict of str to str
        First part of a column's path, and the field that it stands for.
    left_out : list of str
        Receives each column that makes no field, with the reason.
    makes_next : bool
        Whether next observations are those of the row after, and have no columns.
    takes_next : bool
        Whether a column called as a next observation is one nevertheless.
    made : collection of str
        Fields that the reader makes without a column.
    mark : str
        Between the parts of a path in messages.
    """

    def __init__(
        self,
        roles: Mapping[str, str],
        left_out: list[str],
        *,
        makes_next: bool,
        takes_next: bool = False,
        made: Collection[str] = (),
        mark: str = "/",
    ) -> None:
        self.fields: dict[str, Field] = {}
        self.places: dict[str, Place] = {}  # of the column of each field
        self.seen: set[Place] = set()  # places of all columns
        self._parts: dict[str, dict[str, Place]] = {OBS: {}, ACT: {}}
        self._roles, self._left_out = roles, left_out
        self._makes_next, self._takes_next = makes_next, takes_next
        self._made, self._mark = made, mark

    def add(self, paths: Iterable[Place], field_of: Callable[[Place, str], Field | str]) -> None:
        """Add columns; those of the format's own names come first.

        ``field_of`` makes the field of a path and a name, or returns why there is none.
        """
        for path in sorted(paths, key=lambda path: path[0] not in self._roles):
            self.seen.add(path)
            role = self._roles.get(path[0], path[0])
            name = unquote(".".join((role, *path[1:])))
            if self._is_taken(name):
                self._left_out.append(f"{self._mark.join(path)} (another is {name!r})")
                continue
            field = field_of(path, name)
            if isinstance(field, str):
                self._left_out.append(f"{self._mark.join(path)} ({field})")
                continue
            self.fields[name], self.places[name] = field, path
            if path[0] in self._roles and role in self._parts:
                self._parts[role][name] = path[1:]

    def _is_taken(self, name: str) -> bool:
        """Whether a field has this name, or a next observation will."""
        is_next = self._makes_next and not self._takes_next
        is_next = is_next and name.removeprefix("next_") in self._parts[OBS]
        return name in self.fields or name in self._made or is_next

    def header(self) -> Header:
        """The header of all fields, without episodes."""
        observations, actions = self._parts[OBS], self._parts[ACT]
        fields, chained = dict(self.fields), {}
        if self._makes_next:
            nexts = {name: f"next_{name}" for name in observations}
            chained = {
                name: following for name, following in nexts.items() if following not in fields
            }
        for name, following in chained.items():
            fields[following] = replace(fields[name], name=following)
        for name in self._made:
            fields[name] = Field(name, FLAG, ())
        first = [*observations, *actions, REW, *chained.values(), *ENDS]
        names = dict.fromkeys([name for name in first if name in fields] + list(fields))
        can_end = [name for name in ("terminated", "done", "truncated") if name in fields]
        can_end = [name for name in can_end if fields[name].can_end]
        terminated = next((name for name in can_end if name != "truncated"), None)
        return Header(
            tuple(fields[name] for name in names),
            (),
            observations=observations,
            actions=actions,
            reward=REW if REW in fields else None,
            chained=chained,
            ends=Ends(terminated, "truncated" if "truncated" in can_end else None),
        )
