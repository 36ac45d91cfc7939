"""Memory of a buffer: on the heap (``arenas``) or in mapped files that survive a crash.

``file_maps`` creates and opens the files. ``recovery`` repairs rows after a kill of the process,
``dirty_chunks`` after a crash of the machine. ``json_codec`` reads and writes the JSON of all
files.
May import: ``_fields`` and the rooms that ``_fields`` may import.
"""
