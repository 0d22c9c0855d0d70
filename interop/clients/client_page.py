"""The page with matrix-js-sdk in a headless Chromium, used as a person would."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from interop.clients.deployment import ClientDeployment
from interop.clients.environments import ClientEnvironments
from interop.processes import LOOPBACK
from interop.report import Section, Table
from synrepl.core.errors import Unavailable
from tests.support.browser import Browser, chromium

#: Events that one request for history asks for.
_PAGE = 10


class ChromiumMissing(Unavailable):
    """Chromium is not installed; its programs are looked for on PATH"""


class ClientPage:
    """A page where the first user is logged in, and another user, who is not there.

    :ivar browser: runs expressions in the page
    :ivar deployment: the servers
    """

    def __init__(self, browser: Browser, deployment: ClientDeployment) -> None:
        self.browser = browser
        self.deployment = deployment

    def log_in(self, url: str, *options: Any) -> None:
        """Open the page, and log in by the first server.

        :param options: further arguments of the page's ``begin``
        """
        (user, password), _ = self.deployment.users.items()
        self.browser.size(900, 900)
        self.browser.go(url)
        self.browser.until(
            "document.readyState === 'complete' && typeof window.begin === 'function'"
        )
        arguments = json.dumps([self.deployment.urls[0], user, password, *options])
        self.browser.value(
            f"window.begin(...{arguments}).catch((e) => window.shown.errors.push(String(e))); 1"
        )
        self.browser.until("window.shown.ready")

    def open_room(self, room: str) -> str:
        """Open a room once the client knows it; its name."""
        quoted = json.dumps(room)
        name: str = self.browser.until(
            f"window.client.getRoom({quoted}) && window.open_room({quoted})"
        )
        return name

    @property
    def timeline(self) -> list[str]:
        """The IDs of the messages that are shown."""
        shown: list[str] = self.browser.value("window.shown.timeline")
        return shown

    def page_back(self, room: str) -> list[str]:
        """Page back until nothing more comes; the IDs of all messages."""
        while True:
            count = len(self.timeline)
            self.browser.value(
                f"window.paged = 0; window.page_back({json.dumps(room)}, {_PAGE})"
                ".then((n) => { window.paged = n }); 1"
            )
            if self.browser.until("window.paged") == count:
                return self.timeline

    def talk_after_restarts(
        self, found: Section, room: str, restarts: Iterable[tuple[str, str, bool]]
    ) -> list[str]:
        """Talk, and again after each restart; the IDs of the messages.

        :param restarts: what is restarted, its name, and whether it is killed
        """
        messages, rows = self._talk(room, "after nothing"), [("nothing", "yes", "yes")]
        for what, name, kill in restarts:
            self.deployment.restart(name, kill=kill)
            messages += self._talk(room, f"after {what}")
            rows.append((what, "yes", "yes"))
        table = Table(("restarted", "sent", "received from the other"), rows)
        found.tables.append(("Live, after a restart of:", table))
        return messages

    def _talk(self, room: str, text: str) -> list[str]:
        """The client and the other user send a message; the event IDs of both, which the client shows."""
        # A person presses "send" again when it failed; the client keeps the transaction ID.
        self.browser.value(
            "window.said = null; (async () => { while (!window.said) { try {"
            f" window.said = await window.say({json.dumps(room)}, {json.dumps(text)}); }} catch (e) {{"
            " await new Promise((r) => setTimeout(r, 300)); } } })(); 1"
        )
        sent: str = self.browser.until("window.said")
        heard = self.deployment.say(1, room, f"answer {text}")
        for each in (heard, sent):
            self.until_shown(each)
        return [sent, heard]

    def until_shown(self, event_id: str) -> None:
        """Wait until a message is shown."""
        self.browser.until(f"window.shown.timeline.includes({json.dumps(event_id)})")


@contextmanager
def client_page(
    environments: ClientEnvironments, deployment: ClientDeployment, *options: Any
) -> Iterator[ClientPage]:
    """A page where the first user is logged in.

    :param options: further arguments of the page's ``begin``
    :raises ChromiumMissing:
    """
    program = chromium()
    if program is None:
        raise ChromiumMissing()
    browser = Browser(program)
    try:
        with _served(environments.page) as url:
            page = ClientPage(browser, deployment)
            page.log_in(url, *options)
            yield page
    finally:
        browser.close()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        """Log nothing."""


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
