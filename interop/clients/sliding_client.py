"""matrix-js-sdk with sliding sync, in a headless Chromium; each request goes to another worker."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import quote

from interop.clients.browser_client import check_data
from interop.clients.client_page import ClientPage, client_page
from interop.clients.deployment import ClientDeployment
from interop.clients.environments import ClientEnvironments
from interop.report import Section

#: Messages in the room that is opened, and other rooms.
_MESSAGES, _ROOMS = 40, 9

#: The first window, and what is shown of each room and of one that is opened; as the page has them.
_WINDOW, _SHOWN, _OPENED = 4, 5, 20


def section(
    environments: ClientEnvironments, deployment: ClientDeployment, pictures: Path
) -> Section:
    """Use the page as a person would, with restarts in between.

    :param pictures: directory of the screenshot
    :raises ChromiumMissing:
    """
    found = Section(
        "matrix-js-sdk with sliding sync",
        (
            "The same page, whose client uses sliding sync (`/_matrix/client/unstable/org.matrix.simplified_msc3575/sync`) with all",
            "extensions that it has. Its requests go to both workers in turn. It begins with a window of four rooms, makes it",
            "larger, and opens a room, whose timeline becomes longer. Both workers and the master are restarted while it is open.",
            "",
            "![The room after all restarts](js-sdk-sliding.png)",
        ),
    )
    for number in range(_ROOMS):
        room_id = deployment.ask(
            0, "POST", "/createRoom", {"preset": "public_chat", "name": f"Room {number}"}
        )["room_id"]
        deployment.ask(1, "POST", f"/join/{quote(room_id)}", {})
    room, messages = deployment.crowded_room(_MESSAGES)
    with client_page(environments, deployment, list(deployment.urls)) as page:
        _use(found, page, room, messages)
        page.browser.picture(pictures / "js-sdk-sliding.png")
    return found


def _use(found: Section, page: ClientPage, room: str, messages: list[str]) -> None:
    browser, deployment = page.browser, page.deployment
    quoted, (user, _) = json.dumps(room), deployment.users
    name = page.open_room(room)
    known = browser.value("window.client.getRooms().length")
    found.check("the first window has the most recent rooms", known == _WINDOW, str(known))
    found.check("the newest of them has its name", name == "Crowded", str(name))
    shown = page.timeline
    found.check("and its newest messages", shown == messages[-_SHOWN:], str(len(shown)))
    count = browser.value("window.sliding.getListData('all').joinedCount")
    browser.value("window.sliding.setListRanges('all', [[0, 99]]); 1")
    browser.until(f"window.client.getRooms().length === {count}")
    found.check("a larger window has all rooms of the list", count > _WINDOW, str(count))
    browser.value(f"window.sliding.modifyRoomSubscriptions(new Set([{quoted}])); 1")
    browser.until(f"window.open_room({quoted}) && window.shown.timeline.length >= {_OPENED}")
    shown = page.timeline
    found.check("a room that is opened has more messages", shown == messages[-len(shown) :])
    paged = page.page_back(room)
    found.check("paging back shows every message once, in order", paged == messages)
    restarts = (
        ("the master", "master", True),
        ("a worker", "worker1", False),
        ("the other worker", "worker2", True),
    )
    messages += page.talk_after_restarts(found, room, restarts)
    shown = page.timeline
    found.check("all messages are shown once", sorted(shown) == sorted(messages), str(len(shown)))
    invited = deployment.ask(1, "POST", "/createRoom", {"name": "Party", "invite": [user]})[
        "room_id"
    ]
    membership = f"window.client.getRoom({json.dumps(invited)})?.getMyMembership()"
    browser.until(f"{membership} === 'invite'")
    browser.value(f"window.join({json.dumps(invited)}).then(() => 1); 1")
    browser.until(f"{membership} === 'join'")
    found.check("an invitation is shown, and accepted", True)
    check_data(found, page, room)
    positions = browser.value("window.shown.pos")
    found.check("the connection began once", positions.count(None) == 1, str(positions.count(None)))
    refused = [each for each in browser.value("window.shown.refused") if each == "M_UNKNOWN_POS"]
    found.check("and was never lost", not refused, str(len(refused)))
