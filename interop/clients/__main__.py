"""``python -m interop.clients [--write] [PART ...]``."""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from interop.clients import browser_client, commander, conversation, sliding_client
from interop.clients.deployment import ClientDeployment
from interop.clients.environments import ClientEnvironments
from interop.report import Section, render
from interop.synrepl_processes import REPOSITORY
from synrepl import __version__
from synrepl.core.errors import SynreplError

#: Names a directory that keeps what is installed.
DIRECTORY = "SYNREPL_CLIENTS_DIR"

PARTS = NIO, COMMANDER, BROWSER, SLIDING = "nio", "commander", "browser", "sliding"

_REPORT = REPOSITORY / "docs" / "clients.md"
_PICTURES = REPOSITORY / "docs"

_HEAD = """\
# Real Matrix clients

Made by `python -m interop.clients --write` (or `tox -e clients -- --write`), which installs published clients, starts a
master and two workers as `synrepl init --rooms` configures them, and ends with status 1 when anything below does not
hold. It needs `npm` and Chromium. `SYNREPL_CLIENTS_DIR` names a directory that keeps what is installed; everything else is
made anew each time. A part can be run alone: `python -m interop.clients nio`."""


def main(arguments: list[str]) -> int:
    """Run the parts, print the report; 1 when something does not hold, 2 when it cannot be shown."""
    parser = argparse.ArgumentParser("python -m interop.clients", description="Run real clients.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"one of {', '.join(PARTS)}")
    parser.add_argument("--write", action="store_true", help="write docs/clients.md")
    options = parser.parse_args(arguments)
    if not set(options.parts) <= set(PARTS):
        parser.error(f"a part is one of {', '.join(PARTS)}")
    parts = options.parts or PARTS
    try:
        with ExitStack() as stack:
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            scratch.chmod(0o755)  # PostgreSQL's user has to get to its data
            kept = os.environ.get(DIRECTORY)
            environments = ClientEnvironments(Path(kept).absolute() if kept else scratch / "made")
            environments.install()
            pictures = _PICTURES if options.write else scratch
            with ClientDeployment(scratch / "server") as deployment:
                sections: list[Section] = []
                if NIO in parts:
                    sections.append(conversation.section(environments, deployment))
                if COMMANDER in parts:
                    directory = scratch / "commander"
                    sections.append(commander.section(environments, deployment, directory))
                if BROWSER in parts:
                    sections.append(browser_client.section(environments, deployment, pictures))
                if SLIDING in parts:
                    sections.append(sliding_client.section(environments, deployment, pictures))
            text = render(_facts(environments), sections, _HEAD)
    except SynreplError as error:
        print(f"interop.clients: {error}", file=sys.stderr)
        return 2
    print(text)
    if options.write:
        _REPORT.write_text(text, encoding="utf-8")
    return 0 if all(each.holds for each in sections) else 1


def _facts(environments: ClientEnvironments) -> Mapping[str, str]:
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
        **environments.versions(),
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
