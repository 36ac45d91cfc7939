"""Fields: ``env_dict`` and options become specs, a memory layout, and converted values.

``schema`` reads ``env_dict`` and lays out the memory. ``casting`` converts a value to the declared
dtype. ``derived`` reads the options of fields that are derived from others.
May import: ``_rows`` and what that may.
"""
