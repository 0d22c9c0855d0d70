"""Keys are fetched, verified, remembered in all processes, and not asked for too often."""

from __future__ import annotations

import json

from signedjson.key import generate_signing_key, get_verify_key
from twisted.internet.defer import Deferred

from synrepl.federation.published_keys import MAX_DOCUMENT, parse_key_document
from synrepl.rooms import ServerKey, check_json_signature
from synrepl.services.federation.keys import key_ring
from synrepl.services.federation.keys.fetching import Notary
from synrepl.services.federation.keys.key_ring import NotaryQuery
from synrepl.services.federation.keys.own_keys import OwnKeys
from synrepl.storage.federation.server_keys import (
    MAX_KEYS_OF_SERVER,
    expire_own_keys,
    read_keys,
    write_keys,
)
from tests.services.federation.key_servers import DAY_MS, KeyServer
from tests.services.federation.keys_case import HERE, NOW_MS, KeysCase


class OfRequests(KeysCase):
    async def test_are_fetched_once_from_the_server_itself(self) -> None:
        server = self.add("a.example")
        for _ in range(3):
            key = await self.for_request(server)
            self.assertEqual(bytes(key.verify_key), bytes(get_verify_key(server.key)))
        self.assertEqual(self.servers.asked, ["a.example"])
        self.assertEqual(self.servers.ignored_back_off, [True])

    async def test_are_remembered_by_all_processes(self) -> None:
        server = self.add("a.example")
        await self.for_request(server)
        self.assertIsNotNone(await self.for_request(server, self.new_ring()))
        self.assertEqual(len(self.servers.asked), 1)

    async def test_in_memory_need_no_database(self) -> None:
        server = self.add("a.example")
        self.assertIsNone(self.ring.remembered("a.example", server.key_id))
        await self.for_request(server)
        self.assertIsNotNone(self.ring.remembered("a.example", server.key_id))
        self.clock.advance(2 * DAY_MS / 1000)
        self.assertIsNone(self.ring.remembered("a.example", server.key_id))

    async def test_are_fetched_again_when_they_have_expired(self) -> None:
        server = self.add("a.example", days=1)
        await self.for_request(server)
        self.clock.advance(1.5 * DAY_MS / 1000)
        server.valid_until_ms += 2 * DAY_MS
        self.assertIsNotNone(await self.for_request(server))
        self.assertEqual(len(self.servers.asked), 2)

    async def test_are_valid_for_seven_days_at_most(self) -> None:
        server = self.add("a.example", days=1000)
        key = await self.for_request(server)
        self.assertEqual(key.valid_until, NOW_MS + 7 * DAY_MS)

    async def test_are_none_that_the_server_does_not_use_any_more(self) -> None:
        server = self.add("a.example")
        old = server.key_id
        server.rotate("b", NOW_MS)
        self.assertIsNone(await self.ring.for_request("a.example", old))
        self.assertIsNotNone(await self.for_request(server))
        known = await self.ring.known(["a.example"])
        self.assertEqual(known["a.example"][old].valid_until, NOW_MS)

    async def test_that_were_replaced_are_fetched(self) -> None:
        server = self.add("a.example")
        await self.for_request(server)
        self.clock.advance(60)
        server.rotate("b", NOW_MS)
        self.assertIsNotNone(await self.for_request(server))

    async def test_that_do_not_exist_are_not_asked_for_again_and_again(self) -> None:
        self.add("a.example")
        for number in range(50):
            found = await self.ring.for_request("a.example", f"ed25519:x{number}")
            self.assertIsNone(found)
        self.assertEqual(len(self.servers.asked), 1)
        self.clock.advance(31)
        await self.ring.for_request("a.example", "ed25519:x")
        self.assertEqual(len(self.servers.asked), 2)

    async def test_of_a_server_that_is_away_are_asked_for_less_and_less(self) -> None:
        server = self.add("a.example")
        server.is_away = True
        for _ in range(600):
            self.assertIsNone(await self.for_request(server))
            self.clock.advance(10)
        self.assertLess(len(self.servers.asked), 16)
        server.is_away = False
        self.clock.advance(600)
        self.assertIsNotNone(await self.for_request(server))

    async def test_are_fetched_once_for_all_who_wait(self) -> None:
        server = self.add("a.example")
        self.servers.held = Deferred()
        waiting = [self.starting(self.for_request(server)) for _ in range(5)]
        await self.until(lambda: bool(self.servers.asked))
        waiting[0].addErrback(lambda failure: None)
        waiting[0].cancel()  # the others go on
        for _ in range(3):
            await self.tick()
        self.servers.held.callback(None)
        self.servers.held = None
        for each in waiting[1:]:
            self.assertIsNotNone(await each)
        self.assertEqual(len(self.servers.asked), 1)

    async def test_of_a_slow_server_keep_nobody_else_waiting(self) -> None:
        slow, quick = self.add("slow.example"), self.add("quick.example")
        held: Deferred[None] = Deferred()
        self.servers.held = held
        waiting = self.starting(self.for_request(slow))
        await self.until(lambda: bool(self.servers.asked))
        self.servers.held = None
        self.assertIsNotNone(await self.for_request(quick))
        self.assertFalse(waiting.called)
        held.callback(None)
        self.assertIsNotNone(await waiting)

    async def test_from_a_notary_if_the_server_is_away(self) -> None:
        server, notary = self.add("a.example"), self.add("notary.example")
        server.is_away = True
        ring = self.new_ring([Notary("notary.example")])
        self.assertIsNotNone(await self.for_request(server, ring))
        self.assertEqual(self.servers.asked, ["a.example", "notary.example"])
        self.assertEqual(notary.name, self.servers.queries[0][0])


