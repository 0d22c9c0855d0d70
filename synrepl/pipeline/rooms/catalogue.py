"""The catalogue of jobs over rooms."""

from __future__ import annotations

from synrepl.pipeline.rooms.spark_room_job import SparkRoomJob
from synrepl.pipeline.rooms.state_at_every_event import STATE_AT_EVERY_EVENT
from synrepl.pipeline.rooms.verify import VERIFY_ROOMS

ROOM_JOBS: tuple[SparkRoomJob, ...] = (
    STATE_AT_EVERY_EVENT,
    VERIFY_ROOMS,
)
