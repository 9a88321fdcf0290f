"""Recipes, sweeps and mergekit documents: what to merge, how, and into which dtype."""
