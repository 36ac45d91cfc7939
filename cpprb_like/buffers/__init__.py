"""What users hold: buffers, and what is made of buffers.

``add`` is a compiled call of ``_entry``. ``sample`` asks the sampler of the buffer for slots, a
reader for a batch of them, and the ring whether all of it was of one moment. Whatever can be drawn
from is a ``Source``: a buffer, a ``View`` of one, a ``Mixture`` of sources. May import:
``checkpoint``, and what is below it.
"""

from cpprb_like._arguments.later import attach

__getattr__, __dir__ = attach(__name__, __file__)
