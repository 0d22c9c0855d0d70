"""Commands of handlers: their bytes in every dialect, those of real workers, and refusals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from unittest import TestCase

from synrepl.core.errors import SynreplError
from synrepl.services.sending.commands import BadCommand, CommandNotInDialect, Commands
from synrepl.wire.codec import parse_line
from synrepl.wire.commands import (
    Command,
    FederationAck,
    RemoteServerUp,
    RemovePusher,
    UserIp,
    UserSync,
)
from synrepl.wire.dialects import (
    CURRENT,
    LEGACY,
    MODERN,
    TRANSITIONAL,
    TRANSITIONAL_OR_MODERN,
    Dialect,
    Side,
)
from tests.services.sending_world import CommandSender, FakeConnection
from tests.wire.recordings import DIALECT_OF, captures, genuine_lines

#: What each command looks like in each dialect; None where it is refused.
LINES: dict[str, tuple[Callable[[Commands], None], dict[Dialect, str | None]]] = {
    "user_sync": (
        lambda commands: commands.user_sync("@u:x", True, at=5.25),
        {
            LEGACY: "USER_SYNC @u:x start 5250",
            TRANSITIONAL: "USER_SYNC w1 @u:x start 5250",
            MODERN: "USER_SYNC w1 @u:x start 5250",
            TRANSITIONAL_OR_MODERN: "USER_SYNC w1 @u:x start 5250",
            CURRENT: "USER_SYNC w1 @u:x None start 5250",
        },
    ),
    "federation_ack": (
        lambda commands: commands.federation_ack(7),
        {
            LEGACY: "FEDERATION_ACK 7",
            TRANSITIONAL: "FEDERATION_ACK w1 7",
            MODERN: "FEDERATION_ACK w1 7",
            TRANSITIONAL_OR_MODERN: "FEDERATION_ACK w1 7",
            CURRENT: "FEDERATION_ACK w1 7",
        },
    ),
    "remove_pusher": (
        lambda commands: commands.remove_pusher("app", "key", "@u:x"),
        {
            **dict.fromkeys(
                (LEGACY, TRANSITIONAL, MODERN, TRANSITIONAL_OR_MODERN),
                "REMOVE_PUSHER app key @u:x",
            ),
            CURRENT: None,
        },
    ),
    "remote_server_up": (
        lambda commands: commands.remote_server_up("far.example"),
        dict.fromkeys(
            (LEGACY, TRANSITIONAL, MODERN, TRANSITIONAL_OR_MODERN, CURRENT),
            "REMOTE_SERVER_UP far.example",
        ),
    ),
    "user_ip": (
        lambda commands: commands.user_ip("@u:x", "t", "::1", "curl é", "D", at=5),
        {
            LEGACY: 'USER_IP @u:x ["t", "::1", "curl \\u00e9", "D", 5000]',
            **dict.fromkeys(
                (TRANSITIONAL, MODERN, TRANSITIONAL_OR_MODERN, CURRENT),
                'USER_IP @u:x ["t","::1","curl \\u00e9","D",5000]',
            ),
        },
    ),
    "invalidate_cache": (
        lambda commands: commands.invalidate_cache("get_user", ["@u:x"]),
        {
            LEGACY: 'INVALIDATE_CACHE get_user ["@u:x"]',
            TRANSITIONAL: 'INVALIDATE_CACHE get_user ["@u:x"]',
            MODERN: None,
            TRANSITIONAL_OR_MODERN: None,
            CURRENT: None,
        },
    ),
}


class SendingInEachDialect(TestCase):
    def test_sends_each_command_in_each_dialect(self) -> None:
        for name, (call, lines) in LINES.items():
            for dialect, line in lines.items():
                with self.subTest(name, dialect=dialect.name):
                    sender = CommandSender(dialect)
                    connection = sender.connect()
                    connection.lines()
                    if line is None:
                        with self.assertRaisesRegex(CommandNotInDialect, name.upper()):
                            call(sender.commands)
                        line_or_none = []
                    else:
                        call(sender.commands)
                        line_or_none = [line]
                    self.assertEqual(connection.lines(), line_or_none)
                    self.assertEqual((sender.outgoing.unsent, sender.log.lines), (0, []))

    def test_ends_the_syncing_of_one_user_and_of_all(self) -> None:
        ends = {
            LEGACY: ["USER_SYNC @u:x end 9000", "USER_SYNC @v:x end 1700000000000"],
            MODERN: ["USER_SYNC w1 @u:x end 9000", "CLEAR_USER_SYNC w1"],
            CURRENT: ["USER_SYNC w1 @u:x None end 9000", "CLEAR_USER_SYNC w1"],
        }
        for dialect, lines in ends.items():
            with self.subTest(dialect=dialect.name):
                sender = CommandSender(dialect)
                connection = sender.connect()
                for user in ("@u:x", "@v:x"):
                    sender.commands.user_sync(user, True)
                connection.lines()
                sender.commands.user_sync("@u:x", False, at=9)
                sender.commands.user_sync("@never:x", False)
                sender.commands.clear_user_syncs()
                sender.commands.clear_user_syncs()
                self.assertEqual(connection.lines(), lines)
                self.assertEqual(sender.outgoing.syncing_users, 0)

    def test_a_user_without_named_devices_syncs_until_the_last_one_stops(self) -> None:
        for dialect in (LEGACY, MODERN):
            sender = CommandSender(dialect)
            connection = sender.connect()
            sync = sender.commands.user_sync
            sync("@u:x", True, device="A", at=1)
            sync("@u:x", True, device="B", at=2)
            sync("@u:x", False, device="A", at=3)
            self.assertEqual(sender.outgoing.syncing_users, 1)
            sync("@u:x", False, device="A", at=4)
            sync("@u:x", False, device="B", at=5)
            said = [line.split()[-2:] for line in connection.lines()]
            self.assertEqual(said, [["start", "1000"], ["start", "2000"], ["end", "5000"]])
        sender = CommandSender(CURRENT)
        connection = sender.connect()
        connection.lines()
        sender.commands.user_sync("@u:x", True, device="A", at=1)
        sender.commands.user_sync("@u:x", False, device="A", at=2)
        self.assertEqual(
            connection.lines(),
            ["USER_SYNC w1 @u:x A start 1000", "USER_SYNC w1 @u:x A end 2000"],
        )


class MatchingRealWorkers(TestCase):
    """What recorded workers said is said byte for byte by the same calls."""

    def test_sends_the_commands_of_real_workers(self) -> None:
        same: Counter[str] = Counter()
        for version, name in captures():
            dialect = DIALECT_OF[version]
            if version == "1.74.0":  # it names no device on Redis yet, see docs/protocol.md
                continue
            senders: dict[str, tuple[CommandSender, FakeConnection]] = {}
            for side, line in genuine_lines(version, name):
                if side is not Side.CLIENT:
                    continue
                command = parse_line(line, dialect, side)
                instance = getattr(command, "instance", None) or "w1"
                if instance not in senders:
                    sender = CommandSender(dialect, instance, clears_first=False)
                    senders[instance] = sender, sender.connect()
                sender, connection = senders[instance]
                if self.send(sender.commands, command):
                    self.assertEqual(connection.lines(), [line.decode()], (version, name))
                    same[command.verb] += 1
        wanted = {"FEDERATION_ACK": 164, "USER_IP": 90, "USER_SYNC": 15, "REMOVE_PUSHER": 6}
        self.assertEqual(same, wanted)

    def test_sends_the_commands_of_a_synchrotron_of_1_20_1(self) -> None:
        sender = CommandSender(TRANSITIONAL, "LmUjK")
        connection = sender.connect()
        lines = [
            "USER_SYNC LmUjK @u13_2:localhost:18401 start 1795169203215",
            "USER_SYNC LmUjK @u13_1:localhost:18401 start 1795169203215",
            "USER_SYNC LmUjK @u13_1:localhost:18401 end 1795169228550",
            "USER_SYNC LmUjK @u13_2:localhost:18401 end 1795169230977",
        ]
        for line in lines:
            self.send(sender.commands, parse_line(line.encode(), TRANSITIONAL, Side.CLIENT))
        self.assertEqual(connection.lines(), lines)

    def send(self, commands: Commands, command: Command) -> bool:
        """Call what sends this command; False for those that handlers cannot send."""
        match command:
            case UserSync():
                at = command.last_sync_ms / 1000
                commands.user_sync(command.user, command.syncing, device=command.device, at=at)
            case FederationAck():
                commands.federation_ack(command.token)
            case RemovePusher():
                commands.remove_pusher(command.app_id, command.push_key, command.user)
            case RemoteServerUp():
                commands.remote_server_up(command.server)
            case UserIp():
                commands.user_ip(
                    command.user,
                    command.access_token,
                    command.ip,
                    command.user_agent,
                    command.device,
                    at=command.last_seen_ms / 1000,
                )
            case _:
                return False
        return True


class RefusingCommands(TestCase):
    def refused(self, message: str, call: Callable[[Commands], None]) -> None:
        """A call is refused, in these words, in every dialect, and nothing is sent."""
        for dialect in (MODERN, CURRENT):
            sender = CommandSender(dialect)
            connection = sender.connect()
            connection.lines()
            with self.assertRaisesRegex(BadCommand, message):
                call(sender.commands)
            self.assertEqual(connection.lines(), [])

    def test_refuses_values_that_cannot_be_parsed_again(self) -> None:
        bad = "cannot be sent: "
        self.refused(
            f"USER_SYNC user 'two words' {bad}one word is needed",
            lambda commands: commands.user_sync("two words", True),
        )
        self.refused(
            f"USER_SYNC device 'None' {bad}it would be read as no device",
            lambda commands: commands.user_sync("@u:x", True, device="None"),
        )
        self.refused(
            f"USER_SYNC syncing 'yes' {bad}a bool is needed",
            lambda commands: commands.user_sync("@u:x", "yes"),  # type: ignore[arg-type]
        )
        self.refused(
            f"USER_SYNC {bad}user and device have 600 characters, at most 512",
            lambda commands: commands.user_sync("u" * 600, True),
        )
        self.refused(
            f"FEDERATION_ACK token '7' {bad}an int between",
            lambda commands: commands.federation_ack("7"),  # type: ignore[arg-type]
        )
        self.refused(
            f"REMOTE_SERVER_UP server '' {bad}one word is needed",
            lambda commands: commands.remote_server_up(""),
        )
        self.refused(
            f"REMOTE_SERVER_UP {bad}the name has 300 characters, at most 255",
            lambda commands: commands.remote_server_up("s" * 300),
        )
        self.refused(
            f"USER_IP {bad}its line has 20.* bytes, peers accept 16384",
            lambda commands: commands.user_ip("@u:x", "t", "::1", "m" * 20_000),
        )
        self.refused(
            f"USER_IP access_token,ip,user_agent,device,last_seen_ms {bad}Expected",
            lambda commands: commands.user_ip("@u:x", None, "::1", ""),  # type: ignore[arg-type]
        )

    def test_refuses_invalid_times(self) -> None:
        for at in (-1, float("nan"), float("inf"), 1e12, "now"):
            self.refused(
                "a time in seconds since the epoch is needed",
                lambda commands, at=at: commands.user_sync("@u:x", True, at=at),  # type: ignore[misc]
            )

    def test_refuses_only_with_documented_errors(self) -> None:
        for error in (BadCommand, CommandNotInDialect):
            self.assertTrue(issubclass(error, SynreplError))
