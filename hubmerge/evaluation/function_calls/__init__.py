"""Function calls that a model wrote: text → calls → does the answer key allow them.

Nothing here executes what it reads: every parser is bounded in size, depth and time.
"""

from hubmerge.evaluation.function_calls.decode import Call, decode
from hubmerge.evaluation.function_calls.match import Kind, matches
from hubmerge.evaluation.function_calls.values import Language

__all__ = ["Call", "Kind", "Language", "decode", "matches"]
