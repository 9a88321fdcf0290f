"""Sources: pinned models from the Hub or from folders, their headers, and the way to their bytes."""
