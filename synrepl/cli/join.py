"""``synrepl join``: has a user of this server join a room, of this server or of others."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from synrepl.adapters.http.client import Answer, HttpClient, status_text
from synrepl.cli.addresses import HttpAddress, own_http
from synrepl.cli.conventions import config_option, json_option, print_json
from synrepl.cli.rooms.maintenance import ShownProgress
from synrepl.cli.running import run
from synrepl.cli.terminal import printable, show
from synrepl.core import jsons
from synrepl.core.errors import InputError, Refused
from synrepl.daemon.config.config import load
from synrepl.services.rooms.maintenance.room_job import MaintenanceProgress


class NotJoined(Refused):
    """{message}"""


class NoFederation(Refused):
    """the process at {url} joins no rooms of other servers: configure 'rooms.federation', or name the configuration of one that has it"""


@click.command("join")
@config_option
@click.argument("room", metavar="ROOM")
@click.option("--user", "user_id", required=True, metavar="USER", help="Who joins: @name:server.")
@click.option(
    "--via", multiple=True, metavar="SERVER", help="A server that is in the room; repeatable."
)
@click.option("--reason", help="Is shown to the members of the room.")
@click.option(
    "--whole",
    is_flag=True,
    help="Wait for the whole state of the room, as servers do that cannot join with a part of it.",
)
@json_option
def command(
    config: tuple[Path, ...],
    room: str,
    user_id: str,
    via: tuple[str, ...],
    reason: str | None,
    whole: bool,
    as_json: bool,
) -> None:
    """Have USER join ROOM, an ID or an alias.

    The process that the configuration is for does it, over its HTTP listener. A room of other servers can be used
    at once; the rest of its state is fetched in the background ('synrepl rooms resync' shows how far that is).
    If the command is interrupted, the join goes on.
    """
    address = own_http(load(config))
    asked = {
        "room": room,
        "user_id": user_id,
        "via": list(via),
        "reason": reason,
        "whole": whole,
    }

    async def main(reactor: Any) -> dict[str, Any]:
        client = HttpClient(reactor, address.url, address.secret)
        try:
            with ShownProgress() as progress:
                return await _joined(client, address, asked, progress)
        finally:
            await client.close()

    done = run(main)
    if as_json:
        print_json(done)
        return
    room_id, seconds = printable(done["room_id"]), done["progress"]["seconds"]
    if done["event_id"] is None:
        show(f"{printable(user_id)} is in {room_id} already.")
        return
    show(f"{printable(user_id)} joined {room_id} in {seconds:.1f} s.")
    if done["partial"]:
        show("The rest of its state is fetched now: see 'synrepl rooms resync'.")


async def _joined(
    client: HttpClient, address: HttpAddress, asked: Mapping[str, Any], progress: ShownProgress
) -> dict[str, Any]:
    """Ask until the join has ended."""
    asked = dict(asked)
    while True:
        answer = _members(address, await client.post("/joins", jsons.encode(asked)))
        at = answer["progress"]
        where = f"{at['phase']} {at['server']}".strip()
        progress.show(MaintenanceProgress(answer["room_id"], where, at["events"], None))
        if answer["joined"]:
            return answer
        asked |= {"run": answer["run"], "room": answer["room_id"]}


def _members(address: HttpAddress, answer: Answer) -> dict[str, Any]:
    try:
        found = jsons.decode(answer.body, "the answer")
    except InputError:
        found = None
    if not isinstance(found, dict):
        raise NotJoined(message=f"{address.url} answered with {status_text(answer.status)}")
    if found.get("error") == "NoSuchPath":
        raise NoFederation(url=address.url)
    if answer.status != 200:
        raise NotJoined(message=found.get("message", status_text(answer.status)))
    return found
