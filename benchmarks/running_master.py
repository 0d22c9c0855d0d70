"""A real ``synrepl master`` process, and its memory."""

from __future__ import annotations

import json
import resource
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.child import REPOSITORY, ChildFailed

SERVER_NAME = "example.com"

_READY_S = 60.0


class RunningMaster:
    """Context manager for ``synrepl master`` on a database; it serves only the stream ``events``.

    :param directory: for its configuration
    :param more: further settings, as in the configuration
    :param descriptors: its limit on open file descriptors; None for that of this process
    :ivar port: of the replication listener
    :ivar http_port: of the HTTP listener
    :ivar http: base URL of the HTTP listener
    """

    def __init__(
        self,
        dsn: str,
        directory: Path,
        more: Mapping[str, Any] | None = None,
        descriptors: int | None = None,
    ) -> None:
        self.port, self.http_port = free_ports(2)
        self.http = f"http://127.0.0.1:{self.http_port}"
        secret = directory / "dsn"
        secret.touch(mode=0o600)
        secret.write_text(dsn)
        config = directory / "master.yaml"
        # JSON is YAML.
        config.write_text(
            json.dumps(
                {
                    "server_name": SERVER_NAME,
                    "database_path": str(secret),
                    "listeners": [{"port": self.port}],
                    "http": {"port": self.http_port},
                    "catalogue": ["events"],
                    "log": {"level": "warn"},
                    **(more or {}),
                }
            )
        )
        command = [sys.executable, "-m", "synrepl", "master", "-c", str(config)]
        self._process = subprocess.Popen(command, cwd=REPOSITORY)
        if descriptors is not None:
            limits = (descriptors, descriptors)
            resource.prlimit(self._process.pid, resource.RLIMIT_NOFILE, limits)

    def __enter__(self) -> RunningMaster:
        try:
            self._wait_until_ready()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def memory(self) -> int:
        """Resident bytes now; resets :meth:`peak`."""
        (Path("/proc") / str(self._process.pid) / "clear_refs").write_text("5")
        return self._status("VmRSS")

    def peak(self) -> int:
        """Peak of the resident bytes since :meth:`memory`."""
        return self._status("VmHWM")

    def cpu(self) -> float:
        """CPU seconds of the process so far."""
        tasks = (Path("/proc") / str(self._process.pid) / "task").iterdir()
        return sum(int((each / "schedstat").read_text().split()[0]) for each in tasks) / 1e9

    def _status(self, name: str) -> int:
        text = (Path("/proc") / str(self._process.pid) / "status").read_text()
        (line,) = [line for line in text.splitlines() if line.startswith(f"{name}:")]
        return int(line.split()[1]) * 1024

    def _wait_until_ready(self) -> None:
        give_up = time.monotonic() + _READY_S
        while True:
            try:
                with urllib.request.urlopen(f"{self.http}/ready", timeout=5):
                    return
            except OSError:
                if self._process.poll() is not None or time.monotonic() > give_up:
                    raise ChildFailed("synrepl master did not become ready") from None
            time.sleep(0.05)

    def _end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that are free now."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports
