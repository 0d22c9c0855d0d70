"""What happens in rooms while clients look on: users send, other servers' events come, operators maintain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from itertools import count
from random import Random
from typing import Any

from simulator.clients.client import AWAY, SimulatedClient
from simulator.clients.processes import ClientApiProcess, ClientDeployment
from simulator.clients.stored_rooms import StoredRooms
from simulator.clock import Process
from simulator.rooms.random_rooms import USERS, RestlessRoom
from simulator.rooms.room_processes import RestartedProcess
from simulator.transcript import Transcript
from simulator.truth import Violations
from synrepl.core.errors import SynreplError
from synrepl.rooms import Event
from synrepl.services.rooms.assignment import OtherRoomWriter
from synrepl.services.rooms.maintenance.maintenance import RoomMaintenance
from synrepl.services.rooms.room_writers import RoomWriterNotLive, RoomWriters
from synrepl.services.rooms.sending.event_sender import ClientRequestId
from synrepl.services.rooms.sending.new_room import InitialState, NewRoom
from synrepl.storage.rooms.maintenance.marks import ReworkedMeanwhile
from synrepl.storage.rooms.maintenance.purge import CannotPurge
from synrepl.storage.rooms.maintenance.purge_point import PurgePoint
from synrepl.storage.rooms.persisting.send_run import EventNotAllowed
from synrepl.storage.rooms.tables.numbers import UnknownRoom
from synrepl.storage.store import Fenced

#: Users of this server, who may send through it.
LOCAL_USERS = USERS[:2]

AGAIN_S = 0.3

_AGAIN = (*AWAY, Fenced, OtherRoomWriter)


class RoomOfOthers:
    """A room in which other servers take part.

    :ivar made: makes its events
    :ivar unsent: those that have not come yet
    """

    def __init__(self, random: Random, version: str, name: str) -> None:
        self.made = RestlessRoom(random, version, name)
        self.unsent: list[Event] = list(self.made.events)
        self.has_begun = False


class ClientActions:
    """Everything that changes rooms; what is under way goes on until it is done.

    :param process: of the clients, which is never killed
    :ivar room_ids: of all rooms
    """

    def __init__(
        self,
        random: Random,
        process: Process,
        deployment: ClientDeployment,
        stored: StoredRooms,
        transcript: Transcript,
        violations: Violations,
        writers: RoomWriters,
        maintainer: RestartedProcess,
        clients: list[SimulatedClient],
        others: list[RoomOfOthers],
        counts: Counter[str],
    ) -> None:
        self._random = random
        self._process = process
        self._deployment = deployment
        self._stored = stored
        self._transcript = transcript
        self._violations = violations
        self._writers = writers
        self._maintainer = maintainer
        self._clients = clients
        self._others = others
        self._counts = counts
        self._numbers = count(1)
        self.room_ids: list[str] = []
        self.under_way = 0
        self.bodies: dict[str, str] = {}

    def begin(self, work: Coroutine[Any, Any, object]) -> None:
        """Begin something."""
        self.under_way += 1
        self._process.spawn("action", self._run(work))

    async def _run(self, work: Coroutine[Any, Any, object]) -> None:
        try:
            await work
        finally:
            self.under_way -= 1

    # -- users ------------------------------------------------------------------------

    def _local_client(self) -> SimulatedClient:
        local = [each for each in self._clients if each.identity.user_id in LOCAL_USERS]
        return self._random.choice(local)

    async def create(self) -> None:
        """A user creates a room, which the others may join."""
        client, number = self._local_client(), next(self._numbers)
        invited = self._random.sample(USERS, 2)
        visibility = self._random.choice(["joined", "invited", "shared", "world_readable"])
        new = NewRoom(
            preset="public_chat",
            room_version="12",
            name=f"room {number}",
            invite=[each for each in invited if each != client.identity.user_id],
            initial_state=[
                InitialState("m.room.history_visibility", {"history_visibility": visibility})
            ],
        )

        def work(process: ClientApiProcess) -> Coroutine[Any, Any, Any]:
            return process.sending.changes.create(client.identity, new)

        created = await self._ask("create", work)
        if created is not None:
            self.room_ids.append(created.room_id)
            client.written.wrote(created.room_id, created.last)

    async def say(self) -> None:
        """A user sends a message."""
        if not self.room_ids:
            return
        body = f"message {next(self._numbers)}"
        await self._send(
            self._local_client(),
            self._random.choice(self.room_ids),
            "m.room.message",
            {"body": body},
        )

    async def say_in(self, room_id: str) -> None:
        """Somebody in a room sends a message, if anybody may."""
        for client in self._clients:
            if client.identity.user_id in LOCAL_USERS:
                body = f"message {next(self._numbers)}"
                await self._send(client, room_id, "m.room.message", {"body": body})

    async def change_state(self) -> None:
        """A user changes the topic, or the history visibility."""
        if not self.room_ids:
            return
        kind, content = self._random.choice(
            [
                ("m.room.topic", {"topic": f"topic {next(self._numbers)}"}),
                ("m.room.topic", {"topic": f"topic {next(self._numbers)}"}),
                ("m.room.history_visibility", {"history_visibility": "joined"}),
                ("m.room.history_visibility", {"history_visibility": "shared"}),
            ]
        )
        await self._send(
            self._local_client(), self._random.choice(self.room_ids), kind, content, state_key=""
        )

    async def change_membership(self) -> None:
        """A user joins, leaves, invites, or removes somebody."""
        if not self.room_ids:
            return
        random, client = self._random, self._local_client()
        room_id = random.choice(self.room_ids)
        user = client.identity.user_id
        what = random.choice(["join", "join", "leave", "invite", "leave other", "ban"])
        membership = what.partition(" ")[0]
        target = user if what in ("join", "leave") else random.choice(USERS)
        await self._send(
            client, room_id, "m.room.member", {"membership": membership}, state_key=target
        )

    async def _send(
        self,
        client: SimulatedClient,
        room_id: str,
        kind: str,
        content: dict[str, Any],
        state_key: str | None = None,
    ) -> None:
        """Send an event, once, whatever it takes."""
        request = ClientRequestId(f"{room_id}/{kind}", f"txn {next(self._numbers)}")

        def work(process: ClientApiProcess) -> Coroutine[Any, Any, Any]:
            return process.sending.sender.send(
                client.identity, room_id, kind, content, state_key=state_key, request_id=request
            )

        sent = await self._ask("send", work)
        if sent is None:
            return
        client.written.wrote(room_id, sent)
        self._counts["sent"] += 1
        if "body" in content:
            self.bodies[content["body"]] = sent.event_id
        if self._random.random() < 0.2:  # the client did not hear of it, and asks again
            again = await self._ask("send", work)
            if again is not None and again.event_id != sent.event_id:
                text = f"{request.txn_id} made {sent.event_id} and {again.event_id}"
                self._violations.add("ONCE", "{text}", text=text)

    async def _ask(
        self, what: str, work: Callable[[ClientApiProcess], Coroutine[Any, Any, Any]]
    ) -> Any:
        """Ask any process until one has done it; None if the rules refuse it."""
        while True:
            process = self._random.choice(list(self._deployment.processes.values()))
            if process.is_ready:
                try:
                    return await process.ask(work(process))
                except (EventNotAllowed, UnknownRoom):
                    self._counts["refused"] += 1
                    return None
                except _AGAIN as error:
                    self._counts[f"{what} again"] += 1
                    kind = type(error).__name__
                    self._transcript.add("client", "{what}: {kind}", what=what, kind=kind)
                except SynreplError as error:
                    self._violations.add("ERROR", "{what}: {error}", what=what, error=error)
                    return None
            await self._process.sleep(self._random.random() * AGAIN_S)

    # -- other servers ----------------------------------------------------------------

    async def arrive(self) -> None:
        """Events of a room of other servers come: as they happen, or as history, in any order."""
        random = self._random
        if not self._others:
            return
        other = random.choice(self._others)
        made = other.made
        other.unsent += made.more(random.randint(0, 6))
        some = other.unsent[: random.randint(5, 12)]
        received = "live"
        if other.has_begun:
            received = random.choice(["live", "live", "live", "history"])
            if random.random() < 0.4:
                random.shuffle(some)
                some = some[: random.randint(1, 6)]
        if not some:
            return
        other.unsent = [each for each in other.unsent if each not in some]
        body = b"[" + b",".join(each.raw for each in some) + b"]"
        while not await self._arrived(made, body, received):
            await self._process.sleep(random.random() * AGAIN_S)
        self._counts["arrived"] += len(some)
        if not other.has_begun:
            other.has_begun = True
            self.room_ids.append(made.room_id)

    async def _arrived(self, made: RestlessRoom, body: bytes, received: str) -> bool:
        """Give events to the process that persists their room; whether it has taken them."""
        try:
            placed = await self._writers.place([made.room_id])
            process = self._deployment.processes[placed.assignment.writer_of(made.room_id)]
            if not process.is_ready:
                return False
            await process.ask(process.rooms.intake.persist(body, made.version.name, received))
        except _AGAIN:
            return False
        except SynreplError as error:
            self._violations.add("ERROR", "arrival: {error}", error=error)
        return True

    # -- operators --------------------------------------------------------------------

    async def move(self) -> None:
        """A room is assigned to another process, mostly amid a conversation."""
        if not self.room_ids:
            return
        room_id = self._random.choice(self.room_ids)
        writer = self._random.choice([*self._deployment.processes, None])
        if self._random.random() < 0.7:
            await self.say_in(room_id)
            self.begin(self.say_in(room_id))
        with suppress(UnknownRoom, RoomWriterNotLive, *AWAY):
            await self._writers.move(room_id, writer)
            self._counts["moved"] += 1
            self._transcript.add("client", "moved {room} to {to}", room=room_id, to=writer)

    async def purge(self) -> None:
        """A part of a room's history is purged."""
        if not self.room_ids:
            return
        room_id = self._random.choice(self.room_ids)
        events = self._stored.by_room[room_id]
        if not events:
            return
        by_stream, part = self._random.random() < 0.5, max(self._random.random() for _ in "12")
        positions = sorted(each.ordering[by_stream] for each in events)
        bound = positions[int(part * len(positions))]
        point = PurgePoint.of_stream(bound) if by_stream else PurgePoint.of_topological(bound)
        await self._maintain("purge", lambda to: to.purge(room_id, point, index_check=False))

    async def compact(self) -> None:
        """The states of a room are stored in less."""
        if self.room_ids:
            room_id = self._random.choice(self.room_ids)
            await self._maintain("compact", lambda to: to.compact(room_id, index_check=False))

    async def _maintain(
        self, what: str, work: Callable[[RoomMaintenance], Coroutine[Any, Any, object]]
    ) -> None:
        while True:
            try:
                await self._maintainer.ask(work(RoomMaintenance(self._maintainer.database)))
            except (CannotPurge, UnknownRoom):
                return
            except (*AWAY, ReworkedMeanwhile):
                await self._process.sleep(self._random.random() * AGAIN_S)
            else:
                self._counts[what] += 1
                return
