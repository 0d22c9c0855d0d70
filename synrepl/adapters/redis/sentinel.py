"""Finds the master of a Redis service through sentinels.

Source: "Guidelines for Redis clients with support for Redis Sentinel": ask the
sentinels in turn, connect, and ask the server for its role, because a sentinel may
not know of a failover yet. txredisapi has a Sentinel client too, but it uses permanent
connections on the global reactor.
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
    """Looks up the address of a service's master.

    :param sentinels: at least one
    :param service: the name under which they monitor the master
    :param server: credentials and other settings of the master; its host and port are ignored
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
        """Check what can be checked without connecting.

        :raises BadCertificates:
        """
        for address in (*self._sentinels, self._server):
            address.check(reactor)

    async def find(self, reactor: Any, scheduler: Scheduler) -> RedisAddress:
        """The master, from the first sentinel that knows it, which is asked first the next time.

        :raises RedisAway: none knows it; with the reason of the last one
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
            connection.abort("closed")
        if answer is None:
            raise RedisAway(where=sentinel, reason=f"it watches no {self._service!r}")
        host, port = answer
        return host.decode(), int(port)
