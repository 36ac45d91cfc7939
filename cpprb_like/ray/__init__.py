"""Machines: the replay of ``processes`` on a Ray cluster.

A Ray actor on each node, the *host*, holds a shared replay. Actors of that node write to its
memory; others send it numbered blocks of steps. A learner draws from all hosts as from one
buffer. Ray places the hosts, restarts them, and carries arrays between nodes.
May import: all rooms up to ``processes``, and Ray.
"""
