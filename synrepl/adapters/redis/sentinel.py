"""A Redis whose place the sentinels know: it moves when its master fails.

Source: "Guidelines for Redis clients with support for Redis Sentinel": ask one
sentinel after the other, connect, and ask the server for its role, for a
sentinel may not know yet. txredisapi has a Sentinel client too; it asks through
connections that it keeps for good, on the global reactor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import txredisapi

from synrepl.adapters.redis.address import RedisAddress
from synrepl.adapters.redis.connection import RedisAway, RedisConnection
from synrepl.core.clock import Scheduler


class Sentinels:
    """Knows where the master of a service is.

    :param sentinels: at least one
    :param service: the name under which they watch the master
    :param server: all about the master but its host and port
    """

    def __init__(
        self, sentinels: Sequence[RedisAddress], service: str, server: RedisAddress
    ) -> None:
        self._sentinels = list(sentinels)
        self._service = service
        self._server = replace(server, must_be_master=True)

    def __str__(self) -> str:
        return f"{self._service} (by sentinels)"

    def check(self, reactor: Any) -> None:
        """See whether connections can be made like this at all.

        :raises BadCertificates:
        """
        for address in (*self._sentinels, self._server):
            address.check(reactor)

    async def find(self, reactor: Any, scheduler: Scheduler) -> RedisAddress:
        """The master, by the first sentinel that knows it; that one is asked first the next time.

        :raises RedisAway: none knows it; with what the last one said
        """
        last: RedisAway | None = None
        for sentinel in list(self._sentinels):
            try:
                host, port = await self._ask(reactor, scheduler, sentinel)
            except RedisAway as error:
                last = error
                continue
            self._sentinels.remove(sentinel)
            self._sentinels.insert(0, sentinel)
            return replace(self._server, host=host, port=port)
        assert last is not None
        raise last

    async def _ask(
        self, reactor: Any, scheduler: Scheduler, sentinel: RedisAddress
    ) -> tuple[str, int]:
        connection = RedisConnection(scheduler)
        try:
            await connection.connect(reactor, sentinel)
            question = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service)
            answer = await connection.execute_command(*question)
        except txredisapi.RedisError as error:
            raise RedisAway(where=sentinel, reason=error) from None
        finally:
            connection.give_up("closed")
        if answer is None:
            raise RedisAway(where=sentinel, reason=f"it watches no {self._service!r}")
        host, port = answer
        return host.decode(), int(port)