class OfEvents(KeysCase):
    async def test_are_fetched_from_notaries_first_and_at_once(self) -> None:
        servers = [self.add(f"{number}.example") for number in range(250)]
        notary = self.add("notary.example")
        trusted = {notary.key_id: ServerKey(get_verify_key(notary.key))}
        ring = self.new_ring([Notary("notary.example", trusted)])
        found = await self.for_events(*servers, ring=ring)
        self.assertEqual(found, {server.name for server in servers})
        self.assertEqual(self.servers.asked, [])
        self.assertEqual([len(wanted) for _, wanted in self.servers.queries], [100, 100, 50])

    async def test_are_fetched_from_the_servers_without_a_notary(self) -> None:
        servers = [self.add(f"{number}.example") for number in range(50)]
        servers[7].is_away = True
        found = await self.for_events(*servers)
        self.assertEqual(len(found), 49)
        self.assertEqual(len(self.servers.asked), 50)
        await self.for_events(*servers)
        self.assertEqual(len(self.servers.asked), 50)

    async def test_of_the_past_need_no_key_that_is_valid_now(self) -> None:
        server = self.add("a.example", days=-300)
        self.assertEqual(await self.for_events((server, NOW_MS - 400 * DAY_MS)), {"a.example"})

    async def test_after_the_end_of_what_is_known_are_fetched_again(self) -> None:
        server = self.add("a.example", days=1)
        await self.for_events((server, NOW_MS))
        self.clock.advance(2 * DAY_MS / 1000)
        later = NOW_MS + 2 * DAY_MS
        server.valid_until_ms += 3 * DAY_MS
        self.assertEqual(await self.for_events((server, later)), {"a.example"})

    async def test_with_old_keys_verify(self) -> None:
        server = self.add("a.example")
        old = server.key_id
        server.rotate("b", NOW_MS - DAY_MS)
        found = await self.ring.for_events({"a.example": {old: NOW_MS - 2 * DAY_MS}})
        self.assertTrue(found["a.example"][old].was_valid(NOW_MS - 2 * DAY_MS))
        self.assertFalse(found["a.example"][old].was_valid(NOW_MS))
        # What is known of an old key does not change any more.
        self.clock.advance(1000)
        await self.ring.for_events({"a.example": {old: NOW_MS}})
        self.assertEqual(len(self.servers.asked), 1)

    async def test_of_this_server_are_not_fetched(self) -> None:
        found = await self.ring.for_events({HERE: {"ed25519:own": 0, "ed25519:x": 0}})
        self.assertEqual(set(found[HERE]), {"ed25519:own"})
        self.assertEqual(self.servers.asked, [])

    async def test_of_names_and_keys_that_cannot_be_are_not_fetched(self) -> None:
        names = ("a b", "127.1", "", "\0", "a.example\0", "x" * 300)
        wanted = {name: {"ed25519:a": 0} for name in names}
        wanted["a.example"] = {"rsa:1": 0, "ed25519:\0": 0, "ed25519:" + "x" * 300: 0}
        self.assertEqual(await self.ring.for_events(wanted), {name: {} for name in wanted})
        self.assertEqual(self.servers.asked, [])


