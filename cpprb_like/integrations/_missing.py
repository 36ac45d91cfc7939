"""Error of a module whose library is not installed; the extras are those of ``pyproject.toml``."""

from __future__ import annotations

__all__ = ["missing"]


def missing(module: str, package: str, extra: str, error: ImportError) -> ImportError:
    """The error of a module that needs a package, and the extra that installs it."""
    return ImportError(f"{module} needs {package} (pip install 'cpprb_like[{extra}]'): {error}")
