"""Checks of the front matter of a Space's README.md, as the Hub makes them.

https://huggingface.co/docs/hub/spaces-config-reference lists the keys. One that is not known is left alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from localhub.users import MOST_EXPIRATION_MINUTES, SCOPES

SDKS = ("gradio", "streamlit", "docker", "static")
COLORS = ("red", "yellow", "green", "blue", "indigo", "purple", "pink", "gray")
_HARDWARE = """
cpu-basic cpu-upgrade cpu-performance cpu-xl zero-a10g t4-small t4-medium l4x1 l4x4 l40sx1 l40sx4 l40sx8 a10g-small
a10g-large a10g-largex2 a10g-largex4 a100-large a100x4 a100x8 h100 h100x8 h200 h200x2 h200x4 h200x8 rtx-pro-6000
rtx-pro-6000x2 rtx-pro-6000x4 rtx-pro-6000x8 v5e-1x1 v5e-2x2 v5e-2x4 inf2x6
"""
HARDWARE = tuple(_HARDWARE.split())
STORAGE = ("small", "medium", "large")
SHORT_DESCRIPTION = 60  # characters
_HEADERS = ("cross-origin-embedder-policy", "cross-origin-opener-policy", "cross-origin-resource-policy")
Check = Callable[[Any], str]  # what is wrong with a value, or nothing


def _one_of(*known: str) -> Check:
    return lambda value: "" if value in known else f"must be one of [{', '.join(known)}]"


def _kind(kind: type, word: str) -> Check:
    return lambda value: "" if type(value) is kind else f"must be {word}"


def _between(least: int, most: int) -> Check:
    def check(value: Any) -> str:
        if isinstance(value, bool) or not isinstance(value, int):
            return "must be a number"
        return "" if least <= value <= most else f"must be between {least} and {most}"

    return check


def _matching(pattern: str, words: str) -> Check:
    expression = re.compile(pattern)
    return lambda value: "" if expression.fullmatch(str(value)) else f"must be {words}"


def _list_of(*known: str) -> Check:
    def check(value: Any) -> str:
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            return "must be an array of strings"
        strange = [item for item in value if known and item not in known]
        return f"must be of [{', '.join(known)}], not {', '.join(strange)}" if strange else ""

    return check


def _short(value: Any) -> str:
    if not isinstance(value, str):
        return "must be a string"
    if len(value) > SHORT_DESCRIPTION:
        return f"length must be less than or equal to {SHORT_DESCRIPTION} characters long, it has {len(value)}"
    return ""


def _headers(value: Any) -> str:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        return "must be an object of strings"
    strange = [name for name in value if name.lower() not in _HEADERS]
    return f"must be of [{', '.join(_HEADERS)}], not {', '.join(strange)}" if strange else ""


_BOOL, _TEXT, _TEXTS = _kind(bool, "a boolean"), _kind(str, "a string"), _list_of()
_CHECKS: Mapping[str, Check] = {
    "title": _TEXT,
    "emoji": _matching(r"[^\x00-\x7f\s]{1,16}|[0-9#*]\ufe0f?\u20e3", "an emoji"),
    "colorFrom": _one_of(*COLORS),
    "colorTo": _one_of(*COLORS),
    "sdk": _one_of(*SDKS),
    "sdk_version": _matching(r"[0-9]+(\.[0-9]+){0,2}([a-z0-9.-]*)", "a version, e.g. 6.0.0"),
    "python_version": _matching(r"3\.[0-9]{1,2}(\.[0-9]{1,2})?", "a version of Python 3, e.g. 3.12"),
    "app_file": _TEXT,
    "app_port": _between(1, 65_535),
    "base_path": _matching(r"/.*", "a path that starts with a slash"),
    "suggested_hardware": _one_of(*HARDWARE),
    "suggested_storage": _one_of(*STORAGE),
    "fullWidth": _BOOL,
    "header": _one_of("mini", "default"),
    "short_description": _short,
    "models": _TEXTS,
    "datasets": _TEXTS,
    "preload_from_hub": _TEXTS,
    "thumbnail": _TEXT,
    "pinned": _BOOL,
    "hf_oauth": _BOOL,
    "hf_oauth_scopes": _list_of(*SCOPES),
    "hf_oauth_expiration_minutes": _between(1, MOST_EXPIRATION_MINUTES),
    "disable_embedding": _BOOL,
    "startup_duration_timeout": _matching(r"[0-9]+(\.[0-9]+)?\s*[smhd]?", "a duration, e.g. 30m or 1h"),
    "custom_headers": _headers,
}


def space_problems(card: Mapping[str, Any]) -> list[str]:
    """The errors for which the Hub would refuse a Space's front matter."""
    found = ((key, _CHECKS[key](value)) for key, value in card.items() if key in _CHECKS)
    return [f'"{key}" {problem}' for key, problem in found if problem]
