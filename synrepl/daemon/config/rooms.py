"""The ``rooms`` section of the configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from synrepl.daemon.config import values
from synrepl.daemon.config.client_api import ClientApiConfig
from synrepl.daemon.config.decode import Section, Unfit
from synrepl.daemon.config.federation import FederationConfig
from synrepl.services.rooms.room_queues import DEFAULT_QUEUE_LIMITS, QueueLimits
from synrepl.storage.rooms.persisting.limits import MAX_EXTREMITIES, MAX_RESOLVED, RoomLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomsConfig(Section):
    """The room store. Without this section, a process has none.

    :ivar writers: the processes that persist events; each room is assigned to one of them. The same list
        in every process. ``synrepl rooms writers --set`` sets another one while everything runs
    :ivar max_rooms: maximum number of rooms of which a process keeps something in memory
    :ivar max_waiting: maximum number of events of a room that wait for others
    :ivar max_extremities: number of forward extremities of a room beyond which a new event is refused unless
        it follows one of them
    :ivar max_resolved: maximum number of events in a resolution of states
    :ivar max_queued: maximum number of batches of a room that wait to be persisted
    :ivar max_queued_bytes: maximum size of their events
    :ivar client_api: a listener for Matrix clients; ``true`` for one with the defaults
    :ivar federation: other servers; None for none
    :ivar signing_key: the key with which the server signs its users' events, in signedjson's format; None for
        ``signing.key`` in ``data_dir`` where there is a listener for clients, or federation
    :ivar writer_urls: base URLs of the HTTP listeners of ``writers``, to which this process forwards what they
        have to do; that of the master is ``master.http_url`` unless it is named
    :ivar writer_secret: what these requests carry as ``Authorization: Bearer …``; None for the secret of this
        process's own HTTP listener
    """

    writers: tuple[values.WriterName, ...] = ("master",)
    max_rooms: values.Count = 200
    max_waiting: values.Count = 10_000
    max_extremities: values.Count = MAX_EXTREMITIES
    max_resolved: values.Count = MAX_RESOLVED
    max_queued: values.Count = DEFAULT_QUEUE_LIMITS.batches
    max_queued_bytes: values.Size = DEFAULT_QUEUE_LIMITS.size
    client_api: ClientApiConfig | bool = False
    federation: FederationConfig | None = None
    signing_key: values.SecretFile | None = None
    writer_urls: Mapping[values.WriterName, values.HttpUrl] = field(default_factory=dict)
    writer_secret: values.SecretFile | None = field(
        default=None, metadata={"key": "writer_secret_path"}
    )

    @property
    def limits(self) -> RoomLimits:
        """The limits of each room."""
        return RoomLimits(self.max_waiting, self.max_extremities, self.max_resolved)

    @property
    def queue_limits(self) -> QueueLimits:
        """The limits of what waits to be persisted in each room."""
        return QueueLimits(self.max_queued, self.max_queued_bytes)

    @property
    def clients(self) -> ClientApiConfig | None:
        """The listener for Matrix clients; None without one."""
        if isinstance(self.client_api, ClientApiConfig):
            return self.client_api
        return ClientApiConfig() if self.client_api else None

    def faults(self) -> Iterator[Unfit]:
        if not self.writers:
            yield Unfit(key="writers", reason="name at least one process")
        for name in sorted({name for name in self.writers if self.writers.count(name) > 1}):
            yield Unfit(key="writers", reason=f"{name!r} appears twice")
