"""Servers of ours send to each other, as the daemons assemble them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import psycopg2

from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.core import jsons
from synrepl.daemon.assemble.rooms import RoomSending
from synrepl.daemon.checked_config import Misconfigured, checked_worker
from synrepl.daemon.config.senders import SenderFollowsTooLittle
from synrepl.federation.answers import SendJoinAnswer
from synrepl.rooms import event_of, room_version, sign_event
from synrepl.services.clients.identity import ClientIdentity
from synrepl.services.federation.full_joins import AnsweredEvents, FullJoins
from synrepl.services.rooms.sending.new_room import NewRoom
from synrepl.storage.clients.devices import Device, record_devices
from synrepl.streams.synapse.federation import FEDERATION, FederationRow
from tests.cli.cli_case import free_port, reactor
from tests.daemon.federation.two_servers import ROOM_CATALOGUE, OneServer, ServersCase

CATALOGUE = (
    *ROOM_CATALOGUE,
    *("typing", "receipts", "presence", "to_device"),
    *("account_data", "device_lists", "federation"),
    *("un_partial_stated_room", "un_partial_stated_event"),
)


class SendingServersCase(ServersCase):
    """Servers with users, who join rooms of each other."""

    async def with_users(self, process: Any = None, **settings: Any) -> OneServer:
        """A server whose process has all that is sent."""
        return await self.server(
            process={"catalogue": list(CATALOGUE), **(process or {})}, **settings
        )

    def alice(self, server: OneServer) -> ClientIdentity:
        """A user of a server."""
        return ClientIdentity(f"@alice:{server.name}", "A")

    def rooms_of(self, server: OneServer) -> RoomSending:
        """What sends events of a server's users."""
        assert server.running is not None
        assert server.running.services.rooms is not None
        sending = server.running.services.rooms.sending
        assert sending is not None
        return sending

    async def create(self, server: OneServer) -> str:
        """A public room of Alice's."""
        new = NewRoom(preset="public_chat", room_version="10")
        return (await self.rooms_of(server).changes.create(self.alice(server), new)).room_id

    async def say(self, server: OneServer, room_id: str, body: str = "hello") -> str:
        """Have Alice say something; the event's ID."""
        content = {"msgtype": "m.text", "body": body}
        sender = self.rooms_of(server).sender
        return (await sender.send(self.alice(server), room_id, "m.room.message", content)).event_id

    async def join(self, joining: OneServer, via: OneServer, room_id: str) -> None:
        """Have Alice of a server join a room of another one."""
        assert joining.running is not None
        services, federation = joining.running.services, joining.federation
        assert services.rooms is not None
        assert services.rooms.persister is not None
        key, user_id = federation.own_keys.signing_key, self.alice(joining).user_id
        template = await federation.client.make_membership(
            via.name, "join", room_id, user_id, ["10"]
        )
        version = room_version(template.room_version)
        join = event_of(sign_event(template.event, version, joining.name, key), version)
        joins = FullJoins(
            joining.running.database.database,
            services.rooms.persister,
            "master",
            joining.name,
            lambda: None,
        )
        with await federation.client.send_join(via.name, join, omit_members=False) as answer:
            await joins.persist(join, self._parts(joining, via, answer), via.name)

    @staticmethod
    async def _parts(
        joining: OneServer, via: OneServer, answer: SendJoinAnswer
    ) -> AsyncIterator[AnsweredEvents]:
        async def verified(raws: list[bytes]) -> list[Any]:
            checked = await joining.federation.verifier.verify(
                raws, room_version("10"), origin=via.name
            )
            return [each.event for each in checked if each.event is not None]

        yield AnsweredEvents(state=await verified([*answer.state()]))
        yield AnsweredEvents(auth_chain=await verified([*answer.auth_chain()]))

    def rows(self, server: OneServer, statement: str, *params: Any) -> list[Any]:
        """What a server's database answers."""
        connection = psycopg2.connect(server.dsn)
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement, params)
                return cursor.fetchall()
        finally:
            connection.commit()
            connection.close()

    async def until(self, what: Callable[[], Any]) -> Any:
        """Repeat until the result is true; the test's timeout ends a vain wait."""
        while not (found := what()):
            await TwistedScheduler(reactor).sleep(0.05)
        return found

    async def until_there(self, server: OneServer, event_id: str) -> None:
        """Wait until a server has accepted an event."""
        found = "SELECT flags & 6 FROM synrepl._room_events WHERE event_id = %s AND flags & 1 = 0"
        await self.until(lambda: self.rows(server, found, event_id))
        self.assertEqual(self.rows(server, found, event_id), [(0,)])


