"""Who is measured: one module for each system, and several for this package and its floors."""
