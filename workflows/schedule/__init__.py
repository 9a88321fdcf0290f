"""The clock, and what is due at its ticks."""
