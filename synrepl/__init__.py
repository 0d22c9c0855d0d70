"""synrepl: replication for facts kept in Postgres.

Append-only streams with several writers, fanned out to workers over the
replication protocol of Synapse (the Matrix server), old dialect and new.

Everything that an application needs is imported from here. A name is loaded when it is first used,
so ``import synrepl`` costs little, and what is not used is not loaded.
"""

from typing import TYPE_CHECKING

__version__ = "0.1.0"

__all__ = [
    "Access",
    "AppendRefused",
    "AppendUnconfirmed",
    "Appended",
    "AsyncClient",
    "AuthExplanation",
    "BadCache",
    "BadCommand",
    "BadInvalidation",
    "BadKey",
    "BadRows",
    "BadSecret",
    "BadUrl",
    "Batch",
    "Caches",
    "ChangeIndex",
    "ChangeOutbox",
    "Changed",
    "Changes",
    "ClearUserSync",
    "Client",
    "Command",
    "CommandNotInDialect",
    "Commands",
    "CommitUnknown",
    "ConfigError",
    "CorruptEvent",
    "CorruptState",
    "Database",
    "DatabaseAway",
    "EventCopy",
    "EventInOtherRoom",
    "EventIsOutlier",
    "EventNotStored",
    "EventRejected",
    "Expansion",
    "Fact",
    "FederationAck",
    "GraphEvent",
    "Handler",
    "HasChanged",
    "IHandler",
    "ITransactionalHandler",
    "InputError",
    "InvalidateCache",
    "Invalidates",
    "Isolation",
    "Marks",
    "MissingJson",
    "PartialEvent",
    "ProtocolError",
    "QueryFailed",
    "RefusalExplanation",
    "Refused",
    "RemoteServerUp",
    "RemovePusher",
    "RoomEnds",
    "RoomFigures",
    "RoomMember",
    "RoomStore",
    "Row",
    "SecretRequired",
    "ServerBusy",
    "ServerRefused",
    "ServerUnreachable",
    "ServerUntrusted",
    "StateChange",
    "StateExplanation",
    "StorageError",
    "SyncingUsers",
    "SynreplError",
    "TooManyUnsent",
    "Transaction",
    "TransactionalHandler",
    "Unavailable",
    "UniqueViolation",
    "UnknownRoom",
    "UnknownStream",
    "UnusableAnswer",
    "UnusableKey",
    "UserIp",
    "UserSync",
    "VisibilityExplanation",
    "WaitExpired",
    "WaitTimedOut",
    "__version__",
    "cache_registry",
    "cached",
    "cached_list",
    "columns_key",
]

if TYPE_CHECKING:
    from synrepl.adapters.caches import cache_registry, cached, cached_list
    from synrepl.caches.cache import BadCache, UnusableKey
    from synrepl.caches.changes import ChangeIndex, HasChanged
    from synrepl.caches.registry import Caches
    from synrepl.client.async_client import AsyncClient
    from synrepl.client.calls import Appended
    from synrepl.client.client import Client
    from synrepl.client.errors import (
        AppendRefused,
        AppendUnconfirmed,
        BadRows,
        BadSecret,
        BadUrl,
        SecretRequired,
        ServerBusy,
        ServerRefused,
        ServerUnreachable,
        ServerUntrusted,
        UnusableAnswer,
        WaitExpired,
    )
    from synrepl.core.errors import (
        ConfigError,
        InputError,
        ProtocolError,
        Refused,
        StorageError,
        SynreplError,
        Unavailable,
    )
    from synrepl.core.names import BadKey
    from synrepl.services.coherence.invalidations import (
        BadInvalidation,
        Changed,
        ChangeOutbox,
        Changes,
    )
    from synrepl.services.handler_interfaces import IHandler, ITransactionalHandler
    from synrepl.services.handlers import Access, Batch, Handler, SyncingUsers, TransactionalHandler
    from synrepl.services.rooms.store import RoomStore
    from synrepl.services.sending.commands import BadCommand, CommandNotInDialect, Commands
    from synrepl.services.sending.outgoing_commands import TooManyUnsent
    from synrepl.services.waiting.wait_for import WaitTimedOut
    from synrepl.storage.database import (
        CommitUnknown,
        Database,
        Isolation,
        QueryFailed,
        Transaction,
        UniqueViolation,
    )
    from synrepl.storage.rooms.event_access import (
        EventCopy,
        EventInOtherRoom,
        EventIsOutlier,
        EventNotStored,
        EventRejected,
        PartialEvent,
    )
    from synrepl.storage.rooms.events import CorruptEvent, MissingJson
    from synrepl.storage.rooms.explanations import (
        AuthExplanation,
        RefusalExplanation,
        StateExplanation,
        VisibilityExplanation,
    )
    from synrepl.storage.rooms.graph_slice import GraphEvent
    from synrepl.storage.rooms.numbers import UnknownRoom
    from synrepl.storage.rooms.room_overview import RoomEnds, RoomFigures, RoomMember
    from synrepl.storage.rooms.state_groups import CorruptState
    from synrepl.storage.rooms.state_reading import StateChange
    from synrepl.storage.store import DatabaseAway
    from synrepl.streams.catalogue import UnknownStream
    from synrepl.streams.definition import Fact
    from synrepl.streams.effects import Expansion, Invalidates, Marks, columns_key
    from synrepl.streams.row import Row
    from synrepl.wire.commands import (
        ClearUserSync,
        Command,
        FederationAck,
        InvalidateCache,
        RemoteServerUp,
        RemovePusher,
        UserIp,
        UserSync,
    )
