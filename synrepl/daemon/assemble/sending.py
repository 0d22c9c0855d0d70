"""Assembles what sends events and EDUs to other servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from synrepl.core.tokens import Token
from synrepl.daemon.assemble.federation import FederationServices
from synrepl.daemon.assemble.ports import Ports
from synrepl.daemon.config.config import Config
from synrepl.daemon.config.senders import is_sender, senders_of
from synrepl.services.federation.sending.handed_over_edus import HandedOverEdus
from synrepl.services.federation.sending.remote_servers_up import RemoteServersUp
from synrepl.services.federation.sending.sender import FederationSender
from synrepl.services.following.consumer import StartAt, Subscription
from synrepl.services.sending.commands import Commands
from synrepl.storage.database import Database
from synrepl.storage.store import FactStore
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.synapse.device_lists import DEVICE_LISTS
from synrepl.streams.synapse.federation import FEDERATION

#: Under which the handlers of REMOTE_SERVER_UP and of the stream ``federation`` are shown.
SERVERS_UP_NAME, HANDED_OVER_NAME = "servers up", "federation sender"


def assemble_sending(
    config: Config,
    ports: Ports,
    store: FactStore | None,
    database: Database | None,
    catalogue: Catalogue,
    servers: FederationServices | None,
    known: Callable[[], Token],
) -> FederationSender | None:
    """Make what sends to other servers; None in a process that does not.

    :param known: returns the linear position of ``events`` that the process knows
    """
    if servers is None or store is None or database is None or ports.open_session is None:
        return None
    if not is_sender(config):
        return None
    sender = FederationSender(
        ports.scheduler,
        database,
        store,
        ports.open_session,
        config.instance_name,
        senders_of(config),
        config.server_name,
        servers.client,
        servers.transport,
        known,
        ports.log,
        has_device_lists=DEVICE_LISTS in list(catalogue),
    )
    ports.coherence.observers.append(sender.edus)
    return sender


def sending_handlers(
    ports: Ports,
    catalogue: Catalogue,
    servers: FederationServices | None,
    sender: FederationSender | None,
    commands: Callable[[], Commands],
) -> Sequence[Subscription]:
    """The handlers of a process that asks other servers, or sends to them.

    :param commands: returns what sends commands, once it is made
    """
    if servers is None:
        return []
    up = RemoteServersUp(
        servers.transport,
        sender,
        lambda server: commands().remote_server_up(server),
        ports.log,
    )
    if sender is None:
        return []
    found = [Subscription(up, SERVERS_UP_NAME)]
    if FEDERATION in list(catalogue):
        handed_over = HandedOverEdus(ports.scheduler, sender, commands)
        found.append(Subscription(handed_over, HANDED_OVER_NAME, StartAt.EARLIEST))
    return found
