"""Arithmetic in which every bit is defined: arrays of numpy and torch, stored dtypes, draws keyed by identity."""
