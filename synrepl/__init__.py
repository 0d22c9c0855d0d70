"""synrepl: replication for facts kept in Postgres.

Append-only streams with several writers, fanned out to workers over the
replication protocol of Synapse (the Matrix server), old dialect and new.

Everything that an application needs is imported from here. A name is loaded when it is first used,
so ``import synrepl`` costs little, and what is not used is not loaded.
"""

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from synrepl.adapters.caches import cache_registry as cache_registry
    from synrepl.adapters.caches import cached as cached
    from synrepl.adapters.caches import cached_list as cached_list
    from synrepl.caches.cache import BadCache as BadCache
    from synrepl.caches.cache import UnusableKey as UnusableKey
    from synrepl.caches.changes import ChangeIndex as ChangeIndex
    from synrepl.caches.changes import HasChanged as HasChanged
    from synrepl.caches.registry import Caches as Caches
    from synrepl.client.async_client import AsyncClient as AsyncClient
    from synrepl.client.calls import Appended as Appended
    from synrepl.client.client import Client as Client
    from synrepl.client.errors import AppendRefused as AppendRefused
    from synrepl.client.errors import AppendUnconfirmed as AppendUnconfirmed
    from synrepl.client.errors import BadRows as BadRows
    from synrepl.client.errors import BadSecret as BadSecret
    from synrepl.client.errors import BadUrl as BadUrl
    from synrepl.client.errors import SecretRequired as SecretRequired
    from synrepl.client.errors import ServerBusy as ServerBusy
    from synrepl.client.errors import ServerRefused as ServerRefused
    from synrepl.client.errors import ServerUnreachable as ServerUnreachable
    from synrepl.client.errors import ServerUntrusted as ServerUntrusted
    from synrepl.client.errors import UnusableAnswer as UnusableAnswer
    from synrepl.client.errors import WaitExpired as WaitExpired
    from synrepl.core.errors import ConfigError as ConfigError
    from synrepl.core.errors import InputError as InputError
    from synrepl.core.errors import ProtocolError as ProtocolError
    from synrepl.core.errors import Refused as Refused
    from synrepl.core.errors import StorageError as StorageError
    from synrepl.core.errors import SynreplError as SynreplError
    from synrepl.core.errors import Unavailable as Unavailable
    from synrepl.core.names import BadKey as BadKey
    from synrepl.daemon.open_rooms import open_rooms as open_rooms
    from synrepl.services.clients.identity import ClientIdentity as ClientIdentity
    from synrepl.services.clients.identity import ClientLogin as ClientLogin
    from synrepl.services.clients.identity import IClientChecker as IClientChecker
    from synrepl.services.clients.identity import LoginRefused as LoginRefused
    from synrepl.services.coherence.invalidations import BadInvalidation as BadInvalidation
    from synrepl.services.coherence.invalidations import Changed as Changed
    from synrepl.services.coherence.invalidations import ChangeOutbox as ChangeOutbox
    from synrepl.services.coherence.invalidations import Changes as Changes
    from synrepl.services.handler_interfaces import IHandler as IHandler
    from synrepl.services.handler_interfaces import ITransactionalHandler as ITransactionalHandler
    from synrepl.services.handlers import Access as Access
    from synrepl.services.handlers import Batch as Batch
    from synrepl.services.handlers import Handler as Handler
    from synrepl.services.handlers import SyncingUsers as SyncingUsers
    from synrepl.services.handlers import TransactionalHandler as TransactionalHandler
    from synrepl.services.rooms.handlers import RoomEvent as RoomEvent
    from synrepl.services.rooms.handlers import RoomHandler as RoomHandler
    from synrepl.services.rooms.handlers import TransactionalRoomHandler as TransactionalRoomHandler
    from synrepl.services.rooms.store import RoomStore as RoomStore
    from synrepl.services.sending.commands import BadCommand as BadCommand
    from synrepl.services.sending.commands import CommandNotInDialect as CommandNotInDialect
    from synrepl.services.sending.commands import Commands as Commands
    from synrepl.services.sending.outgoing_commands import TooManyUnsent as TooManyUnsent
    from synrepl.services.waiting.wait_for import WaitTimedOut as WaitTimedOut
    from synrepl.storage.database import CommitUnknown as CommitUnknown
    from synrepl.storage.database import Database as Database
    from synrepl.storage.database import Isolation as Isolation
    from synrepl.storage.database import QueryFailed as QueryFailed
    from synrepl.storage.database import Transaction as Transaction
    from synrepl.storage.database import UniqueViolation as UniqueViolation
    from synrepl.storage.rooms.reading.event_access import EventCopy as EventCopy
    from synrepl.storage.rooms.reading.event_access import EventInOtherRoom as EventInOtherRoom
    from synrepl.storage.rooms.reading.event_access import EventIsOutlier as EventIsOutlier
    from synrepl.storage.rooms.reading.event_access import EventNotStored as EventNotStored
    from synrepl.storage.rooms.reading.event_access import EventRejected as EventRejected
    from synrepl.storage.rooms.reading.event_access import PartialEvent as PartialEvent
    from synrepl.storage.rooms.reading.explanations import AuthExplanation as AuthExplanation
    from synrepl.storage.rooms.reading.explanations import RefusalExplanation as RefusalExplanation
    from synrepl.storage.rooms.reading.explanations import StateExplanation as StateExplanation
    from synrepl.storage.rooms.reading.explanations import (
        VisibilityExplanation as VisibilityExplanation,
    )
    from synrepl.storage.rooms.reading.graph_slice import GraphEvent as GraphEvent
    from synrepl.storage.rooms.reading.messages import Messages as Messages
    from synrepl.storage.rooms.reading.messages import ServedEvents as ServedEvents
    from synrepl.storage.rooms.reading.room_overview import RoomEnds as RoomEnds
    from synrepl.storage.rooms.reading.room_overview import RoomFigures as RoomFigures
    from synrepl.storage.rooms.reading.room_overview import RoomMember as RoomMember
    from synrepl.storage.rooms.reading.state_reading import StateChange as StateChange
    from synrepl.storage.rooms.states.state_groups import CorruptState as CorruptState
    from synrepl.storage.rooms.tables.events import CorruptEvent as CorruptEvent
    from synrepl.storage.rooms.tables.events import MissingJson as MissingJson
    from synrepl.storage.rooms.tables.numbers import UnknownRoom as UnknownRoom
    from synrepl.storage.rooms.visibility.pages import PageOrder as PageOrder
    from synrepl.storage.rooms.visibility.pages import PageRequest as PageRequest
    from synrepl.storage.store import DatabaseAway as DatabaseAway
    from synrepl.streams.catalogue import UnknownStream as UnknownStream
    from synrepl.streams.definition import Fact as Fact
    from synrepl.streams.effects import Expansion as Expansion
    from synrepl.streams.effects import Invalidates as Invalidates
    from synrepl.streams.effects import Marks as Marks
    from synrepl.streams.effects import columns_key as columns_key
    from synrepl.streams.row import Row as Row
    from synrepl.wire.commands import ClearUserSync as ClearUserSync
    from synrepl.wire.commands import Command as Command
    from synrepl.wire.commands import FederationAck as FederationAck
    from synrepl.wire.commands import InvalidateCache as InvalidateCache
    from synrepl.wire.commands import RemoteServerUp as RemoteServerUp
    from synrepl.wire.commands import RemovePusher as RemovePusher
    from synrepl.wire.commands import UserIp as UserIp
    from synrepl.wire.commands import UserSync as UserSync
