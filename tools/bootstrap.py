"""Set up a virtual environment with the package built into it: the command that the Makefile calls.

This file runs on any Python, so that a too old one can say so. What it does is in environment.py.
"""

import platform
import sys

OLDEST_PYTHON = (3, 10)

if sys.version_info < OLDEST_PYTHON or platform.python_implementation() != "CPython":
    sys.exit(
        "cpprb_like needs CPython {}.{} or newer, but {} is {} {}.{}: install a newer one"
        " and name it, as in 'make PYTHON=python3.12 test'.".format(
            OLDEST_PYTHON[0],
            OLDEST_PYTHON[1],
            sys.executable,
            platform.python_implementation(),
            sys.version_info[0],
            sys.version_info[1],
        )
    )

if __name__ == "__main__":
    from environment import main

    main(sys.argv[1:])
