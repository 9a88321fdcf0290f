"""Markdown in which foreign text stays text: escaping, formatting, and a template environment that escapes all.

Every `{{ expression }}` of a template passes `escape_markdown`, unless a filter of this module made it. There is no
way to mark a string as safe from within a template, and what is put together from safe and unsafe parts is unsafe.

Escaping keeps harmless words as they are. A word that some renderer could interpret (markup, HTML, links, bare domains
and addresses, mathematics, invisible characters) becomes a code span, which every renderer shows literally. Line
breaks become spaces, so that foreign text can open neither a block nor a YAML header. `|` would cut a
table's cell even inside a code span, hence it is written as \\u007c there, as are invisible characters.
"""

import math
import re
import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

MAX_TEXT = 600  # characters of one foreign value
MAX_CODE = 200

_LIVELY = re.compile(
    r"[`*_\[\]<>{}|\\$#~!@&^]"  # markup, HTML and entities, mathematics, mentions and addresses
    r"|://|//|^:|^www\.|\.[^\W\d_]{2,}",  # URLs, emoji codes, bare domains
    re.IGNORECASE,
)
_BLOCK_MARKER = re.compile(r"[-+=].*|\d{1,9}[.)]")  # a list, a rule or a heading, at the start of a line
_QUOTED = re.compile(r"""(["'(]*)(.*?)(["'),.;:?]*)""", re.DOTALL)


class Markdown(str):
    """Finished Markdown. Any string operation on it gives a plain, hence unsafe, string."""

    __slots__ = ()


def escape_markdown(value: object) -> Markdown:
    """Foreign text for the middle of a line: it reads the same and no renderer interprets it."""
    if isinstance(value, Markdown):
        return value
    words = _shorten("—" if value is None else str(value), MAX_TEXT).split()
    return Markdown(" ".join(_escape_word(_printable(word), first=i == 0) for i, word in enumerate(words)) or "—")


def _escape_word(word: str, *, first: bool) -> str:
    if first and _BLOCK_MARKER.fullmatch(word):
        return code(word)
    if not _LIVELY.search(word):
        return word
    opening, core, closing = _QUOTED.fullmatch(word).groups()  # type: ignore[union-attr]  # it matches any string
    return f"{opening}{code(core)}{closing}" if core and not _LIVELY.search(opening + closing) else code(word)


def code(value: object) -> Markdown:
    """A code span that holds `value` literally, in a table's cell too."""
    text = _printable(_shorten(" ".join(str(value).split()), MAX_CODE)).replace("|", "\\u007c")
    if not text:
        return Markdown("—")
    fence = "`" * (_longest_run(text) + 1)
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return Markdown(f"{fence}{pad}{text}{pad}{fence}")


def fence(value: object, language: str = "") -> Markdown:
    """A fenced block, its fence longer than any run of backticks inside."""
    lines = str(value).replace("\r\n", "\n").replace("\r", "\n").strip("\n").split("\n")
    text = "\n".join(_printable(line) for line in lines)
    ticks = "`" * max(3, _longest_run(text) + 1)
    return Markdown(f"{ticks}{language}\n{text}\n{ticks}")


def link(text: object, url: str) -> Markdown:
    """A link whose URL we made; foreign text in it is a code span, so that nothing nests in it. The text alone where a
    Hub's address has characters that no link of a card holds (`~`, `%`)."""
    shown = text if isinstance(text, Markdown) else code(text)
    plain = re.fullmatch(r"https?://[\w.:\[\]\-]+(/[\w.\-/]*)?", url, re.ASCII)
    return Markdown(f"[{shown}]({url})") if plain else shown


def _printable(text: str) -> str:
    """Controls, line separators, invisible formatting and lone surrogates as \\u escapes."""
    return "".join(
        f"\\u{ord(c):04x}" if c != "\t" and unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") else c
        for c in text
    )


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0)


def _shorten(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def percent(share: float | None) -> str:
    """A share with three digits; only exact values are shown as 0% or 100%."""
    if share is None or not math.isfinite(share):
        return "—"
    value = 100 * share
    if value in (0, 100):
        return f"{value:.0f}%"
    if 0 < value < 0.0001:
        return "under 0.0001%"
    if 99.95 <= value < 100:
        return "over 99.9%"
    rounded = float(f"{value:.3g}")  # 9.996 has as many digits as the 10.0 that is shown
    return f"{rounded:.{max(0, 2 - math.floor(math.log10(abs(rounded))))}f}%"


def factor(value: float | str | None, digits: int = 3) -> str:
    """A ratio; ∞ as reports write it ("inf"), — where there is nothing to divide by."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "—"
    if math.isinf(float(value)):
        return "∞" if float(value) > 0 else "−∞"
    return f"{round(float(value), digits) + 0.0:.{digits}f}".replace("-", "−")  # + 0.0: no "−0.000"


def count(value: int) -> str:
    return f"{value:,}"


def short_count(value: float) -> str:
    """173 K, 7.62 B."""
    return _scaled(value, ("", " K", " M", " B", " T"))


def size(value: float) -> str:
    """Bytes in decimal units, as the Hub shows them."""
    return _scaled(value, (" B", " kB", " MB", " GB", " TB"))


def _scaled(value: float, units: tuple[str, ...]) -> str:
    unit, scaled = 0, float(value)
    while abs(scaled) >= 999.5 and unit < len(units) - 1:  # 999.7 would be shown as 1000
        scaled /= 1000
        unit += 1
    digits = 0 if unit == 0 or scaled >= 99.95 else 1 if scaled >= 9.995 else 2
    return f"{scaled:.{digits}f}{units[unit]}"


def duration(seconds: float) -> str:
    """0.07 s, 12.3 s, 4 min 12 s, 2 h 03 min."""
    if seconds < 59.95:
        return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02d} min"


@cache
def environment(folder: Path) -> jinja2.Environment:
    """The templates of a folder. Every output of theirs is escaped for Markdown."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        undefined=jinja2.StrictUndefined,
        # HTML escaping would not stop Markdown; `finalize` sees every expression's value and escapes for both
        autoescape=False,  # noqa: S701
        finalize=escape_markdown,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    filters: list[Any] = [code, fence, percent, factor, count, short_count, size, duration]
    made.filters.update({each.__name__: each for each in filters})
    return made
