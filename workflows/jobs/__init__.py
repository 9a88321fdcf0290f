"""Jobs: the store, the worker, and the pipelines that run in its children."""
