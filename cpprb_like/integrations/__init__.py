"""Environments and learning libraries of other packages, each of which has to be installed.

A recorder adds the steps of an environment to a buffer: it turns the results of ``step`` into the
right calls of ``add`` in every autoreset mode. A module of a learning library's name has buffers
that stand in for those of that library: its steps come in, and its kind of batches goes out.
May import: public names of the other rooms, and the checks of arguments.
"""
