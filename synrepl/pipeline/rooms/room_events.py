"""Job ``room-events``: events whole, for a copy of them outside the database."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame

from synrepl.pipeline.rooms.spark_room_job import SparkRoomJob
from synrepl.pipeline.rooms.tables import EVENTS, RoomFrames


def room_events(frames: RoomFrames) -> DataFrame:
    """Every event with its JSON, flags and state groups; what was redacted or erased, in that form."""
    return frames.events


def _run(frames: RoomFrames, settings: Mapping[str, str]) -> DataFrame:
    return room_events(frames)


ROOM_EVENTS = SparkRoomJob(
    "room-events",
    "Events whole: their JSON, flags and state groups, with redactions and erasures applied",
    EVENTS.spark,
    _run,
)
