"""Logins and access tokens of users of a list."""

from __future__ import annotations

from typing import Any, cast

from twisted.internet.task import Clock
from twisted.trial.unittest import TestCase
from zope.interface.verify import verifyObject

from synrepl.services.clients import known_users
from synrepl.services.clients.identity import ClientLogin, IClientChecker, LoginRefused
from synrepl.services.clients.known_users import LOGIN_TOKEN_S, KnownUsers

ALICE, BOB = "@alice:test", "@b_ob.ü:test"


class LoginsOfKnownUsers(TestCase):
    """Two users."""

    def setUp(self) -> None:
        self.users = {ALICE: "secret of alice", BOB: "secret of bob"}
        self.clock = Clock()
        self.checker = KnownUsers(cast(Any, self.clock), "test", lambda: self.users)

    async def log_in(self, user: str, password: str, **more: Any) -> ClientLogin:
        body = {"type": "m.login.password", "user": user, "password": password, **more}
        return await self.checker.login(body)

    def test_it_implements_the_interface(self) -> None:
        self.assertTrue(verifyObject(IClientChecker, self.checker))

    async def test_a_token_is_that_of_the_user_and_the_device(self) -> None:
        for user_id, password in self.users.items():
            for device_id in ("D", "a_b", "ü"):
                login = await self.log_in(user_id, password, device_id=device_id)
                self.assertEqual(login.identity, (user_id, device_id))
                self.assertEqual(await self.checker.identify(login.access_token), login.identity)

    async def test_a_device_without_an_id_gets_a_new_one(self) -> None:
        logins = [await self.log_in(ALICE, "secret of alice") for _ in range(2)]
        self.assertEqual(len({each.identity.device_id for each in logins}), 2)

    async def test_a_changed_secret_ends_all_tokens_of_its_user_alone(self) -> None:
        alice = await self.log_in(ALICE, "secret of alice")
        bob = await self.log_in(BOB, "secret of bob")
        for login in alice, bob:  # the checker remembers what is right
            self.assertEqual(await self.checker.identify(login.access_token), login.identity)
        self.users[ALICE] = "another secret"
        self.assertIsNone(await self.checker.identify(alice.access_token))
        self.assertIsNotNone(await self.checker.identify(bob.access_token))
        del self.users[BOB]
        self.assertIsNone(await self.checker.identify(bob.access_token))

    async def test_a_token_is_valid_at_its_server_alone(self) -> None:
        other = KnownUsers(cast(Any, self.clock), "other.test", lambda: self.users)
        login = await self.log_in(ALICE, "secret of alice")
        self.assertIsNone(await other.identify(login.access_token))
        self.assertIsNotNone(await self.checker.identify(login.access_token))

    async def test_no_access_token_becomes_a_login_token(self) -> None:
        until = "9" * 11
        login = await self.log_in(ALICE, "secret of alice", device_id=until)
        prefix, user, _, proof = login.access_token.split("_")
        forged = "_".join((prefix, user, until, proof))
        with self.assertRaises(LoginRefused):
            await self.checker.login({"type": "m.login.token", "token": forged})

    async def test_every_change_of_a_token_makes_it_invalid(self) -> None:
        token = (await self.log_in(ALICE, "secret of alice", device_id="D")).access_token
        for place in range(len(token)):
            changed = token[:place] + ("x" if token[place] != "x" else "y") + token[place + 1 :]
            self.assertIsNone(await self.checker.identify(changed), changed)
        for other in ("", "_", "syn___", token + "_", token[:-1], "ü" * 10):
            self.assertIsNone(await self.checker.identify(other))

    async def test_only_tokens_that_are_right_are_remembered_and_not_too_many(self) -> None:
        self.patch(known_users, "PROVEN_TOKENS", 3)
        tokens = [
            (await self.log_in(ALICE, "secret of alice", device_id=f"D{n}")).access_token
            for n in range(5)
        ]
        for token in tokens:
            for given in (token, token[:-1] + "x", token + "x"):
                await self.checker.identify(given)
        self.assertEqual(list(self.checker.proven), tokens[-3:])
        for token in tokens:
            self.assertIsNotNone(await self.checker.identify(token))

    async def test_wrong_passwords_and_unknown_users_are_refused_alike(self) -> None:
        for user, password in ((ALICE, "wrong"), ("@c:test", "secret of alice"), ("", "")):
            with self.assertRaises(LoginRefused) as raised:
                await self.log_in(user, password)
            self.assertEqual(str(raised.exception), "the user or the password is not right")

    async def test_a_login_token_is_valid_for_a_while_and_only_for_logins(self) -> None:
        token = self.checker.login_token(BOB)
        body = {"type": "m.login.token", "token": token, "device_id": "D"}
        login = await self.checker.login(body)
        self.assertEqual(login.identity, (BOB, "D"))
        self.assertIsNone(await self.checker.identify(token))
        for bad in (login.access_token, f"{token}0", "", "x_y_z_w"):
            with self.assertRaises(LoginRefused):
                await self.checker.login({**body, "token": bad})
        self.clock.advance(LOGIN_TOKEN_S + 1)
        with self.assertRaises(LoginRefused):
            await self.checker.login(body)
