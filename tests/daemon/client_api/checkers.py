"""Classes that tests name as checkers; only the first one is one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zope.interface import implementer

from synrepl.services.clients.identity import ClientIdentity, ClientLogin, IClientChecker


@implementer(IClientChecker)
class OneUser:
    """Knows one user, by a password of the configuration."""

    def __init__(self, password: str) -> None:
        self._password = password

    def flows(self) -> Sequence[str]:
        return ["m.login.password"]

    async def login(self, credentials: Mapping[str, Any]) -> ClientLogin:
        return ClientLogin(ClientIdentity("@only:example.com", "D"), self._password)

    async def identify(self, access_token: str) -> ClientIdentity | None:
        is_right = access_token == self._password
        return ClientIdentity("@only:example.com", "D") if is_right else None

    async def logout(self, identity: ClientIdentity, access_token: str) -> None:
        pass


class Undeclared:
    """Does not say that it implements the interface."""


@implementer(IClientChecker)
class Incomplete:
    """Lacks methods."""

    def flows(self) -> Sequence[str]:
        return []


@implementer(IClientChecker)
class NotAsync(OneUser):
    """A method is not asynchronous."""

    def identify(self, access_token: str) -> Any:
        return None


class Failing(OneUser):
    """Cannot be made."""

    def __init__(self) -> None:
        raise RuntimeError("no directory service")


@implementer(IClientChecker)
class AnyUser:
    """Believes every user: an access token is the user's ID and that of the device, with a blank between them."""

    def flows(self) -> Sequence[str]:
        return ["m.login.token"]

    async def login(self, credentials: Mapping[str, Any]) -> ClientLogin:
        user_id, device_id = str(credentials.get("token")), "D"
        return ClientLogin(ClientIdentity(user_id, device_id), f"{user_id} {device_id}")

    async def identify(self, access_token: str) -> ClientIdentity | None:
        user_id, _, device_id = access_token.partition(" ")
        return ClientIdentity(user_id, device_id) if device_id else None

    async def logout(self, identity: ClientIdentity, access_token: str) -> None:
        pass