class SendingServers(SendingServersCase):
    """Masters, which send what there is to send."""

    async def test_say_things_in_a_room_of_both(self) -> None:
        one, two = await self.with_users(), await self.with_users()
        room_id = await self.create(one)
        await self.join(two, one, room_id)
        for number in range(3):
            await self.until_there(two, await self.say(one, room_id, f"one {number}"))
            await self.until_there(one, await self.say(two, room_id, f"two {number}"))
        heads = "SELECT array_agg(event_id) FROM synrepl._forward_extremities JOIN synrepl._room_events USING (event_no)"
        self.assertEqual(self.rows(one, heads), self.rows(two, heads))

    async def test_pass_on_who_joins(self) -> None:
        one, two, three = [await self.with_users() for _ in range(3)]
        room_id = await self.create(one)
        await self.join(two, one, room_id)
        await self.join(three, one, room_id)
        await self.until_there(two, await self.say(three, room_id))
        await self.until_there(three, await self.say(two, room_id))

    async def test_tell_each_other_what_users_do_besides(self) -> None:
        one, two = await self.with_users(), await self.with_users()
        room_id = await self.create(one)
        await self.join(two, one, room_id)
        event_id = await self.say(one, room_id)
        await self.until_there(two, event_id)
        assert two.running is not None
        assert two.running.services.client_data is not None
        data, user = two.running.services.client_data, self.alice(two).user_id
        device = Device(self.alice(one).user_id, "A")
        assert one.running is not None
        await one.running.database.database.run("device", lambda txn: record_devices(txn, [device]))
        await data.receipts.send(user, room_id, "m.read", event_id)
        content = {self.alice(one).user_id: {"A": {"n": 1}}}
        await data.to_device.send(user, "m.test", content, "request")
        read = "SELECT event_id FROM synrepl._receipts WHERE user_id = %s"
        await self.until(lambda: self.rows(one, read, user) == [(event_id,)])
        message = "SELECT message FROM synrepl._to_device"
        ((found,),) = await self.until(lambda: self.rows(one, message))
        expected = {"type": "m.test", "sender": user, "content": {"n": 1}}
        self.assertEqual(jsons.decode(bytes(found), "message"), expected)
        await data.presence.set(user, "unavailable", "at lunch")
        status = "SELECT status_msg FROM synrepl._presence WHERE user_id = %s"
        await self.until(lambda: self.rows(one, status, user) == [("at lunch",)])