else:
    from synrepl.core.lazy import lazy_names

    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "synrepl.adapters.caches": ("cache_registry", "cached", "cached_list"),
            "synrepl.caches.cache": ("BadCache", "UnusableKey"),
            "synrepl.caches.changes": ("ChangeIndex", "HasChanged"),
            "synrepl.caches.registry": ("Caches",),
            "synrepl.client.async_client": ("AsyncClient",),
            "synrepl.client.calls": ("Appended",),
            "synrepl.client.client": ("Client",),
            "synrepl.client.errors": (
                "AppendRefused",
                "AppendUnconfirmed",
                "BadRows",
                "BadSecret",
                "BadUrl",
                "SecretRequired",
                "ServerBusy",
                "ServerRefused",
                "ServerUnreachable",
                "ServerUntrusted",
                "UnusableAnswer",
                "WaitExpired",
            ),
            "synrepl.core.errors": (
                "ConfigError",
                "InputError",
                "ProtocolError",
                "Refused",
                "StorageError",
                "SynreplError",
                "Unavailable",
            ),
            "synrepl.core.names": ("BadKey",),
            "synrepl.services.coherence.invalidations": (
                "BadInvalidation",
                "ChangeOutbox",
                "Changed",
                "Changes",
            ),
            "synrepl.services.handler_interfaces": ("IHandler", "ITransactionalHandler"),
            "synrepl.services.handlers": (
                "Access",
                "Batch",
                "Handler",
                "SyncingUsers",
                "TransactionalHandler",
            ),
            "synrepl.services.rooms.store": ("RoomStore",),
            "synrepl.services.sending.commands": (
                "BadCommand",
                "CommandNotInDialect",
                "Commands",
            ),
            "synrepl.services.sending.outgoing_commands": ("TooManyUnsent",),
            "synrepl.services.waiting.wait_for": ("WaitTimedOut",),
            "synrepl.storage.database": (
                "CommitUnknown",
                "Database",
                "Isolation",
                "QueryFailed",
                "Transaction",
                "UniqueViolation",
            ),
            "synrepl.storage.rooms.event_access": (
                "EventCopy",
                "EventInOtherRoom",
                "EventIsOutlier",
                "EventNotStored",
                "EventRejected",
                "PartialEvent",
            ),
            "synrepl.storage.rooms.events": ("CorruptEvent", "MissingJson"),
            "synrepl.storage.rooms.explanations": (
                "AuthExplanation",
                "RefusalExplanation",
                "StateExplanation",
                "VisibilityExplanation",
            ),
            "synrepl.storage.rooms.graph_slice": ("GraphEvent",),
            "synrepl.storage.rooms.numbers": ("UnknownRoom",),
            "synrepl.storage.rooms.room_overview": ("RoomEnds", "RoomFigures", "RoomMember"),
            "synrepl.storage.rooms.state_groups": ("CorruptState",),
            "synrepl.storage.rooms.state_reading": ("StateChange",),
            "synrepl.storage.store": ("DatabaseAway",),
            "synrepl.streams.catalogue": ("UnknownStream",),
            "synrepl.streams.definition": ("Fact",),
            "synrepl.streams.effects": ("Expansion", "Invalidates", "Marks", "columns_key"),
            "synrepl.streams.row": ("Row",),
            "synrepl.wire.commands": (
                "ClearUserSync",
                "Command",
                "FederationAck",
                "InvalidateCache",
                "RemoteServerUp",
                "RemovePusher",
                "UserIp",
                "UserSync",
            ),
        },
    )
