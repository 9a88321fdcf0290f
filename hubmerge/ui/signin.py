"""Sign-in: gradio's own OAuth against the Hub, on a Space and on this machine alike.

gradio signs visitors in for real only on a Space, where the platform supplies an OAuth client through environment
variables; anywhere else it mocks the sign-in with whoever owns the machine's token. Both happen in gradio.oauth,
which reads the variables into module constants at import and asks `get_space()` which of the two to do. On a Space
nothing is touched. With the embedded Hub, `use_oauth_client` writes the same constants with that Hub's client and
answers `get_space` inside gradio.oauth only. The rest of gradio must not take this machine for a Space: its
front end would fetch the Space's header from the public Hub, and child processes would inherit SPACE_ID.

No redirect is rewritten: without SPACE_HOST gradio builds the redirect URI from the request, hence with http on
loopback. The session cookie is `Secure; SameSite=None`; Chromium and Firefox keep it on http://127.0.0.1 and
http://localhost, which they treat as trustworthy. The cookie is signed with a key derived from the client secret
and not encrypted, so a client secret must be as hard to guess as a password wherever others can reach the port.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import ip_address
from urllib.parse import urlsplit

from hubmerge.errors import InternalError, LoginError

SCOPES = "openid profile read-repos contribute-repos"


@dataclass(frozen=True)
class OAuthClient:
    """An OAuth client that a provider knows: the embedded Hub's, or one registered for this machine."""

    provider: str  # where /.well-known/openid-configuration is
    client_id: str
    client_secret: str = field(repr=False)
    scopes: str = SCOPES


def use_oauth_client(client: OAuthClient) -> None:
    """Let gradio sign visitors in with `client`. Call it before the app is built, and never on a Space."""
    if not _may_see_secrets(client.provider):
        raise LoginError(
            "an OAuth provider that is neither https nor on this machine",
            where=client.provider,
            next_step="Use an https address; a token must not travel in the clear.",
        )
    import gradio.oauth

    values = {
        "OAUTH_CLIENT_ID": client.client_id,
        "OAUTH_CLIENT_SECRET": client.client_secret,
        "OAUTH_SCOPES": client.scopes,
        "OPENID_PROVIDER_URL": client.provider.rstrip("/"),
        "get_space": lambda: "local/hubmerge",
    }
    for name, value in values.items():
        if not hasattr(gradio.oauth, name):
            # a renamed constant would silently bring back the mocked sign-in
            raise InternalError("this gradio keeps its OAuth settings elsewhere", where="gradio.oauth", expected=name)
        setattr(gradio.oauth, name, value)


def _may_see_secrets(url: str) -> bool:
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme == "https" and host:
        return True
    try:
        return parts.scheme == "http" and (host == "localhost" or ip_address(host).is_loopback)
    except ValueError:
        return False
