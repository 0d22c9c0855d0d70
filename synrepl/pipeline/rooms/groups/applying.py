"""Applies the result of ``compaction`` to a copy of the database that it was computed of."""

from __future__ import annotations

from functools import partial
from itertools import groupby

from pyspark.sql import DataFrame, Row

from synrepl.driver.blocking import BlockingDatabase
from synrepl.storage.foreign.rooms.compacted import CompactedGroup, store_compacted


def apply_compaction(rows: DataFrame, dsn: str) -> int:
    """Store state groups in a Synapse's database as a compaction has them; the number of groups.

    Each room is a transaction, which first compares what is stored with what the compaction was computed of. The
    rows of one room at a time are in memory. To verify the result, compute the compaction of the copy:
    its ``digest_before`` must be equal in every group.

    :param rows: the result of :func:`.compact_groups`, which is computed once more unless it is kept
    :param dsn: of a *copy*: a Synapse that runs keeps groups in memory, and may be about to refer to one
    :raises GroupsChanged: the groups of a room are not stored as they were; rooms before it are done
    :raises BadDsn: :raises DatabaseAway: :raises DatabaseRefused:
    """
    changed = rows.where("changed").repartition("room_id").sortWithinPartitions("room_id")
    count = 0
    with BlockingDatabase(dsn, "compaction") as database:
        for room_id, some in groupby(changed.toLocalIterator(), key=lambda row: row.room_id):
            groups = list(map(_group, some))
            database.run("compaction", partial(store_compacted, room_id=room_id, groups=groups))
            count += len(groups)
    return count


def _group(row: Row) -> CompactedGroup:
    entries = [(entry.type, entry.state_key, entry.event_id) for entry in row.entries]
    return CompactedGroup(
        row.state_group, row.stored_prev, row.rows_before, row.prev_state_group, entries
    )
