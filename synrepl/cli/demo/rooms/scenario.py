"""The course of a run: from an empty directory to the result."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any
from urllib.parse import quote

from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.cli.configured_database import opened
from synrepl.cli.demo.rooms.clients import DemoClient, Speaker
from synrepl.cli.demo.rooms.comparison import ComparedCopies, compare, read_copy
from synrepl.cli.demo.rooms.members import LargeRoom, write_rooms
from synrepl.cli.demo.rooms.report import JoinSeconds, RoomsResult
from synrepl.cli.demo.rooms.resync_display import ResyncDisplay, resync_words
from synrepl.cli.demo.rooms.servers import make_servers
from synrepl.cli.demo.scenario import Stalled
from synrepl.cli.running import run_in_thread
from synrepl.core import jsons
from synrepl.services.rooms.store import RoomStore
from synrepl.storage.rooms.reading.partial_states import ResyncProgressRow
from synrepl.storage.rooms.tables.partial_rooms import ResyncPhase

#: The server is killed when this share of the missing events is fetched and stored.
KILL_AT = 0.4

#: Seconds without any progress after which a wait is given up.
STALL_TIMEOUT_S = 60.0

_POLL_INTERVAL_S = 0.03


class RoomsScenario:
    """Runs the demo.

    :param directory: empty, or does not exist yet
    :param members: number of members of the room that is joined
    """

    def __init__(self, reactor: Any, directory: Path, members: int, display: ResyncDisplay) -> None:
        self._reactor = reactor
        self._scheduler = TwistedScheduler(reactor)
        self._directory = directory
        self._display = display
        self.one, self.two = self._servers = make_servers(self._scheduler, directory)
        self._clients = [DemoClient(reactor, each) for each in self._servers]
        key = self.one.signing_key
        # The second one is joined with its whole state, for comparison.
        self._room, self._other = [
            LargeRoom(f"!{name}:{self.one.name}", self.one.user_id, members, key)
            for name in ("large", "whole")
        ]
        self._speakers = [
            Speaker(self._scheduler, server, client, self._room.room_id)
            for server, client in zip(self._servers, self._clients, strict=True)
        ]
        self._members = members

    @property
    def room_id(self) -> str:
        """The room that is joined partially."""
        return self._room.room_id

    async def run(self) -> RoomsResult:
        """Run the demo; its processes keep running until :meth:`stop`.

        :raises SynreplError: the run could not be completed
        """
        await self._start()
        began, partial_s = await self._join()
        for speaker in self._speakers:
            speaker.start()
        both_s = await self._until_both_heard(began)
        changing = self._change_the_room()
        killed = await self._until_killed()
        await self._start_again()
        await self._until_complete()
        complete_s = self._scheduler.seconds() - began
        self._display.log(f"the room is complete {complete_s:.1f} s after the join began")
        await changing
        join_id = await self._join_event()
        await self._end_of_conversation(join_id)
        whole_s, other_join = await self._join_whole()
        self._display.log("comparing both servers' states, verdicts and timelines")
        compared = [
            await self._compare(room.room_id, each)
            for room, each in ((self._room, join_id), (self._other, other_join))
        ]
        problems = [
            *(problem for each in compared for problem in each.problems),
            *await self._timelines(join_id),
            *await self._verified(),
        ]
        return RoomsResult(
            self._members,
            JoinSeconds(partial_s, both_s, whole_s, complete_s),
            killed,
            tuple(len(each.sent) for each in self._speakers),
            tuple(compared),
            problems,
        )

    async def keep_running(self) -> None:
        """Keep the processes running; never returns.

        :raises DaemonEnded: a process has ended by itself
        """
        while True:
            await self._scheduler.sleep(1.0)
            self._check()

    async def stop(self) -> None:
        """Stop all processes."""
        for each in self._servers:
            each.process.terminate()
        for each in self._servers:
            await each.process.stop()

    # -- the course ---------------------------------------------------------------------

    async def _start(self) -> None:
        started = self._scheduler.seconds()
        for each in self._servers:
            await each.start(self._reactor)
        seconds = self._scheduler.seconds() - started
        self._display.log(
            f"servers one and two, each with its PostgreSQL, are up after {seconds:.1f} s"
        )
        self._display.log(f"(live status page of two: {self.two.url}/)")
        for client in self._clients:
            await client.log_in()
        path, rooms = self._directory / "rooms.jsonl", [self._room, self._other]
        started = self._scheduler.seconds()
        count = await run_in_thread(self._reactor, lambda: write_rooms(path, rooms))
        await self.one.command(self._reactor, "rooms import", "--file", str(path.absolute()))
        seconds = self._scheduler.seconds() - started
        self._display.log(
            f"server one has two rooms of {self._members:,} members ({count:,} events signed and"
            f" imported in {seconds:.1f} s)"
        )

    async def _join(self) -> tuple[float, float]:
        """Join the room by a client; when that began, and how long it took."""
        room_id, client = self._room.room_id, self._clients[1]
        began = self._scheduler.seconds()
        await client.require("POST", f"/join/{quote(room_id)}?via={quote(self.one.name)}", {})
        seconds = self._scheduler.seconds() - began
        self._display.log(f"{self.two.user_id} has joined {room_id} in {seconds:.2f} s")
        return began, seconds

    async def _until_both_heard(self, began: float) -> float:
        """Wait until each has seen the first message of the other; the seconds since the join."""
        room_id = self._room.room_id
        for speaker, listener in zip(self._speakers, reversed(self._clients), strict=True):

            async def heard(said: Speaker = speaker, client: DemoClient = listener) -> bool:
                return bool(said.sent) and await client.has(room_id, said.sent[0])

            await self._until("messages arrive in both directions", heard)
        seconds = self._scheduler.seconds() - began
        progress = await self._progress()
        self._display.log(
            f"messages have arrived in both directions {seconds:.2f} s after the join began, the room"
            f" is {'partial' if not progress.has_ended else 'complete'}"
        )
        return seconds

    def _change_the_room(self) -> Awaitable[None]:
        """Have the creator change the room meanwhile."""
        done = self._scheduler.promise()
        one, two = self._speakers
        kicked, banned = self._room.member(1), self._room.member(2)

        async def work() -> None:
            try:
                await one.change("m.room.topic", "", {"topic": "changed during the resync"})
                await one.change("m.room.member", kicked, {"membership": "leave"})
                await one.change("m.room.member", banned, {"membership": "ban"})
                await two.redact(two.sent[0])
            except Exception as error:
                done.errback(error)
            else:
                done.callback(None)

        self._scheduler.spawn("change the room", work())
        return done

    async def _until_killed(self) -> str | None:
        """Kill the joining server in the middle of the resync; where it was, None if the resync was over."""
        found: list[ResyncProgressRow] = []

        async def is_halfway() -> object:
            found[:] = [await self._progress()]
            self._display.show(found[0])
            return _is_halfway(found[0]) or _position(found[0])

        await self._until("the resync is half done", is_halfway)
        await self.two.process.kill()
        (at,) = found
        sentence = None if at.has_ended else resync_words(at)
        self._display.log(f"server two killed (SIGKILL): {sentence or 'the room was complete'}")
        return sentence

    async def _start_again(self) -> None:
        started = self._scheduler.seconds()
        await self.two.start(self._reactor)
        seconds = self._scheduler.seconds() - started
        self._display.log(f"server two is up again after {seconds:.1f} s")

    async def _until_complete(self) -> None:
        async def is_complete() -> object:
            progress = await self._progress()
            self._display.show(progress)
            return progress.has_ended or _position(progress)

        await self._until("the room is complete", is_complete)

    async def _join_event(self) -> str:
        """The ID of the join."""
        key = ("m.room.member", self.two.user_id)
        async with opened(self._reactor, self.two.dsn) as database:
            state = await RoomStore(database).current_state_ids(self.room_id, keys=[key])
        return state[key]

    async def _end_of_conversation(self, join_id: str) -> None:
        """Stop talking, and wait until everything has arrived, as clients see it that page back to the join."""
        for speaker in self._speakers:
            await speaker.stop()
        for speaker, listener in zip(self._speakers, reversed(self._clients), strict=True):
            wanted = set(speaker.sent)

            async def all_there(wanted: set[str] = wanted, client: DemoClient = listener) -> bool:
                return wanted <= set(await client.timeline(self.room_id, join_id))

            await self._until("all messages have arrived", all_there)
        one, two = (len(each.sent) for each in self._speakers)
        self._display.log(
            f"everything that was sent has arrived: {one} events of one, {two} of two"
        )

    async def _join_whole(self) -> tuple[float, str]:
        """Join the other room with its whole state, by a command; how long it took, and the join."""
        arguments = (self._other.room_id, "--via", self.one.name, "--user", self.two.user_id)
        text = await self.two.command(self._reactor, "join", *arguments, "--whole", "--json")
        done = jsons.decode(text, "the output of 'synrepl join'")
        seconds = float(done["progress"]["seconds"])
        self._display.log(
            f"the same room with its whole state ('synrepl join --whole') took {seconds:.1f} s"
        )
        return seconds, str(done["event_id"])

    # -- comparing ----------------------------------------------------------------------

    async def _compare(self, room_id: str, join_id: str) -> ComparedCopies:
        copies = [await read_copy(self._reactor, each, room_id, join_id) for each in self._servers]
        return compare(*copies)

    async def _timelines(self, join_id: str) -> list[str]:
        """What is wrong with what clients see."""
        room_id = self._room.room_id
        problems = []
        members = [await each.members(room_id) for each in self._clients]
        if members[0] != members[1]:
            problems.append(
                f"clients see {len(members[0])} members at one, {len(members[1])} at two"
            )
        for server, client in zip(self._servers, self._clients, strict=True):
            seen = await client.timeline(room_id, join_id)
            seen.reverse()
            for speaker, label in zip(self._speakers, ("one", "two"), strict=True):
                wanted = set(speaker.sent)
                found = [each for each in seen if each in wanted]
                if sorted(found) != sorted(speaker.sent):
                    problems.append(
                        f"a client of {server.label} sees {len(found)} of {len(speaker.sent)} events of {label}"
                    )
        return problems

    async def _verified(self) -> Collection[str]:
        """What ``synrepl rooms verify`` finds."""
        problems = []
        for each in self._servers:
            text = await each.command(self._reactor, "rooms verify", "--json")
            problems += [
                f"'synrepl rooms verify' at {each.label}: {finding}"
                for finding in jsons.decode(text, "the findings")["findings"]
            ]
        return problems

    # -- waiting ------------------------------------------------------------------------

    async def _progress(self) -> ResyncProgressRow:
        async with opened(self._reactor, self.two.dsn) as database:
            progress, _ = await RoomStore(database).resync(self._room.room_id)
        assert progress is not None
        return progress

    async def _until(self, description: str, condition: Callable[[], Awaitable[object]]) -> None:
        """Wait for a condition.

        :param description: completes "waited until …"
        :param condition: True when it holds; anything else shows by its changes that something moves
        :raises Stalled: nothing moves
        """
        previous, since = None, self._scheduler.seconds()
        while (current := await condition()) is not True:
            self._check()
            if current != previous:
                previous, since = current, self._scheduler.seconds()
            elif self._scheduler.seconds() - since > STALL_TIMEOUT_S:
                raise Stalled(seconds=STALL_TIMEOUT_S, condition=description)
            await self._scheduler.sleep(_POLL_INTERVAL_S)

    def _check(self) -> None:
        for each in self._servers:
            each.process.check()


def _position(at: ResyncProgressRow) -> object:
    """What changes when the resync comes forward."""
    return at.phase, at.fetched, at.stored, at.left


def _is_halfway(at: ResyncProgressRow) -> bool:
    if at.phase is ResyncPhase.IDS:
        return False
    if at.phase is not ResyncPhase.EVENTS:
        return True
    return at.fetched + 2 * at.stored >= KILL_AT * 2 * at.missing
