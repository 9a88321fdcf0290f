"""Jobs: the store, the worker, and what runs in its children."""
