"""Lazy names: public names of a room, imported on first use (PEP 562).

The stub of a room, ``__init__.pyi``, is the one list of its names. Type checkers and ``attach``
read the stub. Names that most programs do not use cost no time at import.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Collection
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

__all__ = ["attach"]


def attach(
    room: str, file: str, hidden: Callable[[], Collection[str]] = tuple
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a room, which also give it ``__all__``.

    ``room`` and ``file`` are its ``__name__`` and ``__file__``. The stub beside that file is read
    on the first use of a lazy name. ``hidden`` returns names, and modules with names, that
    ``__all__`` leaves out. The first use of a name makes it an attribute of the room.
    """

    @cache
    def homes() -> dict[str, str]:
        """The module that defines each name of the stub."""
        stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
        lines = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
        return {alias.name: str(line.module) for line in lines for alias in line.names}

    def get(name: str) -> Any:
        found: Any
        if name == "__all__":
            left_out = hidden()
            found = sorted(
                name for name, home in homes().items() if not {name, home} & set(left_out)
            )
        elif name in homes():
            found = getattr(import_module(homes()[name]), name)
        else:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        setattr(sys.modules[room], name, found)
        return found

    return get, lambda: sorted(sys.modules[room].__all__)
