"""Charts of results: that they are written, and labelled."""

from __future__ import annotations

import dataclasses
import struct
import warnings
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from twisted.trial.unittest import TestCase

from synrepl.pipeline.jobs import charts
from synrepl.pipeline.jobs.catalogue import JOBS, find_job
from synrepl.pipeline.jobs.charts import (
    PictureNotWritten,
    PlottingMissing,
    draw_chart,
    write_chart,
)
from synrepl.pipeline.jobs.job import DAY, TEXT, TIME, LakeJob

HOUR = timedelta(hours=1)
BEGIN = datetime(2025, 6, 15, 12, tzinfo=UTC)


def answer(job: LakeJob, lines: int = 60) -> list[dict[str, Any]]:
    """A possible result of a job."""
    examples = {
        DAY: lambda n: date(2025, 6, 1) + timedelta(days=n % 30) if n % 9 else None,
        TIME: lambda n: BEGIN + HOUR * n,
        TEXT: lambda n: f"{'!$_@'[n % 4]}name漢{n % 3}",
    }
    return [
        {field.name: examples.get(field.dataType, lambda n: 1 + n % 5)(n) for field in job.schema}
        for n in range(lines)
    ]


def heat(*cells: tuple[int, str, int]) -> list[dict[str, Any]]:
    """A result of the job ``heat``; cells are (hours after the first, cache, rows)."""
    return [
        {"hour": BEGIN + HOUR * hours, "cache": cache, "rows": rows} for hours, cache, rows in cells
    ]


def drawing(job: LakeJob, rows: list[dict[str, Any]]) -> Figure:
    """The chart of a result."""
    return draw_chart(job, rows)[0]


def texts(drawn: Any) -> list[str]:
    """The names in the legend, or else at the y-axis."""
    legend = drawn.legends[0].get_texts() if drawn.legends else drawn.axes[0].get_yticklabels()
    return [text.get_text().strip() for text in legend]


class ChartFiles(TestCase):
    def test_every_job_has_a_chart(self) -> None:
        for job in JOBS:
            path = Path(self.mktemp()).absolute()
            path.parent.mkdir(parents=True, exist_ok=True)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                self.assertEqual(write_chart(job, answer(job), path), "")
            head = path.read_bytes()[:24]
            self.assertEqual(head[:8], b"\x89PNG\r\n\x1a\n")
            self.assertEqual(struct.unpack(">II", head[16:]), (1440, 780))
            left = [each for each in path.parent.iterdir() if each.name.startswith(".")]
            self.assertEqual(left, [])

    def test_an_unwritable_path_is_named(self) -> None:
        folder = Path(self.mktemp())
        folder.mkdir(parents=True)
        (folder / "file").touch()
        for path, reason in (
            (folder / "no" / "p.png", "No such file or directory"),
            (folder / "file" / "p.png", "Not a directory"),
            (folder, "Is a directory"),
        ):
            with self.assertRaises(PictureNotWritten) as caught:
                write_chart(find_job("skew"), answer(find_job("skew")), path)
            message = f"the picture {path} cannot be written: {reason}"
            self.assertEqual(str(caught.exception), message)
        self.assertEqual([each.name for each in folder.iterdir()], ["file"])
        self.assertEqual([each for each in folder.parent.iterdir() if each.name[0] == "."], [])

    def test_a_result_without_numbers_or_times_is_a_picture_that_says_so(self) -> None:
        job = find_job("lag")
        undated = [{**row, "hour": None} for row in answer(job)]
        unseen = [{**row, "p95_s": None} for row in answer(job)]
        path = Path(self.mktemp()).absolute()
        path.parent.mkdir(parents=True, exist_ok=True)
        for rows, reason in (
            ([], "the result has no rows"),
            (undated, "no row of the result has a known time"),
            (unseen + undated, "no row of the result has both a known time and a number"),
        ):
            path.write_bytes(b"an older picture")
            self.assertEqual(write_chart(job, rows, path), reason)
            self.assertEqual(path.read_bytes()[:4], b"\x89PNG")
            figure = drawing(job, rows)
            shown = [text.get_text() for text in figure.texts]
            self.assertIn(f"Nothing to draw: {reason}.", shown)
            self.assertEqual(figure.axes, [])

    def test_missing_matplotlib_is_named(self) -> None:
        self.patch(charts, "find_spec", lambda name: None)
        with self.assertRaises(PlottingMissing) as caught:
            drawing(find_job("skew"), answer(find_job("skew")))
        self.assertIn("pip install matplotlib", str(caught.exception))


