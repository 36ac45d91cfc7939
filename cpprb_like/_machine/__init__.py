"""The machine and the process: cores, memory, clock, locks, forks, waits, random generators.

Modules that copy large batches, allocate memory of batches, wait, open files, or query the system.
No module of this room knows buffers.
May import: ``_arguments`` and the rooms that ``_arguments`` may import.
"""
