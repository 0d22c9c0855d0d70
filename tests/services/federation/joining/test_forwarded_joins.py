"""A process has rooms joined by the one that persists them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simulator.federation.faults import FaultKind, ServerFault
from synrepl.core import jsons
from synrepl.daemon.assemble.ports import FORWARDABLE_ERRORS
from synrepl.services.federation.joining.errors import (
    JoinGoesOn,
    RefusedByServers,
    RoomVersionNotSpoken,
)
from synrepl.services.federation.joining.join import JoinRequest
from synrepl.services.federation.joining.running_joins import RunningJoins
from synrepl.services.forwarding import WriterActions
from tests.services.federation.joining.joining_case import JoiningCase
from tests.services.federation.joining_server import US
from tests.services.world import NullLog


class JsonForwarder:
    """Forwards to a process by JSON, as over HTTP."""

    def __init__(self, actions: WriterActions) -> None:
        self._actions = actions
        self.forwarded: list[str] = []

    async def forward(self, writer: str, action: str, argument: Mapping[str, Any]) -> Any:
        self.forwarded.append(writer)
        answer = await self._actions.perform(action, _over_http(argument))
        return self._actions.result(writer, _over_http(answer))


def _over_http(value: Mapping[str, Any]) -> Any:
    return jsons.decode(jsons.encode(value), "a value")


class ForwardedJoins(JoiningCase):
    """Joins at a process that persists no room."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        actions = WriterActions(FORWARDABLE_ERRORS)
        self.running.add_actions(actions)
        self.json = JsonForwarder(actions)
        scheduler = self.one.process.scheduler
        self.elsewhere = RunningJoins(scheduler, None, self.writers, self.json, "two", NullLog())

    async def test_end_as_those_of_the_process_itself(self) -> None:
        room = self.made_room()
        request = JoinRequest(room.room_id, US, {"reason": "x"}, ["a"])
        done = await self.elsewhere.join(request)
        self.assertTrue(done.is_partial)
        assert done.sent is not None
        self.assertEqual(done.sent.writer, "one")
        self.assertEqual(self.json.forwarded, ["one"])
        again = await self.elsewhere.join(request)
        self.assertIsNone(again.sent)

    async def test_fail_as_those_of_the_process_itself(self) -> None:
        room = self.made_room()
        request = JoinRequest(room.room_id, US, {}, ["a"])
        self.a.faults = [ServerFault("make_join", FaultKind.FORBIDDEN, times=1)]
        with self.assertRaisesRegex(RefusedByServers, "a: 403"):
            await self.elsewhere.join(request)
        self.patch(self.maker.__class__, "versions", property(lambda _: ["1"]))
        with self.assertRaises(RoomVersionNotSpoken) as raised:
            await self.elsewhere.join(request)
        self.assertEqual(raised.exception.facts["room_version"], "10")

    async def test_are_waited_for_in_parts(self) -> None:
        room = self.made_room()
        request = JoinRequest(room.room_id, US, {}, ["a"])
        self.a.faults = [ServerFault("make_join", FaultKind.NO_ANSWER, times=1)]
        with self.assertRaises(JoinGoesOn):
            await self.elsewhere.join(request, 0.0)
        state = await self.elsewhere.follow(request, 0.0)
        self.assertEqual(state.progress["server"], "a")
        with self.assertRaisesRegex(Exception, "does not answer"):
            await self.elsewhere.follow(request, 5.0, state.run)
