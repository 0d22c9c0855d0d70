"""``synrepl rooms explain``: says why a stored room is as it is."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import RenderableType

from synrepl.cli.conventions import config_option, json_option, print_json
from synrepl.cli.rooms.reading import checked_user, read_rooms, text
from synrepl.cli.terminal import plain_table, show
from synrepl.rooms import Viewer
from synrepl.services.rooms.answers import (
    auth_explanation_json,
    refusal_explanation_json,
    state_explanation_json,
    visibility_explanation_json,
)


@click.group("explain")
def command() -> None:
    """Say why a state, a verdict or the visibility of an event is what it is."""


@command.command("state")
@config_option
@click.argument("event_id", metavar="EVENT")
@click.argument("kind", metavar="TYPE")
@click.argument("state_key", default="")
@click.option("--before", is_flag=True, help="Explain the state before the event.")
@json_option
def explain_state(
    config: tuple[Path, ...], event_id: str, kind: str, state_key: str, before: bool, as_json: bool
) -> None:
    """Say where the entry for TYPE and STATE_KEY of the state after EVENT comes from.

    If branches disagreed about it, they are resolved again, and the step of the resolution that
    chose it is named, and what was refused.
    """
    found = read_rooms(
        config, lambda store: store.explain_state(event_id, (kind, state_key), before=before)
    )
    if as_json:
        print_json(state_explanation_json(found))
        return
    parts: list[RenderableType] = [text(found.sentence)]
    if found.decision is not None:
        table = plain_table("candidate", "")
        for each in sorted(found.decision.candidates):
            why = found.decision.refused.get(each)
            chosen = "chosen" if each == found.event_id else ""
            table.add_row(text(each), chosen if why is None else text(why.sentence))
        parts += ["", table]
    show(*parts)


@command.command("visibility")
@config_option
@click.argument("event_id", metavar="EVENT")
@click.argument("user", metavar="USER", callback=checked_user)
@click.option("--peeking", is_flag=True, help="The user previews the room without joining it.")
@click.option(
    "--ignored", metavar="USER", multiple=True, help="USER ignores this user; repeatable."
)
@json_option
def explain_visibility(
    config: tuple[Path, ...],
    event_id: str,
    user: str,
    peeking: bool,
    ignored: tuple[str, ...],
    as_json: bool,
) -> None:
    """Say whether USER may see EVENT, and by which rule."""
    viewer = Viewer(user, peeking, frozenset(ignored))
    found = read_rooms(config, lambda store: store.explain_visibility(event_id, viewer))
    if as_json:
        print_json(visibility_explanation_json(found))
        return
    table = plain_table("", "", "set by")
    table.show_header = False
    table.add_row(
        "history visibility", text(found.history_visibility), text(found.visibility_event_id)
    )
    table.add_row(
        f"membership of {text(user).plain}", found.membership, text(found.membership_event_id)
    )
    show(text(found.sentence), "", table)


@command.command("auth")
@config_option
@click.argument("event_id", metavar="EVENT")
@json_option
def explain_auth(config: tuple[Path, ...], event_id: str, as_json: bool) -> None:
    """Say what authorises EVENT, and which rule allows or refuses it."""
    found = read_rooms(config, lambda store: store.explain_auth(event_id))
    if as_json:
        print_json(auth_explanation_json(found))
        return
    cited = plain_table("auth event", "type", "state key", "")
    for each in found.cited:
        words = ["rejected" if each.is_rejected else "", "" if each.is_current else "not current"]
        cited.add_row(
            text(each.event_id),
            text(each.type),
            text(each.state_key),
            ", ".join(filter(None, words)),
        )
    checks = plain_table("check", "", "rule", "")
    for check in found.checks:
        checks.add_row(
            check.check.value.replace("_", " "),
            "allowed" if check.is_allowed else "refused",
            check.code,
            text(check.sentence),
        )
    show(text(found.outcome.sentence), "", cited, "", checks)


@command.command("rejection")
@config_option
@click.argument("event_id", metavar="EVENT")
@json_option
def explain_rejection(config: tuple[Path, ...], event_id: str, as_json: bool) -> None:
    """Say why EVENT was rejected or soft-failed, back to the first cause."""
    found = read_rooms(config, lambda store: store.explain_refusal(event_id))
    if as_json:
        print_json(refusal_explanation_json(found))
        return
    parts: list[RenderableType] = [text(found.sentence)]
    if found.causes:
        table = plain_table("event", "check", "rule", "reason")
        for each in found.causes:
            table.add_row(
                text(each.event_id),
                each.check.value.replace("_", " "),
                each.refusal.code,
                text(each.refusal.sentence),
            )
        parts += ["", table]
    show(*parts)
