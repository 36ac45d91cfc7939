"""Names of a room that are imported when they are asked for (PEP 562).

What few programs need does not make every import longer. A name that was asked for is an attribute
of its room from then on, so this costs once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["later"]


def later(room: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a room: ``modules`` says which of its modules defines which name.

    Raises
    ------
    AttributeError
        Of what is returned: there is no such name.
    """

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        found = getattr(import_module(f"{room}.{modules[name]}"), name)
        setattr(sys.modules[room], name, found)
        return found

    return get
