"""Charts and pages of jobs over rooms, as text."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import TestCase
from xml.etree import ElementTree

from synrepl.pipeline.rooms.page.charts import (
    MAX_ROWS,
    Bar,
    ChartSpan,
    Point,
    bars,
    line,
    short_number,
    spans,
)
from synrepl.pipeline.rooms.page.document import (
    MAX_TABLE_ROWS,
    Heading,
    PageNotWritten,
    PageSection,
    ResultPage,
    table,
)

_NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)


def drawing(html: str) -> ElementTree.Element:
    found = re.search(r"<svg.*?</svg>", html, re.DOTALL)
    assert found is not None
    return ElementTree.fromstring(found[0])


class Charts(TestCase):
    def test_bars_are_as_long_as_their_numbers_from_zero(self) -> None:
        svg = drawing(bars([Bar("a", 300.0, 900.0), Bar("b", 0.003)], "rows"))
        rects = [dict(each.attrib) for each in svg.iter("rect")]
        self.assertEqual({each["x"] for each in rects}, {"260"})
        before, after, small = (float(each["width"]) for each in rects)
        self.assertAlmostEqual(before / after, 3.0, delta=0.01)
        self.assertLess(small, 0.1)

    def test_nearly_equal_numbers_do_not_look_different(self) -> None:
        svg = drawing(bars([Bar("a", 0.00301), Bar("b", 0.003)], "share"))
        one, two = (float(each.attrib["width"]) for each in svg.iter("rect"))
        self.assertAlmostEqual(one / two, 1.0033, delta=0.01)

    def test_what_is_not_shown_is_counted(self) -> None:
        html = bars([Bar(str(n), n) for n in range(MAX_ROWS + 7)], "rows")
        self.assertIn("7 smaller ones are not shown", html)
        some = [Bar(str(n), n) for n in range(MAX_ROWS)]
        self.assertIn("1,975 smaller ones are not shown", bars(some, "rows", 2_000))
        self.assertIn("1 smaller one is not shown", bars(some, "rows", MAX_ROWS + 1))
        self.assertNotIn("not shown", bars(some, "rows", MAX_ROWS))
        named = [ChartSpan(str(n), 0, n, "full") for n in range(MAX_ROWS)]
        self.assertIn("1,975 smaller ones are not shown", spans(named, "ordering", 2_000))
        self.assertEqual(len(list(drawing(html).iter("rect"))), MAX_ROWS)

    def test_nothing_is_no_chart(self) -> None:
        for html in (bars([], "rows"), line([], "rows"), spans([], "rows")):
            self.assertEqual(html, '<p class="note">There is nothing to show.</p>')

    def test_a_forecast_has_a_band_and_joins_the_line(self) -> None:
        day = date(2026, 11, 1)
        points = [Point(day + timedelta(n), 10.0 * n) for n in range(5)]
        points += [Point(day + timedelta(5), 50.0, 40.0, 60.0)]
        svg = drawing(line(points, "events"))
        known, ahead = (
            next(each for each in svg.iter("polyline") if each.attrib["class"] == name)
            for name in ("line", "ahead")
        )
        self.assertEqual(known.attrib["points"].split()[-1], ahead.attrib["points"].split()[0])
        (band,) = svg.iter("polygon")
        self.assertEqual(band.attrib["points"].split()[0], known.attrib["points"].split()[-1])

    def test_spans_keep_their_places(self) -> None:
        svg = drawing(
            spans([ChartSpan("a", -50, -1, "full"), ChartSpan("a", 0, 49, "hidden")], "ordering")
        )
        first, second = (dict(each.attrib) for each in svg.iter("rect"))
        self.assertAlmostEqual(
            float(first["x"]) + float(first["width"]), float(second["x"]), delta=0.2
        )
        self.assertAlmostEqual(float(first["width"]), float(second["width"]), delta=0.2)

    def test_numbers_are_short(self) -> None:
        numbers = (0.0, 7.0, 9_999.0, 9_900.4, 12_345.0, 4_511_539.0, 2.5e9, 0.003)
        self.assertEqual(
            [short_number(each) for each in numbers],
            ["0", "7", "9,999", "9,900", "12.3 k", "4.51 M", "2.5 G", "0.003"],
        )


class Pages(TestCase):
    def test_texts_of_rooms_stay_texts(self) -> None:
        evil = "</title><script>alert(1)</script>\x1b\u202e"
        page = ResultPage(
            evil,
            {evil: evil},
            [
                PageSection(evil, evil, bars([Bar(evil, 1.0)], evil)),
                PageSection(evil, evil, spans([ChartSpan(evil, 0, 1, evil)], evil)),
                PageSection(evil, evil, table([Heading(evil, False)], [(evil,)])),
            ],
        )
        html = page.html(_NOW)
        self.assertNotIn("<script", html)
        self.assertEqual(html.count("</title>"), html.count("<title>"))
        self.assertIn("default-src 'none'", html)
        self.assertNotRegex(html, r"(?:src|href)=|url\(|@import")

    def test_a_table_says_what_it_leaves_out(self) -> None:
        html = table([Heading("n", True)], [(n,) for n in range(MAX_TABLE_ROWS)], count=2_000)
        self.assertIn("Further rows that are not shown: 1,500.", html)
        self.assertEqual(html.count("<tr>"), MAX_TABLE_ROWS + 1)

    def test_heads_are_above_the_numbers_of_their_columns(self) -> None:
        heads = [Heading("room", False), Heading("rows", True), Heading("changed", False)]
        html = table(heads, [("!a", None, True), ("!b", 3, None)])
        self.assertIn('<th>room</th><th class="number">rows</th><th>changed</th>', html)
        self.assertIn('<td>!a</td><td class="number">–</td><td>yes</td>', html)

    def test_a_column_without_numbers_is_aligned_as_numbers_are(self) -> None:
        html = table([Heading("hops", True)], [(None,), (None,)])
        self.assertIn('<th class="number">hops</th>', html)
        self.assertEqual(html.count('<td class="number">–</td>'), 2)

    def test_a_page_replaces_the_one_before(self) -> None:
        folder = Path(self.enterContext(TemporaryDirectory()))
        path = folder / "page.html"
        for title in ("one", "two"):
            ResultPage(title, {}, []).write(path, _NOW)
            self.assertIn(f"<h1>{title}</h1>", path.read_text())
        self.assertEqual([each.name for each in folder.iterdir()], ["page.html"])
        self.assertIn("Computed 2026-11-24 12:00 UTC", path.read_text())

    def test_a_folder_that_is_not_there_is_named(self) -> None:
        folder = Path(self.enterContext(TemporaryDirectory()))
        with self.assertRaisesRegex(PageNotWritten, "cannot be written: No such file"):
            ResultPage("", {}, []).write(folder / "none" / "page.html", _NOW)
