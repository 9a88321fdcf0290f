"""Function calls that a model wrote: text → calls → does the answer key allow them.

`decode` reads the text of an answer (a list of calls in Python, Java or JavaScript syntax, or JSON tool calls), and
`matches` holds calls against a key of allowed values as the Berkeley function-calling leaderboard does. Nothing here
executes what it reads: every parser is bounded in size, depth and time.
"""

from hubmerge.evaluation.function_calls.calls import Call, Language
from hubmerge.evaluation.function_calls.decode import decode
from hubmerge.evaluation.function_calls.match import Kind, matches

__all__ = ["Call", "Kind", "Language", "decode", "matches"]
