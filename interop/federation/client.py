"""A user's client, the same at both servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from interop import http_request
from interop.matrix_client import q
from synrepl.core.errors import Unavailable

API = "/_matrix/client/v3"

#: What releases before 1.48 know instead.
API_BEFORE = "/_matrix/client/r0"


class ClientRefused(Unavailable):
    """{method} {path} of {user} was answered with {status}: {reason}"""


class Client:
    """A user who is logged in.

    :param url: of the server's listener for clients, without a path
    :param api: the path below which its endpoints are
    """

    def __init__(self, url: str, user_id: str, access_token: str, api: str = API) -> None:
        self.url = url
        self._api = api
        self.id = user_id
        self._token = access_token
        self._transactions = count(1)
        self._since = ""

    @classmethod
    def log_in(cls, url: str, user_id: str, password: str) -> Client:
        """Log in.

        :raises ClientRefused: :raises OSError:
        """
        body = {
            "type": "m.login.password",
            "identifier": {"type": "m.id.user", "user": user_id},
            "password": password,
        }
        answer = http_request.request("POST", f"{url}{API}/login", body)
        _check(answer, "POST", "/login", user_id)
        return cls(url, user_id, answer.content["access_token"])

    def answer(self, method: str, path: str, body: object = None) -> http_request.Answer:
        """What the server answers, whatever that is."""
        return http_request.request(method, f"{self.url}{self._api}{path}", body, self._token)

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """The JSON of the answer.

        :raises ClientRefused: :raises OSError:
        """
        answer = self.answer(method, path, body)
        _check(answer, method, path, self.id)
        return answer.content

    def sync(self) -> Mapping[str, Any]:
        """What is new since the last call."""
        found: Mapping[str, Any] = self.ask("GET", f"/sync?timeout=0{self._since}")
        self._since = f"&since={q(found['next_batch'])}"
        return found

    def hears(self, room_id: str, kind: str, of: str) -> bool:
        """Whether what is new in a room has an ephemeral event of a kind whose content names something."""
        room = self.sync().get("rooms", {}).get("join", {}).get(room_id, {})
        events = room.get("ephemeral", {}).get("events", [])
        return any(each["type"] == kind and of in str(each["content"]) for each in events)

    def is_invited(self, room_id: str) -> bool:
        """Whether what is new has an invite to a room."""
        return room_id in self.sync().get("rooms", {}).get("invite", {})

    def gets_message(self, kind: str) -> bool:
        """Whether what is new has a message to the device."""
        return any(
            each["type"] == kind for each in self.sync().get("to_device", {}).get("events", [])
        )

    # -- rooms -----------------------------------------------------------------------------

    def create_room(self, name: str, **more: Any) -> str:
        """A new public room; its ID."""
        body = {"preset": "public_chat", "name": name, **more}
        return str(self.ask("POST", "/createRoom", body)["room_id"])

    def join(self, room_id: str, via: str | None = None) -> str:
        """Join a room; its ID."""
        query = "" if via is None else f"?server_name={q(via)}&via={q(via)}"
        return str(self.ask("POST", f"/join/{q(room_id)}{query}", {})["room_id"])

    def say(self, room_id: str, text: str) -> str:
        """Send a message; its event ID."""
        path = f"/rooms/{q(room_id)}/send/m.room.message/t{next(self._transactions)}"
        return str(self.ask("PUT", path, {"msgtype": "m.text", "body": text})["event_id"])

    def set_state(self, room_id: str, kind: str, content: object, key: str = "") -> str:
        """Send a state event; its event ID."""
        path = f"/rooms/{q(room_id)}/state/{kind}/{q(key)}"
        return str(self.ask("PUT", path, content)["event_id"])

    def redact(self, room_id: str, event_id: str) -> str:
        """Redact an event; the event ID of the redaction."""
        path = f"/rooms/{q(room_id)}/redact/{q(event_id)}/t{next(self._transactions)}"
        return str(self.ask("PUT", path, {"reason": "a test"})["event_id"])

    def moderate(self, room_id: str, action: str, user_id: str) -> None:
        """Invite, kick, ban or unban a user."""
        self.ask("POST", f"/rooms/{q(room_id)}/{action}", {"user_id": user_id})

    def event(self, room_id: str, event_id: str) -> Mapping[str, Any] | None:
        """An event, or None if it is not there."""
        answer = self.answer("GET", f"/rooms/{q(room_id)}/event/{q(event_id)}")
        return answer.content if answer.status == 200 else None

    def content_of(self, room_id: str, kind: str, key: str = "") -> Mapping[str, Any] | None:
        """The content of a state event, or None if there is none."""
        answer = self.answer("GET", f"/rooms/{q(room_id)}/state/{kind}/{q(key)}")
        return answer.content if answer.status == 200 else None

    def membership(self, room_id: str, user_id: str) -> str | None:
        """What a user is in a room."""
        content = self.content_of(room_id, "m.room.member", user_id)
        return None if content is None else str(content.get("membership"))

    def state(self, room_id: str) -> Mapping[tuple[str, str], str]:
        """Event IDs of the current state."""
        found: Sequence[Mapping[str, Any]] = self.ask("GET", f"/rooms/{q(room_id)}/state")
        return {(each["type"], each["state_key"]): each["event_id"] for each in found}

    def members(self, room_id: str) -> Mapping[str, str]:
        """What each user is in a room."""
        found = self.ask("GET", f"/rooms/{q(room_id)}/members")["chunk"]
        return {each["state_key"]: each["content"]["membership"] for each in found}


def _check(answer: http_request.Answer, method: str, path: str, user: str) -> None:
    if answer.status != 200:
        raise ClientRefused(
            method=method, path=path, user=user, status=answer.status, reason=answer.content
        )
