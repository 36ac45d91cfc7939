"""C vocabulary of the compiled modules: types, copy loops, casts, random integers, tree nodes.

Nothing here knows of buffers, of Python arguments or of the machine. May import:
``cpprb_like.errors``.
"""
