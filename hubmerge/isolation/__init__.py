"""Runs processes apart: their limits, their input, and their messages."""
