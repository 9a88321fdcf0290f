"""Numbers, times and escaped HTML for the pages.

`el` is the only way in which a page makes HTML: every string that is not `Markup` already is escaped, in content
and in attributes, so text of strangers stays text.
"""

from datetime import UTC, datetime
from urllib.parse import quote, urlsplit

from markupsafe import Markup, escape

from hubmerge.hub.names import is_hub_id
from hubmerge.text.markdown import size

bytes_text = size  # pages and cards say the same of one amount
# characters that turn the direction of what follows, so that a license could read as another
_TURNING = {number: f"\\u{number:04x}" for number in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}
VOID = ("base", "br", "hr", "img", "input", "link", "meta")


def el(tag: str, *children: object, cls: str = "", **attributes: str) -> Markup:
    """One element. Children and attribute values are escaped; `aria_label` becomes `aria-label`."""
    pairs = {"class": cls, **{name.replace("_", "-"): value for name, value in attributes.items()}}
    shown = "".join(f' {escape(n)}="{escape(v)}"' for n, v in pairs.items() if v)
    name = escape(tag)
    end = "" if tag in VOID else f"{join(*children)}</{name}>"
    return Markup(f"<{name}{shown}>{end}")  # noqa: S704  (every part is escaped; Markup.format takes thrice as long)


def join(*children: object) -> Markup:
    """Children side by side; None is left out, anything else but Markup is escaped."""
    told = (child.translate(_TURNING) if type(child) is str else child for child in children if child is not None)
    return Markup("").join(map(escape, told))


def link(href: str, text: object, cls: str = "") -> Markup:
    """A link to a page of this site (relative) or to http(s), opened in a new tab; other schemes stay text."""
    parts = urlsplit(href)
    if parts.scheme in ("http", "https"):
        return el("a", text, cls=cls, href=href, target="_blank", rel="noopener noreferrer")
    if not parts.scheme and not parts.netloc:
        return el("a", text, cls=cls, href=href)
    return escape(text)


def repo_link(endpoint: str, repo_id: str, sha: str = "") -> Markup:
    """A link to a repo of the Hub, at a commit where one is given."""
    address = f"{endpoint}/{quote(repo_id)}" + (f"/tree/{quote(sha, safe='')}" if sha else "")
    return link(address, repo_id)


def job_href(job_id: str) -> str:
    return f"job?id={quote(job_id, safe='')}"


def model_href(model: str, sha: str = "") -> str:
    """The address of a model's page, at a commit where one is given."""
    return f"model?model={quote(model, safe='/')}" + (f"&sha={quote(sha, safe='')}" if sha else "")


def model_link(model: str, sha: str) -> Markup:
    """A link to a model's page here; text only, where the name is none of a repo."""
    return link(model_href(model, sha), model) if is_hub_id(model) else el("span", model)


def evaluate_href(model: str = "") -> str:
    """The address of the page that asks for an evaluation, of `model` where one is named."""
    return "evaluate" + (f"?model={quote(model, safe='/')}" if model else "")


def diff_href(base: str, agent: str) -> str:
    """The address of a comparison; a name may have its revision."""
    return f"diff?base={quote(base, safe='/@')}&agent={quote(agent, safe='/@')}"


def percent_text(share: float) -> str:
    """0.1234 → "12.3%"; only exact values are shown as 0% or 100%."""
    if 0 < share < 0.001:
        return "< 0.1%"
    if 0.999 < share < 1:
        return "> 99.9%"
    return f"{share * 100:.1f}%"


def duration_text(seconds: float) -> str:
    """3725 → "1 h 2 min"; 65 → "1 min 5 s"."""
    total = max(round(seconds), 0)
    hours, minutes, rest = total // 3600, total % 3600 // 60, total % 60
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def moment(text: str | None) -> datetime | None:
    """An ISO 8601 time as UTC; None where it is missing or none."""
    try:
        value = datetime.fromisoformat(text or "")
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    except (ValueError, OverflowError):  # a year that UTC does not have
        return None


def time_text(text: str | None) -> str:
    """ISO 8601 → "2026-01-31 14:05 UTC"."""
    value = moment(text)
    return f"{value:%Y-%m-%d %H:%M} UTC" if value else "unknown"


def when(text: str | None) -> Markup:
    """ISO 8601 → "4 minutes ago", "in 3 minutes" or, from 30 days on, the date; the exact time shows on hovering."""
    value = moment(text)
    if value is None:
        return escape(time_text(text))
    away = (datetime.now(UTC) - value).total_seconds()
    said = f"{value:%Y-%m-%d}"
    for unit, seconds, most in (("day", 86_400, 30), ("hour", 3600, 24), ("minute", 60, 60)):
        count = int(abs(away) // seconds)
        if count < most:
            counted = f"{count} {unit}{'s' * (count > 1)}" if count else "less than a minute"
            said = f"in {counted}" if away < 0 else f"{counted} ago" if count else "just now"
    return el("time", said, datetime=value.isoformat(), title=time_text(text))
