"""Replay buffers under the names of other libraries, for programs written for these libraries.

``cpprb`` has the classes that only cpprb has. ``coax``, ``dqn``, ``keras_gym`` and ``reagent`` each
have the names and the documented quirks of one older system.
May import: public names of the other rooms, and the checks of arguments.
"""
