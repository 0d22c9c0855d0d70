"""The releases of Synapse that are met, and what differs between them as far as this goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from synrepl.streams.definition import Generation

#: A rate limit that nobody meets.
MUCH = {"per_second": 100_000, "burst_count": 100_000}

_REQUIREMENTS = Path(__file__).parent / "requirements"


@dataclass(frozen=True, slots=True, eq=False)
class Release:
    """One release.

    :ivar python: the version of CPython that it needs
    :ivar dialect: ``current`` is spoken over Redis, the others over TCP
    :ivar worker_app: the module of its worker for clients
    :ivar shared: what its processes want to find in the configuration they share
    """

    version: str
    python: tuple[int, int]
    dialect: Literal["legacy", "modern", "current"]
    generation: Generation
    worker_app: str
    shared: Mapping[str, Any]

    @property
    def requirements(self) -> Path:
        """What pip installs."""
        return _REQUIREMENTS / f"{self.version}.txt"

    @property
    def database(self) -> str:
        """The name of the database that holds its schema, and nothing else."""
        return "virgin_" + self.version.replace(".", "_")

    def __str__(self) -> str:
        return self.version


#: Written without instance names: ``REPLICATE <stream> <token>``.
LEGACY = Release(
    "1.11.1",
    (3, 8),
    "legacy",
    Generation.LEGACY,
    "synapse.app.synchrotron",
    # A main process hands its federation traffic to a sender by the stream of that name.
    {"send_federation": False, "start_pushers": False},
)

#: A bare ``REPLICATE``, instance names, two tokens in POSITION.
MODERN = Release(
    "1.43.0",
    (3, 9),
    "modern",
    Generation.MODERN,
    "synapse.app.generic_worker",
    {"federation_sender_instances": ["sender1"], "pusher_instances": ["pusher1"]},
)

#: Its processes hear each other over Redis only.
CURRENT = Release(
    "1.163.2",
    (3, 11),
    "current",
    Generation.CURRENT,
    "synapse.app.generic_worker",
    {
        "federation_sender_instances": ["sender1"],
        "pusher_instances": ["pusher1"],
        "rc_invites": {"per_room": MUCH, "per_user": MUCH, "per_issuer": MUCH},
        "rc_joins_per_room": MUCH,
        "rc_presence": {"per_user": MUCH},
        "rc_room_creation": MUCH,
    },
)

#: Those that speak over TCP.
RELEASES = (LEGACY, MODERN)

EVERY_RELEASE = (*RELEASES, CURRENT)
