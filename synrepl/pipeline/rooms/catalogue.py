"""The catalogue of jobs over rooms."""

from __future__ import annotations

from synrepl.pipeline.rooms.compaction import COMPACTION
from synrepl.pipeline.rooms.divergence import DIVERGENCE
from synrepl.pipeline.rooms.growth import GROWTH
from synrepl.pipeline.rooms.room_events import ROOM_EVENTS
from synrepl.pipeline.rooms.spark_room_job import SparkRoomJob
from synrepl.pipeline.rooms.state_at_every_event import STATE_AT_EVERY_EVENT
from synrepl.pipeline.rooms.state_groups import STATE_GROUPS
from synrepl.pipeline.rooms.verify import VERIFY_ROOMS
from synrepl.pipeline.rooms.visibility import VISIBILITY

ROOM_JOBS: tuple[SparkRoomJob, ...] = (
    COMPACTION,
    DIVERGENCE,
    GROWTH,
    ROOM_EVENTS,
    STATE_AT_EVERY_EVENT,
    STATE_GROUPS,
    VERIFY_ROOMS,
    VISIBILITY,
)
