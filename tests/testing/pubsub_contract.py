"""Contract of Redis pub/sub, for the in-memory fake and for a real server alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

#: Output buffer limit of subscribers at the servers of this suite, in bytes.
BUFFER_BYTES = 2**20


class Member:
    """A process that publishes and subscribes; the owner of its connections.

    :ivar received: all messages, in order
    :ivar stood: how often both connections were made; ``lost``, how often they were lost
    """

    def __init__(self, happened: Callable[[], object]) -> None:
        self.all_received: list[bytes] = []
        self.stood = 0
        self.lost = 0
        self.wires: Any = None
        self.pubsub: Any = None
        self._happened = happened

    def connected(self, wires: Any) -> None:
        self.wires = wires
        self.stood += 1
        self._happened()

    def messages_received(self, messages: Sequence[bytes]) -> None:
        self.all_received += messages
        self._happened()

    def disconnected(self) -> None:
        self.lost += 1
        self._happened()

    def publish(self, *texts: str, channel: str = "all") -> None:
        """Publish, if anything stands."""
        self.wires.publish(channel, [text.encode() for text in texts])

    def received_from(self, sender: str) -> list[str]:
        """The messages of one sender."""
        texts = [message.decode() for message in self.all_received]
        return [text for text in texts if text.startswith(f"{sender} ")]


class Server(Protocol):
    """A server, and the clock that it runs on."""

    async def join(self, name: str, *channels: str) -> Member:
        """Connect a process, and wait until both of its connections are made."""

    async def until(self, true: Callable[[], bool]) -> None:
        """Let time pass until a condition is true."""

    def stop(self) -> None: ...

    def start(self) -> None: ...

    def cut_listeners(self) -> None:
        """Cut the subscribing connections of all processes."""

    def cut_speakers(self) -> None:
        """Cut the publishing connections of all processes."""


class PubSubContract:
    """Mixed into a test case that has a server."""

    server: Server

    async def two(self) -> tuple[Member, Member]:
        return await self.server.join("one", "all"), await self.server.join("two", "all")

    async def test_all_receive_the_messages_of_each_publisher_in_order_including_itself(
        self,
    ) -> None:
        one, two = await self.two()
        texts = {name: [f"{name} {number}" for number in range(300)] for name in ("one", "two")}
        for start in range(0, 300, 50):
            one.publish(*texts["one"][start : start + 50])
            two.publish(*texts["two"][start : start + 50])
        for member in (one, two):
            await self.server.until(lambda m=member: len(m.all_received) == 600)
            assert {name: member.received_from(name) for name in texts} == texts

    async def test_receives_only_subscribed_channels(self) -> None:
        one = await self.server.join("one", "all")
        two = await self.server.join("two", "all", "more")
        one.publish("one more", channel="more")
        one.publish("one nobody", channel="other")
        one.publish("one all")
        await self.server.until(lambda: bool(one.all_received) and len(two.all_received) == 2)
        assert (one.received_from("one"), two.received_from("one")) == (
            ["one all"],
            ["one more", "one all"],
        )

    async def test_a_disconnected_process_misses_messages(self) -> None:
        one, two = await self.two()
        await two.pubsub.stop()
        await self.server.until(lambda: two.lost == 1)
        one.publish("one missed")
        await self.server.until(lambda: len(one.all_received) == 1)
        three = await self.server.join("three", "all")
        one.publish("one later")
        await self.server.until(lambda: len(three.all_received) == 1)
        assert (two.all_received, three.received_from("one")) == ([], ["one later"])

    async def test_messages_published_before_a_stop_arrive(self) -> None:
        one, two = await self.two()
        texts = [f"one {number}" for number in range(100)]
        one.publish(*texts)
        await one.pubsub.stop()
        await self.server.until(lambda: len(two.all_received) == 100)
        assert two.received_from("one") == texts

    async def test_a_restart_loses_messages_and_processes_reconnect(self) -> None:
        one, two = await self.two()
        one.publish("one before")
        await self.server.until(lambda: len(two.all_received) == 1)
        self.server.stop()
        await self.server.until(lambda: one.lost == two.lost == 1)
        one.publish("one to nobody")
        self.server.start()
        await self.server.until(lambda: one.stood == two.stood == 2)
        one.publish("one after")
        await self.server.until(lambda: len(two.all_received) == 2)
        assert two.received_from("one") == ["one before", "one after"]

    async def test_losing_one_connection_remakes_both(self) -> None:
        for count, cut in enumerate((self.server.cut_listeners, self.server.cut_speakers), 1):
            member = await self.server.join(f"member{count}", "all")
            cut()
            await self.server.until(lambda m=member: m.stood == 2)
            member.publish(f"member{count} again")
            await self.server.until(lambda m=member: bool(m.all_received))
            assert (member.lost, len(member.all_received)) == (1, 1)
            await member.pubsub.stop()

    async def test_closed_connections_are_remade(self) -> None:
        one, two = await self.two()
        two.wires.close("enough")
        await self.server.until(lambda: two.stood == 2)
        one.publish("one again")
        await self.server.until(lambda: bool(two.all_received))
        assert (one.lost, two.lost) == (0, 1)

    async def test_a_slow_subscriber_is_disconnected_and_notices_when_it_reads(self) -> None:
        one, two = await self.two()
        two.wires.pause()
        texts = [f"one {number:02} ".ljust(200_000) for number in range(60)]
        for count, text in enumerate(texts, 1):
            one.publish(text)
            await self.server.until(lambda n=count: len(one.all_received) == n)
        assert (one.lost, two.lost) == (0, 0)
        two.wires.resume()
        await self.server.until(lambda: two.stood == 2)
        one.publish("one end")
        await self.server.until(lambda: two.all_received[-1:] == [b"one end"])
        *received, _ = two.received_from("one")
        assert received == texts[: len(received)]
        assert len(received) < len(texts)

    async def test_a_pause_below_the_limit_loses_nothing(self) -> None:
        one, two = await self.two()
        two.wires.pause()
        texts = [f"one {number}" for number in range(100)]
        one.publish(*texts)
        await self.server.until(lambda: len(one.all_received) == 100)
        assert two.all_received == []
        two.wires.resume()
        await self.server.until(lambda: len(two.all_received) == 100)
        assert (two.received_from("one"), two.lost) == (texts, 0)
