"""A worker with a plain and a transactional handler, as in the README, which is ended amid its work."""

from __future__ import annotations

from tests.daemon.shop_world import ShopCase


class EndedAtAnyPoint(ShopCase):
    """No handler lacks a fact afterwards, and none of the transactional one's is doubled."""

    async def ended_while_the_mailer_is_behind(self, signal: str) -> None:
        worker = await self.worker(self.mailer(), self.totals())
        first = await self.order("o1", "o2", "o3")
        await self.wait("w1", "orders", "master", first)
        closed = self.touch("mail.closed")
        last = await self.order("o4", "o5", "o6", "o7", "o8")
        await self.until_true(lambda: len(self.in_totals()) == 8)
        await self.stop(worker, signal)
        self.assertEqual(self.orders_of(), ["o1", "o2", "o3"])
        closed.unlink()

        await self.worker(self.mailer(), self.totals())
        await self.wait("w1", "orders", "master", last)
        self.assertEqual(self.in_totals(), [f"o{n}" for n in range(1, 9)])
        self.assertEqual(list(dict.fromkeys(self.orders_of())), [f"o{n}" for n in range(1, 9)])

    async def test_killed_while_the_plain_handler_is_behind(self) -> None:
        await self.ended_while_the_mailer_is_behind("KILL")

    async def test_stopped_while_the_plain_handler_is_behind(self) -> None:
        await self.ended_while_the_mailer_is_behind("TERM")

    async def test_killed_and_stopped_again_and_again_under_load(self) -> None:
        wanted: list[str] = []
        for lap, signal in enumerate(("KILL", "TERM", "KILL", "TERM", "KILL")):
            worker = await self.worker(self.mailer(), self.totals())
            seen = len(self.mails())
            for part in range(6):
                names = [f"o{lap}.{part}.{n}" for n in range(20)]
                wanted += names
                await self.order(*names)
                if part == lap:  # amid its work, wherever it is by then
                    await self.until_true(lambda seen=seen: len(self.mails()) > seen)
                    await self.stop(worker, signal)
        await self.worker(self.mailer(), self.totals())
        await self.wait("w1", "orders", "master", await self.order("last"))
        wanted.append("last")
        self.assertEqual(self.in_totals(), wanted)
        self.assertEqual(list(dict.fromkeys(self.orders_of())), wanted)
