"""What the Hub asks of a Space's README and files, as its configuration reference and its push rules say it."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from typing import Any

import yaml
from huggingface_hub import SpaceHardware

_KEYS = (
    "title emoji colorFrom colorTo sdk python_version sdk_version suggested_hardware suggested_storage app_file "
    "app_build_command app_port base_path fullWidth header short_description models datasets tags thumbnail pinned "
    "hf_oauth hf_oauth_expiration_minutes hf_oauth_scopes hf_oauth_authorized_org disable_embedding "
    "startup_duration_timeout custom_headers preload_from_hub license license_name license_link"
)
KEYS = frozenset(_KEYS.split())
COLOURS = frozenset(("red", "yellow", "green", "blue", "indigo", "purple", "pink", "gray"))
SDKS = frozenset(("gradio", "docker", "static"))
_SCOPES = (
    "openid profile email read-billing read-repos gated-repos contribute-repos write-repos manage-repos "
    "read-collections write-collections inference-api jobs webhooks write-discussions read-memberships"
)
SCOPES = frozenset(_SCOPES.split())
MAX_DESCRIPTION = 60  # characters of short_description
MAX_OAUTH_MINUTES = 43_200
MAX_PLAIN_BYTES = 10 * 1024**2  # of a file that is not stored by Git LFS or Xet

# ZeroGPU, August 2026: the Gradio SDK alone
ZERO_GPU_PYTHONS = frozenset(("3.12.12", "3.10.13"))
ZERO_GPU_TORCHES = frozenset(("2.8.0", "2.9.1", "2.10.0", "2.11.0"))


def front_matter(readme: str) -> dict[str, Any]:
    """The YAML block at the top of a README."""
    found = re.match(r"---\n(.*?)\n---\n", readme, re.DOTALL)
    values = yaml.safe_load(found[1]) if found else None
    assert isinstance(values, dict), "no YAML block at the top"
    return values


def problems(values: Mapping[str, Any]) -> list[str]:
    """Everything that the Hub would refuse or ignore, each as the name of its key and what is wrong."""
    found = [f"{key}: not a key of a Space" for key in sorted(values.keys() - KEYS)]

    def hold(key: str, good: bool, wanted: str) -> None:
        if key in values and not good:
            found.append(f"{key}: {values[key]!r} is not {wanted}")

    def text(key: str) -> str:
        value = values.get(key)
        return value if isinstance(value, str) else ""

    for key in ("title", "emoji", "sdk"):
        if key not in values:
            found.append(f"{key}: missing")
    for key in ("colorFrom", "colorTo"):
        hold(key, text(key) in COLOURS, f"one of {', '.join(sorted(COLOURS))}")
    hold("emoji", _is_emoji(text("emoji")), "one emoji")
    hold("sdk", text("sdk") in SDKS, f"one of {', '.join(sorted(SDKS))}")
    hold("python_version", bool(re.fullmatch(r"3\.\d+(\.\d+)?", text("python_version"))), "a quoted 3.x or 3.x.x")
    hold("sdk_version", bool(re.fullmatch(r"\d+\.\d+\.\d+", text("sdk_version"))), "a version")
    hold("short_description", 0 < len(text("short_description")) <= MAX_DESCRIPTION, "1 to 60 characters")
    hold("suggested_hardware", text("suggested_hardware") in {each.value for each in SpaceHardware}, "a hardware")
    hold("startup_duration_timeout", bool(re.fullmatch(r"[1-9]\d*[smh]", text("startup_duration_timeout"))), "30m, 1h")
    hold("app_port", values.get("sdk") == "docker", "of a docker Space")
    for key in ("sdk_version", "app_file"):
        hold(key, values.get("sdk") in ("gradio", "static"), "of a Gradio Space")
    for key in ("pinned", "hf_oauth"):
        hold(key, isinstance(values.get(key), bool), "true or false")
    scopes = values.get("hf_oauth_scopes")
    hold("hf_oauth_scopes", isinstance(scopes, list) and set(map(str, scopes)) <= SCOPES, "a list of known scopes")
    minutes = values.get("hf_oauth_expiration_minutes")
    hold("hf_oauth_expiration_minutes", type(minutes) is int and 0 < minutes <= MAX_OAUTH_MINUTES, "up to 43200")
    return found


def _is_emoji(text: str) -> bool:
    symbols = [c for c in text if c not in "\ufe0f\u200d" and not "\U0001f3fb" <= c <= "\U0001f3ff"]
    joined = text.count("\u200d")
    return len(symbols) == joined + 1 and all(unicodedata.category(c) == "So" for c in symbols)
