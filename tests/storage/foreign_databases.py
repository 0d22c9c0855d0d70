"""Databases of real Synapse servers, and the lines that the same servers sent."""

from __future__ import annotations

import gzip
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import psycopg2

from synrepl.streams.row import Row
from synrepl.streams.rows import RowCodec
from synrepl.streams.synapse import SYNAPSE_STREAMS
from synrepl.testing.postgres import DatabaseTemplate, HasCleanups
from tests.wire.recordings import records

DATA = Path(__file__).parent.parent / "data" / "foreign"

#: The recordings that were made before the tables were taken.
RECORDINGS: Mapping[str, Sequence[str]] = {
    "1.11.1": ("live", "catchup-from0", "live-forks"),
    "1.20.1": ("live",),
    "1.43.0": ("live", "live-forks"),
    "1.163.2": ("redis",),
}

_shared: dict[str, str] = {}

#: By stream and token: what was sent, as (writer, row), each once.
Sent = Mapping[str, Mapping[int, Sequence[tuple[str, Row]]]]


async def foreign_database(version: str, case: HasCleanups | None = None) -> str:
    """The database of one release; its DSN.

    :param case: the test that it is for alone; with None it is shared, to be read only
    """
    if case is not None:
        return await _template(version).copy(case)
    if version not in _shared:
        _shared[version] = await _template(version).copy()
    return _shared[version]


@cache
def _template(version: str) -> DatabaseTemplate:
    async def load(dsn: str) -> None:
        with psycopg2.connect(dsn) as connection, connection.cursor() as cursor:
            cursor.execute("SET session_replication_role = replica")
            for name in ("schema", "tables"):
                cursor.execute(gzip.decompress((DATA / version / f"{name}.sql.gz").read_bytes()))
        connection.close()

    return DatabaseTemplate(load)


def sent(version: str) -> Sent:
    """The rows that a release sent before its tables were taken."""
    codecs = {stream.name: RowCodec(stream) for stream in SYNAPSE_STREAMS}
    found: Any = defaultdict(lambda: defaultdict(list))
    for name in RECORDINGS[version]:
        waiting: dict[tuple[str, str], list[Row]] = defaultdict(list)
        for record in records(version, name):
            command, _, rest = record["line"].partition(" ")
            if command != "RDATA" or record.get("dir", "S") != "S":
                continue
            if version == "1.11.1":
                stream, token, row = rest.split(" ", 2)
                writer = "master"
            else:
                stream, writer, token, row = rest.split(" ", 3)
            batch = waiting[stream, writer]
            batch.append(codecs[stream].decode(row.encode()))
            if token != "batch":
                at = found[stream][int(token)]
                at += [(writer, each) for each in batch if (writer, each) not in at]
                batch.clear()
    return found
