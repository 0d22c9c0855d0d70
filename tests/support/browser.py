"""A headless Chromium, controlled over a pipe by the DevTools protocol."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

#: Seconds for any one answer, and between two looks at a page.
_PATIENCE_S = 120.0
_LOOK_S = 0.1

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def chromium() -> str | None:
    """The path of Chromium; None if it is not installed."""
    return next((found for name in NAMES if (found := shutil.which(name)) is not None), None)


class Browser:
    """A browser with one page. Its methods block, so it is for use in a thread."""

    def __init__(self, program: str) -> None:
        # What it started may still be writing when it is gone.
        self._directory = TemporaryDirectory(ignore_cleanup_errors=True)
        inherited, self._commands = os.pipe()
        self._answers, answering = os.pipe()
        # Beyond 3 and 4, which the shell overwrites one after the other.
        read_by_it = fcntl.fcntl(inherited, fcntl.F_DUPFD, 10)
        written_by_it = fcntl.fcntl(answering, fcntl.F_DUPFD, 10)
        arguments = [
            program,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            f"--user-data-dir={self._directory.name}",
            "--remote-debugging-pipe",
            "about:blank",
        ]
        # The protocol's descriptors are 3 and 4.
        shell = f'exec "$@" 3<&{read_by_it} 4>&{written_by_it}'
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", shell, "browser", *arguments],
            pass_fds=(read_by_it, written_by_it),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for mine in (inherited, answering, read_by_it, written_by_it):
            os.close(mine)
        self._rest = b""
        self._number = 0
        self._session: str | None = None
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self.ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        self.ask("Page.enable")

    def close(self) -> None:
        """End the browser and all its processes."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._commands)
        os.close(self._answers)
        self._directory.cleanup()

    def size(self, width: int, height: int) -> None:
        """Set the size of the window, in CSS pixels."""
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def go(self, url: str) -> None:
        """Open an address."""
        self.ask("Page.navigate", url=url)

    def value(self, expression: str) -> Any:
        """The value of a JavaScript expression, as JSON."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def until(self, expression: str) -> Any:
        """Wait until an expression is true; its value."""
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            found = self.value(expression)
            if found:
                return found
            time.sleep(_LOOK_S)
        raise AssertionError(f"{expression} does not come true")

    def picture(self, path: Path) -> None:
        """Take a screenshot of the whole page."""
        answer = self.ask("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    def ask(self, method: str, **parameters: object) -> Any:
        """Send a command, and return its answer; other messages of the browser are ignored."""
        self._number += 1
        message: dict[str, object] = {
            "id": self._number,
            "method": method,
            "params": parameters,
        }
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._message()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                return answer["result"]

    def _message(self) -> Any:
        while b"\0" not in self._rest:
            data = os.read(self._answers, 2**20)
            if not data:
                raise AssertionError("the browser is gone")
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)


def in_browser(work: Callable[[Browser], None]) -> None:
    """Run a function with a browser, which is closed afterwards."""
    program = chromium()
    assert program is not None
    browser = Browser(program)
    try:
        work(browser)
    finally:
        browser.close()
