"""What is said where a library is not installed. Not here: which ones there are (pyproject)."""

from __future__ import annotations

__all__ = ["missing"]


def missing(module: str, package: str, extra: str, error: ImportError) -> ImportError:
    """The error of a module that needs a package, and the extra that installs it."""
    return ImportError(f"{module} needs {package} (pip install 'cpprb_like[{extra}]'): {error}")
