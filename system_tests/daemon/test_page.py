"""The status page in a real browser, on windows of any width."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar

from twisted.internet.threads import deferToThread

from system_tests.daemon.shop_case import ShopCase
from tests.support.browser import Browser, chromium, in_browser

WIDTHS = (400, 768, 1280)

#: What reaches beyond the right edge of the window, and is not inside something that scrolls.
_BEYOND = """
[...document.querySelectorAll('body *')].filter((e) => {
  if (e.closest('svg') && e.tagName !== 'svg') return false;
  for (let p = e; p && p !== document.body; p = p.parentElement) {
    if (p !== e && /auto|scroll|hidden/.test(getComputedStyle(p).overflowX)) return false;
  }
  return e.getBoundingClientRect().right > innerWidth + 1;
}).map((e) => e.tagName + ' ' + e.id + ' ' + e.textContent.slice(0, 40))
"""

#: Tables that are wider than what they are in: their right side has to be scrolled to.
_CUT_OFF = """
[...document.querySelectorAll('section')].filter((e) => !e.hidden && e.scrollWidth > e.clientWidth + 1)
  .map((e) => e.querySelector('h2').textContent + ': ' + e.scrollWidth + ' of ' + e.clientWidth)
"""


class Page(ShopCase):
    """A master with followers in every condition, and a worker with handlers and dead letters."""

    if chromium() is None:
        skip = "no Chromium is installed"

    master_settings: ClassVar[dict[str, str]] = {"followers": "{silent_after: 3}"}

    async def everything(self) -> None:
        """Have something in every table of both pages."""
        await self.worker(
            self.mailer(),
            self.totals(),
            self.mailer("strict", cls="Mailer", on_failure="{attempts: 1}"),
        )
        await self.wait("w1", "orders", "master", await self.order("o1", "o2"))
        await self.begin("w2")
        self.held = self.connect()
        with self.held.cursor() as cursor:
            cursor.execute(
                'SELECT synrepl.append(\'orders\', \'[{"order_id": "held", "amount": 1}]\')'
            )
        self.sql(
            "INSERT INTO synrepl._follower_leases (follower, expires_at, seen_at) VALUES"
            " ('a-follower-with-a-very-long-name-that-no-narrow-window-has-room-for', now() + '1 h',"
            " now() - interval '1 h')"
        )
        await self.order("o3")

    async def test_nothing_is_cut_off_at_any_width(self) -> None:
        await self.everything()
        for name in ("master", "w1"):
            await deferToThread(in_browser, lambda browser, name=name: self.look(browser, name))

    def look(self, browser: Browser, name: str) -> None:
        browser.size(1280, 900)
        browser.go(f"http://127.0.0.1:{self.http[name]}/")
        browser.until("document.querySelectorAll('#streams td').length")
        browser.value("document.getElementById('all').click()")
        browser.until("document.querySelectorAll('#streams tr').length > 2")
        if name == "master":
            browser.until("document.getElementById('named').textContent.includes('missing')")
            browser.until(
                "document.getElementById('reasons').textContent.includes('a-follower-with')"
            )
        for width in WIDTHS:
            browser.size(width, 900)
            self.picture(browser, f"{name}-{width}")
            where = (name, width)
            wide = browser.value("document.documentElement.scrollWidth")
            self.assertLessEqual(wide, width, where)
            self.assertEqual(browser.value(_BEYOND), [], where)
            self.assertEqual(browser.value(_CUT_OFF), [], where)

    def picture(self, browser: Browser, name: str) -> None:
        """Keep a screenshot, for a person who wants one."""
        directory: Any = os.environ.get("SYNREPL_SCREENSHOTS")
        if directory:
            browser.picture(Path(directory) / f"{name}.png")
