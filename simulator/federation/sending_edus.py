"""EDUs of a simulation of sending: what users do besides events, and what must come of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from simulator.federation.hosted_room import HostedRoom
from simulator.federation.sending_processes import HOME
from simulator.federation.sending_world import SendingWorld
from synrepl.core.tokens import Token
from synrepl.federation.outgoing_edus import message_edus
from synrepl.storage.federation.outgoing_messages import add_messages
from synrepl.streams.synapse.device_lists import DEVICE_LISTS, DeviceListsRow
from synrepl.streams.synapse.federation import FederationRow
from synrepl.streams.synapse.to_device import ToDeviceRow
from synrepl.streams.synapse.typing import TypingRow

ALICE = f"@alice:{HOME}"

#: Type of EDUs that are handed over.
HANDED = "org.example.handed"


class EduWorkload:
    """Messages to devices, changes of devices, users who type, and EDUs that other processes hand to senders."""

    def __init__(self, world: SendingWorld) -> None:
        self._world = world
        #: Number of messages to devices of a server, and the number of the last EDU that was handed over for one.
        self._sent: dict[str, int] = {}
        self._handed: dict[str, int] = {}
        #: The last change of Alice's devices that a server is to be told of.
        self._changed: dict[str, Token] = {}
        self._token = 0

    # -- what users do --------------------------------------------------------------------------

    def message(self, server: str, *, is_heard: bool) -> None:
        """Alice sends a message to a device of a server.

        :param is_heard: whether the processes that send hear of it
        """
        number = self._sent.get(server, 0) + 1
        self._sent[server] = number
        content = {f"@bob:{server}": {"DEV": {"n": number}}}
        edus = [(server, each) for each in message_edus(ALICE, "m.x", content, f"id{number}")]
        self._world.server.operator.run("message", lambda txn: add_messages(txn, edus))
        if is_heard:
            self._world.hear("to_device", ToDeviceRow(server))

    def change_devices(self, servers: Collection[str]) -> None:
        """Alice's devices change.

        :param servers: those that share a room with her
        """
        world, row = self._world, DeviceListsRow(ALICE)
        writer = world.source.writer
        (token,) = world.result(lambda: writer.append(DEVICE_LISTS, [[row]])).tokens
        self._changed.update(dict.fromkeys(servers, token))
        world.hear("device_lists", row)

    def left(self, server: str) -> None:
        """A server may share no room with Alice any more: it need not be told."""
        self._changed.pop(server, None)

    def type(self, room: HostedRoom, *, is_typing: bool) -> None:
        """Alice begins or ceases to type."""
        self._world.hear("typing", TypingRow(room.room_id, [ALICE] if is_typing else []))

    def hand_over(self, server: str) -> None:
        """Another process hands over an EDU."""
        number = self._handed[server] = self._handed.get(server, 0) + 1
        edu = {"edu_type": HANDED, "content": {"n": number}, "destination": server}
        self._token += 1
        self._world.hand_over(FederationRow("e", edu), token=self._token)

    # -- what came of it ---------------------------------------------------------------------------

    def messages(self, server: str) -> list[int]:
        """The messages that came to a server, each when it came first."""
        contents = self._contents(server, "m.direct_to_device")
        numbers = [each["messages"][f"@bob:{server}"]["DEV"]["n"] for each in contents]
        return list(dict.fromkeys(numbers))

    def missing_messages(self, server: str) -> int:
        """The number of messages that have not come to a server."""
        return self._sent.get(server, 0) - len(self.messages(server))

    def untold(self) -> Collection[str]:
        """The servers that were not told of the last change of Alice's devices that concerns them."""
        return [
            server
            for server, token in self._changed.items()
            if max(self._changes(server), default=0) < token
        ]

    def _changes(self, server: str) -> list[Token]:
        found = self._contents(server, "m.device_list_update")
        return [each["stream_id"] for each in found]

    def _contents(self, server: str, kind: str) -> list[Mapping[str, Any]]:
        edus = self._world.receiver(server).edus
        return [each["content"] for each in edus if each["edu_type"] == kind]

    # -- rules ----------------------------------------------------------------------------------------

    def faults(self) -> Iterator[str]:
        """Messages and what was handed over come in order, and nothing is acknowledged that was not handed over."""
        for server in self._world.receivers:
            for what, came in (("messages", self.messages(server)), ("EDUs", self._came(server))):
                if came != sorted(came):
                    yield f"ORDER: {what} came to {server} out of order: {came}"
        for sender in self._world.senders.values():
            if any(token > self._token for token in sender.acknowledged):
                yield f"ACK: {sender.name} acknowledged {sender.acknowledged} of {self._token}"

    def _came(self, server: str) -> list[int]:
        return [each["n"] for each in self._contents(server, HANDED)]

    def faults_of_the_end(self, *, is_calm: bool) -> Iterator[str]:
        """Nothing is left in the database, and nothing is lost.

        :param is_calm: whether nothing was ever disturbed: then EDUs that nobody keeps have come, too
        """
        waiting = "SELECT destination FROM synrepl.{} ORDER BY 1"
        for table in ("_outgoing_messages", "_device_list_pokes"):
            rows = self._world.sql(waiting.format(table))
            if rows:
                yield f"LOST: {table} has rows for {rows}"
        for server, receiver in self._world.receivers.items():
            missing = self.missing_messages(server)
            if missing > receiver.refusals:
                yield f"LOST: {missing} messages did not come to {server}"
        for server in self.untold():
            yield f"LOST: {server} does not know that devices have changed"
        if not is_calm:
            return
        for server, number in self._handed.items():
            if self._came(server) != [*range(1, number + 1)]:
                yield f"LOST: of {number} EDUs, {self._came(server)} came to {server}"
        for sender in self._world.senders.values():
            if max(sender.acknowledged, default=0) < self._token:
                yield f"ACK: {sender.name} has not acknowledged {self._token}"
