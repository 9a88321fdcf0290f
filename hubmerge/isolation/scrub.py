"""Takes a job's token out of everything that is written down about the job.

Replaced are the token as it is, as JSON escapes it and as a URL quotes it, and any other string of a Hub
token's form. In a stream, the last bytes stay back until it is clear that no token begins in them.
"""

from __future__ import annotations

import json
import re
from urllib.parse import quote

from pydantic import SecretStr

MASK = "[token]"
_MIN_TOKEN_CHARACTERS = 8  # shorter ones would mask ordinary words, and no Hub issues them
_HUB_TOKEN = re.compile(rb"\b(?:hf|api_org)_[A-Za-z0-9]{30,}")
_MAX_HELD_BYTES = 64 * 1024


class Scrubber:
    def __init__(self, token: SecretStr | None) -> None:
        value = token.get_secret_value() if token else ""
        forms = {value, json.dumps(value)[1:-1], quote(value, safe="")} if value else set()
        self._forms = sorted(
            (form.encode() for form in forms if len(form) >= _MIN_TOKEN_CHARACTERS), key=len, reverse=True
        )
        self._held = b""

    def __repr__(self) -> str:
        return "Scrubber()"

    def text(self, text: str) -> str:
        return self.data(text.encode(errors="surrogateescape")).decode(errors="surrogateescape")

    def data(self, data: bytes) -> bytes:
        for form in self._forms:
            data = data.replace(form, MASK.encode())
        return _HUB_TOKEN.sub(MASK.encode(), data)

    def feed(self, chunk: bytes) -> bytes:
        """The next piece of a stream; what is not safe to show yet comes with a later piece."""
        self._held += chunk
        cut = self._held.rfind(b"\n") + 1
        if not cut and len(self._held) > _MAX_HELD_BYTES:
            # No line ends: mask what is whole, keep back what could be a token's beginning.
            self._held = self.data(self._held)
            cut = len(self._held) - max((len(form) for form in self._forms), default=0)
        out, self._held = self._held[:cut], self._held[cut:]
        return self.data(out)

    def rest(self) -> bytes:
        out, self._held = self._held, b""
        return self.data(out)