class SendingWorkers(SendingServersCase):
    """A worker that is named sends, and the master does not."""

    async def start_both(self) -> tuple[OneServer, OneServer, str]:
        """A server whose worker sends, another one, and a room of both."""
        process = {
            "listeners": [{"port": free_port()}],
            "federation_sender_instances": ["sender"],
        }
        one, two = await self.with_users(process), await self.with_users()
        room_id = await self.create(one)
        await self.join(two, one, room_id)
        return one, two, room_id

    async def trimmed(self, server: OneServer) -> int:
        """The rows of the stream `federation` that were acknowledged and are gone."""
        status = jsons.decode(await server.ask("/status"), "status")
        return int(status["streams"]["federation"]["trimmed"]["rows"])

    async def test_sends_and_acknowledges(self) -> None:
        one, two, room_id = await self.start_both()
        assert one.running is not None
        self.assertIsNone(one.running.services.sending)
        before = await self.say(one, room_id)
        writer = one.running.services.writer
        edu = {"edu_type": "m.x", "content": {}, "destination": two.name, "origin": one.name}
        await writer.append(FEDERATION, [[FederationRow("e", edu)]])
        self.assertEqual(await self.trimmed(one), 0)
        worker = await one.start_worker("sender")
        self.assertIsNotNone(worker.services.sending)
        await self.until_there(two, before)
        await self.until_there(two, await self.say(one, room_id))
        while not await self.trimmed(one):
            await TwistedScheduler(reactor).sleep(0.05)

    async def test_sends_at_once_to_a_server_that_was_heard_of_again(self) -> None:
        one, two, room_id = await self.start_both()
        worker = await one.start_worker("sender")
        await two.stop()
        missed = await self.say(one, room_id)
        failing = "SELECT retry_at_ms FROM synrepl._destinations WHERE server_name = %s"
        await self.until(lambda: self.rows(one, failing, two.name))
        await two.start()
        assert worker.services.sending is not None
        # Only the master gets the request.
        self.assertEqual((await self.fetch(two, one, "/_matrix/federation/v1/version"))[0], 200)
        status = await two.federation.client.query_profile(one.name, self.alice(one).user_id)
        self.assertIsNotNone(status)
        await self.until_there(two, missed)
        await self.until(lambda: not self.rows(one, failing, two.name))

    async def test_shows_which_servers_are_away(self) -> None:
        one, two, room_id = await self.start_both()
        worker = await one.start_worker("sender")
        config = str(one.directory / "sender.yaml")
        assert worker.services.sending is not None
        owner = worker.services.sending.owner
        await self.until(lambda: not owner.missing)
        await two.stop()
        await self.say(one, room_id)
        failing = "SELECT reason FROM synrepl._destinations WHERE server_name = %s"
        await self.until(lambda: self.rows(one, failing, two.name))
        await self.until(lambda: self.rows(one, "SELECT 1 FROM synrepl._destination_queues"))
        destinations = ("federation", "destinations", "-c", config)
        listed = jsons.decode((await self.run_command(*destinations, "--json")).out, "listed")
        (found,) = listed["destinations"]
        self.assertEqual((found["destination"], found["sender"]), (two.name, "sender"))
        self.assertGreaterEqual(found["failures"], 1)
        shown = " ".join((await self.run_command(*destinations)).out.split())
        self.assertIn(two.name, shown)
        shown = " ".join((await self.run_command("status", "-c", config)).out.split())
        self.assertRegex(
            shown, "sending to other servers: 64 partitions, . destinations now.* 1 are away"
        )
        metrics = (await one.ask("/metrics", "sender")).decode()
        for line in (
            'synrepl_federation_partitions{state="owned"} 64.0',
            'synrepl_federation_destinations{state="away"} 1.0',
            "synrepl_federation_oldest_seconds",
        ):
            self.assertIn(line, metrics)
        reset = (
            await self.run_command(*destinations[:2], "reset", "-c", config, two.name, "x")
        ).out
        self.assertEqual(reset, f"{two.name} is asked again within a minute\nx has not failed\n")

    async def test_doctor_finds_what_nobody_sends_and_who_fails_for_long(self) -> None:
        one, two, room_id = await self.start_both()
        await one.start_worker("sender")
        await two.stop()
        await self.say(one, room_id)
        await self.until(lambda: self.rows(one, "SELECT 1 FROM synrepl._destinations"))
        await self.until(lambda: self.rows(one, "SELECT 1 FROM synrepl._destination_queues"))
        await one.workers.pop("sender").stop()
        self.rows(one, "UPDATE synrepl._destinations SET failing_since_ms = 1 RETURNING 1")
        said = await self.say(one, room_id)
        position = "SELECT position FROM synrepl._streams WHERE stream = 'events'"
        number = "SELECT stream_id FROM synrepl.events WHERE event_id = %s"
        await self.until(lambda: self.rows(one, position) >= self.rows(one, number, said))
        config = str(one.directory / "master.yaml")
        report = await self.run_command("doctor", "database", "-c", config, "--json")
        findings = {each["id"]: each for each in jsons.decode(report.out, "report")["findings"]}
        self.assertIn("64 of the destination", findings["destinations-unowned"]["what"])
        self.assertIn(two.name, findings["destinations-stuck"]["what"])

    async def test_must_follow_what_it_sends(self) -> None:
        one, _, _ = await self.start_both()
        await one.start_worker("other")
        await one.stop()
        path = one.directory / "other.yaml"
        path.write_text(
            path.read_text().replace('"other"', '"sender"') + "follow: [events, typing]\n"
        )
        with self.assertRaises(Misconfigured) as raised:
            checked_worker([path])
        error = raised.exception.facts["error"]
        self.assertIsInstance(error, SenderFollowsTooLittle)
        self.assertRegex(str(error), "'receipts'.*'federation'")
        line = len(path.read_text().splitlines())
        self.assertIn(f"other.yaml:{line}:", str(raised.exception))
