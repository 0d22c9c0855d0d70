"""Real processes of synrepl, their memory and their CPU time."""

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
from typing import Any, Self

from benchmarks.child import REPOSITORY, ChildFailed

SERVER_NAME = "example.com"

_READY_S = 60.0


class RunningProcess:
    """Context manager for ``synrepl master`` or ``synrepl worker``.

    :param role: ``master`` or ``worker``
    :param directory: for its configuration
    :param settings: the configuration
    :param descriptors: its limit on open file descriptors; None for that of this process
    :ivar http: base URL of the HTTP listener
    """

    def __init__(
        self,
        role: str,
        directory: Path,
        settings: Mapping[str, Any],
        descriptors: int | None = None,
    ) -> None:
        self._role = role
        self.http = f"http://127.0.0.1:{settings['http']['port']}"
        secret = settings["http"].get("secret_path")
        self._headers = {"Authorization": f"Bearer {Path(secret).read_text()}"} if secret else {}
        config = directory / f"{settings.get('instance_name', role)}.yaml"
        config.write_text(json.dumps(settings))  # JSON is YAML
        command = [sys.executable, "-m", "synrepl", role, "-c", str(config)]
        self._process = subprocess.Popen(command, cwd=REPOSITORY)
        if descriptors is not None:
            limits = (descriptors, descriptors)
            resource.prlimit(self._process.pid, resource.RLIMIT_NOFILE, limits)

    def __enter__(self) -> Self:
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
        request = urllib.request.Request(f"{self.http}/ready", headers=self._headers)
        give_up = time.monotonic() + _READY_S
        while True:
            try:
                with urllib.request.urlopen(request, timeout=5):
                    return
            except OSError:
                if self._process.poll() is not None or time.monotonic() > give_up:
                    raise ChildFailed(f"synrepl {self._role} did not become ready") from None
            time.sleep(0.05)

    def _end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class RunningMaster(RunningProcess):
    """A master on a database; it serves only the stream ``events``.

    :param more: further settings, as in the configuration
    :param http_port: of the HTTP listener; None for a free one
    :ivar port: of the replication listener
    """

    def __init__(
        self,
        dsn: str,
        directory: Path,
        more: Mapping[str, Any] | None = None,
        descriptors: int | None = None,
        http_port: int | None = None,
    ) -> None:
        self.port, free_port = free_ports(2)
        self.http_port = http_port or free_port
        settings = {
            "server_name": SERVER_NAME,
            "database_path": _dsn_file(directory, dsn),
            "listeners": [{"port": self.port}],
            "http": {"port": self.http_port},
            "catalogue": ["events"],
            "log": {"level": "warn"},
            **(more or {}),
        }
        super().__init__("master", directory, settings, descriptors)


class RunningWorker(RunningProcess):
    """A worker of a master.

    :param name: of the instance
    """

    def __init__(
        self,
        master: RunningMaster,
        dsn: str,
        directory: Path,
        name: str,
        http_port: int,
        more: Mapping[str, Any],
    ) -> None:
        settings = {
            "server_name": SERVER_NAME,
            "instance_name": name,
            "database_path": _dsn_file(directory, dsn),
            "master": {"port": master.port},
            "http": {"port": http_port},
            "catalogue": ["events"],
            "log": {"level": "warn"},
            **more,
        }
        super().__init__("worker", directory, settings)


def _dsn_file(directory: Path, dsn: str) -> str:
    path = directory / "dsn"
    path.touch(mode=0o600)
    path.write_text(dsn)
    return str(path)


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that are free now."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports
