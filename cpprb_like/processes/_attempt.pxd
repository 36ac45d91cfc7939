"""Nothing of ``_attempt`` is called from C."""
