"""The catalogue of jobs over rooms."""

from __future__ import annotations

from synrepl.pipeline.rooms.room_events import ROOM_EVENTS
from synrepl.pipeline.rooms.spark_room_job import SparkRoomJob
from synrepl.pipeline.rooms.state_at_every_event import STATE_AT_EVERY_EVENT
from synrepl.pipeline.rooms.verify import VERIFY_ROOMS

ROOM_JOBS: tuple[SparkRoomJob, ...] = (
    ROOM_EVENTS,
    STATE_AT_EVERY_EVENT,
    VERIFY_ROOMS,
)
