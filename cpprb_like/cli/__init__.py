"""The command line: ``cpprb_like inspect, report, verify, convert, copy, top``.

``main`` is the entry point. It needs the package click, and names it in an error otherwise. What
``inspect`` and ``report`` find is plain values (``_inspect``), printed as JSON or as text.
``_convert`` reads files of other programs into a buffer.
May import: public names of the other rooms.
"""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command in the arguments of this process."""
    try:
        import click  # noqa: F401, PLC0415 (optional)
    except ImportError:
        sys.stderr.write(
            "cpprb_like: the command line needs click: pip install 'cpprb_like[cli]'\n"
        )
        sys.exit(2)
    from cpprb_like.cli._commands import commands  # noqa: PLC0415 (it imports click)

    commands(prog_name="cpprb_like")
