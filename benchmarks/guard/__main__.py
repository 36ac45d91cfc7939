"""``python -m guard``, with the folder of the benchmarks among those that are searched."""

import sys

from .command import main

main(sys.argv[1:])
