"""Memory of a buffer: on the heap (``arenas``) or in mapped files that survive a crash.

``file_maps`` creates and opens the files; ``recovery`` repairs what a killed process left, and
``flushes`` what a crash of the machine left.
May import: ``_fields`` and what that may.
"""
