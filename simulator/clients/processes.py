"""The processes of a simulation of clients: a master and workers, assembled as in the daemons."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from simulator.clock import Process
from simulator.network import Network
from simulator.rooms.process_database import InterruptedProcessDatabase
from simulator.rooms.room_processes import QuietLog, RestartedProcess, RoomSurroundings
from synrepl.adapters.caches import make_caches
from synrepl.adapters.tcp.connection_table import ConnectionLimits
from synrepl.core.errors import SynreplError
from synrepl.daemon.assemble import (
    MasterServices,
    Ports,
    WorkerPorts,
    WorkerServices,
    assemble_master,
    assemble_worker,
    worker_coherence,
)
from synrepl.daemon.assemble.clients import ClientReading
from synrepl.daemon.assemble.rooms import RoomSending, RoomServices
from synrepl.daemon.config.config import (
    AuditCachesConfig,
    ListenerConfig,
    MasterAddress,
    MasterConfig,
    RetentionConfig,
    WorkerConfig,
)
from synrepl.daemon.config.rooms import RoomsConfig
from synrepl.daemon.config.secret import Secret
from synrepl.daemon.replication_listener import listener_factory
from synrepl.services.coherence.coherence import Coherence
from synrepl.services.following.possible_tokens import PossibleTokens
from synrepl.services.forwarding import ForwardingFailed, WriterActions
from synrepl.services.rooms.sending.forwarded_errors import FORWARDED_ERRORS
from synrepl.services.sizes import Sizes
from synrepl.services.sources import CatchUpSources, StorePositions, fetchable_in_order
from synrepl.storage.incarnations import Incarnations
from synrepl.storage.rooms.persisting.batch_facts import ROOM_STREAMS
from synrepl.streams.catalogue import Catalogue

SERVER_NAME = "a"
MASTER = "master"
WORKERS = ("worker1", "worker2")

#: Never used, because stores and databases are ports.
_DSN = Secret("dbname=simulated", "dbname=simulated")

#: Always the same, so that a seed repeats itself.
_SIGNING_KEY = Secret("simulated", "ed25519 1 " + "A" * 43)

_CATALOGUE = Catalogue(ROOM_STREAMS)
_SIZES = Sizes(recheck_s=0.1, slow_recheck_s=1.0)
_FAR_APART_S = 1e9

#: Seconds until a process has a request of another one, at most, and until that one has the answer.
SLOWEST_S = 0.2


class ClientDeployment:
    """All processes with the client API.

    :param network: connects workers to the master
    :ivar processes: by name
    :ivar lost_answers: share of the answers between processes that are lost
    """

    def __init__(
        self, surroundings: RoomSurroundings, network: Network, lost_answers: float
    ) -> None:
        self.network = network
        self.lost_answers = lost_answers
        self.processes: dict[str, ClientApiProcess] = {}
        self.processes[MASTER] = self.master = ClientApiMaster(surroundings, self, MASTER)
        for name in WORKERS:
            self.processes[name] = ClientApiWorker(surroundings, self, name)

    def wake(self, stream: str) -> None:
        """A NOTIFY has arrived at the master."""
        if self.master.is_ready:
            self.master.services.announcer.wake(stream)

    @property
    def are_ready(self) -> bool:
        """Whether all processes run."""
        return all(each.is_ready for each in self.processes.values())


class ClientApiProcess(RestartedProcess):
    """A process that clients may ask.

    :ivar is_ready: whether it has started
    """

    services: MasterServices | WorkerServices

    def __init__(
        self, surroundings: RoomSurroundings, deployment: ClientDeployment, name: str
    ) -> None:
        self._deployment = deployment
        self._log = QuietLog(surroundings.transcript, name)
        self.is_ready = False
        super().__init__(surroundings, name)

    def started(self, process: Process, database: InterruptedProcessDatabase) -> None:
        """Start with nothing in memory."""
        self.is_ready = False
        self.services = self._assemble(process, database)
        process.on_kill(self._not_ready)
        process.spawn("start", self._start(process))

    def _not_ready(self) -> None:
        self.is_ready = False

    async def _start(self, process: Process) -> None:
        try:
            await self._begin(process)
        except SynreplError as error:
            self._surroundings.transcript.add(
                self.name, "cannot start: {kind}", kind=type(error).__name__
            )
            process.kill()
        else:
            self.is_ready = True
            self._surroundings.transcript.add(self.name, "is ready")

    def _assemble(
        self, process: Process, database: InterruptedProcessDatabase
    ) -> MasterServices | WorkerServices:
        raise NotImplementedError

    async def _begin(self, process: Process) -> None:
        raise NotImplementedError

    @property
    def reading(self) -> ClientReading:
        """What it tells clients."""
        assert self.services.reading is not None
        return self.services.reading

    @property
    def rooms(self) -> RoomServices:
        """Its room store."""
        assert self.services.rooms is not None
        return self.services.rooms

    @property
    def sending(self) -> RoomSending:
        """What it does for users."""
        assert self.rooms.sending is not None
        return self.rooms.sending

    def _shared_config(self) -> dict[str, Any]:
        names = (MASTER, *WORKERS)
        return {
            "server_name": SERVER_NAME,
            "instance_name": self.name,
            "database": _DSN,
            "stream_writers": {stream.name: names for stream in ROOM_STREAMS},
            "audit_caches": AuditCachesConfig(every=0.0),
            "rooms": RoomsConfig(writers=names, client_api=True, signing_key=_SIGNING_KEY),
        }

    def _shared_ports(self, process: Process, coherence: Coherence) -> dict[str, Any]:
        return {
            "scheduler": process,
            "log": self._log,
            "coherence": coherence,
            "until_done": _once,
            "sizes": _SIZES,
            "actions": WriterActions(FORWARDED_ERRORS),
            "forwarder": SimulatedForwarder(process, self._deployment),
        }


def _once(step: Any) -> Any:
    """Run a step of a start once: a process that cannot start is started again."""
    return step()


class ClientApiMaster(ClientApiProcess):
    """The master."""

    services: MasterServices

    def _assemble(self, process: Process, database: InterruptedProcessDatabase) -> MasterServices:
        self._listener = ListenerConfig(port=0)
        self._config = MasterConfig(
            **self._shared_config(),
            listeners=(self._listener,),
            retention=RetentionConfig(every=_FAR_APART_S, keep=_FAR_APART_S, max=_FAR_APART_S),
        )
        coherence = Coherence(make_caches(), _CATALOGUE, self._log)
        coherence.check()
        store = self._surroundings.store(process, database)
        ports = Ports(**self._shared_ports(process, coherence))
        return assemble_master(self._config, ports, store, database, _CATALOGUE, ROOM_STREAMS)

    async def _begin(self, process: Process) -> None:
        services = self.services
        await services.take_name()
        await services.begin()
        factory = listener_factory(
            process,
            self._config,
            self._listener,
            services.master,
            ConnectionLimits(),
            services.slices,
        )
        self._deployment.network.listen(process, factory)


class ClientApiWorker(ClientApiProcess):
    """A worker, which follows the master."""

    services: WorkerServices

    def _assemble(self, process: Process, database: InterruptedProcessDatabase) -> WorkerServices:
        config = WorkerConfig(**self._shared_config(), master=MasterAddress(port=1))
        coherence = worker_coherence(config, _CATALOGUE, make_caches(), self._log)
        coherence.check()
        store = self._surroundings.store(process, database)
        order = fetchable_in_order(_CATALOGUE, foreign=False)
        ports = WorkerPorts(
            **self._shared_ports(process, coherence),
            store=store,
            database=database,
            incarnations=Incarnations(),
            source=store,
            catch_up_sources=CatchUpSources(order, store, StorePositions(store)),
            tokens=PossibleTokens(process, store, self._log),
        )
        services = assemble_worker(config, ports, _CATALOGUE, ROOM_STREAMS)
        services.factory.clock = process  # type: ignore[assignment]  # callLater is all it needs
        services.factory.jitter = None  # type: ignore[assignment]  # only the seed decides
        return services

    async def _begin(self, process: Process) -> None:
        services = self.services
        await services.take_names()
        await services.begin()
        services.follow()
        self._deployment.network.connect(process, services.factory)


class SimulatedForwarder:
    """Implements :class:`~synrepl.services.forwarding.ForwardsToWriter` among simulated processes."""

    def __init__(self, process: Process, deployment: ClientDeployment) -> None:
        self._process = process
        self._deployment = deployment

    async def forward(self, writer: str, action: str, argument: Mapping[str, Any]) -> Any:
        """Have a process perform an action."""
        process, deployment = self._process, self._deployment
        sent = json.dumps(argument)
        await process.sleep(process.random() ** 3 * SLOWEST_S)
        target = deployment.processes[writer]
        if not target.is_ready:
            raise ForwardingFailed(writer=writer, error="gone", message="it is not there")
        actions = target.services.ports.actions
        try:
            answer = await target.ask(actions.perform(action, json.loads(sent)))
        except SynreplError as error:
            answer = {"error": type(error).__name__, "message": str(error)}
        await process.sleep(process.random() ** 3 * SLOWEST_S)
        if process.random() < deployment.lost_answers:
            raise ForwardingFailed(writer=writer, error="lost", message="no answer came")
        return actions.result(writer, json.loads(json.dumps(answer)))
