"""What to merge, how, into which dtype: recipes, sweeps and mergekit's documents."""
