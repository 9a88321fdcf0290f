"""The pages and the API, the only importers of the UI library."""