class Hostile(KeysCase):
    async def refused(self, server: KeyServer, reason: str) -> None:
        self.assertEqual(await self.for_events(server, ring=self.new_ring()), set())
        self.assertIn(reason, self.messages[-1])
        self.assertEqual(self.sql("SELECT count(*) FROM synrepl._server_keys"), 0)

    async def test_documents_that_are_none(self) -> None:
        server = self.add("a.example")
        other = self.add("b.example")
        for answer, reason in (
            (b"", "not valid JSON"),
            (b"[]", "no object"),
            (b"[" * 30_000, "not valid JSON"),
            (b" " * (MAX_DOCUMENT + 1), "more than"),
            (other.document(), "is of 'b.example'"),
            (server.document(valid_until_ts="1"), "valid_until_ts is missing"),
            (server.document(valid_until_ts=-1), "valid_until_ts is missing"),
            (server.document(valid_until_ts=2**60), "valid_until_ts is missing"),
            (server.document(server_name=5), "server_name"),
            (server.document(verify_keys=[]), "'verify_keys' is no object"),
            (server.document(verify_keys={"ed25519:a": 5}), "no object"),
            (server.document(verify_keys={}), "not all are known"),
            (server.document(old_verify_keys={"ed25519:b": {"key": "x"}}), "expired"),
            (
                server.document(verify_keys={f"ed25519:{n}": {"key": "x"} for n in range(60)}),
                "more than 50 keys",
            ),
            (server.document().replace(b"old_verify_keys", b"old_verify_keyz"), "is wrong"),
            (
                json.dumps(json.loads(server.document()) | {"signatures": {}}).encode(),
                "did not sign",
            ),
        ):
            server.answer = answer
            await self.refused(server, reason)

    async def test_keys_of_other_kinds_are_left_out(self) -> None:
        server = self.add("a.example")
        keys = json.loads(server.document())["verify_keys"]
        odd = {
            "rsa:1": {"key": "AAAA"},
            "ed25519:x": {"key": "AAAA"},
            "ed25519:\0": keys[server.key_id],
        }
        server.answer = server.document(verify_keys=keys | odd)
        self.assertEqual(await self.for_events(server), {"a.example"})
        known = await self.ring.known(["a.example"])
        self.assertEqual(set(known["a.example"]), {server.key_id})

    async def test_what_a_notary_has_not_signed_does_not_count(self) -> None:
        server, notary = self.add("a.example"), self.add("notary.example")
        server.is_away = True
        other = {notary.key_id: ServerKey(get_verify_key(generate_signing_key("x")))}
        ring = self.new_ring([Notary("notary.example", other)])
        self.assertEqual(await self.for_events(server, ring=ring), set())
        self.assertIn("is wrong", "".join(self.messages))

    async def test_a_notary_cannot_bring_back_what_a_server_has_replaced(self) -> None:
        server, notary = self.add("a.example", days=1), self.add("notary.example")
        earlier = server.document()
        server.rotate("b", NOW_MS)
        server.valid_until_ms += DAY_MS
        ring = self.new_ring([Notary("notary.example")])
        self.assertIsNotNone(await self.for_request(server, ring))
        server.answer, server.is_away = earlier, True  # which only the notary has
        self.clock.advance(3600)
        await ring.for_events({"a.example": {"ed25519:none": 0}})
        self.assertTrue(self.servers.queries)
        self.assertIsNone(await ring.for_request("a.example", "ed25519:a"))
        self.assertEqual(notary.name, "notary.example")

    async def test_a_document_for_ever_does_not_keep_out_later_ones(self) -> None:
        server = self.add("a.example", days=10_000)
        await self.for_request(server)
        server.rotate("b", NOW_MS)
        server.valid_until_ms = NOW_MS + DAY_MS
        self.clock.advance(60)
        self.assertIsNotNone(await self.for_request(server))
        self.assertIsNone(await self.ring.for_request("a.example", "ed25519:a"))

    async def test_few_keys_are_kept_of_a_server(self) -> None:
        def write(number: int) -> None:
            document = parse_key_document(
                KeyServer("a.example", NOW_MS + number, f"k{number}").document()
            )
            documents.append(document)

        documents = []  # type: ignore[var-annotated]
        for number in range(MAX_KEYS_OF_SERVER + 10):
            write(number)
        for each in documents:
            await self.one.database.run(
                "write",
                lambda txn, each=each: write_keys(txn, [each], NOW_MS, is_direct=True),  # type: ignore[misc]
            )
        known = await self.one.database.run("read", lambda txn: read_keys(txn, ["a.example"]))
        self.assertEqual(len(known["a.example"]), MAX_KEYS_OF_SERVER)
        self.assertIn(f"ed25519:k{MAX_KEYS_OF_SERVER + 9}", known["a.example"])
        self.assertNotIn("ed25519:k0", known["a.example"])

    async def test_few_servers_are_remembered(self) -> None:
        self.patch(key_ring, "MAX_SERVERS", 3)
        for number in range(10):
            await self.for_events(self.add(f"{number}.example"))
        self.assertIsNone(self.ring.remembered("0.example", "ed25519:a"))
        self.assertIsNotNone(self.ring.remembered("9.example", "ed25519:a"))


