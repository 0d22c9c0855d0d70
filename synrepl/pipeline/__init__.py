"""The data pipeline: streams into Spark and into a lake, and jobs over them.

Requires the extra ``synrepl[spark]``. Import what your own queries need from here; a name is loaded
when it is first used.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from synrepl.pipeline.datasource import register as register
    from synrepl.pipeline.lake.named_tables import create_views as create_views
    from synrepl.pipeline.rooms.compaction import compact_groups as compact_groups
    from synrepl.pipeline.rooms.divergence import diverging_rooms as diverging_rooms
    from synrepl.pipeline.rooms.groups.applying import apply_compaction as apply_compaction
    from synrepl.pipeline.rooms.growth import room_growth as room_growth
    from synrepl.pipeline.rooms.reading.open import open_rooms as open_rooms
    from synrepl.pipeline.rooms.state_at_every_event import (
        state_at_every_event as state_at_every_event,
    )
    from synrepl.pipeline.rooms.state_groups import check_groups as check_groups
    from synrepl.pipeline.rooms.states_in_lake import states_in_lake as states_in_lake
    from synrepl.pipeline.rooms.tables import RoomFrames as RoomFrames
    from synrepl.pipeline.rooms.verify import VerifyOptions as VerifyOptions
    from synrepl.pipeline.rooms.verify import verify_rooms as verify_rooms
    from synrepl.pipeline.rooms.visibility import visible_events as visible_events
    from synrepl.pipeline.source.progress import tokens_behind as tokens_behind
    from synrepl.pipeline.views.by_key import changes_by_key as changes_by_key
    from synrepl.pipeline.views.by_key import latest_by_key as latest_by_key
    from synrepl.pipeline.views.follow import upsert_into as upsert_into
else:
    from synrepl.core.lazy import lazy_names

    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "synrepl.pipeline.datasource": ("register",),
            "synrepl.pipeline.lake.named_tables": ("create_views",),
            "synrepl.pipeline.rooms.groups.applying": ("apply_compaction",),
            "synrepl.pipeline.rooms.compaction": ("compact_groups",),
            "synrepl.pipeline.rooms.divergence": ("diverging_rooms",),
            "synrepl.pipeline.rooms.growth": ("room_growth",),
            "synrepl.pipeline.rooms.reading.open": ("open_rooms",),
            "synrepl.pipeline.rooms.state_at_every_event": ("state_at_every_event",),
            "synrepl.pipeline.rooms.state_groups": ("check_groups",),
            "synrepl.pipeline.rooms.states_in_lake": ("states_in_lake",),
            "synrepl.pipeline.rooms.tables": ("RoomFrames",),
            "synrepl.pipeline.rooms.verify": ("VerifyOptions", "verify_rooms"),
            "synrepl.pipeline.rooms.visibility": ("visible_events",),
            "synrepl.pipeline.source.progress": ("tokens_behind",),
            "synrepl.pipeline.views.by_key": ("changes_by_key", "latest_by_key"),
            "synrepl.pipeline.views.follow": ("upsert_into",),
        },
    )
