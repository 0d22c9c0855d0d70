"""Assembles what takes in events of other servers, and answers these about rooms."""

from __future__ import annotations

from dataclasses import dataclass

from synrepl.core.clock import Scheduler
from synrepl.daemon.assemble.client_data import ClientDataServices
from synrepl.daemon.assemble.federation import FederationServices
from synrepl.daemon.assemble.ports import Ports
from synrepl.daemon.assemble.rooms import RoomServices
from synrepl.daemon.config.config import Config
from synrepl.services.federation.backfilling import Backfiller, RoomBackfill
from synrepl.services.federation.inbound.admission import InboundAdmission
from synrepl.services.federation.inbound.edu_sinks import NoSinks, StreamSinks
from synrepl.services.federation.inbound.edus import EduReceiver
from synrepl.services.federation.inbound.fetching import EventFetcher
from synrepl.services.federation.inbound.gaps import GapFiller
from synrepl.services.federation.inbound.handover import EventHandover
from synrepl.services.federation.inbound.room_inboxes import RoomInboxes
from synrepl.services.federation.inbound.sweeping import InboundSweeper, RoomWaker
from synrepl.services.federation.inbound.transactions import TransactionReceiver
from synrepl.services.federation.resident.arrivals import MembershipArrivals
from synrepl.services.federation.resident.invites import InviteReceiver, RemoteMemberships
from synrepl.services.federation.resident.reading import ResidentReading
from synrepl.services.federation.resident.room_access import RoomAccess
from synrepl.services.federation.resident.state_streams import StateStreams
from synrepl.services.federation.resident.templates import MembershipTemplates
from synrepl.services.rooms.persister import RoomPersister
from synrepl.services.writing.stream_writer import StreamWriter
from synrepl.storage.database import Database


@dataclass(frozen=True, slots=True)
class RoomJudging:
    """What judges events of other servers, in a process that persists rooms."""

    fetcher: EventFetcher
    gaps: GapFiller
    inboxes: RoomInboxes
    backfill: RoomBackfill


@dataclass(frozen=True, slots=True)
class InboundServices:
    """What takes in events of other servers, and answers these about rooms.

    :ivar judging: None in a process that persists no room
    :ivar memberships: stores memberships in rooms that this server is not in
    """

    admission: InboundAdmission
    receiver: TransactionReceiver
    edus: EduReceiver
    sweeper: InboundSweeper
    judging: RoomJudging | None
    templates: MembershipTemplates
    arrivals: MembershipArrivals
    memberships: RemoteMemberships
    invites: InviteReceiver
    reading: ResidentReading
    streams: StateStreams
    backfiller: Backfiller

    def begin(self, scheduler: Scheduler) -> None:
        """Go on with what is left to do, for as long as the process runs."""
        scheduler.spawn("look for events of other servers", self.sweeper.run())


def assemble_inbound(
    config: Config,
    ports: Ports,
    database: Database | None,
    writer: StreamWriter | None,
    rooms: RoomServices | None,
    client_data: ClientDataServices | None,
    federation: FederationServices | None,
) -> InboundServices | None:
    """Make what takes in events of other servers; None without federation.

    :param writer: the writer of the process's streams; None if it writes none
    """
    if config.rooms is None or database is None or rooms is None or federation is None:
        return None
    scheduler, log, instance = ports.scheduler, ports.log, config.instance_name
    server_name, key = config.server_name, federation.own_keys.signing_key
    persister, verifier = rooms.persister, federation.verifier
    judging = None
    if persister is not None:
        judging = _judging(config, ports, database, persister, federation)
    inboxes = None if judging is None else judging.inboxes
    admission = InboundAdmission(database, server_name, config.rooms.writers)
    waker = RoomWaker(scheduler, ports.forwarder)
    handover = EventHandover(database, inboxes, waker, instance)
    sinks = NoSinks() if client_data is None else _sinks(client_data)
    edus = EduReceiver(scheduler, sinks, admission, log)
    receiver = TransactionReceiver(scheduler, database, admission, verifier, handover, edus)
    sweeper = InboundSweeper(
        scheduler,
        database,
        rooms.writers,
        inboxes,
        None if judging is None else judging.gaps,
        instance,
        log,
    )
    access, streams = RoomAccess(database, admission), StateStreams(database)
    arrivals = MembershipArrivals(
        database, access, verifier, persister, ports.forwarder, instance, server_name, key
    )
    memberships = RemoteMemberships(scheduler, rooms.writers, writer, ports.forwarder, instance)
    backfill = None if judging is None else judging.backfill
    backfiller = Backfiller(scheduler, rooms.writers, backfill, ports.forwarder, instance, log)
    for each in (sweeper, arrivals, memberships, backfiller):
        each.add_actions(ports.actions)
    return InboundServices(
        admission,
        receiver,
        edus,
        sweeper,
        judging,
        MembershipTemplates(scheduler, database, access, server_name, key),
        arrivals,
        memberships,
        InviteReceiver(database, admission, verifier, handover, memberships, server_name, key),
        ResidentReading(database, access, rooms.store, streams, server_name),
        streams,
        backfiller,
    )


def _judging(
    config: Config,
    ports: Ports,
    database: Database,
    persister: RoomPersister,
    federation: FederationServices,
) -> RoomJudging:
    scheduler, log = ports.scheduler, ports.log
    fetcher = EventFetcher(scheduler, database, federation.client, federation.verifier, persister)
    gaps = GapFiller(scheduler, database, fetcher, persister, config.server_name, log)
    inboxes = RoomInboxes(scheduler, database, persister, gaps, log)
    backfill = RoomBackfill(scheduler, database, fetcher, persister, config.server_name)
    return RoomJudging(fetcher, gaps, inboxes, backfill)


def _sinks(data: ClientDataServices) -> StreamSinks:
    return StreamSinks(data.writers, data.typing, data.receipts, data.presence, data.to_device)
