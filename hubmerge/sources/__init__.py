"""Sources: models from the Hub or from folders, pinned and known by their headers, and readers of their bytes."""
