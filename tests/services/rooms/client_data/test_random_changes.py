"""Clients go from process to process, each at positions of its own, while values change at random."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from synrepl.services.clients.identity import ClientIdentity
from synrepl.services.rooms.client_data.data import ClientData, DataRooms
from synrepl.services.rooms.client_data.data_reader import ClientDataReader
from synrepl.services.rooms.client_data.stream_writers import WrittenFact
from synrepl.services.rooms.client_data.typing_users import TypingRooms
from synrepl.services.rooms.news.applied_vectors import AppliedVectors
from synrepl.services.rooms.news.news import ANY_NEWS
from synrepl.services.rooms.news.sync_token import SyncToken
from synrepl.services.rooms.timelines.updates import TimelineReader
from synrepl.storage.clients import reading
from tests.services.rooms.client_data.data_case import STREAMS, ClientDataCase
from tests.services.rooms.sending_case import ALICE, BOB, CAROL

STEPS, ROUNDS = 60, 6

TYPES = ("m.read", "m.read.private")


class ModelDevice:
    """A device that keeps what it is told.

    :ivar values: what it was told last: of receipts by room, type, user and thread, of account data by room and type
    :ivar messages: contents of messages to it, in order
    :ivar told: the stream IDs that it was told of, by kind
    """

    def __init__(self, identity: ClientIdentity) -> None:
        self.reader = TimelineReader(*identity)
        self.since: SyncToken | None = None
        self.values: dict[tuple[Any, ...], Any] = {}
        self.messages: list[bytes] = []
        self.told: set[tuple[str, int]] = set()

    def take(self, data: ClientData, position: SyncToken) -> None:
        """Take an answer. Nothing comes twice, but with the first one, which may be ahead of its token."""
        is_first, self.since = self.since is None, position
        for entry in (
            *data.account_data,
            *(e for r in data.rooms.values() for e in r.account_data),
        ):
            self._tell("account_data", entry.stream_id, is_first)
            self.values["account data", entry.room_id, entry.type] = entry.content
        for room in data.rooms.values():
            for receipt in room.receipts:
                self._tell("receipts", receipt.stream_id, is_first)
                self.values[(*receipt[:3], receipt.thread_id)] = receipt.event_id
        self.messages += data.to_device

    def _tell(self, kind: str, stream_id: int, is_first: bool) -> None:
        if not is_first:
            assert (kind, stream_id) not in self.told, (kind, stream_id)
            self.told.add((kind, stream_id))


class RandomChanges(ClientDataCase):
    """Whatever happens, each device knows the current values in the end, and got each message once."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.rooms = [self.room_id, await self.another_room()]
        self.events: dict[str, list[str]] = {}
        for room_id in self.rooms:
            root = await self.say(room_id)
            self.events[room_id] = [root, *[await self.say(room_id) for _ in range(6)]]
        #: Tokens that were given out and are settled, by stream and writer.
        self.tokens: dict[str, dict[str, list[int]]] = {
            stream.name: {"d1": [], "d2": []} for stream in STREAMS
        }
        #: Values by what they are of, each with the user that it belongs to.
        self.model: dict[tuple[Any, ...], tuple[str, Any]] = {}
        self.patch(reading, "MAX_DEVICE_MESSAGES", 5)

    def note(self, fact: WrittenFact | None) -> None:
        """Note a fact that is settled."""
        if fact is not None:
            tokens = self.tokens[fact.stream][fact.writer]
            if fact.token not in tokens:
                tokens.append(fact.token)
                tokens.sort()

    async def test_nothing_is_lost_or_repeated(self) -> None:
        for seed in range(ROUNDS):
            with self.subTest(seed):
                await self.play(Random(seed), f"seed{seed}")

    async def play(self, rng: Random, name: str) -> None:
        devices = [
            ModelDevice(ClientIdentity(user, device + name))
            for user, device in (
                (ALICE.user_id, "A1"),
                (ALICE.user_id, "A2"),
                (BOB.user_id, "B1"),
                (CAROL.user_id, "C1"),
            )
        ]
        await self.know(
            *(ClientIdentity(d.reader.user_id, str(d.reader.device_id)) for d in devices)
        )
        scheduler = self.one.process.scheduler
        readers = [AppliedVectors(scheduler, "test") for _ in range(3)]
        model = self.model
        sent: dict[str, list[str]] = {str(d.reader.device_id): [] for d in devices}
        for step in range(STEPS):
            await self.change(rng, f"{name}.{step}", sent, name)
            self.advance(rng, rng.choice(readers))
            if rng.random() < 0.7:
                await self.sync(rng.choice(devices), rng.choice(readers))
        last = readers[0]
        self.advance(None, last)
        for device in devices:
            while True:
                before = len(device.messages)
                await self.sync(device, last)
                if len(device.messages) == before:
                    break
            user = device.reader.user_id
            expected = {
                key: value
                for key, (owner, value) in model.items()
                if user != CAROL.user_id or owner == user
                if key[0] != "account data" or owner == user
                if key[1] != "m.read.private" or owner == user
            }
            mine = {key: value for key, value in device.values.items() if key in model}
            self.assertEqual(mine, expected)
            found = sorted(device.messages)
            self.assertEqual(found, sorted(m.encode() for m in sent[str(device.reader.device_id)]))

    async def change(
        self,
        rng: Random,
        text: str,
        sent: dict[str, list[str]],
        name: str,
    ) -> None:
        """Something changes, through any process."""
        model = self.model
        process = self.data[rng.choice(self.names)]
        user, room_id = rng.choice((ALICE.user_id, BOB.user_id)), rng.choice(self.rooms)
        kind = rng.randrange(4)
        if kind == 0:
            receipt_type, events = rng.choice(TYPES), self.events[room_id]
            place = rng.randrange(len(events))
            thread = rng.choice((None, "main"))
            self.note(
                await process.receipts.send(user, room_id, receipt_type, events[place], thread)
            )
            key = (room_id, receipt_type, user, thread)
            known = model.get(key)
            if known is None or events.index(known[1]) < place:
                model[key] = (user, events[place])
            return
        if kind == 1:
            where = rng.choice((None, room_id))
            self.note(await process.account_data.set(user, where, f"t.{user}", {"at": text}))
            content = f'{{"at":"{text}"}}'.encode()
            model["account data", where, f"t.{user}"] = (user, content)
            return
        if kind == 2:
            self.note(
                await process.account_data.set_read_marker(user, room_id, self.events[room_id][-1])
            )
            return
        targets = {ALICE.user_id: ("A1", "A2"), BOB.user_id: ("B1",)}[user]
        chosen = rng.choice((*targets, "*"))
        named = chosen if chosen == "*" else chosen + name
        contents = {user: {named: {"n": text}}}
        for _ in range(rng.choice((1, 2))):  # also repeated through another process
            self.note(await process.to_device.send(CAROL.user_id, "t", contents, text))
            process = self.data[rng.choice(self.names)]
        message = f'{{"content":{{"n":"{text}"}},"sender":"{CAROL.user_id}","type":"t"}}'
        for device in targets if chosen == "*" else [chosen]:
            sent[device + name].append(message)

    def advance(self, rng: Random | None, applied: AppliedVectors) -> None:
        """A process applies more of some writers, or everything."""
        for stream, writers in self.tokens.items():
            for writer, tokens in writers.items():
                at = applied.writers(stream).get(writer, 0) if stream in _SYNCED else 0
                ahead = [each for each in tokens if each > at]
                if stream in _SYNCED and ahead:
                    applied.moved(stream, writer, ahead[-1] if rng is None else rng.choice(ahead))

    async def sync(self, device: ModelDevice, applied: AppliedVectors) -> None:
        """Sync once, at a process that may be behind the device."""
        data = ClientDataReader(TypingRooms())
        upto = applied.current()
        rooms: Sequence[str] = self.rooms if device.reader.user_id != CAROL.user_id else ()
        since = device.since
        told = DataRooms(rooms, rooms if since is None else ())
        found = await self.read(
            lambda txn: data.read(txn, device.reader, since, upto, ANY_NEWS, told)
        )
        position = upto if since is None else applied.next_token(since, upto)
        if found.to_device_upto is not None:
            position = position.replace({"to_device": found.to_device_upto})
        device.take(found, SyncToken.parse(str(position), "test"))


_SYNCED = ("account_data", "receipts", "to_device")
