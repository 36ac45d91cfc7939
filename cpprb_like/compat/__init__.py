"""Replay buffers under the names of other libraries, for programs that were written for those.

``cpprb`` has what only cpprb has; ``coax``, ``dqn``, ``keras_gym`` and ``reagent``
stand for one older system each, with its words and its documented quirks.
May import: public names of the other rooms, and the checks of arguments.
"""
