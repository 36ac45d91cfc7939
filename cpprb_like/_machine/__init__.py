"""The machine and the process: cores, memory, clock, locks, forks, waits, random generators.

Modules that copy large batches, allocate their memory, wait, or ask the system. Nothing here knows
of buffers.
May import: ``_arguments`` and what that may.
"""
