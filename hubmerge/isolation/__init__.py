"""Processes that are kept apart: what they may do, what they are given, and what they say."""
