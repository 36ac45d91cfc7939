"""Replay buffers under the names of other libraries, for programs written for these libraries.

``cpprb`` has the classes that only cpprb has. ``coax``, ``dqn``, ``keras_gym`` and ``reagent`` each
have the names and the documented quirks of one older system. ``_replay_memory`` has the class
``ReplayMemory`` for programs that store Python objects. ``buffers`` and ``samplers`` name the
classes of cpprb that are one of their own with other options, and import them on first use.
May import: public names of the other rooms, and the checks of arguments.
"""
