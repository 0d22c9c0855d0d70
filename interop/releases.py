"""The releases of Synapse that are tested, and the relevant differences between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from synrepl.streams.definition import Generation

#: A rate limit that is never reached.
MUCH = {"per_second": 100_000, "burst_count": 100_000}

_REQUIREMENTS = Path(__file__).parent / "requirements"


@dataclass(frozen=True, slots=True, eq=False)
class Release:
    """One release.

    :ivar python: the version of CPython that it needs
    :ivar dialect: ``current`` is spoken over Redis, the others over TCP
    :ivar listener: what of our listener has to be set for its workers
    :ivar worker_app: the module of its worker for clients
    :ivar shared: what its processes want to find in the configuration they share
    """

    version: str
    python: tuple[int, int]
    dialect: Literal["legacy", "transitional", "modern", "current"]
    generation: Generation
    worker_app: str
    shared: Mapping[str, Any]
    listener: Mapping[str, str] = field(default_factory=dict)

    @property
    def asks_by_token(self) -> bool:
        """Its workers ask for each stream from a token on; later ones ask for positions."""
        return self.dialect == "legacy"

    @property
    def name(self) -> str:
        """As a part of names of databases and workers."""
        return "v" + self.version.replace(".", "_")

    @property
    def requirements(self) -> Path:
        """The requirements file for pip."""
        return _REQUIREMENTS / f"{self.version}.txt"

    @property
    def database(self) -> str:
        """The name of the database that holds its schema, and nothing else."""
        return f"virgin_{self.name}"

    def __str__(self) -> str:
        return self.version


# A main process hands its federation traffic to a sender by the stream of that name.
_SENDS_ELSEWHERE = {"send_federation": False, "start_pushers": False}
_SENDERS = {"federation_sender_instances": ["sender1"], "pusher_instances": ["pusher1"]}

#: Written without instance names, ``REPLICATE <stream> <token>``; ``account_data`` with content.
OLDEST = Release(
    "1.0.0",
    (3, 8),
    "legacy",
    Generation.OLDEST,
    "synapse.app.synchrotron",
    _SENDS_ELSEWHERE,
    {"legacy_rows": "oldest"},
)

#: As before, without content.
LEGACY = Release(
    "1.11.1",
    (3, 8),
    "legacy",
    Generation.LEGACY,
    "synapse.app.synchrotron",
    _SENDS_ELSEWHERE,
)

#: A bare ``REPLICATE``, instance names, one token in POSITION.
TRANSITIONAL = Release(
    "1.20.1",
    (3, 8),
    "transitional",
    Generation.TRANSITIONAL,
    "synapse.app.generic_worker",
    _SENDERS,
    {"dialect": "transitional"},
)

#: The same, two tokens in POSITION.
MODERN = Release(
    "1.43.0",
    (3, 9),
    "modern",
    Generation.MODERN,
    "synapse.app.generic_worker",
    _SENDERS,
)

#: Its processes hear each other over Redis only.
CURRENT = Release(
    "1.163.2",
    (3, 11),
    "current",
    Generation.CURRENT,
    "synapse.app.generic_worker",
    {
        **_SENDERS,
        "rc_invites": {"per_room": MUCH, "per_user": MUCH, "per_issuer": MUCH},
        "rc_joins_per_room": MUCH,
        "rc_presence": {"per_user": MUCH},
        "rc_room_creation": MUCH,
    },
)

#: The releases that speak over TCP.
RELEASES = (OLDEST, LEGACY, TRANSITIONAL, MODERN)

EVERY_RELEASE = (*RELEASES, CURRENT)
