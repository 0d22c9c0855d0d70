"""Two servers of ours, as the daemons assemble them."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import fields
from importlib.resources import files

import yaml
from signedjson.key import decode_verify_key_bytes
from unpaddedbase64 import decode_base64

from synrepl.adapters.federation.certificates import ServedCertificate
from synrepl.core.errors import ConfigError
from synrepl.daemon.checked_config import checked_master
from synrepl.daemon.config.federation import FederationConfig
from synrepl.federation.errors import DestinationAway, DestinationBackedOff, RequestRefusedByServer
from synrepl.federation.published_keys import parse_key_document
from synrepl.rooms import ServerKey, check_json_signature
from synrepl.services.federation.keys.own_keys import SigningKeyReplaced
from tests.daemon.federation.two_servers import OneServer, ServersCase

KEYS = "/_matrix/key/v2/server"


class TwoServers(ServersCase):
    async def key_of(self, asking: OneServer, asked: OneServer) -> ServerKey | None:
        """The key of a server, as another one knows it."""
        own = asked.federation.own_keys
        return await asking.federation.keys.for_request(asked.name, own.key_id)

    async def test_know_the_keys_of_each_other(self) -> None:
        one, two = await self.server(), await self.server()
        for asking, asked in ((one, two), (two, one)):
            key = await self.key_of(asking, asked)
            assert key is not None
            published = parse_key_document(await asked.federation.own_keys.document())
            (current,) = published.current.values()
            self.assertEqual(bytes(key.verify_key), bytes(current.verify_key))

    async def test_publish_their_keys_also_as_older_versions_asked(self) -> None:
        one, two = await self.server(), await self.server()
        for path in (KEYS, f"{KEYS}/", f"{KEYS}/ed25519:1"):
            status, document = await self.fetch(one, two, path, is_signed=False)
            self.assertEqual((status, document["server_name"]), (200, two.name))

    async def test_are_notaries_also_for_servers_that_are_away(self) -> None:
        one, notary = await self.server(), await self.server()
        two = await self.server()
        trusted = [{"server_name": notary.name}]
        asking = await self.server(trusted_key_servers=trusted)
        own = two.federation.own_keys
        self.assertIsNotNone(await self.key_of(notary, two))
        await two.stop()
        wanted = {two.name: {own.key_id: 0}, notary.name: {"ed25519:1": 0}, one.name: {}}
        found = await asking.federation.keys.for_events(wanted)
        self.assertEqual(
            {name: set(keys) for name, keys in found.items()},
            {name: {"ed25519:1"} for name in wanted},
        )

    async def test_sign_what_they_answer_as_notaries(self) -> None:
        notary, two, one = [await self.server() for _ in range(3)]
        for path in ("", "/ed25519:1"):
            status, answer = await self.fetch(
                one, notary, f"/_matrix/key/v2/query/{two.name}{path}", is_signed=False
            )
            (document,) = answer["server_keys"]
            for server in (two, notary):
                own = json.loads(await server.federation.own_keys.document())
                keys = {
                    key_id: ServerKey(decode_verify_key_bytes(key_id, decode_base64(key["key"])))
                    for key_id, key in own["verify_keys"].items()
                }
                self.assertIsNone(check_json_signature(document, server.name, keys))
            self.assertEqual(status, 200)

    async def test_refuse_queries_for_keys_that_are_none(self) -> None:
        one, two = await self.server(), await self.server()
        client = one.federation.client
        for wanted in (
            {f"{number}.example": {} for number in range(101)},
            {"a.example": {f"ed25519:{number}": 0 for number in range(51)}},
            {"a.example": {"ed25519:1": -1}},
        ):
            with self.assertRaises(RequestRefusedByServer) as caught:
                await client.query_keys(two.name, wanted)  # type: ignore[arg-type]
            self.assertEqual(
                (caught.exception.status, caught.exception.errcode), (400, "M_BAD_JSON")
            )
        self.assertEqual(await client.query_keys(two.name, {}), ())
        # What cannot be known is left out.
        self.assertEqual(await client.query_keys(two.name, {"a b": {}, "localhost:1": {}}), ())

    async def test_say_what_they_are_and_where(self) -> None:
        one, two = await self.server(), await self.server(well_known="b.example:443")
        status, answer = await self.fetch(one, two, "/_matrix/federation/v1/version")
        self.assertEqual((status, answer["server"]["name"]), (200, "synrepl"))
        status, answer = await self.fetch(one, two, "/.well-known/matrix/server")
        self.assertEqual((status, answer), (200, {"m.server": "b.example:443"}))
        status, answer = await self.fetch(two, one, "/.well-known/matrix/server")
        self.assertEqual((status, answer["errcode"]), (404, "M_UNRECOGNIZED"))

    async def test_leave_one_alone_that_is_away_and_say_so(self) -> None:
        one, two = await self.server(), await self.server()
        await two.stop()
        with self.assertRaises(DestinationAway):
            await self.fetch(one, two, KEYS)
        with self.assertRaises(DestinationBackedOff):
            await self.fetch(one, two, KEYS)
        status = json.loads(await one.ask("/status"))["other_servers"]
        self.assertEqual(status["requests"], {"failed": 1, "backed off": 1})
        self.assertEqual(status["listener"]["port"], one.port)
        self.assertGreater(status["listener"]["certificate"]["expires_at"], 0)
        metrics = (await one.ask("/metrics")).decode()
        self.assertIn('synrepl_federation_requests_total{outcome="backed off"} 1.0', metrics)
        self.assertIn('synrepl_listener_connections{listener="federation"}', metrics)
        self.assertIn("synrepl_federation_destinations_failing", metrics)

    async def test_trust_no_other_authority(self) -> None:
        one = await self.server()
        two = await self.server(start=False)
        other = await self.server(start=False)
        two.configure(other.certificate.certificate)
        await two.start()
        with self.assertRaisesRegex(DestinationAway, "authority is not trusted|signed by itself"):
            await self.fetch(two, one, KEYS)

    async def test_serve_a_new_certificate_without_a_restart(self) -> None:
        self.patch(ServedCertificate, "LOOK_S", 0.0)
        one, two = await self.server(), await self.server()
        for_other_name = self.authority.certificate(["other.example"])
        kept = [path.read_bytes() for path in two.certificate]
        for old, new in zip(two.certificate, for_other_name, strict=True):
            shutil.copyfile(new, old)
        with self.assertRaisesRegex(DestinationAway, "it is for other.example"):
            await self.fetch(one, two, KEYS)
        two.certificate.private_key.write_text("no key")
        with self.assertRaisesRegex(DestinationAway, "it is for other.example"):
            await self.fetch(one, two, KEYS, ignores_back_off=True)
        for path, data in zip(two.certificate, kept, strict=True):
            path.write_bytes(data)
        self.assertEqual((await self.fetch(one, two, KEYS, ignores_back_off=True))[0], 200)
        status = json.loads(await two.ask("/status"))["other_servers"]
        self.assertEqual(status["listener"]["certificate"]["reloads"], 2)


class RotatedKeys(ServersCase):
    async def rotate(self, server: OneServer, *options: str, code: int = 0) -> str:
        """Run the command; what it prints."""
        path = server.directory / "master.yaml"
        done = await self.run_command("rooms", "rotate-key", "-c", path, *options)
        self.assertEqual(done.code, code, done)
        return done.out if not code else done.err

    async def published(self, asking: OneServer, asked: OneServer) -> tuple[set[str], set[str]]:
        """The current and the old keys that a server publishes."""
        _, document = await self.fetch(asking, asked, KEYS)
        return set(document["verify_keys"]), set(document["old_verify_keys"])

    async def test_are_published_together_until_the_old_one_ends(self) -> None:
        one, two = await self.server(), await self.server()
        await self.published(one, two)
        key = two.directory / "signing.key"
        before = key.stat()
        shown = json.loads(await self.rotate(two, "--json"))
        self.assertEqual((shown["replaced"], shown["file"]), (["ed25519:1"], str(key)))
        self.assertEqual(key.stat().st_mode, before.st_mode)
        self.assertEqual(
            {path.name for path in two.directory.iterdir()}, {"signing.key", "master.yaml"}
        )
        await two.stop()
        await two.start()
        current, old = await self.published(one, two)
        self.assertEqual((current, old), ({"ed25519:1", shown["key_id"]}, set()))

    async def test_end_as_they_are_told(self) -> None:
        one, two = await self.server(), await self.server()
        await self.published(one, two)
        key = (two.directory / "signing.key").read_bytes()
        text = await self.rotate(two, "--overlap", "0s")
        self.assertIn("has the new key ed25519:a_", text)
        self.assertIn("ed25519:1 stays valid until", text)
        new = (two.directory / "signing.key").read_bytes()
        await two.stop()
        (two.directory / "signing.key").write_bytes(key)
        with self.assertRaisesRegex(SigningKeyReplaced, "ed25519:1 was replaced at 20"):
            await two.start()
        await two.stop()
        (two.directory / "signing.key").write_bytes(new)
        await two.start()
        current, old = await self.published(one, two)
        self.assertEqual((len(current), old), (1, {"ed25519:1"}))

    async def test_of_an_interrupted_command_are_used_when_it_is_repeated(self) -> None:
        two = await self.server()
        original = os.replace
        key = two.directory / "signing.key"
        # As if it had been killed before the file was replaced.
        await self.rotate(two)
        made = key.read_bytes()
        original(key, two.directory / "signing.key.new")
        key.write_bytes(made.replace(made.split()[1], b"1"))
        key.chmod(0o600)
        shown = json.loads(await self.rotate(two, "--json"))
        self.assertEqual(key.read_bytes(), made)
        self.assertEqual(shown["key_id"], f"ed25519:{made.split()[1].decode()}")

    async def test_need_a_duration_and_a_key(self) -> None:
        two = await self.server(start=False)
        self.assertIn("--overlap", await self.rotate(two, "--overlap", "soon", code=2))
        (two.directory / "signing.key").unlink()
        self.assertIn("signing.key", await self.rotate(two, code=2))


class Settings(ServersCase):
    async def test_are_all_in_the_template(self) -> None:
        text = (files("synrepl.cli") / "templates" / "federation.yaml").read_text(encoding="utf-8")
        lines = [line.removeprefix("  #") for line in text.splitlines()]
        kept = [line for line in lines if re.match(r" *\w+:", line)]  # without comments
        settings = yaml.safe_load("\n".join(kept))
        named = {field.metadata.get("key", field.name) for field in fields(FederationConfig)}
        self.assertEqual(set(settings["federation"]), named)
        wrong = await self.error(**settings["federation"])
        self.assertIn("ca.pem has no certificates", wrong)  # which is the first thing that is wrong

    async def error(self, **settings: object) -> str:
        """The error of a configuration."""
        server = await self.server(start=False)
        server.configure(self.authority.path, **settings)
        try:
            checked_master([server.directory / "master.yaml"])
        except ConfigError as error:
            return str(error)
        return "accepted"

    async def test_that_cannot_be_are_refused_by_name(self) -> None:
        for settings, words in (
            (
                {
                    "bind_address": "0.0.0.0",
                    "tls_certificate_path": None,
                    "tls_private_key_path": None,
                },
                "bind_address",
            ),
            ({"tls_private_key_path": None}, "together with tls_private_key_path"),
            ({"tls_certificate_path": "missing.pem"}, "missing.pem cannot be used for TLS"),
            ({"tls_private_key_path": str(self.authority.path)}, "cannot be used for TLS"),
            ({"trusted_ca_files": ["missing.pem"]}, "has no certificates of authorities"),
            ({"trusted_ca_files": []}, "then no certificate is trusted"),
            ({"allow_private_addresses": ["127.0.0.1/8"]}, "allow_private_addresses"),
            ({"allow_private_addresses": ["private"]}, "a network such as"),
            ({"trusted_key_servers": [{"server_name": "a b"}]}, "server_name"),
            ({"trusted_key_servers": [{"server_name": "a.example"}] * 2}, "appears twice"),
            (
                {"trusted_key_servers": [{"server_name": "a", "verify_keys": {"rsa:1": "x"}}]},
                "verify_keys",
            ),
            ({"server_acl": {"allow": {"a": 1}}}, "allow"),
            ({"spool_dir": "missing"}, "is no directory"),
            ({"well_known": "https://b.example"}, "well_known"),
            ({"port": 0.5}, "port"),
        ):
            self.assertIn(words, await self.error(**settings))

    async def test_of_a_server_that_nobody_could_reach(self) -> None:
        server = await self.server(start=False)
        server.name = "127.1"
        server.configure(self.authority.path)
        with self.assertRaisesRegex(ConfigError, "cannot reach this one by its server_name"):
            checked_master([server.directory / "master.yaml"])

    async def test_without_a_listener_ask_others_all_the_same(self) -> None:
        one, two = await self.server(port=None), await self.server()
        self.assertEqual((await self.fetch(one, two, KEYS))[0], 200)
        assert one.running is not None
        self.assertIsNone(one.running.servers)
