"""The jobs ``state-groups`` and ``compaction``, with real Spark, over the tables of real Synapses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing

import psycopg2
from pyspark.sql import Row
from twisted.trial.unittest import TestCase

from synrepl.pipeline.rooms import compaction, state_groups
from synrepl.pipeline.rooms.group_checks import GroupFinding
from synrepl.pipeline.rooms.reading.open import open_rooms
from system_tests.pipeline.spark_fixture import shared_session
from tests.storage.foreign_rooms import room_database, rooms_of


def findings(dsn: str) -> list[Row]:
    """The findings of a database, without unreferenced groups."""
    with open_rooms(shared_session(), dsn) as frames:
        rows = state_groups.transform(frames).collect()
    return [row for row in rows if row.finding != GroupFinding.UNREFERENCED]


class GroupsOfRealServers(TestCase):
    async def test_of_all_releases(self) -> None:
        for version in ("1.163.2", "1.43.0", "1.11.1"):
            dsn = await room_database(version, self)
            print(version)
            for row in findings(dsn):
                print(row)
            with open_rooms(shared_session(), dsn) as frames:
                rows = compaction.transform(frames).collect()
            print(len(rows), sum(r.rows_before or 0 for r in rows), sum(r.rows_after or 0 for r in rows), {r.problem for r in rows}, all(r.digest_before==r.digest_after for r in rows))
