"""Function calls that a model wrote: text → calls → does the answer key allow them.

Nothing here executes what it reads: every parser is bounded in size, depth and time.
"""
