"""Sync tokens: their text, and what is refused."""

from __future__ import annotations

import re
from unittest import TestCase

from hypothesis import given
from hypothesis import strategies as st

from synrepl.core.errors import InputError
from synrepl.core.tokens import MAX_TOKEN
from synrepl.positions.vector import PositionVector
from synrepl.services.rooms.news.sync_token import (
    MAX_TOKEN_CHARS,
    BadSyncToken,
    SyncToken,
    SyncTokenOfOtherServer,
    server_tag,
)

SERVER = "example.org"
TAG = server_tag(SERVER)
ZEROS = f"s{TAG}_0_0_0_0_0_0"

_tokens = st.integers(0, MAX_TOKEN)
_names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,8}", fullmatch=True)
_vectors = st.builds(PositionVector, st.dictionaries(_names, _tokens, max_size=3), _tokens)
sync_tokens = st.builds(lambda vectors: SyncToken(TAG, *vectors), st.tuples(*[_vectors] * 6))


class Texts(TestCase):
    @given(sync_tokens)
    def test_a_token_is_parsed_as_it_was_written(self, token: SyncToken) -> None:
        text = str(token)
        self.assertEqual(SyncToken.parse(text, SERVER), token)
        self.assertRegex(text, re.compile(r"[A-Za-z0-9_.~:-]+\Z"))

    def test_names_with_underscores_do_not_end_a_field(self) -> None:
        vector = PositionVector({"x.1_12": 3, "a__b_": 4}, 2)
        token = SyncToken(TAG, vector, vector)
        self.assertEqual(
            str(token), f"s{TAG}_2~a____b__.4~x.1__12.3_2~a____b__.4~x.1__12.3_0_0_0_0"
        )
        self.assertEqual(SyncToken.parse(str(token), SERVER), token)

    def test_streams_have_their_places(self) -> None:
        token = SyncToken.parse(f"s{TAG}_1_2_3_4_5_6", SERVER)
        self.assertEqual(
            {name: vector.linear for name, vector in token.vectors.items()},
            {
                "events": 1,
                "receipts": 2,
                "typing": 3,
                "account_data": 4,
                "presence": 5,
                "to_device": 6,
            },
        )
        self.assertEqual(SyncToken.of(TAG, token.vectors), token)
        self.assertEqual(str(SyncToken.of(TAG, {})), ZEROS)


class Refusals(TestCase):
    def test_malformed_tokens(self) -> None:
        for text in (
            "",
            "s",
            "1234",
            f"t{TAG}_0_0_0_0_0_0",
            f"s{TAG}_0_0_0_0_0",
            f"{ZEROS}_0",
            f"{ZEROS}_",
            f"s{TAG}_-1_0_0_0_0_0",
            f"s{TAG}_{MAX_TOKEN + 1}_0_0_0_0_0",
            f"s{TAG}_0~w_0_0_0_0_0",
            f"s{TAG}_0~w.1~w.2_0_0_0_0_0",
            f"s{TAG}_0~w\0.1_0_0_0_0_0",
            f"s{TAG}_٣_0_0_0_0_0",
            f"s{TAG.upper()}x_0_0_0_0_0_0",
            ZEROS + "\n",
        ):
            with self.subTest(text), self.assertRaises(BadSyncToken) as caught:
                SyncToken.parse(text, SERVER)
            self.assertIsInstance(caught.exception, InputError)

    def test_a_token_of_another_server(self) -> None:
        with self.assertRaises(SyncTokenOfOtherServer):
            SyncToken.parse(ZEROS, "example.com")

    def test_a_long_token_is_not_read(self) -> None:
        text = f"s{TAG}_0" + "~w.1" * (MAX_TOKEN_CHARS // 4)
        with self.assertRaises(BadSyncToken) as caught:
            SyncToken.parse(text, SERVER)
        self.assertLess(len(str(caught.exception)), 400)

    @given(st.text(max_size=40))
    def test_any_text_is_a_token_or_refused_by_name(self, text: str) -> None:
        for candidate in (text, f"s{TAG}_{text}", ZEROS + text):
            try:
                token = SyncToken.parse(candidate, SERVER)
            except BadSyncToken:
                continue
            self.assertEqual(SyncToken.parse(str(token), SERVER), token)
