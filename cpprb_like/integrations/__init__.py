"""Bridges to environments and to the libraries of learners, each of which needs its own package.

A recorder stands between an environment and a buffer: it turns what ``step`` returned into the
calls of ``add`` that are right in every mode of automatic resets.
May import: public names of the other rooms, and the checks of arguments.
"""
