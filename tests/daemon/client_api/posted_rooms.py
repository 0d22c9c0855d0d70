"""Fixtures: rooms of any servers in the store of a master, and clients of any of their users over HTTP."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from synrepl.rooms import Event, StateKey
from tests.cli.cli_case import CliCase, InProcessMaster, free_port
from tests.daemon.client_api.http_client import ClientReply, HttpMatrixClient

_SETTINGS = (
    "checker: 'tests.daemon.client_api.checkers:AnyUser',"
    " rate_limits: {requests: {per_second: 100000, burst: 100000},"
    " writes: {per_second: 100000, burst: 100000}}"
)


class PostedRoomsCase(CliCase):
    """A master whose clients log in as whoever they like, and that takes events of any server."""

    timeout = 900

    async def setUp(self) -> None:  # type: ignore[override]
        super().setUp()
        key = self.directory / "signing.key"
        key.write_text("ed25519 1 " + "A" * 43)
        key.chmod(0o600)
        self.clients_port = free_port()
        self.master_process: InProcessMaster = await self.master(
            catalogue="[events, backfill, caches]",
            data_dir=str(self.directory),
            rooms=f"{{client_api: {{port: {self.clients_port}, {_SETTINGS}}}}}",
        )
        self.services = self.master_process.running.services
        assert self.services.reading is not None
        self.database = self.services.reading.timelines.database

    async def post(
        self, events: Sequence[Event | Mapping[str, Any]], version: str, received: str = "live"
    ) -> None:
        """Have the master persist events."""
        assert self.services.rooms is not None
        raw = [
            each.raw if isinstance(each, Event) else json.dumps(each).encode() for each in events
        ]
        body = b"[" + b",".join(raw) + b"]"
        await self.services.rooms.intake.persist(body, version, received)

    def client(self, user: str, device: str = "D") -> RoomClient:
        """A client of a user."""
        return RoomClient(self.clients_port, f"{user} {device}")

    async def sql(self, statement: str, *params: object) -> None:
        """Run a statement."""
        await self.database.run("a test", lambda txn: txn.execute(statement, params) and None)


class RoomClient(HttpMatrixClient):
    """A client that reads rooms, and fails where the answer is not 200."""

    async def get(self, path: str, **query: object) -> Any:
        """The JSON of an answer."""
        reply = await self.try_get(path, **query)
        assert reply.status == 200, (path, query, reply)
        return reply.json

    async def try_get(self, path: str, **query: object) -> ClientReply:
        """An answer."""
        parts = "&".join(
            f"{name.rstrip('_')}={quote(str(value), safe='')}"
            for name, value in query.items()
            if value is not None
        )
        return await self.ask("GET", f"{path}?{parts}" if parts else path)

    async def pages(
        self,
        room_id: str,
        start: str | None = None,
        to: str | None = None,
        direction: str = "b",
        **query: object,
    ) -> list[Any]:
        """The events on all pages from a token on, in the order of the pages."""
        found: list[Any] = []
        token = start
        while True:
            page = await self.get(
                f"/rooms/{quote(room_id)}/messages", dir=direction, from_=token, to=to, **query
            )
            found += page["chunk"]
            if "end" not in page:
                return found
            assert page["end"] != token, page
            token = page["end"]


def state_ids(events: Sequence[Mapping[str, Any]]) -> dict[StateKey, str]:
    """The IDs of state events by key."""
    return {(e["type"], e["state_key"]): e["event_id"] for e in events if "state_key" in e}
