"""Wrong and odd input that was tried on real servers and workers, and our answers to it.

The cases and the bytes come from the recordings; the expected answers are
ours, and differ from the recorded ones where those are bugs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from unittest import TestCase

from synrepl.wire.closing import CloseReason
from synrepl.wire.dialects import LEGACY, MODERN, Dialect, Side
from synrepl.wire.session import ProtocolSession
from tests.wire.recordings import cases, sent_bytes

OPEN = ""  # no ERROR, still open

#: By case, what the ERROR begins with, for a server without a configured dialect.
ANSWERS: Mapping[str, str] = {
    "name-only": OPEN,
    "ping-then-silence": "ping timeout",
    "subscribed-never-ping": OPEN,
    "ping-then-other-commands": OPEN,
    "invalid-command": "invalid command: 'FOO'",
    # Real servers keep such a connection for ever; ours has limits on their number.
    "no-name-no-ping": "nothing was said for 60 s",
    "invalid-command-noargs": "invalid command: 'FOO'",
    "lowercase-command": "invalid command: 'ping'",
    "server-only-rdata": "invalid command: RDATA is not for the client",
    "server-only-position": "invalid command: POSITION is not for the client",
    "server-only-server": "invalid command: SERVER is not for the client",
    "sync-command": "invalid command: SYNC is not for the client",
    "ping-noargs": OPEN,
    "ping-empty-arg": OPEN,
    "ping-text": OPEN,
    "name-twice": OPEN,
    "name-noargs": OPEN,
    "client-error": OPEN,
    "client-error-noargs": OPEN,
    "usersync-badstate": "USER_SYNC syncing 'maybe' is neither 'start' nor 'end'",
    "usersync-badts": "USER_SYNC last_sync_ms 'xx' is not a plain decimal number",
    "usersync-short": "failed to parse USER_SYNC",
    "fedack-bad": "FEDERATION_ACK token 'abc' is not a plain decimal number",
    "fedack-other-dialect": OPEN,  # no REPLICATE has settled the dialect
    "fedack-huge": OPEN,
    "userip-badjson": "USER_IP access_token,ip,user_agent,device,last_seen_ms are not the JSON",
    "userip-short": "USER_IP access_token,ip,user_agent,device,last_seen_ms are not the JSON",
    "invalidatecache-badjson": "INVALIDATE_CACHE keys are not the JSON",
    "invalidatecache-unknown-func": OPEN,
    "invalidatecache-ok": OPEN,
    "removepusher-short": "failed to parse REMOVE_PUSHER",
    "clear-user-sync": OPEN,
    "lock-released": "invalid command: 'LOCK_RELEASED'",
    # Which streams there are is for the service above to know.
    "replicate-unknown-stream": OPEN,
    "replicate-unknown-stream-now": OPEN,
    "replicate-all-5": OPEN,
    "replicate-all-now": OPEN,
    "replicate-all-lower-now": OPEN,
    "replicate-lower-all": OPEN,
    "replicate-notoken": "failed to parse REPLICATE",
    "replicate-badtoken": "REPLICATE token 'abc' is not a plain decimal number",
    "replicate-negative": OPEN,
    "replicate-future": OPEN,
    "replicate-float": "REPLICATE token '1.5' is not a plain decimal number",
    "replicate-underscore": "REPLICATE token '1_0' is not a plain decimal number",
    "replicate-plus": "REPLICATE token '+40' is not a plain decimal number",
    "replicate-extra-arg": "failed to parse REPLICATE",
    "replicate-double-space": "failed to parse REPLICATE",
    "replicate-trailing-space": "failed to parse REPLICATE",
    "replicate-bare": OPEN,
    "replicate-bare-space": OPEN,
    "replicate-twice": OPEN,
    "blank-line": OPEN,
    "spaces-line": "invalid command: ''",
    "leading-space": "invalid command: ''",
    "tab-sep": "invalid command: 'PING\\t1'",
    "crlf-ping": OPEN,
    "crlf-blank": OPEN,
    "crlf-replicate-now": OPEN,
    "crlf-replicate-token": OPEN,
    "crlf-replicate-bare": OPEN,
    "crlf-bad-command": "invalid command: 'FOO'",
    "cr-only": OPEN,
    "nul-byte": OPEN,
    "non-utf8": "the line is not UTF-8 at byte 5",
    "non-utf8-command": "the line is not UTF-8 at byte 0",
    "surrogate-utf8": "the line is not UTF-8 at byte 5",
    "utf8-ok": OPEN,
    "two-in-one-packet": "invalid command: 'FOO'",
    "partial-line": OPEN,
    "long-16384": OPEN,
    "long-16385": "Line length exceeded",
    "long-20000": "Line length exceeded",
    "long-nonewline": "Line length exceeded",
    "long-200000": "Line length exceeded",
    "long-then-valid": "Line length exceeded",
    "half-close": OPEN,
    "relay-sender": OPEN,
    "relay-receiver": OPEN,
}

_WRONG_REPLICATE = "failed to parse REPLICATE: the {} dialect has"

#: What a server that knows its dialect answers otherwise.
IN_LEGACY = {
    "fedack-other-dialect": "failed to parse FEDERATION_ACK",
    "clear-user-sync": "invalid command: 'CLEAR_USER_SYNC'",
    "replicate-bare": _WRONG_REPLICATE.format("legacy"),
    "replicate-bare-space": _WRONG_REPLICATE.format("legacy"),
    "crlf-replicate-bare": _WRONG_REPLICATE.format("legacy"),
}
IN_MODERN = {
    "fedack-other-dialect": "failed to parse FEDERATION_ACK",
    "sync-command": "invalid command: 'SYNC'",
    **dict.fromkeys(
        [name for name in ANSWERS if name.startswith("invalidatecache")],
        "invalid command: 'INVALIDATE_CACHE'",
    ),
    **dict.fromkeys(
        [
            name
            for name in ANSWERS
            if name.startswith(("replicate-", "crlf-replicate-"))
            and name not in ("replicate-bare", "replicate-bare-space", "crlf-replicate-bare")
        ],
        _WRONG_REPLICATE.format("modern"),
    ),
}


def let_time_pass(session: ProtocolSession, until: float) -> None:
    """Tick whenever the session requests it."""
    ticks = 0
    while (due := session.next_tick) is not None and due <= until:
        session.tick(due)
        ticks += 1
        assert ticks < 1000, "ticking does not move the session on"


def answer(session: ProtocolSession, script: list[tuple[float, bytes]], end: float) -> str:
    """The text of the ERROR that a session sends on timed input; empty if it stays open."""
    session.start()
    for at, data in script:
        let_time_pass(session, at)
        session.receive(data, at)
    let_time_pass(session, end)
    *_, last = session.data_to_send().decode().rstrip("\n").split("\n")
    if not session.closing:
        return OPEN
    assert last.startswith("ERROR "), last
    return last.removeprefix("ERROR ")


class OddClients(TestCase):
    """Our server with the clients that were tried on real servers."""

    def check(self, version: str, dialect: Dialect | None, answers: Mapping[str, str]) -> None:
        found = cases(version, "errors")
        self.assertEqual(set(found), set(answers))
        for case, lines in found.items():
            session = ProtocolSession(Side.SERVER, server_name="s", dialect=dialect, now=0.0)
            script = [(line["t"] / 1000, sent_bytes(line)) for line in lines if line["dir"] == "C"]
            got = answer(session, script, lines[-1]["t"] / 1000)
            with self.subTest(version=version, case=case):
                self.assertEqual(got[: len(answers[case]) or None], answers[case])

    def test_an_undecided_server_survives_odd_clients(self) -> None:
        self.check("1.11.1", None, ANSWERS)
        self.check("1.43.0", None, ANSWERS)

    def test_a_legacy_server_survives_odd_clients(self) -> None:
        self.check("1.11.1", LEGACY, {**ANSWERS, **IN_LEGACY})

    def test_a_modern_server_survives_odd_clients(self) -> None:
        # 1.43.0's recording has the arguments of its own dialect.
        self.check("1.43.0", MODERN, {**ANSWERS, **IN_MODERN, "relay-sender": OPEN})


#: What our worker says to a scripted server; cases not listed leave it open.
WORKER_ANSWERS: Mapping[str, str] = {
    "wrong-server-name": "Wrong remote",
    "unknown-command": "invalid command: 'FOO'",
    "client-only-command": "invalid command: REPLICATE is not for the server",
    "lock-released": "invalid command: 'LOCK_RELEASED'",
    "rdata-bad-token": "RDATA token 'x' is not a plain decimal number",
    "long-line": "Line length exceeded",
    "silent-server-after-ping": "ping timeout",
    "trailing-space-position": "failed to parse POSITION",
}
WORKER_ANSWERS_MODERN = {**WORKER_ANSWERS, "sync": "invalid command: 'SYNC'"}


class OddServers(TestCase):
    """Our worker with the misbehaving servers that were tried on real workers."""

    def check(self, version: str, dialect: Dialect, answers: Mapping[str, str]) -> None:
        name = {"1.11.1": "localhost:18301", "1.43.0": "localhost:18501"}[version]
        found = cases(version, "worker-reactions")
        self.assertLessEqual(set(answers), set(found))
        for case, lines in found.items():
            session = ProtocolSession(Side.CLIENT, server_name=name, dialect=dialect, now=0.0)
            script = [(line["t"] / 1000, scripted(line)) for line in lines if line["dir"] == "S"]
            got = answer(session, script, lines[-1]["t"] / 1000)
            expected = answers.get(case, OPEN)
            with self.subTest(version=version, case=case):
                self.assertEqual(got[: len(expected) or None], expected)
                if case == "wrong-server-name":
                    self.assertIs(session.closed_reason, CloseReason.WRONG_REMOTE)

    def test_a_legacy_worker_survives_odd_servers(self) -> None:
        self.check("1.11.1", LEGACY, WORKER_ANSWERS)

    def test_a_modern_worker_survives_odd_servers(self) -> None:
        self.check("1.43.0", MODERN, WORKER_ANSWERS_MODERN)


def scripted(line: Mapping[str, Any]) -> bytes:
    """The bytes of a scripted server's line; long ones are abbreviated in the recording."""
    text: str = line["line"]
    start, dots, size = text.partition("...(")
    if not dots:
        return text.encode() + b"\n"
    length = int(size.removesuffix(" bytes)"))
    return start.encode().ljust(length, b"x") + b"\n"
