"""What a view does with the rows that were drawn: the base of all layers."""

from __future__ import annotations

import inspect

__all__ = ["Layer"]


class Layer:
    """One thing that ``buffer.view(...)`` does with drawn rows: see its subclasses.

    A layer is a description: it belongs to no buffer, and may be given to several views.
    """

    def __repr__(self) -> str:
        options = [
            f"{name}={getattr(self, name)!r}"
            for name, parameter in inspect.signature(type(self)).parameters.items()
            if getattr(self, name) is not parameter.default
        ]
        return f"{type(self).__name__}({', '.join(options)})"
