"""Has other processes perform actions, over their HTTP listeners; and the route by which they ask this one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from synrepl.adapters.http.client import Answer, HttpClient, MasterAway, status_text
from synrepl.adapters.http.messages import HttpAnswer, HttpRequest, json_answer
from synrepl.adapters.http.routes import Route
from synrepl.core import jsons
from synrepl.core.errors import InputError, SynreplError
from synrepl.services.forwarding import (
    ForwardingFailed,
    UnknownAction,
    WriterActions,
    WriterUnreachable,
)

#: Of all actions, and of those that only wait.
_PATH, _WAITING_PATH = "/actions", "/waiting-actions"


class HttpForwarder:
    """Implements :class:`.ForwardsToWriter`.

    :param clients: of the other processes' HTTP listeners, by name of the instance
    :param actions: knows the errors that cross the boundary
    """

    def __init__(self, clients: Mapping[str, HttpClient], actions: WriterActions) -> None:
        self._clients = clients
        self._actions = actions

    async def forward(self, writer: str, action: str, argument: Mapping[str, Any]) -> Any:
        """Have a process perform an action.

        :raises WriterUnreachable: :raises ForwardingFailed:
        :raises SynreplError: the errors of the action
        """
        client = self._clients.get(writer)
        if client is None:
            raise WriterUnreachable(writer=writer)
        path = _WAITING_PATH if action in self._actions.waiting else _PATH
        try:
            answer = await client.post(f"{path}/{quote(action, safe='')}", jsons.encode(argument))
        except MasterAway as error:
            reason = error.facts["reason"]
            raise ForwardingFailed(writer=writer, error="away", message=reason) from error
        return self._actions.result(writer, _members(writer, answer))


def action_routes(actions: WriterActions) -> list[Route]:
    """The routes by which other processes ask for actions."""

    async def perform(request: HttpRequest) -> HttpAnswer:
        argument = jsons.decode(request.body, "the argument of an action")
        if not isinstance(argument, dict):
            raise UnknownAction(action="without an argument")
        return json_answer(await actions.perform(request.path["action"], argument))

    async def wait(request: HttpRequest) -> HttpAnswer:
        action = request.path["action"]
        if action not in actions.waiting:
            raise UnknownAction(action=action[:100])
        return await perform(request)

    statuses: dict[type[SynreplError], int] = {UnknownAction: 404}
    more: dict[str, Any] = {"takes_body": True, "statuses": statuses}
    return [
        Route("POST", f"{_PATH}/<action>", perform, **more),
        Route("POST", f"{_WAITING_PATH}/<action>", wait, waits=True, **more),
    ]


def _members(writer: str, answer: Answer) -> dict[str, Any]:
    try:
        found = jsons.decode(answer.body, "the answer")
    except InputError:
        found = None
    if isinstance(found, dict):
        return found
    raise ForwardingFailed(
        writer=writer, error=status_text(answer.status), message="its answer is not an object"
    )
