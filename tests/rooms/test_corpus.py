"""Events of real servers: their IDs, content hashes and signatures.

The repository has a part of them; ``SYNREPL_TEST_CORPUS`` may name a folder with more.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from typing import Any
from unittest import TestCase

from synrepl.core.jsons import decode, encode
from synrepl.rooms.auth.state_independent import check_state_independent
from synrepl.rooms.receipt import ReceiptVerdict, check_on_receipt
from synrepl.rooms.signatures import keys_of, signing_servers
from synrepl.rooms.versions import room_version
from tests.rooms.vector_files import VECTORS, extra_folder

CORPUS = extra_folder("SYNREPL_TEST_CORPUS") or VECTORS / "corpus"

RELEASES = ("1.11.1", "1.43.0", "1.163.2")


def rows(release: str) -> Iterator[dict[str, Any]]:
    """The events of a release's server, each with what the server says of it."""
    with gzip.open(CORPUS / release / "events.jsonl.gz", "rb") as file:
        for line in file:
            yield decode(line, "a row")


class RecordedEvents(TestCase):
    """What the real servers made and stored."""

    def test_every_event_is_accepted_unredacted(self) -> None:
        for release in RELEASES:
            keys = keys_of(json.loads((CORPUS / release / "keys.json").read_text()))
            events = 0
            for row in rows(release):
                events += 1
                raw = encode(row["event"])
                got = check_on_receipt(raw, room_version(row["room_version"]), keys)
                where = (release, row["event_id"])
                self.assertIs(got.verdict, ReceiptVerdict.ACCEPT, (where, got.refusal))
                assert got.event is not None
                self.assertEqual(got.event.event_id, row["event_id"], where)
                self.assertEqual(got.event.room_id, row["room_id"], where)
                self.assertEqual(got.event.depth, row["depth"], where)
                self.assertEqual(got.event.raw, raw, where)
                self.assertNotEqual(signing_servers(got.event), (), where)
                self.assertIsNone(check_state_independent(got.event), where)
            self.assertGreater(events, 200, release)
