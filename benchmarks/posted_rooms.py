"""Rooms that a benchmark builds and posts to a master."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterable, Sequence

from signedjson.key import generate_signing_key

from benchmarks.running_master import SERVER_NAME, RunningMaster
from synrepl.rooms import Event, EventBuilder, EventDraft, Room, room_version

OWNER = f"@owner:{SERVER_NAME}"

#: Events in one request.
_POSTED = 10_000

_VERSION = room_version("10")
_FIRST_MS = 1_700_000_000_000


class PostedRooms:
    """Builds public rooms, and posts their events in large requests.

    :param master: persists them
    """

    def __init__(self, master: RunningMaster) -> None:
        self._master = master
        self._builder = EventBuilder(_VERSION, SERVER_NAME, generate_signing_key("1"))
        self._waiting: list[bytes] = []
        self._now_ms = _FIRST_MS

    def add(
        self, name: str, members: Sequence[str], messages: int, topics: Iterable[int] = ()
    ) -> str:
        """Add a room; return its ID.

        :param messages: number of messages of the owner
        :param topics: places among the messages where the topic is changed instead
        """
        room, room_id = Room(_VERSION), f"!{name}:{SERVER_NAME}"
        create = self._builder.create(
            self._draft("m.room.create", {"creator": OWNER, "room_version": "10"}, ""), room_id
        )
        self._take(room, create)
        self._say(room, "m.room.member", {"membership": "join"}, OWNER)
        self._say(room, "m.room.power_levels", {"users": {OWNER: 100}}, "")
        self._say(room, "m.room.join_rules", {"join_rule": "public"}, "")
        for user in members:
            self._say(room, "m.room.member", {"membership": "join"}, user, user)
        changes = frozenset(topics)
        for place in range(messages):
            if place in changes:
                self._say(room, "m.room.topic", {"topic": f"topic {place}"}, "")
            else:
                body = f"message {place} " + "x" * 80
                self._say(room, "m.room.message", {"msgtype": "m.text", "body": body})
        return room_id

    def post(self) -> None:
        """Post what has not been yet."""
        for start in range(0, len(self._waiting), _POSTED):
            self._post(self._waiting[start : start + _POSTED])
        self._waiting.clear()

    def _say(
        self,
        room: Room,
        kind: str,
        content: dict[str, object],
        key: str | None = None,
        sender: str = OWNER,
    ) -> None:
        self._take(room, self._builder.build(self._draft(kind, content, key, sender), room))

    def _draft(
        self, kind: str, content: dict[str, object], key: str | None, sender: str = OWNER
    ) -> EventDraft:
        self._now_ms += 1
        return EventDraft(kind, sender, content, self._now_ms, key)

    def _take(self, room: Room, event: Event) -> None:
        room.receive(event)
        self._waiting.append(event.raw)
        if len(self._waiting) >= _POSTED:
            self.post()

    def _post(self, events: list[bytes]) -> None:
        request = urllib.request.Request(
            f"{self._master.http}/rooms/events?version=10",
            b"\n".join(events),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=300) as answer:
            outcomes = {each["outcome"] for each in json.load(answer)["events"]}
        if outcomes != {"accepted"}:
            raise AssertionError(outcomes)
