"""Takes a job's token out of everything that is written down about the job.

Replaced are the token as it is, as JSON escapes it and as a URL quotes it, and any other string of the form of the
Hub's tokens (of users, organisations, sign-ins and jobs). In a stream, the last bytes stay back until it is clear that
no token begins in them.
"""

import json
import re
from urllib.parse import quote

from pydantic import SecretStr

MASK = "[token]"
_MIN_TOKEN_CHARACTERS = 8  # shorter ones would mask ordinary words, and no Hub issues them
_HUB_TOKEN = rb"\b(?:hf|api_org)_[A-Za-z0-9]{30,}|\bhf_(?:oauth|jwt|refresh)_[\w.-]{30,}"
_LONGEST_BYTES = 4096  # of a token
_MAX_HELD_BYTES = 64 * 1024


class Scrubber:
    def __init__(self, token: SecretStr | None) -> None:
        value = token.get_secret_value() if token else ""
        forms = sorted({value, json.dumps(value)[1:-1], quote(value, safe="")}, key=len, reverse=True)
        own = [re.escape(form.encode()) for form in forms if len(form) >= _MIN_TOKEN_CHARACTERS]
        self._tokens = re.compile(b"|".join([*own, _HUB_TOKEN]))
        self._held = b""

    def __repr__(self) -> str:
        return "Scrubber()"

    def text(self, text: str) -> str:
        return self.data(text.encode(errors="surrogateescape")).decode(errors="surrogateescape")

    def data(self, data: bytes) -> bytes:
        return self._tokens.sub(MASK.encode(), data)

    def feed(self, chunk: bytes) -> bytes:
        """The next piece of a stream; what is not safe to show yet comes with a later piece."""
        self._held += chunk
        cut = self._held.rfind(b"\n") + 1
        if not cut and len(self._held) > _MAX_HELD_BYTES:
            # No line ends: keep back what could be a token's beginning, and cut none apart.
            cut = len(self._held) - _LONGEST_BYTES
            cut = next((m.start() for m in self._tokens.finditer(self._held) if m.start() < cut < m.end()), cut)
            cut = cut or len(self._held)  # what is longer is no token
        out, self._held = self._held[:cut], self._held[cut:]
        return self.data(out)

    def rest(self) -> bytes:
        out, self._held = self._held, b""
        return self.data(out)
