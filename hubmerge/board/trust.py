"""The public keys that are believed: those of the settings, else those that a dataset published at its first reading.

    keys.json    {"keys": ["64 hex digits", …]}    beside the results; anybody who can write there can change it

So keys.json is believed once: a file of the reader keeps its keys of the first reading. Later keys are reported and not
believed.
"""

import hashlib
import json
import re
import tempfile
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from hubmerge.errors import SettingsError
from hubmerge.machine.disk_errors import writing, written
from hubmerge.settings import Settings
from hubmerge.text.wording import json_table

KEYS = "keys.json"
MAX_KEYS = 100
MAX_KEYS_BYTES = 64 * 1024
_KEY = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Trust:
    """`keys` are believed whatever is published; without them, `pins` remembers the keys of the first reading."""

    keys: frozenset[str] = field(default_factory=frozenset)
    pins: Path | None = None

    def of(self, published: Collection[str]) -> frozenset[str]:
        """The keys to believe, where a dataset publishes those."""
        if self.keys or self.pins is None:
            return self.keys
        try:
            with written("the file of trusted keys cannot be read", str(self.pins)), suppress(FileNotFoundError):
                return frozenset(parse_keys(self.pins.read_bytes()))
        except ValueError as error:  # not made anew by itself: whoever damaged it may have changed the keys, too
            raise SettingsError(
                "the file of trusted keys is damaged",
                where=str(self.pins),
                got=str(error)[:200],
                next_step="Remove it to trust what the dataset publishes now, or set HUBMERGE_TRUSTED_KEYS.",
            ) from None
        if published:
            with writing(self.pins):
                self.pins.parent.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryDirectory(dir=self.pins.parent) as folder:
                    new = Path(folder) / self.pins.name
                    new.write_bytes(keys_file(published))
                    new.replace(self.pins)
        return frozenset(published)


def reader_trust(settings: Settings, repo: str) -> Trust:
    """The trust of somebody who only reads a dataset."""
    name = hashlib.sha256(f"{settings.endpoint}\n{repo}".encode()).hexdigest()[:32]
    return Trust(named_keys(settings), settings.data_dir / "trusted-keys" / f"{name}.json")


def named_keys(settings: Settings) -> frozenset[str]:
    """The keys of HUBMERGE_TRUSTED_KEYS; SettingsError where one is none."""
    words = (settings.trusted_keys or "").replace(",", " ").split()
    for word in words:
        if not _KEY.fullmatch(word):
            raise SettingsError(
                "a public key is not valid",
                where="HUBMERGE_TRUSTED_KEYS",
                expected="64 lowercase hex digits each, with spaces between them",
                got=word[:80],
                next_step="A results dataset publishes its keys in keys.json.",
            )
    return frozenset(words)


def folder_keys(folder: Path) -> frozenset[str]:
    """The keys that a local copy of a dataset publishes, which its owner believes by naming it; none if unreadable."""
    path = folder / KEYS
    try:
        if path.is_symlink() or path.stat().st_size > MAX_KEYS_BYTES:
            return frozenset()
        return frozenset(parse_keys(path.read_bytes()))
    except (OSError, ValueError):
        return frozenset()


def parse_keys(data: bytes) -> tuple[str, ...]:
    """The keys of a keys.json, sorted; ValueError for anything else."""
    document = json_table(data) if len(data) <= MAX_KEYS_BYTES else None
    keys = (document or {}).get("keys")
    if not isinstance(keys, list) or len(keys) > MAX_KEYS:
        raise ValueError(f'expected {{"keys": […]}} with at most {MAX_KEYS} entries')
    if not all(isinstance(key, str) and _KEY.fullmatch(key) for key in keys):
        raise ValueError("a key is 64 lowercase hex digits")
    return tuple(sorted(set(keys)))


def keys_file(keys: Iterable[str]) -> bytes:
    return (json.dumps({"keys": sorted(keys)}, indent=1) + "\n").encode()
