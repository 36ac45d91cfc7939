"""``Node``: the JSON of a saved object, read without making the object.

Not here: the object itself (``_values``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

OF_CALLER = "caller's "


def join(path: str, name: str) -> str:
    """The path of an attribute or entry, without a leading ``_`` of its name."""
    name = name.lstrip("_") or name
    return f"{path}.{name}" if path else name


class Node(NamedTuple):
    """A tagged value in the JSON of an object."""

    path: str
    saved: Any

    @property
    def kind(self) -> str:
        """The tag: ``rows``, ``object``, ``external`` or another."""
        return str(self.saved.get("$"))

    @property
    def cls(self) -> str:
        """The name of the class, or the tag of a value without a class."""
        return str(self.saved.get("class", self.kind)).removeprefix(OF_CALLER)

    @property
    def is_callers(self) -> bool:
        """Whether the class is a class of the caller."""
        return str(self.saved.get("class")).startswith(OF_CALLER)

    @property
    def what(self) -> str:
        """Path and type of an external value."""
        return f"{self.saved['path']} ({self.saved['type']})"

    @property
    def ring(self) -> int:
        """The number of the ring of a holder of rows."""
        return int(self.saved["ring"])

    def attribute(self, name: str) -> Any:
        """The JSON of an attribute of an object; None for an unknown attribute."""
        return self.saved["state"].get(name)

    def without(self, name: str) -> Any:
        """The JSON without an attribute."""
        state = {key: value for key, value in self.saved["state"].items() if key != name}
        return self.saved | {"state": state}


def nodes(root: Any) -> Iterator[Node]:
    """The tagged values in the JSON of an object, in order."""
    waiting = [("", root)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, list):
            waiting += [(join(path, str(k)), entry) for k, entry in enumerate(value)][::-1]
        elif isinstance(value, dict) and "$" not in value:
            waiting += [(join(path, key), entry) for key, entry in value.items()][::-1]
        elif isinstance(value, dict):
            yield Node(path, value)
            if value["$"] == "dict":
                waiting += [(path, entry) for _, entry in value["pairs"]][::-1]
            else:
                waiting.append((path, value.get("state", value.get("values"))))
