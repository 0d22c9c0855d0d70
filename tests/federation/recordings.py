"""Recorded answers and requests of a real server; see ``tests/data/federation/README.md``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "data" / "federation"

#: Versions of the recorded rooms.
VERSIONS = ("10", "11", "12")

#: The name of the server that was recorded.
SERVER = "localhost:19441"


def recording(version: str, name: str) -> Any:
    """A recording, such as ``inbound/make_join``."""
    return json.loads((FOLDER / f"v{version}" / f"{name}.json").read_text(encoding="utf-8"))


def answer(version: str, name: str) -> bytes:
    """The body of a recorded answer."""
    return json.dumps(recording(version, f"inbound/{name}")["body"]).encode()


def keys(version: str) -> Any:
    """The public keys of the servers, by name and key ID."""
    return recording(version, "inbound/keys")
