"""Adapters of environments and learning libraries of other packages, which must be installed.

A recorder adds the steps of an environment to a buffer. It turns the results of ``step`` into calls
of ``add``, in every autoreset mode. A module with the name of a learning library has replay buffers
for that library: they take its steps and return its batches.
May import: public names of the other rooms, and the checks of arguments.
"""
