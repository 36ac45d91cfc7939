"""``Layer``: the base class of what a view does with drawn rows."""

from __future__ import annotations

import inspect

__all__ = ["Layer"]


class Layer:
    """Base class of the layers of ``buffer.view(...)``; see its subclasses.

    A layer holds options only. It belongs to no buffer, and several views may share it.
    """

    def __repr__(self) -> str:
        options = [
            f"{name}={getattr(self, name)!r}"
            for name, parameter in inspect.signature(type(self)).parameters.items()
            if getattr(self, name) is not parameter.default
        ]
        return f"{type(self).__name__}({', '.join(options)})"