else:
    from synrepl.core.lazy import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(
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
            "synrepl.daemon.open_rooms": ("open_rooms",),
            "synrepl.services.clients.identity": (
                "ClientIdentity",
                "ClientLogin",
                "IClientChecker",
                "LoginRefused",
            ),
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
            "synrepl.services.rooms.handlers": (
                "RoomEvent",
                "RoomHandler",
                "TransactionalRoomHandler",
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
            "synrepl.storage.rooms.reading.event_access": (
                "EventCopy",
                "EventInOtherRoom",
                "EventIsOutlier",
                "EventNotStored",
                "EventRejected",
                "PartialEvent",
            ),
            "synrepl.storage.rooms.reading.explanations": (
                "AuthExplanation",
                "RefusalExplanation",
                "StateExplanation",
                "VisibilityExplanation",
            ),
            "synrepl.storage.rooms.reading.graph_slice": ("GraphEvent",),
            "synrepl.storage.rooms.reading.messages": ("Messages", "ServedEvents"),
            "synrepl.storage.rooms.reading.room_overview": (
                "RoomEnds",
                "RoomFigures",
                "RoomMember",
            ),
            "synrepl.storage.rooms.reading.state_reading": ("StateChange",),
            "synrepl.storage.rooms.states.state_groups": ("CorruptState",),
            "synrepl.storage.rooms.tables.events": ("CorruptEvent", "MissingJson"),
            "synrepl.storage.rooms.tables.numbers": ("UnknownRoom",),
            "synrepl.storage.rooms.visibility.pages": ("PageOrder", "PageRequest"),
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
    __all__ += ["__version__"]
