"""The rules of Matrix rooms, without I/O, clock or database.

The public names are in ``__all__``; ``docs/rooms.md`` lists them by subject. The modules below this
package are internal: nothing outside imports them.
"""

from __future__ import annotations

from synrepl.rooms.auth.authorise import authorise
from synrepl.rooms.auth.permission import Permission, permission_of
from synrepl.rooms.auth.selection import auth_event_keys, check_auth_events
from synrepl.rooms.auth.state_independent import check_state_independent
from synrepl.rooms.builder import EventBuilder, EventDraft, NoRoomToBuildIn, RoomIdNeeded
from synrepl.rooms.chains import (
    AuthChains,
    AuthCycle,
    BitSetChains,
    MissingAuthEvent,
    UnknownEvent,
    auth_dependencies,
    chains_of,
)
from synrepl.rooms.checks import Check
from synrepl.rooms.event import BadEvent, Event, event_of, parse_event
from synrepl.rooms.extremities import ForwardExtremities
from synrepl.rooms.hashes import NoCanonicalJson, canonical_json, content_hash, reference_hash
from synrepl.rooms.identifiers import (
    BadIdentifier,
    check_event_id,
    check_new_user_id,
    check_room_id,
    check_server_name,
    check_user_id,
    server_of,
)
from synrepl.rooms.judged import Judged, NoState, NotJudged, OtherRoom, UnknownEvents
from synrepl.rooms.judging import judge, judge_outlier, lookup_judged, lookup_judged_outlier
from synrepl.rooms.lookups import Lookup, LookupRequest, Round, run, run_async
from synrepl.rooms.ordering import (
    EventOrdering,
    SortedEvents,
    StreamOrder,
    topological_ordering,
    topological_sort,
)
from synrepl.rooms.partial import (
    Certainty,
    NotNext,
    PartialJoin,
    PartialRoom,
    PendingResync,
    ResyncChange,
    Resynced,
    ResyncProgress,
    StateAnswer,
    join_partially,
    resync,
)
from synrepl.rooms.receipt import (
    ReceiptResult,
    ReceiptVerdict,
    check_on_receipt,
    content_hash_matches,
)
from synrepl.rooms.redacting import redact
from synrepl.rooms.redaction_effect import RedactionEffect, RedactionReason, effect_of_redaction
from synrepl.rooms.refusal import Refusal
from synrepl.rooms.resolution.resolve import full_conflicted_set, resolve
from synrepl.rooms.resolution.trace import (
    CheckedEvent,
    ResolutionDecision,
    ResolutionStep,
    ResolutionTrace,
)
from synrepl.rooms.resolution_lookups import ResolutionCache, lookup_resolution, lookup_state_after
from synrepl.rooms.room import Room, RoomJudged
from synrepl.rooms.send_join_response import IncompleteAnswer, check_send_join_response
from synrepl.rooms.signatures import (
    BadServerKey,
    Keys,
    ServerKey,
    add_signature,
    check_json_signature,
    check_signatures,
    keys_of,
    server_key,
    sign_event,
    sign_json,
    signing_servers,
)
from synrepl.rooms.snapshot import (
    EventRecord,
    RoomSnapshot,
    StateGroupRecord,
    WaitingRecord,
    load_room,
    snapshot_of,
)
from synrepl.rooms.state import StateEvents, StateKey, StateMap
from synrepl.rooms.state_groups import (
    BrokenChain,
    SkipLevels,
    StateGroup,
    StateGroups,
    StateGroupView,
    UnknownStateGroup,
    lookup_change,
    lookup_plan,
    lookup_states,
    plan_group,
    read_group,
)
from synrepl.rooms.state_map import CompactStateMap, Delta, Slots, delta
from synrepl.rooms.versions import ROOM_VERSIONS, RoomVersion, UnknownRoomVersion, room_version
from synrepl.rooms.view import (
    AuthChainFacts,
    KnownEvents,
    RoomHeads,
    RoomView,
    StateAt,
    StateHandle,
)
from synrepl.rooms.visibility.audience import (
    EventAudience,
    HistoryVisibility,
    audience_of,
    membership_after,
)
from synrepl.rooms.visibility.clients import Viewer, visible_to_user
from synrepl.rooms.visibility.servers import (
    ServerMemberships,
    server_memberships_at,
    visible_to_server,
)
from synrepl.rooms.visibility.verdict import Sight, VisibilityReason, VisibilityVerdict
from synrepl.rooms.waiting import MAX_WAITING, WaitingEvent, WaitingEvents

