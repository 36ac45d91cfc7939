"""Nothing: stacks are for Python."""
