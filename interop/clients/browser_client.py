"""matrix-js-sdk in a headless Chromium: log in, room list, timeline, page back, send, receive live."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

from interop.clients.client_page import ClientPage, client_page
from interop.clients.deployment import ClientDeployment
from interop.clients.environments import ClientEnvironments
from interop.report import Section

#: Messages that are in the room before the browser comes.
_BEFORE = 40


def section(
    environments: ClientEnvironments, deployment: ClientDeployment, pictures: Path
) -> Section:
    """Use the page as a person would, with restarts in between.

    :param pictures: directory of the screenshots
    :raises ChromiumMissing:
    """
    found = Section(
        "matrix-js-sdk",
        (
            "A small page in a headless Chromium: it logs in on one worker, and another user writes on the other.",
            "The page and the worker have different origins, so every request goes by CORS. The client loads",
            "members lazily. The master and both workers are restarted while it is open. In the end both users read, type",
            "and write to each other's devices, and the client sets account data and a tag.",
            "",
            "![The room when the client comes](js-sdk-room.png)",
            "![The room after all restarts](js-sdk-live.png)",
        ),
    )
    room, before = deployment.crowded_room(_BEFORE)
    with client_page(environments, deployment) as page:
        name = page.open_room(room)
        page.browser.picture(pictures / "js-sdk-room.png")
        found.check("the room is in the list, with its name", name == "Crowded", str(name))
        found.check("the first timeline is a part of the room", 0 < len(page.timeline) < _BEFORE)
        paged = page.page_back(room)
        found.check("paging back shows every message once, in order", paged == before)
        restarts = (
            ("the master", "master", False),
            ("its worker", "worker1", True),
            ("the other's worker", "worker2", False),
        )
        talked = page.talk_after_restarts(found, room, restarts)
        seen = page.browser.value("window.shown.seen")
        found.check("no message came twice", len(seen) == len(set(seen)))
        found.check("all messages are shown", len(page.timeline) == _BEFORE + len(talked))
        page.browser.picture(pictures / "js-sdk-live.png")
        check_data(found, page, room)
    return found


def check_data(found: Section, page: ClientPage, room: str) -> None:
    """Check what the client and the other user are told besides events of rooms."""
    browser, deployment = page.browser, page.deployment
    alice, bob = deployment.users
    quoted, event = json.dumps(room), deployment.say(1, room, "read this")
    since = deployment.ask(1, "GET", "/sync")["next_batch"]  # makes the device known, too
    page.until_shown(event)
    browser.value(
        f"window.changed = null; window.change({quoted}, {json.dumps(bob)})"
        ".then((id) => { window.changed = id; }, (e) => window.shown.errors.push(String(e))); 1"
    )
    browser.until("window.changed || window.shown.errors.length")
    told = _told_until(deployment, since, room)
    found.check("the other user is told what the client has read", told["read"] == {alice: event})
    found.check("and that it types", told["typing"] == [alice])
    found.check("and gets its message to a device", told["notes"] == ["from the page"])
    found.check("but no account data", not told["account data"])
    kept = browser.until(
        f"(() => {{ const kept = window.kept({quoted});"
        " return kept.account && kept.read && Object.keys(kept.tags).length ? kept : null; })()"
    )
    expected = {
        "account": {"kept": "by the client"},
        "tags": {"u.tea": {"order": 0.5}},
        "read": event,
    }
    found.check("the client keeps account data, a tag and a read marker", kept == expected)
    own = f"/rooms/{quote(room)}"
    deployment.ask(1, "POST", f"{own}/receipt/m.read/{quote(event)}", {})
    deployment.ask(1, "PUT", f"{own}/typing/{quote(bob)}", {"typing": True, "timeout": 60_000})
    content = {"messages": {alice: {"*": {"note": "to the page"}}}}
    deployment.ask(1, "PUT", f"/sendToDevice/org.example.note/{quote(event)}", content)
    read = browser.until(f"window.told.read[{json.dumps(f'm.read {bob}')}]")
    found.check("the client is told what the other user has read", read == event)
    typing = browser.until(f"window.told.typing[{json.dumps(bob)}]")
    found.check("and that the other user types", bool(typing))
    notes = browser.until("window.told.messages.length && window.told.messages")
    found.check("and gets one message to its device", notes == [{"note": "to the page"}])


def _told_until(deployment: ClientDeployment, since: str, room_id: str) -> dict[str, Any]:
    """What the second user is told by syncs, until it has come."""
    told: dict[str, Any] = {"read": {}, "typing": [], "notes": [], "account data": []}
    while not (told["read"] and told["typing"] and told["notes"]):
        answer = deployment.ask(1, "GET", f"/sync?timeout=10000&since={quote(since)}")
        since = answer["next_batch"]
        told["account data"] += answer.get("account_data", {}).get("events", [])
        told["notes"] += [
            e["content"]["note"] for e in answer.get("to_device", {}).get("events", [])
        ]
        room = answer.get("rooms", {}).get("join", {}).get(room_id, {})
        told["account data"] += room.get("account_data", {}).get("events", [])
        for each in room.get("ephemeral", {}).get("events", []):
            if each["type"] == "m.typing":
                told["typing"] = each["content"]["user_ids"]
            for event_id, types in each["content"].items() if each["type"] == "m.receipt" else ():
                told["read"] |= dict.fromkeys(types["m.read"], event_id)
    return told
