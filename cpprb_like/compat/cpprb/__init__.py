"""Classes that only cpprb has: hindsight, whole episodes, processes, and its training loop.

``from cpprb_like import MPReplayBuffer`` gives each of these names, as in programs written for
cpprb. ``__all__`` of the package lists none of them.
Its other classes are a buffer or a sampler of ours with other options: prioritized buffers, reverse
replay, LaBER, draws from NumPy's global state. ``cpprb_like``, ``cpprb_like.buffers`` and
``cpprb_like.samplers`` have their names.
"""

from cpprb_like._arguments.later import attach

__getattr__, __dir__ = attach(__name__, __file__)
