"""What was measured, told: tables, promises, pictures."""
