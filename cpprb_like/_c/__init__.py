"""Utilities of the compiled modules and of Python, which know nothing of buffers.

In C: types, copy loops, casts, random integers, locks, a pool of memory. In Python: checks of
arguments, random generators, free memory, locks across forks, arrays of other libraries.
May import: ``cpprb_like.errors``.
"""
