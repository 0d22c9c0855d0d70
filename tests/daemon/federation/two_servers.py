"""Masters of several servers in this process, which reach one another over TLS."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import yaml
from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThread

from synrepl.adapters.caches import make_caches
from synrepl.daemon.assemble.federation import FederationServices
from synrepl.daemon.config.config import load_master, load_worker
from synrepl.daemon.config.signing_key import new_signing_key
from synrepl.daemon.master import MasterProcess, RunningMaster
from synrepl.daemon.worker import RunningWorker, WorkerProcess
from synrepl.federation.requests import FederationRequest
from tests.adapters.federation.authorities import Authority, CertificateFiles
from tests.cli.cli_case import CliCase, free_port, reactor
from tests.daemon.client_api.http_client import HttpMatrixClient
from tests.storage.postgres import MIGRATED

#: The streams of a process that persists rooms.
ROOM_CATALOGUE = (
    *("events", "backfill", "caches"),
    *("un_partial_stated_room", "un_partial_stated_event"),
)


class OneServer:
    """A server: its files, and its processes while they run."""

    def __init__(self, directory: Path, dsn: str, certificate: CertificateFiles) -> None:
        self.directory = directory
        self.dsn = dsn
        self.certificate = certificate
        self.port, self.http, self.clients = free_port(), free_port(), free_port()
        self.name = f"localhost:{self.port}"
        self.process: MasterProcess | None = None
        self.running: RunningMaster | None = None
        self.workers: dict[str, WorkerProcess] = {}
        self._https: dict[str, int] = {}

    @property
    def federation(self) -> FederationServices:
        """What it has to do with other servers."""
        assert self.running is not None
        services = self.running.services.federation_services
        assert services is not None
        return services

    def configure(
        self,
        authorities: Path,
        process: Mapping[str, Any] | None = None,
        users: Sequence[str] = (),
        **settings: Any,
    ) -> Path:
        """Write its configuration, and a signing key if it has none.

        :param process: settings of the master
        :param users: names of users who may log in, with a listener for their clients
        :param settings: of federation
        """
        key = self.directory / "signing.key"
        if not key.exists():
            key.write_text(new_signing_key("1"))
            key.chmod(0o600)
        federation = {
            "port": self.port,
            "tls_certificate_path": str(self.certificate.certificate),
            "tls_private_key_path": str(self.certificate.private_key),
            "trusted_ca_files": [str(authorities)],
            "trust_system_authorities": False,
            "allow_private_addresses": ["127.0.0.0/8", "::1/128"],
            **settings,
        }
        federation = {name: value for name, value in federation.items() if value is not None}
        path = self.directory / "master.yaml"
        rooms: dict[str, Any] = {"signing_key": str(key), "federation": federation}
        if users:
            passwords = {f"@{each}:{self.name}": f"password of {each}" for each in users}
            known = self.directory / "users.yaml"
            known.write_text(_yaml({"users": passwords}))
            known.chmod(0o600)
            rooms["client_api"] = {"port": self.clients, "users": str(known)}
        document = {
            "server_name": self.name,
            "database": self.dsn,
            "catalogue": list(ROOM_CATALOGUE),
            "http": {"port": self.http},
            "rooms": rooms,
            **(process or {}),
        }
        path.write_text(_yaml(document))
        return path

    async def client(self, user: str) -> HttpMatrixClient:
        """A client of a user, who is logged in."""
        client = HttpMatrixClient(self.clients)
        reply = await client.log_in(user, f"password of {user}")
        assert reply.status == 200, reply
        return client

    async def start(self) -> None:
        """Start its master."""
        config = load_master([self.directory / "master.yaml"])
        self.process = MasterProcess(reactor, config, make_caches())
        self.running = await self.process.start()

    async def start_worker(self, name: str, **settings: Any) -> RunningWorker:
        """Start a worker, with the settings that it has in common with the master."""
        master = yaml.safe_load((self.directory / "master.yaml").read_text())
        common = ("server_name", "database", "catalogue", "rooms", "federation_sender_instances")
        document = {
            **{key: master[key] for key in common if key in master},
            "instance_name": name,
            "http": {"port": self._https.setdefault(name, free_port())},
            "master": {
                "port": master["listeners"][0]["port"],
                "http_url": f"http://127.0.0.1:{self.http}",
            },
            **settings,
        }
        federation = document["rooms"]["federation"]
        for key in ("port", "tls_certificate_path", "tls_private_key_path"):
            federation.pop(key)
        path = self.directory / f"{name}.yaml"
        path.write_text(_yaml(document))
        process = self.workers[name] = WorkerProcess(reactor, load_worker([path]), make_caches())
        return await process.start()

    async def stop(self) -> None:
        """Stop its processes that run."""
        while self.workers:
            await self.workers.popitem()[1].stop()
        process, self.process = self.process, None
        if process is not None:
            await process.stop()

    async def ask(self, path: str, worker: str | None = None) -> Any:
        """What the HTTP listener of its master answers, or of a worker."""
        port = self.http if worker is None else self._https[worker]

        def get() -> bytes:
            with urlopen(Request(f"http://127.0.0.1:{port}{path}")) as answer:
                data: bytes = answer.read()
                return data

        return await deferToThread(get)


def _yaml(document: Mapping[str, Any]) -> str:
    # JSON is YAML.
    return "".join(f"{name}: {json.dumps(value)}\n" for name, value in document.items())


class ServersCase(CliCase):
    """Servers that trust the authority of the tests."""

    timeout = 120

    def setUp(self) -> None:
        super().setUp()
        self.authority = Authority(self.directory)

    async def server(self, start: bool = True, **settings: Any) -> OneServer:
        """A new server.

        :param settings: see :meth:`OneServer.configure`
        """
        directory = self.directory / f"server{len(list(self.directory.iterdir()))}"
        directory.mkdir()
        dsn = await MIGRATED.copy(self)
        server = OneServer(directory, dsn, self.authority.certificate(["localhost"]))
        server.configure(self.authority.path, **settings)
        self.addCleanup(lambda: Deferred.fromCoroutine(server.stop()))
        if start:
            await server.start()
        return server

    async def fetch(
        self, asking: OneServer, asked: OneServer, path: str, **more: Any
    ) -> tuple[int, Any]:
        """What one server answers another one."""
        request = FederationRequest("GET", asked.name, path, **more)
        answer = await asking.federation.transport.send(request)
        with suppress(ValueError):
            return answer.status, json.loads(answer.body.read())
        return answer.status, answer.body.read()
