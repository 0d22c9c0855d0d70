"""Two users of matrix-nio in one conversation; run by the interpreter of matrix-nio's environment.

``python nio_program.py`` reads a JSON object from standard input: ``urls`` (two base URLs), ``users`` (two user IDs)
and ``passwords``, ``messages`` (number that each sends). It prints one JSON object per line: ``{"sent": n}`` after each
message, so that servers can be restarted meanwhile, and last ``{"report": {...}}``.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from nio import (
    AsyncClient,
    AsyncClientConfig,
    FullyReadEvent,
    MessageDirection,
    ReceiptEvent,
    RoomCreateResponse,
    RoomMessagesResponse,
    RoomPreset,
    RoomSendResponse,
    SyncResponse,
    ToDeviceMessage,
    TypingNoticeEvent,
)

#: Seconds between two attempts while a server is away, and for all of them together.
_RETRY_S, _PATIENCE_S = 0.1, 120.0

_SYNC_MS = 2_000


class Participant:
    """A user with a device that syncs all the time.

    :ivar seen: event IDs of messages, in the order in which syncs had them
    :ivar redacted: events that a redaction was seen of
    :ivar invited: rooms with an invitation
    :ivar left: rooms that the user left
    :ivar messages: numbers of messages to the user's device, in the order of their coming
    :ivar receipts: of others and the user, by user and type: the event
    :ivar typing: who types now, and everybody who did
    :ivar fully_read: the event of the read marker
    :ivar position: the token of the last sync
    :ivar retries: number of requests that were made again
    """

    def __init__(self, url: str, user: str, password: str) -> None:
        config = AsyncClientConfig(encryption_enabled=False, max_timeouts=1)
        self.client = AsyncClient(url, user, config=config)
        self.user = user
        self.password = password
        self.seen: list[str] = []
        self.left: set[str] = set()
        self.redacted: set[str] = set()
        self.invited: set[str] = set()
        self.messages: list[int] = []
        self.receipts: dict[tuple[str, str], str] = {}
        self.typing: list[str] = []
        self.typed: set[str] = set()
        self.fully_read = ""
        self.position = ""
        self.retries = 0
        self._stops = False

    async def log_in(self) -> None:
        """Log in, and sync once."""
        await self._until_done(lambda: self.client.login(self.password, "nio"), "login")
        assert self.client.access_token, "no access token"

    async def follow(self) -> None:
        """Sync until :meth:`stop`."""
        since: str | None = None
        while not self._stops:
            response: Any = await self._until_done(
                lambda since=since: self.client.sync(
                    timeout=_SYNC_MS if since else 0, since=since, full_state=since is None
                ),
                "sync",
                SyncResponse,
            )
            since = self.position = response.next_batch
            await self._take(response)

    def stop(self) -> None:
        """Have :meth:`follow` end."""
        self._stops = True

    async def _take(self, response: SyncResponse) -> None:
        self.invited.update(response.rooms.invite)
        self.left.update(response.rooms.leave)
        for message in response.to_device_events:
            self.messages.append(message.source["content"]["number"])
        for room_id, joined in response.rooms.join.items():
            if joined.timeline.limited and self.seen:
                missed = await self.history(
                    room_id, joined.timeline.prev_batch or "", self.seen[-1]
                )
                self.seen += reversed(missed)
            for ephemeral in joined.ephemeral:
                if isinstance(ephemeral, ReceiptEvent):
                    for each in ephemeral.receipts:
                        self.receipts[each.user_id, each.receipt_type] = each.event_id
                elif isinstance(ephemeral, TypingNoticeEvent):
                    self.typing = ephemeral.users
                    self.typed.update(ephemeral.users)
            for data in joined.account_data:
                if isinstance(data, FullyReadEvent):
                    self.fully_read = data.event_id
            for event in joined.timeline.events:
                kind = event.source["type"]
                if kind == "m.room.message":
                    self.seen.append(event.event_id)
                elif kind == "m.room.redaction":
                    source = event.source
                    self.redacted.add(source.get("redacts") or source["content"]["redacts"])

    async def say(self, room_id: str, number: int) -> str:
        """Send a message, again with the same transaction ID while the server is away; its event ID."""
        content = {"msgtype": "m.text", "body": f"{self.user} says {number}"}
        sent: Any = await self._until_done(
            lambda: self.client.room_send(room_id, "m.room.message", content, tx_id=f"say{number}"),
            "send",
            RoomSendResponse,
        )
        return str(sent.event_id)

    async def send_to(self, user: str, number: int) -> None:
        """Send a message to all devices of a user, again with the same transaction ID while the server is away."""
        message = ToDeviceMessage("org.example.number", user, "*", {"number": number})
        await self._until_done(
            lambda: self.client.to_device(message, tx_id=f"number{number}"), "send to a device"
        )

    async def do(self, what: str, call: Any) -> Any:
        """Make a request that must succeed."""
        return await self._until_done(call, what)

    async def history(self, room_id: str, start: str, upto: str | None = None) -> list[str]:
        """Event IDs of messages before a token, newest first.

        :param upto: a message at which to end, without it
        """
        found: list[str] = []
        token: str | None = start
        while token:
            page: Any = await self._until_done(
                lambda token=token: self.client.room_messages(
                    room_id, token, direction=MessageDirection.back, limit=7
                ),
                "messages",
                RoomMessagesResponse,
            )
            for event in page.chunk:
                if event.event_id == upto:
                    return found
                if event.source["type"] == "m.room.message":
                    found.append(event.event_id)
            token = page.end if page.end != token and page.chunk else None
        return found

    async def _until_done(self, call: Any, what: str, expected: type | None = None) -> Any:
        deadline = asyncio.get_running_loop().time() + _PATIENCE_S
        while True:
            problem: object
            try:
                response = await call()
                if expected is None and not type(response).__name__.endswith("Error"):
                    return response
                if expected is not None and isinstance(response, expected):
                    return response
                problem = response
            except (TimeoutError, OSError, Exception) as error:
                problem = error
            if asyncio.get_running_loop().time() > deadline:
                raise RuntimeError(f"{self.user}: {what}: {problem!r}")
            self.retries += 1
            await asyncio.sleep(_RETRY_S)


async def until(what: str, holds: Any) -> None:
    """Wait until a condition holds."""
    deadline = asyncio.get_running_loop().time() + _PATIENCE_S
    while not holds():
        if asyncio.get_running_loop().time() > deadline:
            raise RuntimeError(f"waited in vain: {what}")
        await asyncio.sleep(0.05)


async def tell(
    alice: Participant, bob: Participant, room_id: str, event_id: str
) -> dict[str, bool]:
    """Bob reads, types and is there; what Alice is told of it, and of what she must not be told."""
    await bob.do("type", lambda: bob.client.room_typing(room_id, True, 30_000))
    await until("alice sees bob typing", lambda: bob.user in alice.typing)
    await bob.do("cease to type", lambda: bob.client.room_typing(room_id, False))
    await until("alice sees that bob ceased", lambda: bob.user not in alice.typing)
    await bob.do(
        "read",
        lambda: bob.client.room_read_markers(room_id, event_id, event_id, event_id),
    )
    public, private = (bob.user, "m.read"), (bob.user, "m.read.private")
    await until("alice sees what bob has read", lambda: alice.receipts.get(public) == event_id)
    await until("bob has a read marker", lambda: bob.fully_read == event_id)
    await until("bob has a private receipt", lambda: bob.receipts.get(private) == event_id)
    await bob.do("be there", lambda: bob.client.set_presence("online", "Drinking tea"))
    found: Any = await alice.do("look", lambda: alice.client.get_presence(bob.user))
    return {
        "the other user saw typing begin and end": bob.user in alice.typed,
        "a public receipt is told to the other user": alice.receipts.get(public) == event_id,
        "a private one and the read marker are not": private not in alice.receipts
        and not alice.fully_read,
        "the other user sees presence and its message": (found.presence, found.status_msg)
        == ("online", "Drinking tea"),
    }


async def converse(given: dict[str, Any]) -> dict[str, Any]:
    """The whole conversation."""
    people = [
        Participant(*each)
        for each in zip(given["urls"], given["users"], given["passwords"], strict=True)
    ]
    alice, bob = people
    for each in people:
        await each.log_in()
    created: Any = await alice.do(
        "create a room",
        lambda: alice.client.room_create(
            name="Tea", topic="Oolong", preset=RoomPreset.private_chat, invite=[bob.user]
        ),
    )
    assert isinstance(created, RoomCreateResponse), created
    room_id = created.room_id
    following = [asyncio.create_task(each.follow()) for each in people]
    await until("bob is invited", lambda: room_id in bob.invited)
    await bob.do("join", lambda: bob.client.join(room_id))
    await until("bob is in the room", lambda: room_id in bob.client.rooms)
    sent: list[str] = []

    async def talk(speaker: Participant, numbers: range) -> None:
        for number in numbers:
            sent.append(await speaker.say(room_id, number))
            other = bob if speaker is alice else alice
            await speaker.send_to(other.user, number)
            print(json.dumps({"sent": len(sent)}), flush=True)

    count = given["messages"]
    await asyncio.gather(talk(alice, range(count)), talk(bob, range(count)))
    for each in people:
        await until("all messages are seen", lambda each=each: set(sent) <= set(each.seen))
        await until(
            "all messages to the device have come",
            lambda each=each: len(each.messages) >= count,
        )
    data = await tell(alice, bob, room_id, sent[-1])
    await alice.do("redact", lambda: alice.client.room_redact(room_id, sent[0], "spilt"))
    await until("bob sees the redaction", lambda: sent[0] in bob.redacted)
    topic = {"topic": "Black"}
    await alice.do("topic", lambda: alice.client.room_put_state(room_id, "m.room.topic", topic))
    await until("bob sees the topic", lambda: bob.client.rooms[room_id].topic == "Black")
    members = await bob.do("members", lambda: bob.client.joined_members(room_id))
    context = await bob.do("context", lambda: bob.client.room_context(room_id, sent[3], limit=4))
    histories = {each.user: await each.history(room_id, each.position) for each in people}
    await alice.do("kick", lambda: alice.client.room_kick(room_id, bob.user, "no more tea"))
    await until("bob is out of the room", lambda: room_id in bob.left)
    for each in people:
        each.stop()
    await asyncio.gather(*following)
    rooms = await alice.do("joined rooms", lambda: alice.client.joined_rooms())
    for each in people:
        await each.client.close()
    return {
        "room": room_id,
        "messages": {each.user: each.messages for each in people},
        "data": data,
        "sent": sent,
        "seen": {each.user: each.seen for each in people},
        "histories": histories,
        "retries": {each.user: each.retries for each in people},
        "members": sorted(member.user_id for member in members.members),
        "context": context.event.event_id == sent[3],
        "rooms": rooms.rooms,
        "name": alice.client.rooms[room_id].name,
        "power": alice.client.rooms[room_id].power_levels.users,
        "missed": [each for each in (sent[0],) if each not in bob.redacted]
        + [each for each in (room_id,) if each not in bob.left],
    }


if __name__ == "__main__":
    print(json.dumps({"report": asyncio.run(converse(json.load(sys.stdin)))}), flush=True)
