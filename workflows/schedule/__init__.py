"""What is due, and the clock that asks."""