__all__ = [
    "MAX_WAITING",
    "ROOM_VERSIONS",
    "AuthChainFacts",
    "AuthChains",
    "AuthCycle",
    "BadEvent",
    "BadIdentifier",
    "BadServerKey",
    "BitSetChains",
    "BrokenChain",
    "Certainty",
    "Check",
    "CheckedEvent",
    "CompactStateMap",
    "Delta",
    "Event",
    "EventAudience",
    "EventBuilder",
    "EventDraft",
    "EventOrdering",
    "EventRecord",
    "ForwardExtremities",
    "HistoryVisibility",
    "IncompleteAnswer",
    "Judged",
    "Keys",
    "KnownEvents",
    "Lookup",
    "LookupRequest",
    "MissingAuthEvent",
    "NoCanonicalJson",
    "NoRoomToBuildIn",
    "NoState",
    "NotJudged",
    "NotNext",
    "OtherRoom",
    "PartialJoin",
    "PartialRoom",
    "PendingResync",
    "Permission",
    "ReceiptResult",
    "ReceiptVerdict",
    "RedactionEffect",
    "RedactionReason",
    "Refusal",
    "ResolutionCache",
    "ResolutionDecision",
    "ResolutionStep",
    "ResolutionTrace",
    "ResyncChange",
    "ResyncProgress",
    "Resynced",
    "Room",
    "RoomHeads",
    "RoomIdNeeded",
    "RoomJudged",
    "RoomSnapshot",
    "RoomVersion",
    "RoomView",
    "Round",
    "ServerKey",
    "ServerMemberships",
    "Sight",
    "SkipLevels",
    "Slots",
    "SortedEvents",
    "StateAnswer",
    "StateAt",
    "StateEvents",
    "StateGroup",
    "StateGroupRecord",
    "StateGroupView",
    "StateGroups",
    "StateHandle",
    "StateKey",
    "StateMap",
    "StreamOrder",
    "UnknownEvent",
    "UnknownEvents",
    "UnknownRoomVersion",
    "UnknownStateGroup",
    "Viewer",
    "VisibilityReason",
    "VisibilityVerdict",
    "WaitingEvent",
    "WaitingEvents",
    "WaitingRecord",
    "add_signature",
    "audience_of",
    "auth_dependencies",
    "auth_event_keys",
    "authorise",
    "canonical_json",
    "chains_of",
    "check_auth_events",
    "check_event_id",
    "check_json_signature",
    "check_new_user_id",
    "check_on_receipt",
    "check_room_id",
    "check_send_join_response",
    "check_server_name",
    "check_signatures",
    "check_state_independent",
    "check_user_id",
    "content_hash",
    "content_hash_matches",
    "delta",
    "effect_of_redaction",
    "event_of",
    "full_conflicted_set",
    "join_partially",
    "judge",
    "judge_outlier",
    "keys_of",
    "load_room",
    "lookup_change",
    "lookup_judged",
    "lookup_judged_outlier",
    "lookup_plan",
    "lookup_resolution",
    "lookup_state_after",
    "lookup_states",
    "membership_after",
    "parse_event",
    "permission_of",
    "plan_group",
    "read_group",
    "redact",
    "reference_hash",
    "resolve",
    "resync",
    "room_version",
    "run",
    "run_async",
    "server_key",
    "server_memberships_at",
    "server_of",
    "sign_event",
    "sign_json",
    "signing_servers",
    "snapshot_of",
    "topological_ordering",
    "topological_sort",
    "visible_to_server",
    "visible_to_user",
]
