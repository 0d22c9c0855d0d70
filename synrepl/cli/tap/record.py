"""``synrepl tap record``: records a connection to a master, or a server's channels on Redis."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from synrepl.cli.dsn import host_and_port
from synrepl.cli.redis_url import password_option, redis_from_options
from synrepl.cli.running import run
from synrepl.cli.tap.record_tcp import TcpRecordingSource
from synrepl.core.errors import ConfigError, Unavailable
from synrepl.core.names import server_name as checked
from synrepl.daemon.config.redis import RedisConfig
from synrepl.daemon.redis_pubsub import redis_location
from synrepl.tools.tap.pseudonyms import Pseudonyms
from synrepl.tools.tap.recording import (
    RecordingEnded,
    RecordingFile,
    RecordingNotWritable,
    RecordingSource,
)
from synrepl.wire.dialects import CLIENT_DIALECTS


class WhatToRecord(ConfigError):
    """record listens either to a master (--tcp HOST:PORT) or on a Redis (--redis URL --server-name NAME, and --redis-password-path FILE, --silent with it): give exactly one of the two"""


@click.command("record")
@click.argument("path", type=click.Path(path_type=Path), metavar="FILE")
@click.option("--tcp", metavar="HOST:PORT", help="A listener of a master.")
@click.option("--redis", "url", metavar="URL", help="The Redis server that the processes use.")
@password_option
@click.option("--server-name", help="The server's name: the channel on Redis.")
@click.option("--silent", is_flag=True, help="On Redis: do not send REPLICATE.")
@click.option(
    "--dialect",
    type=click.Choice(list(CLIENT_DIALECTS)),
    default="auto",
    show_default=True,
    help="Dialect to speak over TCP: legacy for Synapse up to 1.12.",
)
@click.option(
    "--seconds", type=click.FloatRange(min=0, min_open=True), help="Exit after this many seconds."
)
@click.option(
    "--name", default="synrepl-tap", show_default=True, help="Client name sent to a master."
)
@click.option(
    "--pseudonyms",
    is_flag=True,
    help="Replace the names of users, rooms, aliases, groups, events and servers consistently.",
)
def command(
    path: Path,
    tcp: str | None,
    url: str | None,
    redis_password_path: Path | None,
    server_name: str | None,
    silent: bool,
    dialect: str,
    seconds: float | None,
    name: str,
    pseudonyms: bool,
) -> None:
    """Follow a server and record its traffic in FILE.

    With --tcp, records both directions of a connection to a master; with --redis,
    what all processes publish on the channels NAME and NAME/USER_IP. Sends only
    one REPLICATE, which asks for positions.

    FILE has one JSON object per line, and is compressed if its name ends in .gz.
    It must not exist yet, and only its owner can read it. Records until Ctrl-C,
    --seconds, or the end of the connection (exit code 1).
    """
    has_redis_options = redis_password_path is not None or server_name is not None or silent
    if (tcp is None) == (url is None) or (tcp is not None and has_redis_options):
        raise WhatToRecord()
    replaced = Pseudonyms() if pseudonyms else None
    source: RecordingSource
    if tcp is not None:
        source = TcpRecordingSource(*host_and_port(tcp), CLIENT_DIALECTS[dialect], name)
    else:
        assert url is not None
        if server_name is None:
            raise WhatToRecord()
        redis = redis_from_options(url, redis_password_path)
        source = _redis_source(redis, checked(server_name), silent, replaced)

    def notify(text: str) -> None:
        click.echo(f"synrepl: {text}", err=True)

    async def main(reactor: Any) -> None:
        recording = RecordingFile(path, None if replaced is None else replaced.line)
        try:
            await source.record(reactor, recording, seconds, notify)
        except (RecordingEnded, RecordingNotWritable):
            raise
        except Unavailable:  # recording has not started
            path.unlink()
            raise
        finally:
            recording.close()

    run(main)


def _redis_source(
    redis: RedisConfig, server_name: str, silent: bool, pseudonyms: Pseudonyms | None
) -> RecordingSource:
    """Create the Redis source, importing Redis only here."""
    where = redis_location(redis)
    from synrepl.cli.tap.record_redis import RedisRecordingSource

    return RedisRecordingSource(where, server_name, silent, pseudonyms)
