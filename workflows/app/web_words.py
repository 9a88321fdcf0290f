"""The next step of an error as a page says it: what to do on the web, where the library speaks of options and settings.

Errors are made for every surface. A step that names an option, a command or a variable is of no use to a visitor: it is
put in other words here, or left out.
"""

from __future__ import annotations

import re

_OF_A_TERMINAL = re.compile(r"(?<![\w-])--[a-z]|`(?:hubmerge|hf) |\b(?:HF|HUBMERGE)_[A-Z]")
_IGNORED = re.compile(r"\b(put|with) this line in(?:to)? the recipe: ignore: \[([^\]]*)\]")
_SENTENCE = re.compile(r"(?<=[.;])\s+")
_PUT = (
    ("state a license", "Read the parents' terms and choose a license."),
    ("hubmerge init", "Choose a base and agents."),
    ("Publish with --private", "Make it private, or public if all of them may be known."),
    ("Sign in", "Sign in."),
    ("Whoever keeps this app", "Whoever keeps this app gives it a token of the Hub with write access."),
    ("Check the connection", "Try again in a minute; if it stays, the Hub is away."),
    ("Take a part: --split", "Take a part of the split, such as train[:10000]."),
    ("--ignore", "Compare it with the model that it was trained from."),
    ("Lower --max-tokens", "Lower the number of tokens."),
)


def on_the_web(step: str) -> str:
    """`step` without sentences for a terminal; empty where nothing is left."""
    if not _OF_A_TERMINAL.search(step):
        return step
    for known, words in _PUT:
        if known in step:
            return words
    return " ".join(part for part in _SENTENCE.split(step) if not _OF_A_TERMINAL.search(part))


def in_the_form(step: str) -> str:
    """`step` for the merge page's form, which has a field for a line of the recipe."""
    return _IGNORED.sub(_into_the_field, step)


def _into_the_field(line: re.Match[str]) -> str:
    verb = "write" if line[1] == "put" else "by writing"
    names = line[2].replace('"', "")
    return f"{verb} {names} into Ignore, under Advanced"
