"""A worker's connection: when its commands are sent, and what it learns of others."""

from __future__ import annotations

from unittest import TestCase

from synrepl.core.slices import Slices
from synrepl.services.following.command_link import CommandLink
from synrepl.services.following.consumer import Subscription
from synrepl.services.following.delivery import Delivery
from synrepl.services.following.follower import Follower
from synrepl.services.handlers import Handler
from synrepl.services.serving.peer_states import PeerStates
from synrepl.storage.memory.store import MemoryStore
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.synapse.federation import FEDERATION
from synrepl.wire.commands import ClearUserSync, Command, Position, Server, UserSync
from synrepl.wire.dialects import CURRENT, MODERN, Dialect
from tests.services.sending_world import CommandSender
from tests.services.world import FakeUpstream, RecordingLog


class Peer(FakeUpstream):
    """A connection that always accepts more."""

    async def room(self) -> bool:
        """There is."""
        return True

    def verbs(self) -> list[str]:
        """What was sent since the last time."""
        sent, self.sent = self.sent, []
        return [command.verb for command in sent]


class Asking(Handler):
    """Notes with each command who syncs then."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, set[str]]] = []
        self.states: PeerStates | None = None

    async def on_command(self, source: str, command: Command) -> None:
        """Note it."""
        assert self.states is not None
        self.seen.append((command.verb, self.states.user_syncs.users()))


class Linked(TestCase):
    def begin(self, dialect: Dialect) -> CommandLink:
        """A worker's link in a dialect."""
        self.sender = CommandSender(dialect)
        scheduler, log = self.sender.scheduler, RecordingLog()
        self.asking = Asking()
        delivery = Delivery(scheduler, [Subscription(self.asking)], log)
        catalogue = Catalogue([FEDERATION])
        follower = Follower(scheduler, catalogue, MemoryStore(scheduler), delivery, log)
        states = None
        if dialect is CURRENT:
            states = self.asking.states = PeerStates(
                scheduler,
                Slices(scheduler),
                log,
                lambda source, command: delivery.deliver_command(command),
                None,
            )
        self.peer = Peer(dialect)
        return CommandLink(follower, self.sender.outgoing, states)

    def test_nothing_is_sent_before_the_server_has_said_its_name(self) -> None:
        link = self.begin(MODERN)
        self.sender.commands.user_ip("@u:x", "secret", "::1", "curl")
        link.connected(self.peer)
        self.assertEqual(self.peer.verbs(), ["REPLICATE"])
        link.disconnected()  # it was another server
        link.connected(self.peer)
        link.received([Server("example.org")])
        self.assertEqual(self.peer.verbs(), ["REPLICATE", "USER_IP"])

    def test_a_token_is_acknowledged_again_once_the_stream_is_known_to_be_there(self) -> None:
        link = self.begin(MODERN)
        self.sender.commands.federation_ack(5)
        link.connected(self.peer)
        link.received([Server("example.org")])
        self.assertEqual(self.peer.verbs(), ["REPLICATE"])
        link.received([Position("federation", "master", 7, 7)])
        self.assertEqual(self.peer.verbs(), ["FEDERATION_ACK"])
        link.received([Position("federation", "master", 7, 3)])
        self.assertIsNone(self.sender.outgoing.acknowledged)

    def test_on_redis_handlers_find_who_syncs_when_they_are_called(self) -> None:
        link = self.begin(CURRENT)
        link.connected(self.peer)
        self.assertEqual(self.peer.verbs(), ["REPLICATE", "CLEAR_USER_SYNC"])
        link.received([UserSync("w2", "@u:x", "D", True, 5), UserSync("w3", "@v:x", None, True, 5)])
        link.received([UserSync("w2", "@u:x", "D", False, 5)])
        self.sender.settle()
        link.disconnected()
        self.sender.settle()
        self.assertEqual(
            self.asking.seen,
            [
                ("USER_SYNC", {"@u:x", "@v:x"}),
                ("USER_SYNC", {"@u:x", "@v:x"}),
                ("USER_SYNC", {"@v:x"}),
                (ClearUserSync.verb, set()),
            ],
        )
