"""``python -m interop.federation [--write] [PART ...]``."""

from __future__ import annotations

import argparse
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from interop.databases import Databases
from interop.environments import Environment
from interop.federation import keys, our_rooms, their_rooms
from interop.federation.our_server import OurServer
from interop.federation.synapse_server import SynapseServer
from interop.releases import CURRENT
from interop.report import Section, render
from interop.synapse import create_template_database
from interop.synrepl_processes import REPOSITORY
from synrepl import __version__
from synrepl.core.errors import SynreplError
from tests.adapters.federation.authorities import Authority

#: Names a directory that keeps what is installed.
DIRECTORY = "SYNREPL_INTEROP_DIR"

PARTS = KEYS, OURS, INVITES, LARGE, KILLED = "keys", "ours", "invites", "large", "killed"

#: Members of the large room.
MEMBERS = 1_500

_REPORT = REPOSITORY / "docs" / "federation-interop.md"

_HEAD = """\
# Federation with a real Synapse

Made by `python -m interop.federation --write` (or `tox -e federation-interop -- --write`), which installs
matrix-synapse, starts it as a black box in one process beside a master and a worker that `synrepl init --rooms`
configured, and ends with status 1 when anything below does not hold. They reach each other over TLS on loopback, with
certificates of an authority that both trust. It needs CPython 3.11. `SYNREPL_INTEROP_DIR` names a directory that keeps what
is installed; everything else is made anew each time. A part can be run alone: `python -m interop.federation ours`.

Not shown here: Synapse 1.43.0, which joins without partial state; state groups and verdicts event by event, beside the
current state; a room that completes by another server while the one it was joined through is away; Synapse killed
while it completes a room of ours."""


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
            environment = Environment(CURRENT, directory / f"synapse-{CURRENT}")
            environment.install()
            sections = run(environment, scratch, options.parts or PARTS, options.members)
        text = render(_facts(environment), sections, _HEAD)
    except SynreplError as error:
        print(f"interop.federation: {error}", file=sys.stderr)
        return 2
    print(text)
    if options.write:
        _REPORT.write_text(text, encoding="utf-8")
    return 0 if all(each.holds for each in sections) else 1


def run(
    environment: Environment, scratch: Path, parts: Sequence[str], members: int
) -> Sequence[Section]:
    """Do the parts; their sections of the report."""
    authority = Authority(scratch)
    sections: list[Section] = []
    with ExitStack() as stack:
        databases = stack.enter_context(Databases(scratch / "postgres"))
        create_template_database(environment, databases, scratch / "virgin")
        theirs = stack.enter_context(
            SynapseServer(environment, databases, scratch / "theirs", authority)
        )
        ours = stack.enter_context(OurServer(scratch / "ours", authority))
        if KEYS in parts:
            sections.append(keys.section(ours, theirs, authority.path))
        if OURS in parts:
            sections.append(our_rooms.section(ours, theirs))
        if INVITES in parts:
            sections.append(their_rooms.invitations(ours, theirs))
        if LARGE in parts or KILLED in parts:
            host = theirs.register("host")
            room = host.create_room("Large")
            theirs.add_members(room, range(members))
            if LARGE in parts:
                sections.append(their_rooms.large(ours, theirs, host, room, members))
            if KILLED in parts:
                second = stack.enter_context(OurServer(scratch / "second", authority))
                sections.append(their_rooms.stopped(second, theirs, host, room))
    return sections


def _facts(environment: Environment) -> Mapping[str, str]:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    versions = environment.versions()
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit or "unknown",
        "synrepl": f"{__version__} on CPython {platform.python_version()}",
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        f"Synapse {environment.release}": ", ".join(f"{k} {v}" for k, v in versions.items()),
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
