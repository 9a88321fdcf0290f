"""Counts and sums, which add up exactly, of what agents changed, where they meet, and what a merge kept."""
