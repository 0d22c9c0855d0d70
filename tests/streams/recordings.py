"""Lines of recorded real servers; the formats are in ``tests/data/captures/README.md``."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

CAPTURES = Path(__file__).parent.parent / "data" / "captures"

#: Traffic of real servers among themselves: no scripted peers, no invalid input.
TRAFFIC = ("live*", "longrow.*", "catchup*", "worker-*[0-9].*", "worker-*-reconnect.*", "redis.*")


def traffic(version: str) -> list[Path]:
    """The captures of one version."""
    folder = CAPTURES / version
    return sorted(path for pattern in TRAFFIC for path in folder.glob(pattern))


def commands(path: Path, name: str) -> Iterator[str]:
    """The arguments of the command ``name``, for each such line that a server sent."""
    with gzip.open(path, "rt", encoding="utf-8", errors="surrogateescape") as capture:
        for text in capture:
            if f'"line": "{name} ' not in text:
                continue
            record = json.loads(text)
            if record.get("dir", "S") == "S":
                yield record["line"].removeprefix(f"{name} ")


def announced(path: str) -> list[str]:
    """The streams of the POSITIONs in a capture, as first seen."""
    return list(dict.fromkeys(rest.split(" ")[0] for rest in commands(CAPTURES / path, "POSITION")))
