"""``python -m interop.federation [--write] [PART ...]``."""

from __future__ import annotations

import argparse
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from interop.databases import Databases
from interop.environments import Environment
from interop.federation import keys, our_rooms, resyncs, their_rooms
from interop.federation.gate import Gate
from interop.federation.our_server import OurServer
from interop.federation.synapse_server import SynapseServer
from interop.releases import CURRENT, MODERN, Release
from interop.report import Section, render
from interop.synapse import create_template_database
from interop.synrepl_processes import REPOSITORY
from synrepl import __version__
from synrepl.core.errors import SynreplError
from tests.adapters.federation.authorities import Authority

#: Names a directory that keeps what is installed.
DIRECTORY = "SYNREPL_INTEROP_DIR"

PARTS = KEYS, OURS, THEIRS, INVITES, LARGE, KILLED, AWAY, COMPLETING, OLD = (
    "keys",
    "ours",
    "theirs",
    "invites",
    "large",
    "killed",
    "away",
    "completing",
    "old",
)

#: Members of the large room of theirs, and of that of ours, which has a part of them.
MEMBERS, PART_OF_MEMBERS = 1_500, 3

_REPORT = REPOSITORY / "docs" / "federation-interop.md"

_HEAD = """\
# Federation with a real Synapse

Made by `python -m interop.federation --write` (or `tox -e federation-interop -- --write`), which installs
matrix-synapse, starts it as a black box in one process beside masters and workers that `synrepl init --rooms`
configured, and ends with status 1 when anything below does not hold. They reach each other over TLS on loopback, with
certificates of an authority that all trust; where a server has to be slow, a reverse proxy in front of it holds some
requests. It needs CPython 3.9 and 3.11. `SYNREPL_INTEROP_DIR` names a directory that keeps what
is installed; everything else is made anew each time. A part can be run alone: `python -m interop.federation ours`."""


def main(arguments: list[str]) -> int:
    """Run the parts, print the report; 1 when something does not hold, 2 when it cannot be shown."""
    parser = argparse.ArgumentParser("python -m interop.federation", description="Federate.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"one of {', '.join(PARTS)}")
    parser.add_argument("--write", action="store_true", help="write docs/federation-interop.md")
    parser.add_argument("--members", type=int, default=MEMBERS, help="of the large room")
    options = parser.parse_args(arguments)
    if not set(options.parts) <= set(PARTS):
        parser.error(f"a part is one of {', '.join(PARTS)}")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # end what runs
    try:
        with ExitStack() as stack:
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            scratch.chmod(0o755)  # PostgreSQL's user has to get to its data
            kept = os.environ.get(DIRECTORY)
            directory = Path(kept).absolute() if kept else scratch
            parts = options.parts or PARTS
            environments = {}
            for release in [CURRENT, MODERN] if OLD in parts else [CURRENT]:
                environments[release] = Environment(release, directory / f"synapse-{release}")
                environments[release].install()
            sections = run(environments, scratch, parts, options.members)
        text = render(_facts(environments.values()), sections, _HEAD)
    except SynreplError as error:
        print(f"interop.federation: {error}", file=sys.stderr)
        return 2
    print(text)
    if options.write:
        _REPORT.write_text(text, encoding="utf-8")
    return 0 if all(each.holds for each in sections) else 1


def run(
    environments: Mapping[Release, Environment], scratch: Path, parts: Sequence[str], members: int
) -> Sequence[Section]:
    """Do the parts; their sections of the report."""
    authority = Authority(scratch)
    sections: list[Section] = []
    with Databases(scratch / "postgres") as databases:
        for release, environment in environments.items():
            create_template_database(environment, databases, scratch / f"virgin-{release}")
        servers = _Servers(environments, databases, scratch, authority)
        if not {KEYS, OURS, THEIRS, INVITES}.isdisjoint(parts):
            sections += _direct(servers, CURRENT, parts)
        if not {LARGE, KILLED, AWAY, COMPLETING}.isdisjoint(parts):
            sections += _large(servers, parts, members)
        if OLD in parts:
            sections += _direct(servers, MODERN, (OURS, THEIRS, INVITES))
    return sections


@dataclass(frozen=True, slots=True)
class _Servers:
    """Makes servers, each with a directory and a database of its own."""

    environments: Mapping[Release, Environment]
    databases: Databases
    scratch: Path
    authority: Authority

    def ours(self, name: str, gate: Gate | None = None, notaries: Sequence[str] = ()) -> OurServer:
        return OurServer(self.scratch / name, self.authority, gate, notaries)

    def theirs(
        self,
        name: str,
        release: Release,
        gate: Gate | None = None,
        notaries: Sequence[str] = (),
    ) -> SynapseServer:
        return SynapseServer(
            self.environments[release],
            self.databases,
            self.scratch / name,
            self.authority,
            gate,
            notaries,
        )


def _direct(servers: _Servers, release: Release, parts: Sequence[str]) -> Iterator[Section]:
    """Small rooms of both sides."""
    with (
        servers.theirs(f"theirs-{release}", release) as theirs,
        servers.ours(f"ours-{release}") as ours,
    ):
        if KEYS in parts:
            yield keys.section(ours, theirs, servers.authority.path)
        if OURS in parts:
            yield our_rooms.section(ours, theirs)
        if THEIRS in parts:
            yield their_rooms.joined(ours, theirs)
        if INVITES in parts:
            yield their_rooms.invitations(ours, theirs)


def _large(servers: _Servers, parts: Sequence[str], members: int) -> Iterator[Section]:
    """Large rooms, which are joined partially.

    Each of our servers ends with its part, so that later ones need a notary for the keys of those before.
    """
    with (
        Gate(servers.authority) as gate,
        servers.theirs("first", CURRENT, gate) as first,
        ExitStack() as stack,
    ):
        if not {LARGE, KILLED, AWAY}.isdisjoint(parts):
            host = first.register("host")
            room = host.create_room("Large")
            first.add_members(room, range(members))
        if LARGE in parts:
            with servers.ours("large") as ours:
                yield resyncs.large(ours, first, gate, host, room, members)
        if KILLED in parts:
            with servers.ours("killed", notaries=[first.name]) as ours:
                yield resyncs.stopped(ours, first, gate, host, room)
        if not {AWAY, COMPLETING}.isdisjoint(parts):
            second = stack.enter_context(servers.theirs("second", CURRENT, notaries=[first.name]))
        if AWAY in parts:
            with servers.ours("away", notaries=[second.name]) as ours:
                yield resyncs.another_serves(ours, first, second, gate, host, room)
        if COMPLETING in parts:
            with (
                Gate(servers.authority) as our_gate,
                servers.ours("completing", our_gate) as ours,
            ):
                few = members // PART_OF_MEMBERS
                yield resyncs.completing(ours, first, second, our_gate, few)


def _facts(environments: Iterable[Environment]) -> Mapping[str, str]:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit or "unknown",
        "synrepl": f"{__version__} on CPython {platform.python_version()}",
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        **{
            f"Synapse {each.release}": ", ".join(f"{k} {v}" for k, v in each.versions().items())
            for each in environments
        },
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
