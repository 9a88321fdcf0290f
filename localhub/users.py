"""The accounts of the embedded Hub: users, organisations, their tokens and the OAuth applications.

These are configuration, not state: they come from `default_users()` or from a JSON file (docs/localhub.md) and never
change while the server runs. Tokens that OAuth hands out are state and live in the store.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hubmerge.errors import SourceNotFoundError

_LOCAL_SECRET = "hf_local_oauth_secret_00000000"  # noqa: S105  (a public constant, like the tokens below)
TokenRole = Literal["write", "read"]
OrgRole = Literal["admin", "write", "contributor", "read"]
# what an application may ask for, in the words of the sign-in page
SCOPES = {
    "openid": "know who you are",
    "profile": "see your name and picture",
    "email": "see your e-mail address",
    "read-repos": "read your private repos",
    "gated-repos": "read gated repos that you were let into",
    "contribute-repos": "create repos, and write to those that it created",
    "write-repos": "read and write all your repos",
    "manage-repos": "create, move and delete your repos",
    "read-memberships": "see the organisations that you pick",
    "read-billing": "see your billing",
    "inference-api": "run models in your name",
    "write-discussions": "write in discussions and open pull requests",
    "jobs": "run jobs in your name",
    "webhooks": "see and change your webhooks",
}
NAME = r"^[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?$"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Token(_Frozen):
    value: str = Field(min_length=8)
    role: TokenRole = "write"


class User(_Frozen):
    name: str = Field(pattern=NAME)
    fullname: str = ""
    email: str = ""
    tokens: tuple[Token, ...] = ()


class Org(_Frozen):
    name: str = Field(pattern=NAME)
    fullname: str = ""
    members: Mapping[str, OrgRole] = {}
    private_by_default: bool = False


class OAuthApp(_Frozen):
    """One application, which may ask for every scope."""

    client_id: str = Field(min_length=1)
    client_secret: str = Field(min_length=8)
    redirect_hosts: tuple[str, ...] = ("127.0.0.1", "localhost", "::1", "testserver")
    expiration_minutes: int = Field(default=480, ge=1)


class Users(_Frozen):
    """Everyone; look-ups ignore case, as the Hub does."""

    users: tuple[User, ...]
    orgs: tuple[Org, ...] = ()
    oauth: OAuthApp

    def user(self, name: str) -> User | None:
        return next((u for u in self.users if u.name.lower() == name.lower()), None)

    def org(self, name: str) -> Org | None:
        return next((o for o in self.orgs if o.name.lower() == name.lower()), None)

    def namespace(self, name: str) -> str | None:
        """The user or organisation of that name, in its own spelling."""
        owner = self.user(name) or self.org(name)
        return owner.name if owner else None

    def orgs_of(self, user: str) -> list[tuple[Org, OrgRole]]:
        return [(org, org.members[user]) for org in self.orgs if user in org.members]

    def by_token(self, value: str) -> tuple[User, Token] | None:
        for user in self.users:
            for token in user.tokens:
                if token.value == value:
                    return user, token
        return None

    def first_tokens(self) -> dict[str, str]:
        """Token by user name, plus `<user>_read` for a user's read-only token."""
        tokens: dict[str, str] = {}
        for user in self.users:
            for token in user.tokens:
                tokens.setdefault(user.name if token.role == "write" else f"{user.name}_read", token.value)
        return tokens


@dataclass(frozen=True)
class Identity:
    """The one who sends a request, and what the token of the request allows."""

    user: User
    role: Literal["write", "read", "oauth"]
    scopes: frozenset[str] = field(default_factory=frozenset)  # of an OAuth token
    app: str | None = None  # the OAuth client that the token was given to
    orgs: frozenset[str] = field(default_factory=frozenset)  # those that the person picked for the OAuth token


def object_id(*parts: object) -> str:
    """A stable 24-hex id, the form of every object id on the Hub."""
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:24]


def default_users() -> Users:
    people = {
        "ada": (
            Token(value="hf_local_ada_write_000000000000"),
            Token(value="hf_local_ada_read_0000000000000", role="read"),
        ),
        "bob": (Token(value="hf_local_bob_write_000000000000"),),
        "carol": (Token(value="hf_local_carol_read_00000000000", role="read"),),
    }
    return Users(
        users=tuple(
            User(name=name, fullname=f"{name.capitalize()} (local)", email=f"{name}@example.org", tokens=tokens)
            for name, tokens in people.items()
        ),
        orgs=(Org(name="zoo", fullname="The zoo of tiny agents", members={"ada": "admin"}),),
        oauth=OAuthApp(
            client_id="00000000-0000-4000-8000-10ca1b0b0001",
            client_secret=_LOCAL_SECRET,
            expiration_minutes=4320,  # as the Space's front matter says
        ),
    )


def load_users(path: Path) -> Users:
    """Read a users file; one that is missing or malformed is refused with the reason."""
    try:
        raw: Any = json.loads(path.read_text("utf-8"))
        return Users.model_validate(raw)
    except (OSError, ValueError, ValidationError) as error:
        raise SourceNotFoundError(
            "the users file cannot be used",
            where=str(path),
            expected='JSON with "users", "orgs" and "oauth"',
            got=str(error),
            next_step="Correct the file or leave out --users for the default users.",
        ) from error
