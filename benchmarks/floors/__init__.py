"""What the same work costs in C, on the same memory."""
