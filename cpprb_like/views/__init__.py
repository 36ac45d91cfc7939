"""Layers and readers of drawn rows: n-step returns, sequences, frame stacks, relabelled goals.

The layers here are options of a view: ``rb.view(NStep(3), Sequences(64))``. A reader gets slots and
fills a batch. Stored values are gathered; derived values are computed from a window of rows that is
clipped at the end of the episode.
May import: ``samplers`` and what that may.
"""

from cpprb_like._arguments.later import attach

__getattr__, __dir__ = attach(__name__, __file__)
