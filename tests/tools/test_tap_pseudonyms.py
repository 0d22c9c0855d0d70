"""Pseudonyms hide names, keep equal names equal, and keep all other text."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from unittest import TestCase

from hypothesis import given, settings
from hypothesis import strategies as st

from synrepl.tools.judge.judge import Recorded, TrafficJudge
from synrepl.tools.tap.pseudonyms import Pseudonyms
from synrepl.tools.tap.recording_judge import SYNAPSE_TRAITS
from synrepl.wire.codec import parse_line
from tests.wire.recordings import DIALECT_OF, SIDES, captures, genuine_lines, records

#: Patterns of the names in the recordings.
NAMES = re.compile(r"localhost|@((u|ur)\d+_|fk|out_|nobody)|![A-Za-z]{18}\b|\$\d{13,}")

SERVER = st.from_regex(r"[a-z0-9]{1,10}(\.[a-z]{2,6}){1,2}(:[1-9]\d{0,3})?", fullmatch=True)
LOCAL = st.text(
    st.characters(min_codepoint=0x21, max_codepoint=0x2FFF, exclude_characters=':"\\\x7f'),
    min_size=1,
    max_size=15,
).filter(lambda text: not any(char.isspace() for char in text))
IDS = st.builds(
    lambda sigil, local, server: f"{sigil}{local}:{server}", st.sampled_from("@!#$+"), LOCAL, SERVER
)


class PseudonymsInLines(TestCase):
    def setUp(self) -> None:
        self.pseudonyms = Pseudonyms(b"key")

    def hide(self, line: str) -> str:
        return self.pseudonyms.line(line.encode()).decode()

    def test_no_name_of_a_recording_is_left(self) -> None:
        """No name is left, and every command keeps its type."""
        for version, name in captures():
            pseudonyms, dialect = Pseudonyms(), DIALECT_OF[version]
            with self.subTest(version=version, name=name):
                for side, line in genuine_lines(version, name):
                    hidden = pseudonyms.line(line)
                    self.assertIsNone(NAMES.search(hidden.decode()), hidden)
                    before, after = (parse_line(each, dialect, side) for each in (line, hidden))
                    self.assertEqual(type(before), type(after))

    def test_equal_names_stay_equal_and_others_different(self) -> None:
        """Equal names have equal pseudonyms, and different names different ones."""
        found: dict[str, set[str]] = defaultdict(set)
        back: dict[str, set[str]] = defaultdict(set)
        mxid = re.compile(r"[@!][A-Za-z0-9_]+:[a-z0-9.]+(?::\d+)?")
        for _, line in genuine_lines("1.43.0", "live"):
            hidden = mxid.findall(self.pseudonyms.line(line).decode())
            for name, pseudonym in zip(mxid.findall(line.decode()), hidden, strict=True):
                found[name].add(pseudonym)
                back[pseudonym].add(name)
        self.assertGreater(len(found), 30)
        self.assertEqual({len(names) for names in found.values()}, {1})
        self.assertEqual({len(names) for names in back.values()}, {1})

    def test_the_judge_finds_the_same_in_hidden_lines(self) -> None:
        for version, name in (("1.11.1", "live"), ("1.43.0", "live-forks"), ("1.163.2", "redis")):
            verdicts = []
            for hide in (lambda line: line, Pseudonyms().line):
                judge = TrafficJudge(DIALECT_OF[version], SYNAPSE_TRAITS)
                found = []
                for number, record in enumerate(records(version, name), 1):
                    line = hide(record["line"].encode())
                    side, channel = SIDES.get(record.get("dir", "-")), record.get("channel")
                    recorded = Recorded(number, record["t"], side, line, None, channel)
                    found += list(judge.judge(recorded))
                verdicts.append(found)
            self.assertEqual(*verdicts)

    def test_each_recording_has_its_own_pseudonyms(self) -> None:
        line = b'RDATA push_rules 1 ["@a:example.com"]'
        self.assertNotEqual(Pseudonyms().line(line), Pseudonyms().line(line))

    def test_hides_servers_in_every_position(self) -> None:
        server = self.hide("SERVER example.com").removeprefix("SERVER ")
        self.assertRegex(server, r"^s[0-9a-f]{16}\.invalid$")
        self.assertEqual(self.hide("REMOTE_SERVER_UP example.com"), f"REMOTE_SERVER_UP {server}")
        for line in (
            'RDATA caches m 1 ["is_host_joined",["!r:x.org","%s"],5]',
            'RDATA device_lists m 1 ["%s"]',
            'RDATA presence_federation m 1 ["%s","@u:x.org"]',
            'RDATA events m 1 ["state",["!r:x.org","m.room.aliases","%s","$e:x.org"]]',
            "ERROR Wrong remote: the server is '%s'",
        ):
            hidden = self.hide(line % "example.com")
            self.assertIn(server, hidden)
            self.assertNotIn("example.com", hidden)
        # Also if the server did not occur before.
        for line in (
            'RDATA device_lists m 1 ["new.example.net"]',
            'RDATA caches m 1 ["get_destination_retry_timings",["new.example.net"],5]',
            'RDATA events m 1 ["state",["!r:x.org","m.room.aliases","new.example.net",null]]',
            'RDATA typing m 1 ["192.0.2.7:8448",["[2001:db8::1]"]]',
        ):
            fresh = Pseudonyms(b"key").line(line.encode()).decode()
            self.assertNotRegex(fresh, r"new\.example|192\.0|2001")

    def test_keeps_lines_without_names(self) -> None:
        for line in (
            "REPLICATE ",
            "REPLICATE",
            "REPLICATE ALL NOW",
            "POSITION events worker1 1 2",
            "PING 1795168397233",
            "NAME generic.worker-1",
            'RDATA events m batch ["ev",[null,"m.room.message","",1.50,{"a": true}]]',
            'RDATA caches m 1 ["get_user.by_id",null,1795168397233]',
            'RDATA quarantined_media m 2 [null,"svYDhMCnPYnJIYKqZbpPDroU",true]',
            "NEW_ACTIVE_TASK heoiSUwbrQDKHckF",
            'FOO [ { " \\',
        ):
            self.assertEqual(self.hide(line), line)

    def test_hides_ids_in_text_and_nested_json(self) -> None:
        inner = json.dumps(["$" + "e" * 43, "@a:x.org", "#b:x.org"], separators=(",", ":"))
        row = json.dumps(["@a:x.org", inner, "say hi to @a:x.org!"])
        hidden = self.hide(f"RDATA tag_account_data m 1 {row}")
        user, nested, text = json.loads(hidden.split(" ", 4)[4])
        event, same_user, _ = json.loads(nested)
        self.assertRegex(event, r"^\$e[0-9a-f]{16}$")
        self.assertEqual(same_user, user)
        self.assertEqual(text, f"say hi to {user}!")
        self.assertNotIn("x.org", hidden)

    def test_hides_names_in_rows_that_are_not_json(self) -> None:
        self.assertNotIn("x.org", self.hide(r'RDATA events m 1 ["@a:x.org\q", "@b:x.org'))
        self.assertNotIn("secret", self.hide('USER_IP @u:x.org ["secret'))
        self.assertNotIn("x.org", self.hide("RDATA events m 1 " + "[" * 100_000 + '"@a:x.org"'))

    def test_hides_all_strings_of_user_ip(self) -> None:
        hidden = self.hide('USER_IP @u:x.org ["syt_secret","192.0.2.1","curl","DEVICE",5]')
        self.assertNotRegex(hidden, "secret|192|curl|DEVICE|x.org")
        self.assertEqual(json.loads(hidden.split(" ", 2)[2])[4], 5)

    @given(IDS, IDS)
    @settings(max_examples=100, deadline=None)
    def test_hides_any_two_ids(self, one: str, other: str) -> None:
        row = json.dumps([one, {other: one}, f"x {other}"])
        hidden = json.loads(self.hide(f"RDATA s w 1 {row}").split(" ", 4)[4])
        (first, mapping, text) = hidden
        ((key, again),) = mapping.items()
        self.assertEqual(first, again)
        self.assertEqual(text, f"x {key}")
        self.assertEqual(first == key, one == other)
        self.assertEqual(first[0], one[0])
        for name in (one, other):
            self.assertNotIn(name, str(hidden))
        self.assertEqual(
            first.partition(":")[2] == key.partition(":")[2],
            one.partition(":")[2] == other.partition(":")[2],
        )
