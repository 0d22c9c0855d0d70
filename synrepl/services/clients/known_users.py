"""Logs in the users of a list, each with a secret, and makes access tokens that need no storage.

An access token names the user and the device, and proves both by an HMAC with the user's secret. So every process with
the same list knows it, and a user whose secret is changed or removed is logged out everywhere. A logout ends nothing by
itself: the client forgets its token, which stays valid as long as the secret does.
"""

from __future__ import annotations

import hmac
import secrets
import string
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from zope.interface import implementer

from synrepl.core.clock import Clock
from synrepl.core.errors import InputError
from synrepl.services.clients.identity import (
    ClientIdentity,
    ClientLogin,
    IClientChecker,
    LoginRefused,
)

PASSWORD, TOKEN = "m.login.password", "m.login.token"

#: Seconds for which a token for ``m.login.token`` is valid.
LOGIN_TOKEN_S = 120

#: Maximum length of a device ID that a client chooses, and the length of one that it does not.
MAX_DEVICE_ID, _DEVICE_ID = 255, 10

_PREFIX = "syn"

#: Maximum number of access tokens that are known to be right.
PROVEN_TOKENS = 4_096

#: Takes the place of the secret of a user who is not there, so that it takes as long to find out.
_NOBODY = secrets.token_hex(16)


class BadLogin(InputError):
    """this login is not acceptable at {place}: {reason}"""


class _ProvenToken(NamedTuple):
    """What an access token was found to name, with the secret that it was made with."""

    identity: ClientIdentity
    secret: str


@implementer(IClientChecker)
class KnownUsers:
    """Implements :class:`.ClientChecker` for a list of users.

    :param users: returns the secrets by user ID
    :ivar proven: the access tokens that are known to be right, the oldest first
    """

    def __init__(
        self, clock: Clock, server_name: str, users: Callable[[], Mapping[str, str]]
    ) -> None:
        self._clock = clock
        self._server_name = server_name
        self._users = users
        self.proven: dict[str, _ProvenToken] = {}

    def flows(self) -> Sequence[str]:
        """The types of login."""
        return PASSWORD, TOKEN

    async def login(self, credentials: Mapping[str, Any]) -> ClientLogin:
        """Log a client in by the user's secret, or by a token of :meth:`login_token`.

        :raises BadLogin: :raises LoginRefused:
        """
        device_id = _text(credentials, "device_id", "") or "".join(
            secrets.choice(string.ascii_uppercase) for _ in range(_DEVICE_ID)
        )
        if len(device_id) > MAX_DEVICE_ID or "\0" in device_id:
            raise BadLogin(
                place="device_id", reason=f"more than {MAX_DEVICE_ID} characters, or NUL"
            )
        if credentials.get("type") == TOKEN:
            user_id = self._user_of(_text(credentials, "token"))
        else:
            user_id = self._user_id(credentials)
            secret = self._users().get(user_id)
            given = _text(credentials, "password").encode("utf-8", "replace")
            if not hmac.compare_digest((secret or _NOBODY).encode(), given) or secret is None:
                raise LoginRefused()
        identity = ClientIdentity(user_id, device_id)
        token = _access_token(self._secret(user_id), self._server_name, identity)
        return ClientLogin(identity, token)

    async def identify(self, access_token: str) -> ClientIdentity | None:
        """The user and the device that an access token names, if it is theirs."""
        # Clients send the same token with every request.
        proven = self.proven.get(access_token)
        if proven is not None and self._users().get(proven.identity.user_id) == proven.secret:
            return proven.identity
        named = _named(access_token)
        if named is None:
            return None
        secret = self._users().get(named.user_id)
        expected = _access_token(secret or _NOBODY, self._server_name, named)
        is_right = hmac.compare_digest(expected.encode(), access_token.encode("utf-8", "replace"))
        if not is_right or secret is None:
            return None
        if len(self.proven) >= PROVEN_TOKENS:
            del self.proven[next(iter(self.proven))]
        self.proven[access_token] = _ProvenToken(named, secret)
        return named

    async def logout(self, identity: ClientIdentity, access_token: str) -> None:
        """Do nothing; see the module."""

    def login_token(self, user_id: str) -> str:
        """A token with which a user can log in by ``m.login.token``, for :data:`LOGIN_TOKEN_S`."""
        until = str(int(self._clock.seconds()) + LOGIN_TOKEN_S)
        return "_".join((_PREFIX, _encoded(user_id), until, self._login_proof(user_id, until)))

    def _user_of(self, login_token: str) -> str:
        """The user of a login token.

        :raises LoginRefused: it is not valid, or not any more
        """
        parts = login_token.split("_")
        try:
            user_id = _decoded(parts[1]) if len(parts) == 4 else ""
        except ValueError:
            user_id = ""
        until = parts[2] if len(parts) == 4 else ""
        expected = "_".join((_PREFIX, _encoded(user_id), until, self._login_proof(user_id, until)))
        is_right = hmac.compare_digest(expected.encode(), login_token.encode("utf-8", "replace"))
        if not is_right or user_id not in self._users() or int(until) < self._clock.seconds():
            raise LoginRefused()
        return user_id

    def _user_id(self, credentials: Mapping[str, Any]) -> str:
        """The user ID that a client gives, whole or without the server.

        :raises BadLogin: there is none
        """
        identifier = credentials.get("identifier")
        if identifier is None:
            user = _text(credentials, "user")
        elif not isinstance(identifier, Mapping) or identifier.get("type") != "m.id.user":
            raise BadLogin(place="identifier", reason="only 'm.id.user' is known")
        else:
            user = _text(identifier, "user")
        return user if user.startswith("@") else f"@{user}:{self._server_name}"

    def _login_proof(self, user_id: str, until: str) -> str:
        return _proof(self._secret(user_id), "login", user_id, until, self._server_name)

    def _secret(self, user_id: str) -> str:
        return self._users().get(user_id, _NOBODY)


def _named(access_token: str) -> ClientIdentity | None:
    """The user and the device that an access token names; None if it is malformed."""
    parts = access_token.split("_")
    if len(parts) != 4 or parts[0] != _PREFIX:
        return None
    try:
        return ClientIdentity(_decoded(parts[1]), _decoded(parts[2]))
    except ValueError:
        return None


def _access_token(secret: str, server_name: str, identity: ClientIdentity) -> str:
    proof = _proof(secret, "access", *identity, server_name)
    return "_".join((_PREFIX, *map(_encoded, identity), proof))


def _proof(secret: str, *said: str) -> str:
    """The HMAC of something with the secret of a user."""
    text = "\0".join(said).encode("utf-8", "surrogatepass")
    return hmac.digest(secret.encode(), text, "sha256").hex()


def _text(members: Mapping[str, Any], name: str, default: str | None = None) -> str:
    found = members.get(name, default)
    if not isinstance(found, str):
        raise BadLogin(place=name, reason="text is needed")
    return found


def _encoded(text: str) -> str:
    """Base64 for URLs, with another character for the underscore that separates parts."""
    return urlsafe_b64encode(text.encode("utf-8", "surrogatepass")).decode().replace("_", ".")


def _decoded(text: str) -> str:
    """:raises ValueError: it is not the output of :func:`_encoded`"""
    return urlsafe_b64decode(text.replace(".", "_").encode("ascii")).decode()
