"""``synrepl rooms state`` and ``diff``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from synrepl.cli.conventions import config_option, json_option, print_json
from synrepl.cli.rooms.reading import read_rooms, text
from synrepl.cli.terminal import plain_table, show
from synrepl.core import jsons
from synrepl.rooms import StateKey
from synrepl.services.rooms.answers import change_json, event_json, state_json
from synrepl.services.rooms.store import RoomStore
from synrepl.storage.rooms.reading.event_access import EventCopy


@click.command("state")
@config_option
@click.argument("room_id", metavar="ROOM")
@click.option("--at", metavar="EVENT", help="The state after this event, not the current one.")
@click.option("--before", is_flag=True, help="With --at: the state before the event.")
@click.option("--type", "types", multiple=True, help="Only entries of this type; repeatable.")
@click.option(
    "--key",
    "keys",
    nargs=2,
    multiple=True,
    metavar="TYPE STATE_KEY",
    help="Only this entry; repeatable.",
)
@click.option("--content", is_flag=True, help="Show what the events say; at most 1,000 entries.")
@json_option
def state(
    config: tuple[Path, ...],
    room_id: str,
    at: str | None,
    before: bool,
    types: tuple[str, ...],
    keys: tuple[tuple[str, str], ...],
    content: bool,
    as_json: bool,
) -> None:
    """Show the current state of ROOM, or that after or before an event.

    A whole state is compared with its digest before it is shown.
    """
    if before and at is None:
        raise click.UsageError("--before needs --at")
    parts: dict[str, Any] = {"keys": keys or None, "types": types or None}
    head = {"room_id": room_id, "at": at, "before": before}
    if content:
        events = read_rooms(config, lambda store: _events(store, room_id, at, before, parts))
        if as_json:
            print_json({**head, "state": [event_json(events[key]) for key in sorted(events)]})
        else:
            _show_contents(events)
        return
    found = read_rooms(config, lambda store: _ids(store, room_id, at, before, parts))
    if as_json:
        print_json({**head, "state": state_json(found)})
        return
    table = plain_table("type", "state key", "event")
    for key in sorted(found):
        table.add_row(text(key[0]), text(key[1]), text(found[key]))
    show(table)


@click.command("diff")
@config_option
@click.argument("room_id", metavar="ROOM")
@click.argument("older", metavar="FROM")
@click.argument("newer", metavar="TO")
@click.option("--before", is_flag=True, help="Compare the states before the two events.")
@json_option
def diff(
    config: tuple[Path, ...], room_id: str, older: str, newer: str, before: bool, as_json: bool
) -> None:
    """Show what differs between the states of ROOM after the events FROM and TO."""
    change = read_rooms(
        config,
        lambda store: store.state_difference(older, newer, before=before, room_id=room_id),
    )
    if as_json:
        print_json({"from": older, "to": newer, "changes": change_json(change)})
        return
    table = plain_table("", "type", "state key", "event", "instead of")
    for key in sorted(change.old):
        old, new = change.old[key], change.new[key]
        sign = "+" if old is None else "-" if new is None else "~"
        table.add_row(sign, text(key[0]), text(key[1]), text(new), text(old))
    show(table)


async def _ids(
    store: RoomStore, room_id: str, at: str | None, before: bool, parts: dict[str, Any]
) -> Mapping[StateKey, str]:
    if at is None:
        return await store.current_state_ids(room_id, **parts)
    return await store.state_ids_at(at, before=before, room_id=room_id, **parts)


async def _events(
    store: RoomStore, room_id: str, at: str | None, before: bool, parts: dict[str, Any]
) -> Mapping[StateKey, EventCopy]:
    if at is None:
        return await store.current_state(room_id, **parts)
    return await store.state_at(at, before=before, room_id=room_id, **parts)


def _show_contents(events: Mapping[StateKey, EventCopy]) -> None:
    table = plain_table("type", "state key", "sender", "content")
    for key in sorted(events):
        event = events[key]
        content = jsons.decode(event.json, "an event").get("content")
        table.add_row(
            text(key[0]), text(key[1]), text(event.sender), text(jsons.encode(content).decode())
        )
    show(table)
