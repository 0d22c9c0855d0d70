"""``synrepl doctor``: finds problems in a database and in a running process."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click
from rich.console import RenderableType
from rich.text import Text

from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.cli.addresses import own_http
from synrepl.cli.conventions import json_option, print_json, refuse_options
from synrepl.cli.doctor import caches as doctor_caches
from synrepl.cli.doctor import database as doctor_database
from synrepl.cli.doctor import rooms as doctor_rooms
from synrepl.cli.doctor.caches import Audited, audit_caches
from synrepl.cli.doctor.database import (
    Examined,
    database_options,
    examine_in,
    exit_as,
    find_dsn,
)
from synrepl.cli.running import run
from synrepl.cli.terminal import printable, show
from synrepl.core.errors import SynreplError, Unavailable
from synrepl.daemon.config.config import Config, load
from synrepl.daemon.config.redis import RedisConfig
from synrepl.daemon.redis_pubsub import redis_location
from synrepl.services.rooms.examination import RoomsExamined


@click.group("doctor", invoke_without_command=True)
@database_options
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    config: tuple[Path, ...],
    dsn: str | None,
    database_path: Path | None,
    insecure: bool,
    older: float,
    fix: bool,
    as_json: bool,
) -> None:
    """Find problems in a database, and in the process of a configuration.

    Without a command: examines the database, as 'database' does; with -c, also the
    caches of the process, as 'caches' does, the connection to its Redis, and the rooms
    of its room store, as 'rooms' does. The database may be synrepl's own or a real
    Synapse's, which is only read.

    Exits with 0 if there are at most notes, with 1 if there is a problem, and with 3
    if there is none but not everything could be examined, for example because the
    process does not answer.
    """
    if ctx.invoked_subcommand is not None:
        refuse_options(ctx)
        return
    where = find_dsn(config, dsn, database_path, insecure)
    loaded = load(config) if config else None
    has_database = loaded is None or loaded.dsn is not None or loaded.uses_embedded

    async def main(reactor: Any) -> _Diagnosis:
        examined = await examine_in(reactor, config, where, older, fix) if has_database else None
        redis = None
        if loaded is not None and loaded.redis is not None:
            redis = await reach(reactor, loaded.redis, loaded.server_name)
        rooms = None if loaded is None else await doctor_rooms.examine_configured(reactor, loaded)
        return _Diagnosis(examined, redis, rooms)

    found = run(main)
    if loaded is not None:
        found = replace(found, audited=_audited(loaded))
    if found.examined is None and isinstance(found.audited, SynreplError):
        raise found.audited  # nothing could be examined
    if as_json:
        print_json(found.to_json())
    else:
        show(*found.parts())
    exit_as(found.wrong, found.complete)


command.add_command(doctor_database.command)
command.add_command(doctor_caches.command)
command.add_command(doctor_rooms.command)


def _audited(config: Config) -> Audited | SynreplError:
    """Audit the caches of a process; the error if it cannot be reached, as when it is stopped."""
    try:
        return audit_caches(own_http(config))
    except SynreplError as error:
        return error


@dataclass(frozen=True, slots=True)
class _Diagnosis:
    """The results of all examinations, or the reasons why they were not possible.

    :ivar examined: the database; None if the configuration has none
    :ivar redis: the connection to Redis; None if the configuration has none
    :ivar rooms: the room store; None if the configuration has none
    :ivar audited: the caches; None without a configuration
    """

    examined: Examined | None
    redis: RedisReach | None
    rooms: RoomsExamined | SynreplError | None
    audited: Audited | SynreplError | None = None

    @property
    def wrong(self) -> bool:
        """True if there is a problem."""
        if isinstance(self.audited, Audited) and not self.audited.healthy:
            return True
        if isinstance(self.rooms, RoomsExamined) and self.rooms.findings:
            return True
        return self.examined is not None and self.examined.report.has_problems

    @property
    def complete(self) -> bool:
        """True if everything could be examined."""
        if isinstance(self.audited, SynreplError) or isinstance(self.rooms, SynreplError):
            return False
        if self.redis is not None and self.redis.reason is not None:
            return False
        return self.examined is None or self.examined.report.is_complete

    def to_json(self) -> dict[str, Any]:
        """The report for programs."""
        report: dict[str, Any] = {} if self.examined is None else self.examined.to_json()
        if self.redis is not None:
            report["redis"] = asdict(self.redis)
        if isinstance(self.rooms, RoomsExamined):
            report["rooms"] = self.rooms.to_json()
        elif self.rooms is not None:
            report["rooms_unknown"] = str(self.rooms)
        if isinstance(self.audited, Audited):
            report["caches"] = self.audited.to_json()
        elif self.audited is not None:
            report["caches_unknown"] = str(self.audited)
        return {**report, "healthy": self.complete and not self.wrong, "complete": self.complete}

    def parts(self) -> list[RenderableType]:
        """The report for the console."""
        parts = [] if self.examined is None else self.examined.parts()
        if self.redis is not None and self.redis.reason is not None:
            reason = printable(self.redis.reason)
            parts += [Text(), Text(f"Redis was not looked at: {reason}", "yellow")]
        if isinstance(self.rooms, RoomsExamined):
            parts += [Text(), *doctor_rooms.parts(self.rooms)]
        elif self.rooms is not None:
            parts += [Text(), _unseen("rooms", self.rooms)]
        if isinstance(self.audited, Audited):
            parts += [Text(), self.audited.tables()]
        elif self.audited is not None:
            parts += [Text(), _unseen("caches", self.audited)]
        return parts


def _unseen(what: str, error: SynreplError) -> Text:
    return Text(f"{what} were not looked at: {printable(str(error))}", "yellow")


@dataclass(frozen=True, slots=True)
class RedisReach:
    """The result of an attempt to reach Redis.

    :ivar where: its address
    :ivar reason: why it could not be reached; None if it could
    """

    where: str
    reason: str | None


async def reach(reactor: Any, redis: RedisConfig, channel: str) -> RedisReach:
    """Connect for subscribing and for publishing, and disconnect; nothing is published."""
    where = redis_location(redis)
    from synrepl.cli.tap.redis import TapLink

    link = TapLink(reactor, TwistedScheduler(reactor), where)
    try:
        await link.listen([channel], lambda messages: None)
        await link.publisher()
    except Unavailable as error:
        return RedisReach(redis.where, str(error).rstrip("."))
    finally:
        await link.close()
    return RedisReach(redis.where, None)
