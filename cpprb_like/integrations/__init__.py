"""Recorders for the environments of other packages, each of which has to be installed.

A recorder adds the steps of an environment to a buffer: it turns the results of ``step`` into the
right calls of ``add`` in every autoreset mode.
May import: public names of the other rooms, and the checks of arguments.
"""
