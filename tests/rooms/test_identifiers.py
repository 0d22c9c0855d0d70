"""Grammar and limits of identifiers."""

from __future__ import annotations

from collections.abc import Callable
from unittest import TestCase

from hypothesis import given
from hypothesis import strategies as st

from synrepl.rooms.identifiers import (
    BadIdentifier,
    check_event_id,
    check_new_user_id,
    check_room_id,
    check_server_name,
    check_user_id,
    server_of,
)
from synrepl.rooms.versions import ROOM_VERSIONS, V1, V3, V4, V11, V12, RoomVersion

HASH = "aZ09+/" + "x" * 37
URL_SAFE = "aZ09-_" + "x" * 37


class IdentifierGrammar(TestCase):
    """What is accepted, and what is refused."""

    def judged(
        self, check: Callable[[str], None], good: tuple[str, ...], bad: tuple[str, ...]
    ) -> None:
        for text in good:
            with self.subTest(text):
                check(text)
        for text in bad:
            with self.subTest(text), self.assertRaises(BadIdentifier):
                check(text)

    def test_checks_server_names(self) -> None:
        self.judged(
            check_server_name,
            (
                "matrix.org",
                "matrix.org:8888",
                "1.2.3.4",
                "1.2.3.4:1234",
                "[1234:5678::abcd]",
                "[1234:5678::abcd]:5678",
                "xn--bcher-kva.example:8448",
                "LOCALHOST",
                "a" * 255,
            ),
            (
                *("", ":80", "a:", "a:123456", "a:b", "a:80:80", "a:-1", "a_b", "bücher.example"),
                *("[::1", "::1", "[]", "[g::]", "a b", "a\n", "a/b", "a" * 256, "a:\u0661"),
            ),
        )

    def test_checks_user_ids(self) -> None:
        self.judged(
            check_user_id,
            (
                *(
                    "@a:b",
                    "@:b",
                    "@A b\n:b:80",
                    "@\U0001f600:b",
                    "@!$:[::1]",
                    "@" + "a" * 252 + ":b",
                ),
                "@" + "ä" * 126 + ":b",
            ),
            (
                *("", "@", "a:b", "@a", "@a:", "!a:b", "@a:b:c", "@a\0:b", "@\ud800:b", "@a:b c"),
                *("@" + "a" * 253 + ":b", "@" + "ä" * 126 + "x:b"),
            ),
        )

    def test_checks_ids_of_new_users(self) -> None:
        self.judged(
            check_new_user_id,
            ("@a:b", "@a-z_0.9=/+:b"),
            ("@:b", "@A:b", "@a b:b", "@ä:b", "@a\n:b", "a:b", "@a"),
        )

    def test_checks_room_ids(self) -> None:
        self.judged(
            lambda text: check_room_id(text, V11),
            ("!a:b", "!:b", "!ä#:b:80"),
            ("!a", "#a:b", "!" + URL_SAFE, "!a:", "!a\0:b", "!" + "a" * 253 + ":b"),
        )
        self.judged(
            lambda text: check_room_id(text, V12),
            ("!" + URL_SAFE,),
            ("!a:b", "$" + URL_SAFE, "!" + HASH, "!" + URL_SAFE[1:], "!" + URL_SAFE + "a", ""),
        )

    def test_checks_event_ids(self) -> None:
        cases: list[tuple[RoomVersion, str]] = [
            (V1, "$a:b"),
            (V3, "$" + HASH),
            (V4, "$" + URL_SAFE),
        ]
        for version, good in cases:
            others = tuple(text for _, text in cases if text != good)
            self.judged(
                lambda text, version=version: check_event_id(text, version),  # type: ignore[misc]
                (good,),
                (*others, good[1:], "!" + good[1:], good + "\n", good + "=", "$", ""),
            )

    def test_finds_the_server_in_an_identifier(self) -> None:
        self.assertEqual(server_of("@a:b:80"), "b:80")
        self.assertEqual(server_of("anything:[::1]"), "[::1]")
        for text in ("", "@a", "@a:", "$" + URL_SAFE):
            with self.subTest(text), self.assertRaises(BadIdentifier):
                server_of(text)

    def test_error_messages_are_short(self) -> None:
        with self.assertRaises(BadIdentifier) as caught:
            check_user_id("x" * 10**6)
        self.assertLess(len(str(caught.exception)), 200)


class ArbitraryIdentifiers(TestCase):
    """Arbitrary text raises nothing but the named error."""

    @given(st.text() | st.text("@!$:ab[]\0\ud800"), st.sampled_from(list(ROOM_VERSIONS.values())))
    def test_any_text_is_accepted_or_raises_the_named_error(
        self, text: str, version: RoomVersion
    ) -> None:
        for check in (
            server_of,
            check_server_name,
            check_user_id,
            check_new_user_id,
            lambda text: check_room_id(text, version),
            lambda text: check_event_id(text, version),
        ):
            try:
                check(text)
            except BadIdentifier as error:
                str(error).encode()
