"""Who a Matrix client is, and how it proves it."""

# A method of an interface has no self, which neither mypy nor ruff expects.
# mypy: disable-error-code="misc,no-untyped-def"
# ruff: noqa: N805

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from zope.interface import Interface

from synrepl.core.errors import InputError, Refused


class LoginRefused(Refused):
    """the user or the password is not right"""


class UnsupportedLogin(InputError):
    """this server has no login of type {kind!r}; it has {flows}"""


class ClientIdentity(NamedTuple):
    """The user and the device of a client."""

    user_id: str
    device_id: str


class ClientLogin(NamedTuple):
    """What a client gets when it logs in."""

    identity: ClientIdentity
    access_token: str


class ClientChecker(Protocol):
    """Decides who may log in, and whose an access token is; :class:`IClientChecker` in Python's types."""

    def flows(self) -> Sequence[str]:
        """The types of login, such as ``m.login.password``."""

    async def login(self, credentials: Mapping[str, Any]) -> ClientLogin:
        """Log a client in.

        :param credentials: the body of ``POST /login``: JSON of the client, with a ``type`` among the flows
        :raises LoginRefused: they are not right
        :raises SynreplError: anything else that the client may know; an :class:`.InputError` for what is malformed
        """

    async def identify(self, access_token: str) -> ClientIdentity | None:
        """Whose an access token is; None if it is not valid. It is asked for every request."""

    async def logout(self, identity: ClientIdentity, access_token: str) -> None:
        """A client has asked to end the validity of its access token."""


class IClientChecker(Interface):
    """Decides who may log in, and whose an access token is.

    A class that declares ``@implementer(IClientChecker)`` is named under ``client_api.checker``. What the methods
    take, return and raise: :class:`.ClientChecker`.
    """

    def flows():
        """The types of login, such as ``m.login.password``."""

    async def login(credentials):
        """Log a client in; returns a :class:`.ClientLogin`, or raises :class:`.LoginRefused`."""

    async def identify(access_token):
        """The :class:`.ClientIdentity` of an access token, or None."""

    async def logout(identity, access_token):
        """A client has asked to end the validity of its access token."""
