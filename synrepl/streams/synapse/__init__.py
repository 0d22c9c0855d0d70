"""The streams of Synapse, one file each.

Source: the table of streams in ``docs/protocol.md``, checked against recordings of
real servers in the tests.
"""

from __future__ import annotations

from synrepl.streams.synapse.account_data import ACCOUNT_DATA
from synrepl.streams.synapse.backfill import BACKFILL
from synrepl.streams.synapse.caches import CACHES
from synrepl.streams.synapse.device_lists import DEVICE_LISTS
from synrepl.streams.synapse.events import EVENTS
from synrepl.streams.synapse.federation import FEDERATION
from synrepl.streams.synapse.groups import GROUPS
from synrepl.streams.synapse.presence import PRESENCE
from synrepl.streams.synapse.presence_federation import PRESENCE_FEDERATION
from synrepl.streams.synapse.profile_updates import PROFILE_UPDATES
from synrepl.streams.synapse.public_rooms import PUBLIC_ROOMS
from synrepl.streams.synapse.push_rules import PUSH_RULES
from synrepl.streams.synapse.pushers import PUSHERS
from synrepl.streams.synapse.quarantined_media import QUARANTINED_MEDIA
from synrepl.streams.synapse.receipts import RECEIPTS
from synrepl.streams.synapse.sticky_events import STICKY_EVENTS
from synrepl.streams.synapse.tag_account_data import TAG_ACCOUNT_DATA
from synrepl.streams.synapse.thread_subscriptions import THREAD_SUBSCRIPTIONS
from synrepl.streams.synapse.to_device import TO_DEVICE
from synrepl.streams.synapse.typing import TYPING
from synrepl.streams.synapse.un_partial_stated_event import UN_PARTIAL_STATED_EVENT
from synrepl.streams.synapse.un_partial_stated_room import UN_PARTIAL_STATED_ROOM
from synrepl.streams.synapse.user_signature import USER_SIGNATURE

#: In the order in which real 1.11 and 1.43 servers announce their positions,
#: then those that came later.
SYNAPSE_STREAMS = (
    EVENTS,
    BACKFILL,
    PRESENCE,
    PRESENCE_FEDERATION,
    TYPING,
    RECEIPTS,
    PUSH_RULES,
    PUSHERS,
    CACHES,
    PUBLIC_ROOMS,
    DEVICE_LISTS,
    TO_DEVICE,
    FEDERATION,
    TAG_ACCOUNT_DATA,
    ACCOUNT_DATA,
    GROUPS,
    USER_SIGNATURE,
    STICKY_EVENTS,
    THREAD_SUBSCRIPTIONS,
    UN_PARTIAL_STATED_ROOM,
    UN_PARTIAL_STATED_EVENT,
    QUARANTINED_MEDIA,
    PROFILE_UPDATES,
)
