"""Errors that the callers of ReAgent's classes know under other names, and optional packages."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

__all__ = ["InputError", "NamesError", "need"]

PACKAGES = {"torch": "PyTorch", "pandas": "pandas"}


class InputError(ValueError, AssertionError):
    """An argument is refused. ReAgent says most of this by ``assert``."""


class NamesError(InputError, KeyError):
    """Fields are missing, or there are fields that the buffer does not have."""

    __str__ = Exception.__str__  # that of KeyError puts quotes round the sentence


@cache
def need(package: str) -> Any:
    """The optional package, or ``ImportError`` with a sentence that says who needs it."""
    try:
        return import_module(package)
    except ImportError as error:
        raise ImportError(
            f"cpprb_like.compat.reagent needs {PACKAGES[package]} (the package {package}) here, "
            f"and it cannot be imported: {error}"
        ) from error
