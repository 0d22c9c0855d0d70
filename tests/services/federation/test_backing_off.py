"""Servers that have failed are left alone by all processes, until they show that they are up."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.core.errors import SynreplError
from synrepl.federation.errors import (
    AddressRefused,
    AnswerTooLarge,
    DestinationAway,
    DestinationBackedOff,
    ServerNotAllowed,
)
from synrepl.federation.requests import BytesBody, FederationAnswer, FederationRequest
from synrepl.federation.server_acl import ServerAcl
from synrepl.services.federation import backing_off
from synrepl.services.federation.backing_off import BackOffTransport
from tests.storage.postgres import PostgresCase

NOW = 1_700_000_000.0
NAME = "a.example"


class DecidedTransport:
    """What comes of each request is up to a test."""

    def __init__(self) -> None:
        self.sent: list[FederationRequest] = []
        self.decide: Callable[[FederationRequest], FederationAnswer | Deferred[FederationAnswer]]
        self.answers(200)

    def answers(self, status: int, retry_after_s: float = 0.0) -> None:
        """Answer with a status."""
        self.decide = lambda request: FederationAnswer(status, BytesBody(b"{}"), retry_after_s)

    def raises(self, error: SynreplError) -> None:
        """Fail."""

        def fail(request: FederationRequest) -> FederationAnswer:
            raise error

        self.decide = fail

    async def send(self, request: FederationRequest) -> FederationAnswer:
        self.sent.append(request)
        found = self.decide(request)
        return found if isinstance(found, FederationAnswer) else await found


def away(reason: str = "no route") -> DestinationAway:
    return DestinationAway(destination=NAME, subject="GET /x", reason=reason)


class BackOffCase(PostgresCase):
    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.clock = Clock()
        self.clock.advance(NOW)
        self.scheduler = TwistedScheduler(self.clock, lambda: 0.0)
        self.inner = DecidedTransport()
        self.messages: list[str] = []
        self.one = self.new_transport("one")
        self.up: list[str] = []
        self.one.listeners.append(self.up.append)

    def new_transport(self, name: str, acl: ServerAcl | None = None) -> BackOffTransport:
        """The transport of another process."""
        database = self.process(name).database
        return BackOffTransport(self.scheduler, database, self.inner, self, acl)

    def info(self, format: str, **facts: object) -> None:  # noqa: A002
        """A log."""
        self.messages.append(format.format(**facts))

    warn = info

    async def send(
        self, transport: BackOffTransport | None = None, name: str = NAME, ignores: bool = False
    ) -> int:
        """Send a request; the status of its answer."""
        request = FederationRequest("GET", name, "/x", ignores_back_off=ignores)
        return (await (transport or self.one).send(request)).status

    async def fail(self) -> None:
        """Have a request fail."""
        self.inner.raises(away())
        with self.assertRaises(DestinationAway):
            await self.send()

    async def is_backed_off(self, transport: BackOffTransport | None = None) -> bool:
        """Whether a request is refused without being sent."""
        before = len(self.inner.sent)
        try:
            await self.send(transport)
        except DestinationBackedOff:
            self.assertEqual(len(self.inner.sent), before)
            return True
        except SynreplError:
            pass
        self.assertEqual(len(self.inner.sent), before + 1)
        return False


class Failures(BackOffCase):
    async def test_keep_all_processes_from_asking_for_longer_and_longer(self) -> None:
        two = self.new_transport("two")
        for seconds in (10, 20, 40, 80):
            await self.fail()
            self.assertTrue(await self.is_backed_off())
            self.assertTrue(await self.is_backed_off(two))
            self.clock.advance(seconds)

    async def test_say_since_when_why_and_for_how_long(self) -> None:
        await self.fail()
        self.clock.advance(4)
        with self.assertRaisesRegex(
            DestinationBackedOff, r"has failed for 4 s \(no route\); it is asked again in 6 s"
        ):
            await self.send()

    async def test_are_answers_of_servers_that_are_not_well_too(self) -> None:
        self.inner.answers(502)
        self.assertEqual(await self.send(), 502)
        self.assertTrue(await self.is_backed_off())

    async def test_are_not_refusals(self) -> None:
        for status in (403, 404, 400):
            self.inner.answers(status)
            for _ in range(3):
                self.assertEqual(await self.send(), status)

    async def test_last_as_long_as_the_server_wants(self) -> None:
        self.inner.answers(429, 120.0)
        await self.send()
        self.clock.advance(119)
        self.assertTrue(await self.is_backed_off())
        self.clock.advance(2)
        self.assertFalse(await self.is_backed_off())

    async def test_of_requests_made_at_the_same_time_count_as_one(self) -> None:
        held: list[Deferred[FederationAnswer]] = []

        def hold(request: FederationRequest) -> Deferred[FederationAnswer]:
            held.append(Deferred())
            return held[-1]

        self.inner.decide = hold
        sent = [Deferred.fromCoroutine(self.send()) for _ in range(10)]
        await self.until(lambda: len(held) == 10)
        self.clock.advance(1)
        for each in held:
            each.errback(away())
        for waiting in sent:
            with self.assertRaises(DestinationAway):
                await waiting
        self.assertEqual(self.sql("SELECT failures FROM synrepl._destinations"), 1)

    async def test_end_with_a_success(self) -> None:
        two = self.new_transport("two")
        await self.fail()
        self.assertTrue(await self.is_backed_off(two))
        self.clock.advance(10)
        self.inner.answers(200)
        await self.send()
        self.assertEqual(self.up, [NAME])
        self.assertEqual(self.sql("SELECT count(*) FROM synrepl._destinations"), 0)
        await self.fail()
        self.clock.advance(11)  # the first failure again
        self.assertFalse(await self.is_backed_off(two))

    async def test_end_when_the_server_is_heard_of_in_any_process(self) -> None:
        two = self.new_transport("two")
        await self.fail()
        self.inner.answers(200)
        await two.server_is_up(NAME)
        self.assertFalse(await self.is_backed_off(two))
        await self.one.server_is_up(NAME)  # as when the other process has told this one
        self.assertFalse(await self.is_backed_off())

    async def test_are_not_looked_up_for_each_message_of_a_server_that_is_well(self) -> None:
        await self.one.server_is_up(NAME)
        self.sql("INSERT INTO synrepl._destinations VALUES (%s, 1, 1, 1, 1, 'x')", NAME)
        for _ in range(20):
            await self.one.server_is_up(NAME)
        self.assertEqual(self.sql("SELECT count(*) FROM synrepl._destinations"), 1)
        self.clock.advance(backing_off.REMEMBERED_S)
        await self.one.server_is_up(NAME)
        self.assertEqual(self.sql("SELECT count(*) FROM synrepl._destinations"), 0)

    async def test_do_not_keep_those_that_must_ask_from_it(self) -> None:
        await self.fail()
        self.inner.answers(200)
        self.assertEqual(await self.send(ignores=True), 200)
        self.assertFalse(await self.is_backed_off())

    async def test_of_one_server_are_no_matter_of_another(self) -> None:
        await self.fail()
        self.inner.answers(200)
        self.assertEqual(await self.send(name="b.example"), 200)

    async def test_by_private_addresses_count(self) -> None:
        self.inner.raises(AddressRefused(destination=NAME, address="10.0.0.1"))
        with self.assertRaises(AddressRefused):
            await self.send()
        self.assertTrue(await self.is_backed_off())

    async def test_are_not_answers_that_are_too_large(self) -> None:
        self.inner.raises(AnswerTooLarge(where="it", limit=1))
        for _ in range(2):
            with self.assertRaises(AnswerTooLarge):
                await self.send()

    async def test_that_cannot_be_recorded_are_raised_all_the_same(self) -> None:
        await self.send()  # so that it is known to be well
        self.sql("DROP TABLE synrepl._destinations")
        await self.fail()
        self.assertIn("cannot record", self.messages[-1])
        await self.one.server_is_up("b.example")
        self.assertIn("cannot record", self.messages[-1])

    async def test_are_shown(self) -> None:
        await self.fail()
        watching = Deferred.fromCoroutine(self.one.watch_failing())
        await self.until(lambda: self.one.failing.number == 1)
        (shown,) = self.one.failing.longest
        self.assertEqual((shown.server_name, shown.failure.reason), (NAME, "no route"))
        watching.addErrback(lambda failure: None)
        watching.cancel()

    async def test_are_counted_by_outcome(self) -> None:
        await self.send()
        self.inner.answers(404)
        await self.send()
        await self.fail()
        self.assertTrue(await self.is_backed_off())
        outcomes = {"answered": 1, "refused": 1, "failed": 1, "backed off": 1}
        self.assertEqual(dict(self.one.outcomes), outcomes)

    async def test_are_remembered_of_few_servers(self) -> None:
        self.patch(backing_off, "MAX_DESTINATIONS", 5)
        for number in range(20):
            await self.send(name=f"{number}.example")
        await self.fail()
        self.assertTrue(await self.is_backed_off())

    async def test_reasons_fit_on_a_line(self) -> None:
        self.inner.raises(away("a\0b\n" + "c" * 5000))
        with self.assertRaises(DestinationAway):
            await self.send()
        reason = self.sql("SELECT reason FROM synrepl._destinations")
        self.assertEqual((len(reason), reason.isprintable()), (300, True))


class Refusals(BackOffCase):
    async def test_of_names_of_no_server_ask_nobody(self) -> None:
        for name in ("a b", "127.1", "", "\0", "x" * 300):
            with self.assertRaises(DestinationAway):
                await self.send(name=name)
        self.assertEqual(self.inner.sent, [])

    async def test_of_servers_that_the_configuration_does_not_allow(self) -> None:
        transport = self.new_transport("two", ServerAcl({"allow": ["*"], "deny": ["a.*"]}))
        with self.assertRaisesRegex(ServerNotAllowed, "a.example is not asked: 'server_acl'"):
            await self.send(transport)
        self.assertEqual(await self.send(transport, "b.example"), 200)
        self.assertEqual(self.sql("SELECT count(*) FROM synrepl._destinations"), 0)
