"""Importing a Synapse's room into the room store, everything verified: speed, and flat memory.

Each event is hashed twice, its signature verified, its verdict and state group computed again and compared,
then it is judged and persisted. CPU time is that of the importing process, with all its threads, and of the
PostgreSQL server, which is both the source and the target.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.child import Child
from benchmarks.database import postgres
from benchmarks.harness import Row, Scale, at_least, at_most

#: Events of the room; and of a long run, unless ``--events`` says otherwise.
_EVENTS, _MANY_EVENTS = 30_000, 200_000

#: The first events, which fill the caches; rates and memory are compared with those after them.
_FIRST = 10_000

#: Events that a second of CPU time must import.
_LEAST = 2_000

#: Memory at the end, as a multiple of that after the first events.
_MOST_GROWTH = 1.2


def run(scale: Scale, events: int | None = None) -> Iterator[Row]:
    """Import a room.

    :param events: by default as many as a usual run takes
    """
    wanted = max(2 * _FIRST, scale.of(_EVENTS)) if events is None else events
    with postgres() as dsn, Child("room_import_process", dsn, wanted, _FIRST) as child:
        first = child.receive()
        last = first
        while "findings" not in (found := child.receive()):
            last = found
    cpu, server, imported, seconds = (
        last[name] - first[name] for name in ("cpu", "server", "events", "seconds")
    )
    yield Row(
        "import, everything verified",
        imported / cpu,
        "events a second of CPU",
        at_least(_LEAST),
        detail=f"{imported / (cpu + server):.0f} with the CPU of PostgreSQL; {imported / seconds:.0f} a second of"
        f" time; {found['findings']:.0f} findings",
        numbers={"events": float(last["events"]), "findings": float(found["findings"])},
    )
    yield Row(
        f"import, memory after {last['events']:,} events",
        last["memory"] / first["memory"],
        f"× after {first['events']:,}",
        at_most(_MOST_GROWTH),
        detail=f"{last['memory']:.0f} against {first['memory']:.0f} MiB",
    )


def run_long(scale: Scale, events: int | None) -> Iterator[Row]:
    """Import a large room."""
    yield from run(scale, max(2 * _FIRST, events or scale.of(_MANY_EVENTS)))
