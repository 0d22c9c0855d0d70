"""The two servers of a run: their configurations, keys, certificates, ports and processes in one directory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from signal import SIGTERM
from typing import Any

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from signedjson.types import SigningKey

from synrepl.cli.demo.deployment import DaemonSubprocess, NotEmpty, free_ports
from synrepl.cli.demo.progress import StatusPoller
from synrepl.cli.init import new_users
from synrepl.cli.running import run_in_thread
from synrepl.core.clock import Scheduler
from synrepl.core.errors import Unavailable
from synrepl.daemon.config.client_streams import CLIENT_STREAMS
from synrepl.daemon.config.config import LOOPBACK
from synrepl.daemon.config.secret import read_secret
from synrepl.daemon.config.signing_key import new_signing_key, parse_signing_key
from synrepl.storage.launch.child import Account, guarded
from synrepl.storage.rooms.partial.swap_facts import RESYNC_STREAMS
from synrepl.storage.rooms.persisting.batch_facts import ROOM_STREAMS

#: The user of each server who talks in the room.
SPEAKER = "alice"

#: How long a certificate is valid.
_VALID = timedelta(days=1)

_POLL_INTERVAL_S = 0.05


class CommandFailed(Unavailable):
    """'synrepl {command}' ended with exit code {code}: {error}"""


class DemoServer:
    """A Matrix server with an embedded database: one master.

    :param label: what it is called where its name is not needed
    :param directory: of its files; does not exist yet
    :param ports: free ones
    :ivar name: its server name
    """

    def __init__(
        self, scheduler: Scheduler, label: str, directory: Path, ports: Iterator[int]
    ) -> None:
        self.label = label
        self._directory = directory
        self._port, self._http_port, self.client_port = next(ports), next(ports), next(ports)
        self._postgres_port = next(ports)
        self.name = f"localhost:{self._port}"
        self._users = new_users((SPEAKER,), self.name)
        self._scheduler = scheduler
        log = directory / "master.log"
        self.process = DaemonSubprocess(scheduler, "master", label, self.config, log)
        self._poller = StatusPoller(self.url)

    @property
    def url(self) -> str:
        """The URL of its status page."""
        return f"http://{LOOPBACK}:{self._http_port}"

    @property
    def config(self) -> Path:
        """The configuration file."""
        return self._directory / "master.yaml"

    @property
    def certificate(self) -> Path:
        """The file with its certificate."""
        return self._directory / "certificate.pem"

    @property
    def user_id(self) -> str:
        """The user who talks."""
        return f"@{SPEAKER}:{self.name}"

    @property
    def password(self) -> str:
        """The user's password."""
        return self._users[self.user_id]

    @property
    def dsn(self) -> str:
        """The DSN of the embedded database; exists while the master runs."""
        return (self._directory / "data" / "postgres.dsn").read_text(encoding="utf-8").strip()

    @property
    def signing_key(self) -> SigningKey:
        """The key with which it signs events."""
        return parse_signing_key(read_secret(self._directory / "signing.key"))

    def write(self, other: DemoServer) -> None:
        """Create the directory and its files.

        :param other: the server whose certificate it trusts
        """
        self._directory.mkdir()
        _let_postgres_enter(self._directory)
        self._write("signing.key", new_signing_key("1").encode())
        self._write("users.yaml", yaml.safe_dump({"users": self._users}).encode())
        certificate, key = _certificate()
        self._write("certificate.pem", certificate)
        self._write("certificate-key.pem", key)
        text = yaml.safe_dump(self._settings(other), sort_keys=False, default_flow_style=None)
        self._write("master.yaml", text.encode())

    def _write(self, name: str, data: bytes) -> None:
        path = self._directory / name
        path.touch(mode=0o600)
        path.write_bytes(data)

    def _settings(self, other: DemoServer) -> dict[str, Any]:
        needed = {each.name for each in (*ROOM_STREAMS, *RESYNC_STREAMS, *CLIENT_STREAMS)}
        return {
            "server_name": self.name,
            "data_dir": "data",
            "database": "embedded",
            "embedded": {"port": self._postgres_port},
            "catalogue": sorted(needed | {"caches"}),
            "http": {"port": self._http_port},
            "rooms": {
                "signing_key": "signing.key",
                "client_api": {"port": self.client_port, "users": "users.yaml"},
                "federation": {
                    "port": self._port,
                    "tls_certificate_path": "certificate.pem",
                    "tls_private_key_path": "certificate-key.pem",
                    "trusted_ca_files": [str(other.certificate.absolute())],
                    "trust_system_authorities": False,
                    "allow_private_addresses": ["127.0.0.0/8", "::1/128"],
                },
            },
        }

    async def start(self, reactor: Any) -> None:
        """Start the master, and wait until it is ready.

        :raises DaemonEnded:
        """
        self.process.start()
        while not await run_in_thread(reactor, self._poller.is_ready):
            self.process.check()
            await self._scheduler.sleep(_POLL_INTERVAL_S)

    async def command(self, reactor: Any, command: str, *arguments: str) -> str:
        """Run a command with this server's configuration; what it prints.

        :param command: such as ``rooms verify``
        :raises CommandFailed:
        """
        line = [*command.split(), "-c", str(self.config.absolute()), *arguments]
        return await run_in_thread(reactor, lambda: _run(line))


def make_servers(scheduler: Scheduler, directory: Path) -> tuple[DemoServer, DemoServer]:
    """Two servers that trust each other, in a directory that has nothing in it.

    :raises NotEmpty:
    """
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise NotEmpty(directory=directory)
    _let_postgres_enter(directory)
    ports = free_ports()
    one = DemoServer(scheduler, "one", directory / "one", ports)
    two = DemoServer(scheduler, "two", directory / "two", ports)
    one.write(two)
    two.write(one)
    return one, two


def _let_postgres_enter(directory: Path) -> None:
    if os.geteuid() == 0:
        # PostgreSQL runs as another user then, who must be able to enter.
        directory.chmod(directory.stat().st_mode | 0o011)


def _run(line: list[str]) -> str:
    """Run a command to its end, which comes no later than that of the demo."""
    command = guarded(
        Account(os.geteuid(), os.getegid(), ""),
        Path(sys.executable),
        ["-m", "synrepl", *line],
        Path.cwd(),
        SIGTERM,
    )
    done = subprocess.run(  # noqa: S603
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, start_new_session=True
    )
    if done.returncode:
        error = (done.stderr or done.stdout).strip()[-1000:]
        raise CommandFailed(command=" ".join(line), code=done.returncode, error=error)
    return done.stdout


def _certificate() -> tuple[bytes, bytes]:
    """A certificate for ``localhost`` that is its own authority, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "synrepl demo")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _VALID)
        .not_valid_after(now + _VALID)
        .add_extension(x509.BasicConstraints(True, None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return (
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )
