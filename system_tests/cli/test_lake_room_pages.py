"""``synrepl lake run JOB --html FILE``: a page for each job over rooms, looked at in a browser."""

from __future__ import annotations

from pathlib import Path

from twisted.internet.threads import deferToThread

from synrepl.pipeline.rooms.catalogue import ROOM_JOBS
from system_tests.cli.lake_case import LakeCase
from tests.storage.foreign_rooms import room_database, rooms_of
from tests.storage.large_room import insert_large_room
from tests.support.browser import Browser, chromium, in_browser

#: Settings that jobs need.
_SETTINGS = {"visibility": ("--set", "servers=localhost:18701,localhost:18501")}

_REACHED = "performance.getEntriesByType('resource').map((each) => each.name)"
_OVERFLOW = (
    "[...document.querySelectorAll('svg, h1, h2, .figures')].filter((each) =>"
    " each.getBoundingClientRect().right > innerWidth + 1).map((each) => each.tagName)"
)
#: Bars that do not begin at the axis, or whose lengths are not as their numbers.
_BARS = "[...document.querySelectorAll('rect.bar')].map((each) => +each.getAttribute('x'))"


class RoomPages(LakeCase):
    if chromium() is None:
        skip = "no Chromium is installed"

    async def test_each_job_has_a_page_that_loads_nothing(self) -> None:
        dsn = await room_database("1.163.2", self)
        insert_large_room(dsn, keys=300, changes=900)
        other = await room_database("1.163.2", self, rooms_of("1.163.2")[:4])
        self.sql(
            other,
            "SET session_replication_role = replica;"
            "DELETE FROM events WHERE stream_ordering % 9 = 0",
        )
        # Texts of rooms are chosen by anybody.
        script = "<script>document.title = 'gone'</script>"
        self.sql(dsn, "UPDATE state_groups_state SET event_id = %s WHERE state_key = '7'", script)
        path = self.dsn_file(dsn)
        pages: dict[str, Path] = {}
        for job in ROOM_JOBS:
            page = pages[job.name] = self.directory / f"{job.name}.html"
            more = ("--other-database-path", self.dsn_file(other, "other")) if job.compares else ()
            arguments = (*_SETTINGS.get(job.name, ()), *more, "--html", page, "--rows", 1)
            shown = self.output_of("run", job.name, "--database-path", path, *arguments)
            self.assertIn(f"the page is {page}", shown)

        def look(browser: Browser) -> None:
            for job in ROOM_JOBS:
                browser.go(pages[job.name].as_uri())
                browser.until(f"document.title === {job.title!r}")
                for width in (1280, 420):
                    browser.size(width, 900)
                    self.assertEqual(browser.value(_OVERFLOW), [], (job.name, width))
                self.assertEqual(browser.value(_REACHED), [])
                self.assertEqual(browser.value("document.scripts.length"), 0)
                self.assertGreater(browser.value("document.querySelectorAll('td').length"), 0)
                self.assertLessEqual({*browser.value(_BARS)}, {260})

        await deferToThread(in_browser, look)

    async def test_a_page_that_cannot_be_written_is_refused(self) -> None:
        path = self.dsn_file(await room_database("1.163.2", self, rooms_of("1.163.2")[:1]))
        done = self.in_process(
            *("run", "state-groups", "--database-path", path),
            *("--html", self.directory / "no such folder" / "page.html"),
        )
        self.assertNotEqual(done.code, 0)
        self.assertIn("cannot be written: No such file or directory", done.err)

    async def test_a_second_database_is_for_jobs_that_compare(self) -> None:
        path = self.dsn_file(await room_database("1.163.2", self, rooms_of("1.163.2")[:1]))
        done = self.in_process("run", "divergence", "--database-path", path)
        self.assertIn("job 'divergence' needs a second database", done.err)
        other = ("--other-database-path", path)
        done = self.in_process("run", "state-groups", "--database-path", path, *other)
        self.assertIn("job 'state-groups' takes no second database", done.err)