class ChartContents(TestCase):
    def test_titles_labels_and_legend_are_shown(self) -> None:
        drawn = drawing(find_job("activity"), answer(find_job("activity"), 30))
        (axes,) = drawn.axes
        self.assertEqual(drawn.get_suptitle(), find_job("activity").title)
        self.assertEqual(axes.get_ylabel(), "rows a day")
        self.assertEqual(
            axes.get_title(),
            "smaller series that are not shown: 2;"
            " lines that are not shown, as they have no known time: 4; times are UTC; the scale is logarithmic",
        )

    def test_names_are_shown_as_they_are(self) -> None:
        job = find_job("skew")
        names = ["_hidden", "$x_1$", "a\x1b[0m", "n" * 60]
        rows = [{"stream": name, "gini": 1 - n / 10} for n, name in enumerate(names)]
        shown = ["_hidden", "$x_1$", "a\N{REPLACEMENT CHARACTER}[0m", "n" * 47 + "…"]
        drawn = drawing(job, rows)
        self.assertEqual(texts(drawn), shown)
        self.assertFalse(any(text.get_parse_math() for text in drawn.axes[0].get_yticklabels()))
        lines = find_job("rooms")
        rows = [
            {"room_id": name, "day": BEGIN.date(), "total": 9 - n} for n, name in enumerate(names)
        ]
        drawn = drawing(lines, rows)
        self.assertEqual(texts(drawn), shown)
        self.assertFalse(any(text.get_parse_math() for text in drawn.legends[0].get_texts()))

    def test_only_the_largest_series_are_drawn_and_the_rest_is_counted(self) -> None:
        rows = [{"room_id": f"!{n}", "day": BEGIN.date(), "total": n} for n in range(25)]
        drawn = drawing(find_job("rooms"), rows)
        self.assertEqual(texts(drawn), [f"!{n}" for n in range(24, 14, -1)])
        self.assertIn("smaller series that are not shown: 15", drawn.axes[0].get_title())

    def test_numbers_of_one_series_and_time_are_combined(self) -> None:
        day = {"day": BEGIN.date(), "stream": "events"}
        rows = [{**day, "rows": 3}, {**day, "rows": 4}, {**day, "stream": "caches", "rows": 5}]
        for add, wanted in ((True, [7, 5]), (False, [5, 4])):
            job = find_job("activity")
            job = dataclasses.replace(job, plot=dataclasses.replace(job.plot, add=add))
            lines = drawing(job, rows).axes[0].get_lines()
            self.assertEqual([line.get_ydata()[0] for line in lines], wanted)

    def test_a_missing_number_is_a_gap(self) -> None:
        row = {"hour": BEGIN, "stream": "caches", "writer": "w", "p95_s": 2.0}
        later = {**row, "hour": BEGIN + HOUR, "p95_s": None}
        (line,) = drawing(find_job("lag"), [row, later]).axes[0].get_lines()
        self.assertEqual([*line.get_ydata()], [2.0])

    def test_a_single_day_is_not_drawn_between_years(self) -> None:
        rows = [{"room_id": "!r", "day": BEGIN.date(), "total": 3}]
        first, last = drawing(find_job("rooms"), rows).axes[0].get_xlim()
        self.assertEqual(last - first, 3.0)

    def test_small_shares_look_small(self) -> None:
        rows = [{"stream": "events", "gini": 0.003}, {"stream": "receipts", "gini": -1e-17}]
        axes = drawing(find_job("skew"), rows).axes[0]
        low, high = axes.get_xlim()
        self.assertLessEqual(low, 0.0)
        self.assertGreater(low, -1e-6)
        self.assertGreater(high, 1.0)
        widths = [bar.get_width() for bar in axes.patches if isinstance(bar, Rectangle)]
        self.assertEqual(widths, [0.003, -1e-17])
        self.assertLess(max(widths) / (high - low), 0.01)

    def test_axes_begin_at_nothing(self) -> None:
        days = [date(2025, 6, 1), date(2025, 6, 2)]
        for job, series, number in ("rooms", "room_id", "total"), ("activity", "stream", "rows"):
            rows = [{"day": day, series: "x", number: 1000 + n} for n, day in enumerate(days)]
            axes = drawing(find_job(job), rows).axes[0]
            self.assertEqual(axes.get_ylim()[0], 1.0 if axes.get_yscale() == "log" else 0.0)
            self.assertEqual(
                "logarithmic" in axes.get_title(), axes.get_yscale() == "log", axes.get_title()
            )

    def test_a_heat_map_has_a_cell_per_hour(self) -> None:
        rows = heat((0, "a", 3), (2, "a", 4), (2, "a", 5), (1, "b", 7))
        drawn = drawing(find_job("heat"), rows)
        cells = drawn.axes[0].collections[0].get_array()
        self.assertEqual(cells.tolist(), [[3, None, 9], [None, 7, None]])
        self.assertEqual(texts(drawn), ["a", "b"])
        self.assertIn("the scale is logarithmic", drawn.axes[0].get_title())
        drawn.draw_without_rendering()
        labels = [label.get_text() for label in drawn.axes[1].get_yticklabels(minor=True)]
        self.assertEqual([label for label in labels if label][-4:], ["2", "3", "4", "6"])

    def test_rows_without_a_number_are_counted(self) -> None:
        rows = answer(find_job("lag"), 4)
        title = drawing(find_job("lag"), [*rows, {**rows[0], "p95_s": None}]).axes[0].get_title()
        self.assertIn("lines that are not shown, as they have no number: 1", title)

    def test_one_wrong_clock_does_not_make_millions_of_cells(self) -> None:
        rows = heat((0, "a", 3), (1, "a", 4), (10_000, "a", 9))
        axes = drawing(find_job("heat"), rows).axes[0]
        cells = axes.collections[0].get_array()
        self.assertEqual(cells.shape, (1, 1667))
        self.assertEqual((cells[0, 0], cells[0, -1], cells.count()), (4, 9, 2))
        self.assertIn("of each 6 hours the greatest", axes.get_title())
