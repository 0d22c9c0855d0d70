"""Runs our own processes as a user does, by their commands and over HTTP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import yaml

from interop import http_request, metrics, polling
from interop.processes import LOOPBACK, Process, free_ports
from synrepl.core.errors import Unavailable

REPOSITORY = Path(__file__).resolve().parent.parent

_TIME_LIMIT_S = 120


class CommandFailed(Unavailable):
    """{command} ended with {status}: {reason}"""


class AppendRefused(Unavailable):
    """an append to {stream!r} was answered with {status}: {reason}"""


def environment() -> dict[str, str]:
    """Variables with which our processes can import this package, from which they load handlers."""
    paths = [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def synrepl(*arguments: object, text: str = "") -> str:
    """Run a sub-command with ``text`` on standard input; its standard output.

    :raises CommandFailed: its exit status is not 0
    """
    words = [str(argument) for argument in arguments]
    done = subprocess.run(
        [sys.executable, "-m", "synrepl", *words],
        input=text,
        capture_output=True,
        text=True,
        timeout=_TIME_LIMIT_S,
        check=False,
        env={**os.environ, **environment()},
    )
    if done.returncode != 0:
        command = " ".join(["synrepl", *words])
        raise CommandFailed(command=command, status=done.returncode, reason=done.stderr.strip())
    return done.stdout


class SynreplMaster:
    """A master as ``synrepl init --synapse`` configures it: embedded PostgreSQL and one listener.

    A context manager, which starts and ends it. It may be ended and restarted in between.

    :param more: further settings, as in the configuration
    :ivar port: port of the replication listener
    :ivar http: port of the HTTP listener
    :ivar process: its process; None while it does not run
    """

    def __init__(
        self, directory: Path, server_name: str, more: Mapping[str, Any] | None = None
    ) -> None:
        self.directory = directory
        self.port, self.http = free_ports(2)
        ports = ["--replication-port", self.port, "--http-port", self.http]
        synrepl("init", directory, "--server-name", server_name, "--synapse", *ports)
        self.config = directory / "master.yaml"
        self.process: Process | None = None
        found = yaml.safe_load(self.config.read_text())
        # Real processes of the current release send requests to the main process with this ``Host``.
        found["http"]["allowed_hosts"] = ["master"]
        # No process of this name acknowledges anything, so all rows are kept and can be counted.
        found["federation_sender_instances"] = ["nobody"]
        self.config.write_text(yaml.safe_dump({**found, **(more or {})}, sort_keys=False))

    def start(self) -> None:
        """Start it, and wait until it is ready.

        :raises ProcessEnded: :raises NotInTime:
        """
        self.process = start("master", self.config, self.directory)
        ready(self.process, self.http)

    def end(self, kill: bool = False) -> int:
        """End it with SIGTERM or SIGKILL; its exit status."""
        process, self.process = self.process, None
        if process is None:
            return 0
        return process.kill() if kill else process.stop()

    def append(self, stream: str, facts: Sequence[object]) -> list[int]:
        """Append facts with ``synrepl append``; their IDs.

        :param facts: each a row, or a list of rows
        :raises CommandFailed: :raises NotInTime:
        """
        text = "".join(json.dumps(fact, ensure_ascii=False) + "\n" for fact in facts)
        output = synrepl("append", "-c", self.config, stream, text=text)
        return [found for line in output.splitlines() for found in json.loads(line)["ids"]]

    def followers(self) -> Mapping[str, Mapping[str, Any]]:
        """The connected followers in ``/status``, by name."""
        status = request("GET", self.http, "/status").content
        return {follower["name"]: follower for follower in status["followers"]}

    def http_answers(self) -> Counter[str]:
        """Number of answers to requests for missed rows since the start, by status."""
        lines = metrics.read(self.http, "/metrics").splitlines()
        wanted = "\n".join(line for line in lines if "get_repl_stream_updates" in line)
        return metrics.counter(wanted, "synrepl_http_responses", "status")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


class SynreplWorker:
    """A worker that follows a real Synapse, without a database of its own.

    :param master: port of the line protocol
    :param catch_up: port of the master's HTTP replication
    :param handlers: as in the configuration
    """

    def __init__(
        self,
        directory: Path,
        server_name: str,
        dialect: str,
        master: int,
        catch_up: int,
        handlers: Sequence[Mapping[str, Any]],
    ) -> None:
        (self.http,) = free_ports(1)
        directory.mkdir(parents=True, exist_ok=True)
        config = directory / "worker.yaml"
        config.write_text(
            yaml.safe_dump(
                {
                    "server_name": server_name,
                    "instance_name": "synrepl1",
                    "master": {
                        "port": master,
                        "http_url": f"http://{LOOPBACK}:{catch_up}",
                        "foreign": True,
                    },
                    "dialect": dialect,
                    "starting": "now",
                    "catch_up": "http",
                    "handlers": list(handlers),
                    "http": {"port": self.http},
                },
                sort_keys=False,
            )
        )
        self.config = config
        self.process = start("worker", config, directory)

    def status(self) -> dict[str, Any]:
        """Its ``/status``.

        :raises OSError: it does not answer
        """
        self.process.still_runs()
        found: dict[str, Any] = request("GET", self.http, "/status").content
        return found


def request(method: str, port: int, path: str, body: object = None) -> http_request.Answer:
    """Make an HTTP request to one of our processes.

    :raises OSError: it does not answer
    """
    return http_request.request(method, f"http://{LOOPBACK}:{port}{path}", body)


def append(port: int, stream: str, facts: Sequence[object]) -> list[int]:
    """Append facts over HTTP to one of our processes; their IDs.

    :param facts: each a list of rows
    :raises AppendRefused: :raises OSError: it does not answer
    """
    answer = request("POST", port, f"/streams/{stream}/facts", {"facts": list(facts)})
    if answer.status != 200:
        raise AppendRefused(stream=stream, status=answer.status, reason=answer.content)
    ids: list[int] = answer.content["ids"]
    return ids


def ready(process: Process, port: int) -> None:
    """Wait until one of our processes is ready.

    :param port: port of its HTTP listener
    :raises ProcessEnded: :raises NotInTime:
    """

    def is_ready() -> bool:
        process.still_runs()
        return request("GET", port, "/ready").status == 200

    polling.wait_until(f"{process.name} to be ready", is_ready, 120.0)


def start(role: str, config: Path, directory: Path) -> Process:
    """Start one of our processes, a ``master`` or a ``worker``."""
    return Process(
        f"our {role}",
        Path(sys.executable),
        ["-m", "synrepl", role, "-c", config],
        directory,
        directory / f"{role}.log",
        environment(),
    )
