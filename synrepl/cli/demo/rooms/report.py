"""The result of a run: as data, and as sentences with a chart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import rich.console
from rich.text import Text

from synrepl.cli.demo.rooms.comparison import ComparedCopies
from synrepl.cli.terminal import bulleted, counted

#: Width of the longest bar.
_BAR = 48

#: Problems that are listed; further ones are only counted.
_MAX_PROBLEMS = 20


class JoinSeconds(NamedTuple):
    """How long everything took.

    :ivar partial: from the request of a client to its answer
    :ivar both_heard: from then until a message of each server has arrived at the other one
    :ivar whole: a join of the same room with its whole state
    :ivar complete: from the request until the room was complete, with the kill in between
    """

    partial: float
    both_heard: float
    whole: float
    complete: float


@dataclass(frozen=True, slots=True)
class RoomsResult:
    """The findings.

    :ivar killed: what the joining server did when it was killed; None if the room was complete by then
    :ivar sent: numbers of events that the users of both servers sent
    :ivar compared: the room that was joined partially, then the other one
    :ivar problems: a sentence each
    """

    members: int
    seconds: JoinSeconds
    killed: str | None
    sent: tuple[int, ...]
    compared: tuple[ComparedCopies, ...]
    problems: Sequence[str]

    def to_json(self) -> dict[str, Any]:
        """The result as data."""
        return {
            "equal": not self.problems,
            "problems": list(self.problems),
            "members": self.members,
            "seconds": {name: round(value, 3) for name, value in self.seconds._asdict().items()},
            "killed": self.killed,
            "sent": list(self.sent),
            "compared": [each.to_json() for each in self.compared],
        }


def rooms_report(result: RoomsResult) -> Iterator[rich.console.RenderableType]:
    """The result for a console."""
    seconds = result.seconds
    yield Text()
    yield Text(f"Seconds until a room of {result.members:,} members can be used, and is complete:")
    yield Text()
    yield from _chart(
        {
            "partial join": seconds.partial,
            "  and a message each way": seconds.both_heard,
            "full join": seconds.whole,
            "complete, with a kill": seconds.complete,
        }
    )
    yield Text()
    if result.problems:
        yield Text(f"{counted(len(result.problems), 'problem')}:", "bold red")
        yield from (Text(f"  {each}") for each in result.problems[:_MAX_PROBLEMS])
        if (more := len(result.problems) - _MAX_PROBLEMS) > 0:
            yield Text(f"  and {more} more (all with --json)")
        yield Text("FAILED: the servers differ.", "bold red")
        return
    partial, whole = result.compared
    yield Text("Verified, at both servers:", "bold green")
    yield from bulleted(
        f"The current state is the same: {partial.state:,} entries, and {whole.state:,} in the room that was"
        " joined with its whole state.",
        f"The states after all {partial.timeline:,} events since the join are the same, entry by entry.",
        f"The verdicts of all {partial.events:,} events that both have are the same, and final.",
        f"Clients see every event of the other server's user once ({result.sent[0]} and {result.sent[1]} were"
        " sent), and the same members.",
        "'synrepl rooms verify' finds nothing wrong in anything that is stored.",
    )
    yield Text("Not verified:", "bold")
    if result.killed is None:
        yield from bulleted(
            "A kill in the middle: the room was complete before. Try more --members."
        )
    yield from bulleted(
        "Servers that lie, and a real Synapse (both have test suites of their own, from a checkout).",
        "A network: both servers were on this machine.",
    )


def _chart(values: dict[str, float]) -> Iterator[Text]:
    longest = max(values.values())
    width = max(map(len, values))
    for name, value in values.items():
        bar = "█" * max(1, round(_BAR * value / longest))
        yield Text(f"{name:<{width}}  {value:6.2f}  {bar}")