class OwnDocuments(KeysCase):
    async def document(self, own: OwnKeys | None = None) -> dict[str, object]:
        document = await (own or self.own).document()
        parsed = parse_key_document(document, HERE)  # verifies it
        self.assertEqual(parsed.document, document)
        fields: dict[str, object] = json.loads(document)
        return fields

    async def test_have_the_key_with_which_this_process_signs(self) -> None:
        fields = await self.document()
        self.assertEqual(list(fields["verify_keys"]), ["ed25519:own"])  # type: ignore[call-overload]
        self.assertEqual(fields["valid_until_ts"], NOW_MS + DAY_MS)

    async def test_have_a_replaced_key_until_it_ends_and_as_an_old_one_then(self) -> None:
        await self.document()
        new = OwnKeys(self.clock, self.one.database, HERE, generate_signing_key("new"))
        end = NOW_MS + 3_600_000
        await self.one.database.run("rotate", lambda txn: expire_own_keys(txn, "ed25519:new", end))
        fields = await self.document(new)
        self.assertEqual(set(fields["verify_keys"]), {"ed25519:own", "ed25519:new"})  # type: ignore[call-overload]
        self.assertEqual((fields["old_verify_keys"], fields["valid_until_ts"]), ({}, end))
        self.clock.advance(3601)
        fields = await self.document(new)
        self.assertEqual(set(fields["verify_keys"]), {"ed25519:new"})  # type: ignore[call-overload]
        old = fields["old_verify_keys"]["ed25519:own"]  # type: ignore[index]
        self.assertEqual(old["expired_ts"], end)
        keys = await new.server_keys()
        self.assertEqual(
            {key_id: key.valid_until for key_id, key in keys.items()},
            {"ed25519:own": end, "ed25519:new": None},
        )


class ForOthers(KeysCase):
    """This server as a notary."""

    async def documents(self, *servers: KeyServer, at: int = NOW_MS) -> set[str]:
        wanted = {server.name: NotaryQuery(frozenset([server.key_id]), at) for server in servers}
        return set(await self.ring.documents(wanted))

    async def test_documents_are_those_of_the_servers(self) -> None:
        server = self.add("a.example")
        found = await self.ring.documents({"a.example": NotaryQuery(frozenset(), NOW_MS)})
        fields = json.loads(found["a.example"])
        known = {server.key_id: ServerKey(get_verify_key(server.key))}
        self.assertIsNone(check_json_signature(fields, "a.example", known))

    async def test_what_is_known_is_not_asked_for_again(self) -> None:
        server = self.add("a.example")
        for _ in range(3):
            self.assertEqual(await self.documents(server), {"a.example"})
        self.assertEqual(len(self.servers.asked), 1)

    async def test_one_that_must_be_valid_for_longer_is_fetched(self) -> None:
        server = self.add("a.example", days=1)
        await self.documents(server)
        self.clock.advance(60)
        server.valid_until_ms += 3 * DAY_MS
        await self.documents(server, at=NOW_MS + 2 * DAY_MS)
        self.assertEqual(len(self.servers.asked), 2)

    async def test_those_of_servers_that_are_away_are_what_is_known(self) -> None:
        server = self.add("a.example", days=1)
        await self.documents(server)
        server.is_away = True
        self.clock.advance(2 * DAY_MS / 1000)
        self.assertEqual(await self.documents(server, at=NOW_MS + 2 * DAY_MS), {"a.example"})

    async def test_there_are_none_of_servers_that_cannot_be(self) -> None:
        self.assertEqual(await self.ring.documents({"a b": NotaryQuery(frozenset(), 0)}), {})
