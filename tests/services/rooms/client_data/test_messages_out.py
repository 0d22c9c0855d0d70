"""Messages to devices of other servers' users: they wait for their server, once for each request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from synrepl.core import jsons
from synrepl.federation.outgoing_edus import MAX_SENT_MESSAGE
from synrepl.federation.transactions import MAX_EDU
from synrepl.services.forwarding import WriterActions
from synrepl.services.rooms.client_data.forwarded_errors import CLIENT_DATA_ERRORS
from synrepl.services.rooms.client_data.stream_writers import DataWriters
from synrepl.services.rooms.client_data.to_device import (
    MAX_MESSAGE_BYTES,
    DeviceMessageTooLarge,
    ToDeviceService,
)
from synrepl.storage.clients.devices import Device, record_devices
from synrepl.storage.federation import outgoing_messages
from synrepl.streams.synapse.to_device import TO_DEVICE
from tests.services.rooms.client_data.data_case import ClientDataCase
from tests.services.rooms.sending_case import ALICE, BOB
from tests.services.world import NullLog


class MessagesOut(ClientDataCase):
    async def send(self, contents: Any, request: str = "r", sender: str = ALICE.user_id) -> Any:
        return await self.data["d1"].to_device.send(sender, "m.x", contents, request)

    def waiting(self) -> list[tuple[str, dict[str, Any]]]:
        """Destinations and EDUs, in order."""
        with self.connect().cursor() as cursor:
            cursor.execute(
                "SELECT destination, edu FROM synrepl._outgoing_messages ORDER BY message_no"
            )
            return [(name, jsons.decode(bytes(edu), "EDU")) for name, edu in cursor.fetchall()]

    async def test_each_server_gets_those_to_its_users(self) -> None:
        contents: Mapping[str, Any] = {
            "@a:one": {"D1": {"n": 1}, "*": {"n": 2}},
            "@b:one": {"D2": {"n": 3}},
            "@c:two:8448": {"D3": {"n": 4}},
        }
        fact = await self.send(contents)
        found = dict(self.waiting())
        self.assertEqual(set(found), {"one", "two:8448"})
        content = found["one"]["content"]
        self.assertEqual(found["one"]["edu_type"], "m.direct_to_device")
        self.assertEqual(
            content["messages"], {user: contents[user] for user in ("@a:one", "@b:one")}
        )
        self.assertEqual((content["sender"], content["type"]), (ALICE.user_id, "m.x"))
        self.assertLessEqual(len(content["message_id"]), 32)
        facts = self.sql(
            "SELECT array_agg(entity ORDER BY entity) FROM synrepl.to_device WHERE stream_id = %s",
            fact.token,
        )
        self.assertEqual(facts, ["one", "two:8448"])

    async def test_a_repeated_request_sends_nothing(self) -> None:
        first = await self.send({"@a:one": {"D": {}}})
        again = await self.data["d3"].to_device.send(
            ALICE.user_id, "m.x", {"@a:one": {"D": {}}}, "r"
        )
        self.assertEqual(again, first)
        await self.send({"@a:one": {"D": {}}}, "other")
        (_, one), (_, other) = self.waiting()
        self.assertNotEqual(one["content"]["message_id"], other["content"]["message_id"])

    async def test_malformed_users_get_nothing(self) -> None:
        for user_id in ("bob", "@bob", "@bob:", "@bob:not a name", "bob:one", "@b\0b:one"):
            self.assertIsNone(await self.send({user_id: {"D": {}}}, user_id))
        self.assertEqual(self.waiting(), [])

    async def test_users_of_other_servers_send_nothing_to_other_servers(self) -> None:
        device = Device(BOB.user_id, "D")
        await self.database.run("devices", lambda txn: record_devices(txn, [device]))
        messages = {"@a:one": {"D": {}}, BOB.user_id: {"D": {}}}
        self.assertIsNotNone(await self.send(messages, "r", "@x:two"))
        self.assertEqual(self.waiting(), [])
        self.assertEqual(self.sql("SELECT count(*) FROM synrepl._to_device"), 1)

    async def test_without_federation_none_go_to_other_servers(self) -> None:
        data = self.data["d1"]
        writers = DataWriters(
            "d1", data.writer, {TO_DEVICE.name: ["d1"]}, data, WriterActions(CLIENT_DATA_ERRORS)
        )
        service = ToDeviceService("test", False, writers, NullLog())
        self.assertIsNone(await service.send(ALICE.user_id, "m.x", {"@a:one": {"D": {}}}, "r"))
        self.assertEqual(self.waiting(), [])

    async def test_one_that_does_not_fit_an_edu_is_refused(self) -> None:
        text = "x" * (MAX_SENT_MESSAGE - 20)
        largest = {"@a:one": {"*": {"b": text}}}
        await self.send(largest)
        (_, edu), *more = self.waiting()
        self.assertEqual(more, [])
        self.assertLessEqual(len(jsons.canonical(edu)), MAX_EDU)
        too_large = {"@a:one": {"*": {"b": text + "x" * 20}}}
        with self.assertRaises(DeviceMessageTooLarge):
            await self.send(too_large, "r2")
        self.assertGreater(MAX_MESSAGE_BYTES, MAX_SENT_MESSAGE)
        await self.send({BOB.user_id: too_large["@a:one"]}, "r3")

    async def test_the_oldest_to_a_server_go(self) -> None:
        self.patch(outgoing_messages, "MAX_WAITING_EDUS", 3)
        await self.send({"@z:two": {"D": {"n": -1}}}, "two")
        for number in range(6):
            await self.send({"@a:one": {"D": {"n": number}}}, str(number))
        found = [
            content["D"]["n"]
            for _, edu in self.waiting()
            for content in edu["content"]["messages"].values()
        ]
        self.assertEqual(found, [-1, 3, 4, 5])
