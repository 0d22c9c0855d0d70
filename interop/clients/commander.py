"""matrix-commander: a program built on matrix-nio, run command by command."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from interop.clients.deployment import ClientDeployment
from interop.clients.environments import ClientEnvironments
from interop.report import Section, Table

_TIME_LIMIT_S = 120


class _Commander:
    """The commands of one user.

    :ivar done: the commands and what became of them
    """

    def __init__(self, program: Path, directory: Path) -> None:
        self._program = program
        self._directory = directory
        self.done: list[tuple[str, int]] = []
        directory.mkdir(parents=True)

    def run(self, shown: str, *arguments: str) -> str:
        """Run a command; its output."""
        done = subprocess.run(
            [
                self._program,
                *("--credentials", self._directory / "credentials.json"),
                *("--store", self._directory / "store"),
                "--no-ssl",
                *arguments,
            ],
            cwd=self._directory,
            capture_output=True,
            text=True,
            timeout=_TIME_LIMIT_S,
            check=False,
        )
        self.done.append((shown, done.returncode))
        return done.stdout + done.stderr


def section(
    environments: ClientEnvironments, deployment: ClientDeployment, scratch: Path
) -> Section:
    """Run the commands, with restarts in between."""
    found = Section(
        "matrix-commander",
        (
            "Each command is a process of its own: it logs in from its stored credentials and syncs. The master and both",
            "workers are restarted in between.",
        ),
    )
    (alice, alice_password), (bob, bob_password) = deployment.users.items()
    urls = dict(zip(deployment.users, deployment.urls, strict=True))
    mine, theirs = (_Commander(environments.commander, scratch / name) for name in ("one", "two"))
    for commander, user, password in ((mine, alice, alice_password), (theirs, bob, bob_password)):
        commander.run(
            "--login password",
            *("--login", "password", "--homeserver", urls[user], "--user-login", user),
            *("--password", password, "--device", "commander", "--room-default", "!none:none"),
        )
    room = _room_in(
        mine.run("--room-create", "--room-create", "commanded", "--name", "Orders", "--plain")
    )
    deployment.restart("worker1", kill=True)
    mine.run("--room-invite", "--room-invite", room, "--user", bob)
    deployment.restart("master", kill=False)
    invited = theirs.run("--room-invites list", "--room-invites", "list")
    theirs.run("--room-join", "--room-join", room)
    mine.run("--message", "--message", "Attention!", "--room", room, "--plain")
    deployment.restart("worker2", kill=False)
    tail = theirs.run("--tail 5", "--tail", "5", "--room", room, "--plain")
    joined = theirs.run("--joined-rooms", "--joined-rooms")
    members = theirs.run("--joined-members", "--joined-members", room)
    theirs.run("--set-presence", "--set-presence", "unavailable")
    presence = theirs.run("--get-presence", "--get-presence")
    commands = [("alice", *each) for each in mine.done] + [("bob", *each) for each in theirs.done]
    found.tables.append(("The commands.", Table(("user", "command", "exit status"), commands)))
    found.check("every command ends with 0", not any(status for _, _, status in commands))
    found.check("the invitation is listed", room in invited)
    found.check("the message is shown to the other user", "Attention!" in tail)
    found.check("the room is listed", room in joined)
    found.check("the presence that was set is shown", "unavailable" in presence)
    found.check("both members are listed", alice in members and bob in members)
    return found


def _room_in(output: str) -> str:
    """The room ID in the output of ``--room-create``."""
    words: Sequence[str] = output.replace('"', " ").replace(",", " ").split()
    return next((each for each in words if each.startswith("!")), "!none")
