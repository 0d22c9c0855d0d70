"""matrix-js-sdk in a headless Chromium: log in, room list, timeline, page back, send, receive live."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from interop.clients.deployment import ClientDeployment
from interop.clients.environments import ClientEnvironments
from interop.processes import LOOPBACK
from interop.report import Section, Table
from synrepl.core.errors import Unavailable
from tests.support.browser import Browser, chromium

#: Messages that are in the room before the browser comes.
_BEFORE = 40


class ChromiumMissing(Unavailable):
    """Chromium is not installed; its programs are looked for on PATH"""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        """Log nothing."""


def section(
    environments: ClientEnvironments, deployment: ClientDeployment, pictures: Path
) -> Section:
    """Use the page as a person would, with restarts in between.

    :param pictures: directory of the screenshots
    :raises ChromiumMissing:
    """
    program = chromium()
    if program is None:
        raise ChromiumMissing()
    found = Section(
        "matrix-js-sdk",
        (
            "A small page in a headless Chromium: it logs in on one worker, and another user writes on the other.",
            "The page and the worker have different origins, so every request goes by CORS. The client loads",
            "members lazily. The worker and the master are restarted while it is open.",
            "",
            "![The room when the client comes](js-sdk-room.png)",
            "![The room after all restarts](js-sdk-live.png)",
        ),
    )
    room, before = deployment.crowded_room(_BEFORE)
    browser = Browser(program)
    try:
        with _served(environments.page) as page:
            _use(found, browser, page, deployment, room, before, pictures)
    finally:
        browser.close()
    return found


def _use(
    found: Section,
    browser: Browser,
    page: str,
    deployment: ClientDeployment,
    room: str,
    before: list[str],
    pictures: Path,
) -> None:
    (alice, password), _ = deployment.users.items()
    browser.size(900, 900)
    browser.go(page)
    browser.until("document.readyState === 'complete' && typeof window.begin === 'function'")
    arguments = json.dumps([deployment.urls[0], alice, password])
    browser.value(
        f"window.begin(...{arguments}).catch((e) => window.shown.errors.push(String(e))); 1"
    )
    browser.until("window.shown.ready")
    quoted = json.dumps(room)
    name = browser.until(f"window.client.getRoom({quoted}) && window.open_room({quoted})")
    browser.picture(pictures / "js-sdk-room.png")
    first = browser.value("window.shown.timeline.length")
    found.check("the room is in the list, with its name", name == "Crowded", str(name))
    found.check("the first timeline is a part of the room", 0 < first < len(before))
    for _ in range(_BEFORE):
        count = browser.value("window.shown.timeline.length")
        browser.value(
            f"window.page_back({quoted}, 10).then((n) => {{ window.paged = n }}); window.paged = 0; 1"
        )
        if browser.until("window.paged") == count:
            break
    paged = browser.value("window.shown.timeline")
    found.check("paging back shows every message once, in order", paged == before)
    rows = []
    for what, name, kill in (
        ("nothing", "", False),
        ("the master", "master", False),
        ("the worker", "worker1", True),
    ):
        if name:
            deployment.restart(name, kill=kill)
        said = json.dumps(f"after {what}")
        # A person presses "send" again when it failed; the client keeps the transaction ID.
        browser.value(
            "window.said = null; (async () => { while (!window.said) { try {"
            f" window.said = await window.say({quoted}, {said}); }} catch (e) {{"
            " await new Promise((r) => setTimeout(r, 300)); } } })(); 1"
        )
        sent = browser.until("window.said")
        heard = deployment.say(1, room, f"answer after {what}")
        browser.until(f"window.shown.timeline.includes({json.dumps(heard)})")
        browser.until(f"window.shown.timeline.includes({json.dumps(sent)})")
        rows.append((what, "yes", "yes"))
    found.tables.append(
        ("Live, after a restart of:", Table(("restarted", "sent", "received from the other"), rows))
    )
    seen = browser.value("window.shown.seen")
    found.check("no message came twice", len(seen) == len(set(seen)))
    found.check(
        "all messages are shown", len(browser.value("window.shown.timeline")) == _BEFORE + 6
    )
    browser.picture(pictures / "js-sdk-live.png")


@contextmanager
def _served(directory: Path) -> Iterator[str]:
    """The URL of the page, served on a port of its own."""
    server = ThreadingHTTPServer((LOOPBACK, 0), partial(_Quiet, directory=directory))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://{LOOPBACK}:{server.server_port}/page.html"
    finally:
        server.shutdown()
        server.server_close()
