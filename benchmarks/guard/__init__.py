"""Instruction counts of the hot paths, and whether they have risen. ``make guard``."""
