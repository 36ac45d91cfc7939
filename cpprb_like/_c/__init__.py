"""The C vocabulary of the compiled modules, and what Python needs beside it.

Types, copies, arrays, random integers, locks, the memory of dead batches; and the machine: how much
memory it has left, what a fork does to locks, arrays of other libraries. Nothing here knows what a
buffer is. May import: ``cpprb_like.errors``.
"""
