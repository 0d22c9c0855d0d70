"""What users do in the room: they talk all the time, also while their server is away for a moment."""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

from synrepl.cli.demo.rooms.servers import SPEAKER, DemoServer
from synrepl.cli.running import run_in_thread
from synrepl.core import jsons
from synrepl.core.clock import Scheduler
from synrepl.core.errors import InputError, Unavailable
from synrepl.daemon.config.config import LOOPBACK

#: Seconds between two messages of a user.
PAUSE_S = 0.2

#: Seconds that a request may take: a join waits for the other server.
_TIMEOUT_S = 60.0

#: Events of a page of a timeline.
_PAGE = 100


class ClientRefused(Unavailable):
    """server {label} answered {method} {path} with {status}: {error}"""


class Answered(NamedTuple):
    """An answer; without a status if there was none."""

    status: int | None
    body: Any


class DemoClient:
    """A Matrix client of a server's user."""

    def __init__(self, reactor: Any, server: DemoServer) -> None:
        self._reactor = reactor
        self._server = server
        self._token: str | None = None

    async def log_in(self) -> None:
        """Log in.

        :raises ClientRefused:
        """
        identifier = {"type": "m.id.user", "user": SPEAKER}
        body = {
            "type": "m.login.password",
            "identifier": identifier,
            "password": self._server.password,
        }
        self._token = (await self.require("POST", "/login", body))["access_token"]

    async def require(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request; the answer.

        :param path: below the client API, version 3
        :raises ClientRefused: the answer is an error, or there is none
        """
        answer = await self.ask(method, path, body)
        if answer.status != 200:
            raise ClientRefused(
                label=self._server.label,
                method=method,
                path=path,
                status=answer.status or "nothing",
                error=answer.body,
            )
        return answer.body

    async def ask(self, method: str, path: str, body: Any = None) -> Answered:
        """Send a request; its answer, whatever it is."""
        return await run_in_thread(self._reactor, lambda: self._ask(method, path, body))

    def _ask(self, method: str, path: str, body: Any) -> Answered:
        headers = {} if self._token is None else {"Authorization": f"Bearer {self._token}"}
        data = None if body is None else jsons.encode(body)
        connection = http.client.HTTPConnection(
            LOOPBACK, self._server.client_port, timeout=_TIMEOUT_S
        )
        try:
            connection.request(method, f"/_matrix/client/v3{path}", data, headers)
            answer = connection.getresponse()
            return Answered(answer.status, jsons.decode(answer.read(), "answer"))
        except (OSError, http.client.HTTPException, InputError) as error:
            return Answered(None, str(error))
        finally:
            connection.close()

    async def has(self, room_id: str, event_id: str) -> bool:
        """Whether the user sees an event."""
        path = f"/rooms/{quote(room_id)}/event/{quote(event_id)}"
        return (await self.ask("GET", path)).status == 200

    async def members(self, room_id: str) -> set[str]:
        """The members of a room.

        :raises ClientRefused:
        """
        found = await self.require("GET", f"/rooms/{quote(room_id)}/joined_members")
        return set(found["joined"])

    async def timeline(self, room_id: str, since: str) -> list[str]:
        """The IDs of the events of a room, newest first, back to one of them.

        :raises ClientRefused:
        """
        found: list[str] = []
        path = f"/rooms/{quote(room_id)}/messages?dir=b&limit={_PAGE}"
        at = ""
        while True:
            page = await self.require("GET", f"{path}{at}")
            ids = [event["event_id"] for event in page["chunk"]]
            if since in ids:
                return [*found, *ids[: ids.index(since) + 1]]
            found += ids
            if "end" not in page:
                return found
            at = f"&from={quote(page['end'])}"


class Speaker:
    """Has a user say something all the time; each message until it is accepted.

    :ivar sent: the IDs of the events, in order
    """

    def __init__(
        self, scheduler: Scheduler, server: DemoServer, client: DemoClient, room_id: str
    ) -> None:
        self._scheduler = scheduler
        self._label = server.label
        self._client = client
        self._path = f"/rooms/{quote(room_id)}"
        self.sent: list[str] = []
        self._stops = False
        self._ended = scheduler.promise()

    def start(self) -> None:
        """Begin to talk."""
        self._scheduler.spawn(f"talk at server {self._label}", self._run())

    async def stop(self) -> None:
        """Stop talking once the message that is being sent is accepted.

        :raises SynreplError: a message was refused
        """
        self._stops = True
        await self._ended

    async def change(self, event_type: str, state_key: str, content: Mapping[str, Any]) -> None:
        """Change the state of the room."""
        await self._until_accepted(f"/state/{event_type}/{quote(state_key)}", content)

    async def redact(self, event_id: str) -> None:
        """Redact an event."""
        await self._until_accepted(f"/redact/{quote(event_id)}/redaction", {})

    async def _run(self) -> None:
        try:
            number = 0
            while not self._stops:
                number += 1
                content = {"msgtype": "m.text", "body": f"{number} from {self._label}"}
                await self._until_accepted(f"/send/m.room.message/{number}", content)
                await self._scheduler.sleep(PAUSE_S)
        except Exception as error:
            self._ended.errback(error)
        else:
            self._ended.callback(None)

    async def _until_accepted(self, path: str, content: Mapping[str, Any]) -> None:
        method, path = "PUT", f"{self._path}{path}"
        while True:
            answer = await self._client.ask(method, path, content)
            if answer.status == 200:
                self.sent.append(answer.body["event_id"])
                return
            if answer.status is not None and answer.status < 500 and answer.status != 429:
                raise ClientRefused(
                    label=self._label,
                    method=method,
                    path=path,
                    status=answer.status,
                    error=answer.body,
                )
            await self._scheduler.sleep(PAUSE_S)
