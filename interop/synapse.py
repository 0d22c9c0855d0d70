"""Configures and starts real Synapse processes."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from interop.databases import Databases
from interop.environments import Environment
from interop.processes import LOOPBACK, Process, free_ports
from interop.releases import MUCH

#: The shared secret for registering users on these servers, which run for minutes only.
REGISTRATION_SECRET = "for a server that only listens on loopback"

_LOG_FORMAT = "%(asctime)s %(name)s:%(lineno)d %(levelname)s %(message)s"


@dataclass(frozen=True, slots=True)
class ServerDirectory:
    """The files of one server's processes, and their shared configuration.

    :ivar database: connection arguments, as of :meth:`.databases.Databases.arguments`
    :ivar more: further settings of the shared configuration
    """

    environment: Environment
    directory: Path
    server_name: str
    database: Mapping[str, Any]
    more: Mapping[str, Any] = field(default_factory=dict)

    def shared(self) -> Path:
        """Write the configuration that all processes of this server share; its path."""
        self.directory.mkdir(parents=True, exist_ok=True)
        key = self.directory / "signing.key"
        if not key.exists():
            seed = base64.b64encode(secrets.token_bytes(32)).decode().rstrip("=")
            key.write_text(f"ed25519 a_interop {seed}\n")
        return self.write(
            "shared.yaml",
            {
                "server_name": self.server_name,
                "public_baseurl": f"http://{LOOPBACK}/",
                "database": {"name": "psycopg2", "args": dict(self.database)},
                "media_store_path": str(self.directory / "media"),
                "uploads_path": str(self.directory / "uploads"),
                "signing_key_path": str(key),
                "trusted_key_servers": [],
                "suppress_key_server_warning": True,
                "registration_shared_secret": REGISTRATION_SECRET,
                "macaroon_secret_key": secrets.token_hex(16),
                "form_secret": secrets.token_hex(16),
                "enable_registration": False,
                "report_stats": False,
                "enable_metrics": True,
                "use_presence": True,
                "enable_group_creation": True,
                "url_preview_enabled": False,
                "bcrypt_rounds": 4,
                "rc_message": MUCH,
                "rc_registration": MUCH,
                "rc_admin_redaction": MUCH,
                "rc_login": {"address": MUCH, "account": MUCH, "failed_attempts": MUCH},
                "rc_joins": {"local": MUCH, "remote": MUCH},
                **self.environment.release.shared,
                **self.more,
            },
        )

    def write(self, name: str, content: Mapping[str, Any]) -> Path:
        """Write a configuration file as JSON, which is valid YAML; its path."""
        path = self.directory / name
        path.write_text(json.dumps(content, indent=1))
        return path

    def log(self, process: str) -> Path:
        """Path of a process's log."""
        return self.directory / f"{process}.log"

    def log_config(self, process: str) -> Path:
        """Write a logging configuration that logs to :meth:`log`; its path.

        The replication code logs at DEBUG, the only level at which it reports dropped rows.
        """
        handler = {
            "class": "logging.FileHandler",
            "formatter": "line",
            "filename": str(self.log(process)),
        }
        return self.write(
            f"{process}.log.yaml",
            {
                "version": 1,
                "formatters": {"line": {"format": _LOG_FORMAT}},
                "handlers": {"file": handler},
                "root": {"level": "INFO", "handlers": ["file"]},
                "loggers": {"synapse.replication": {"level": "DEBUG"}},
                "disable_existing_loggers": False,
            },
        )

    def start(self, process: str, app: str, files: Sequence[Path]) -> Process:
        """Start one of Synapse's programs."""
        arguments: list[str | Path] = ["-m", app]
        for file in files:
            arguments += ["-c", file]
        return Process(
            f"Synapse {self.environment.release}, {process}",
            self.environment.python,
            arguments,
            self.directory,
            self.directory / f"{process}.out",
        )


class SynapseMain:
    """A real main process.

    :ivar client: port of the client-server API
    :ivar replication: port of the line protocol, if the release speaks it over TCP
    :ivar http: port of HTTP replication
    """

    def __init__(self, server_directory: ServerDirectory) -> None:
        self.server_directory = server_directory
        self.client, self.replication, self.http = free_ports(3)
        self._ports = [self.client, self.http]
        listeners = [
            http_listener(self.client, "client"),
            http_listener(self.http, "replication"),
        ]
        if server_directory.environment.release.dialect != "current":
            self._ports.append(self.replication)
            listeners.append(listener(self.replication, "replication"))
        files = [
            server_directory.shared(),
            server_directory.write(
                "main.yaml",
                {
                    "listeners": listeners,
                    "pid_file": str(server_directory.directory / "main.pid"),
                    "log_config": str(server_directory.log_config("main")),
                },
            ),
        ]
        self.process = server_directory.start("main", "synapse.app.homeserver", files)

    def ready(self) -> None:
        """Wait until it listens on all its ports.

        :raises ProcessEnded: :raises NotInTime:
        """
        for port in self._ports:
            self.process.listens_on(port)


class SynapseWorker:
    """A real worker for clients, which follows the given master.

    :param master: port of the line protocol
    :param http: port of the master's HTTP replication
    :ivar metrics: port of its metrics listener
    """

    def __init__(
        self, server_directory: ServerDirectory, name: str, master: int, http: int
    ) -> None:
        self.server_directory = server_directory
        self.name = name
        client, self.metrics = free_ports(2)
        listeners = [
            http_listener(client, "client"),
            listener(self.metrics, "metrics"),
        ]
        release = server_directory.environment.release
        files = [
            server_directory.shared(),
            server_directory.write(
                f"{name}.yaml",
                {
                    "worker_app": release.worker_app,
                    "worker_name": name,
                    "worker_replication_host": LOOPBACK,
                    "worker_replication_port": master,
                    "worker_replication_http_port": http,
                    "worker_main_http_uri": f"http://{LOOPBACK}:{http}",
                    "worker_listeners": listeners,
                    "worker_pid_file": str(server_directory.directory / f"{name}.pid"),
                    "worker_log_config": str(server_directory.log_config(name)),
                },
            ),
        ]
        self.process = server_directory.start(name, release.worker_app, files)

    def ready(self) -> None:
        """Wait until it listens on its metrics port.

        :raises ProcessEnded: :raises NotInTime:
        """
        self.process.listens_on(self.metrics)


def create_template_database(
    environment: Environment, databases: Databases, directory: Path
) -> None:
    """Create the template database of a release, which its main process fills when it starts."""
    database = databases.empty(environment.release.database)
    server_directory = ServerDirectory(
        environment, directory, "virgin.example", databases.arguments(database)
    )
    main = SynapseMain(server_directory)
    with main.process:
        main.ready()


def listener(port: int, kind: str) -> dict[str, Any]:
    """The configuration of a listener on loopback."""
    return {"port": port, "bind_addresses": [LOOPBACK], "type": kind}


def http_listener(port: int, resource: str) -> dict[str, Any]:
    """The configuration of an HTTP listener on loopback."""
    return {
        **listener(port, "http"),
        "tls": False,
        "x_forwarded": False,
        "resources": [{"names": [resource], "compress": False}],
    }
