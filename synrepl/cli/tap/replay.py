"""``synrepl tap replay``: replays a recording to TCP clients, or on Redis."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from synrepl.cli.redis_url import password_option, redis_from_options
from synrepl.cli.running import run
from synrepl.cli.tap.replay_tcp import serve
from synrepl.core.errors import ConfigError
from synrepl.core.names import server_name as checked
from synrepl.daemon.config.redis import RedisConfig
from synrepl.daemon.redis_pubsub import redis_location
from synrepl.tools.tap.replay_plan import ReplayPlan, plan_replay
from synrepl.wire.dialects import DIALECTS


class WhereToPlay(ConfigError):
    """replay plays either to clients (--port PORT) or on a Redis (--redis URL, and --redis-password-path FILE, --unasked with it): give one of the two"""


@click.command("replay")
@click.argument("path", type=click.Path(path_type=Path), metavar="FILE")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Port to listen on, on loopback. Default: a free one, which is printed.",
)
@click.option(
    "--redis", "url", metavar="URL", help="A Redis server to replay on, which no real server uses."
)
@password_option
@click.option(
    "--unasked", is_flag=True, help="On Redis: start without waiting for the first REPLICATE."
)
@click.option(
    "--speed",
    type=click.FloatRange(min=0),
    default=1.0,
    show_default=True,
    help="Speed relative to the recording; 0 for as fast as possible.",
)
@click.option(
    "--connection", type=int, help="Connection to replay, of a recording of several (its 'conn')."
)
@click.option(
    "--server-name",
    help="Server name to use, on Redis for the channels, too. Default: as recorded.",
)
@click.option(
    "--dialect",
    type=click.Choice(list(DIALECTS)),
    help="Dialect of the recording. Default: detected.",
)
def command(
    path: Path,
    port: int | None,
    url: str | None,
    redis_password_path: Path | None,
    unasked: bool,
    speed: float,
    connection: int | None,
    server_name: str | None,
    dialect: str | None,
) -> None:
    """Replay a recording from its beginning, and keep serving it until Ctrl-C.

    Over TCP, each client is served the recording from its REPLICATE on. Rows,
    POSITIONs, SYNC and REMOTE_SERVER_UP are replayed; the greeting and PINGs are
    generated. A recording from Redis is replayed in the modern dialect.

    On Redis, the replay starts once, at the first REPLICATE, and publishes
    everything but REPLICATE itself. Later REPLICATEs are answered with the current
    positions. Never replay on a channel that a real server uses: its processes
    would take the recording for real.
    """
    if (url is None and (redis_password_path is not None or unasked)) or (
        url is not None and port is not None
    ):
        raise WhereToPlay()
    recorded_dialect = None if dialect is None else DIALECTS[dialect]
    plan = plan_replay(path, speed, connection, server_name, recorded_dialect)

    def notify(text: str) -> None:
        click.echo(f"synrepl: {text}", err=True)

    if url is None:
        run(lambda reactor: serve(reactor, plan, port or 0, notify))
        return
    redis = redis_from_options(url, redis_password_path)
    plan.check_for_redis()
    checked(plan.server_name)
    run(lambda reactor: _publish(reactor, plan, redis, unasked, notify))


async def _publish(
    reactor: Any,
    plan: ReplayPlan,
    redis: RedisConfig,
    unasked: bool,
    notify: Callable[[str], object],
) -> None:
    """Replay on Redis, importing Redis only here."""
    where = redis_location(redis)
    from synrepl.cli.tap.replay_redis import RedisReplay

    await RedisReplay(where, plan.server_name, unasked).play(reactor, plan, notify)
