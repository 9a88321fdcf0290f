"""The Hub for the command line: with the login and the cache that the Hub's client keeps on this machine.

The login (`hf auth login`, or any other that the client knows) was made for one Hub, the client's own default. It is
never sent to another endpoint, such as an embedded Hub or a mirror; HF_TOKEN is the login there. The service uses
neither login nor cache: it acts with the tokens of its users, and files cached for one of them are not for others.
"""

from hubmerge.errors import LoginError
from hubmerge.hub.cache import ClientCache
from hubmerge.hub.client import Hub
from hubmerge.hub.errors import translated
from hubmerge.settings import DEFAULT_ENDPOINT, Settings


def hub_of_user(settings: Settings) -> Hub:
    """The Hub of `settings`, with its user's login and cache."""
    token = settings.token.get_secret_value() if settings.token else None
    return Hub(settings.endpoint, token, login=lambda: stored_token(settings.endpoint), cache=ClientCache())


def stored_token(endpoint: str) -> str | None:
    """The token that the client itself would use at `endpoint`, where that is its default; None elsewhere."""
    from huggingface_hub import constants, errors, get_token

    if endpoint != DEFAULT_ENDPOINT or constants.HF_HUB_DISABLE_IMPLICIT_TOKEN:
        return None
    try:
        with translated("HF_OIDC_RESOURCE"):  # the one place that the client asks somebody for a token
            try:
                return get_token()
            except UnicodeDecodeError:
                step = "Write the token into it as UTF-8, or run `hf auth login` again."
                raise LoginError("the login is no text", where=constants.HF_TOKEN_PATH, next_step=step) from None
            except NotADirectoryError:  # a home that is none, such as /dev/null, holds no login
                return None
            except OSError as error:
                if error.filename is None:  # an answer of the Hub
                    raise
                why, step = error.strerror or str(error), "Set HF_TOKEN, or HF_HOME to a folder that you may use."
                raise LoginError("the login cannot be used", where=error.filename, got=why, next_step=step) from None
    except errors.OIDCError as error:
        raise LoginError(
            "no token for this job of a CI service",
            where="HF_OIDC_RESOURCE",
            got=str(error)[:300],
            next_step="Set HF_TOKEN, or unset HF_OIDC_RESOURCE.",
        ) from None
