"""The patterns of a recipe's `ignore`; sources/views.py applies them to models.

A pattern is a shell's: `*` matches any characters, dots too, `?` one, `[ab]` one of these; case counts.
"""

import fnmatch
import re
from collections.abc import Callable, Iterable, Sequence

MAX_PATTERNS = 32
MAX_CHARACTERS = 256  # as long as the name of a tensor may be
MAX_STARS = 8  # each may have to be tried at every place of a name
_PATTERN = re.compile(rf"[\w.\-*?\[\]!]{{1,{MAX_CHARACTERS}}}", re.ASCII)
_WRAPPER = "base_model.model."

Ignored = Callable[[str], bool]


def nothing(name: str) -> bool:
    """Ignores no tensor."""
    return False


def checked_patterns(patterns: Sequence[object]) -> tuple[str, ...]:
    """The patterns of a recipe, checked; ValueError where one could match nothing, or would take long to match."""
    if len(patterns) > MAX_PATTERNS:
        raise ValueError(f"there are {len(patterns)} patterns, and {MAX_PATTERNS} are the most")
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise ValueError(f'a pattern is text such as "v_head.*", and {ascii(pattern)[:80]} is none')
        if not _PATTERN.fullmatch(pattern):
            raise ValueError(
                f"{ascii(pattern)[:80]} is no pattern: 1 to {MAX_CHARACTERS} letters, digits and _ . - * ? [ ] !"
            )
        if pattern.count("*") > MAX_STARS:
            raise ValueError(f"{pattern[:80]!r} has more than {MAX_STARS} stars")
    return tuple(dict.fromkeys(str(pattern) for pattern in patterns))


def ignored_by(patterns: Iterable[str]) -> Ignored:
    """A function that tells whether the tensor of a name is ignored."""
    translated = [fnmatch.translate(pattern) for pattern in patterns]
    if not translated:
        return nothing
    match = re.compile("|".join(translated)).match
    return lambda name: bool(match(name) or (name.startswith(_WRAPPER) and match(name.removeprefix(_WRAPPER))))
