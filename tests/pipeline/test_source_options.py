"""Options of the source, and recovering our errors from Spark's."""

from __future__ import annotations

from pathlib import Path
from unittest import TestCase

from twisted.trial.unittest import SynchronousTestCase

from synrepl.core.errors import SynreplError
from synrepl.driver.dsn import PlainTextDatabase
from synrepl.pipeline import options as g
from synrepl.pipeline.source import options as o
from synrepl.pipeline.source.errors import ErrorInTask, MustReland, original_error
from synrepl.pipeline.source.plan.offset import OtherServer
from synrepl.pipeline.source.position_option import (
    BadPositionOption,
    NamedPosition,
    PositionMissing,
    PositionRange,
    parse_position,
    resolve_positions,
)
from synrepl.pipeline.source.progress import tokens_behind
from synrepl.pipeline.source.where.grammar import BadWhere
from synrepl.positions.vector import PositionVector

LEAST = {"database": "host=127.0.0.1", "stream": "events"}


class SourceOptionsTest(SynchronousTestCase):
    """Which options are accepted."""

    def test_options_have_defaults(self) -> None:
        found = o.parse_source_options(LEAST)
        self.assertEqual(
            found,
            o.SourceOptions(
                "host=127.0.0.1", ("events",), None, NamedPosition.EARLIEST, None, None,
                None, 500_000, None, 86_400.0, 30.0, 10.0,
            ),
        )  # fmt: skip
        self.assertFalse(found.has_stream_column)
        self.assertNotIn("127.0.0.1", repr(found))

    def test_option_names_are_case_insensitive(self) -> None:
        found = o.parse_source_options({**LEAST, "Max_Rows_Per_Batch": "5", "STREAM": "a, b"})
        self.assertEqual(
            (found.max_rows, found.streams, found.has_stream_column), (5, ("a", "b"), True)
        )

    def test_a_star_selects_all_streams(self) -> None:
        found = o.parse_source_options({**LEAST, "stream": "*"})
        self.assertTrue(found.all_streams and found.has_stream_column)

    def test_the_dsn_is_read_from_a_file(self) -> None:
        path = Path(self.mktemp())
        path.write_text(" host=localhost \n", encoding="utf-8")
        found = o.parse_source_options({"database_path": str(path), "stream": "x"})
        self.assertEqual(found.dsn, "host=localhost")
        path.chmod(0o644)
        given = {"database_path": str(path), "stream": "x"}
        error = self.assertRaises(g.NoDsnFile, o.parse_source_options, given)
        self.assertIn("can be read by everybody (mode 0644)", str(error))
        path.chmod(0o600)
        path.write_text("\n", encoding="utf-8")
        for given in (str(path), str(path) + ".not"):
            error = self.assertRaises(
                g.NoDsnFile, o.parse_source_options, {"database_path": given, "stream": "x"}
            )
            self.assertIn(given, str(error))

    def test_a_relative_path_that_is_not_there_is_named_in_full(self) -> None:
        given = {"database_path": "not-there.dsn", "stream": "x"}
        error = self.assertRaises(g.NoDsnFile, o.parse_source_options, given)
        self.assertIn(f"database_path, {Path.cwd() / 'not-there.dsn'}, cannot be read", str(error))

    def test_plain_text_to_another_machine_is_refused(self) -> None:
        elsewhere = {**LEAST, "database": "host=db.example.com"}
        error = self.assertRaises(PlainTextDatabase, o.parse_source_options, elsewhere)
        self.assertIn("accept plain text by the option insecure=true", str(error))
        self.assertEqual(
            o.parse_source_options({**elsewhere, "insecure": "true"}).dsn, "host=db.example.com"
        )

    def test_bad_options_are_refused(self) -> None:
        for more, error in [
            ({"databas": "x"}, g.UnknownOption),
            ({"path": "x"}, g.UnknownOption),
            ({"stream": ""}, g.OptionMissing),
            ({"database": ""}, g.OptionMissing),
            ({"database_path": "x"}, g.BadOption),
            ({"stream": "a,"}, g.BadOption),
            ({"stream": "a,a"}, g.BadOption),
            ({"stream": "a,*"}, g.BadOption),
            ({"columns": ""}, g.BadOption),
            ({"max_rows_per_batch": "0"}, g.BadOption),
            ({"rows_per_partition": "many"}, g.BadOption),
            ({"patience_s": "nan"}, g.BadOption),
            ({"patience_s": "-1"}, g.BadOption),
            ({"where": ""}, BadWhere),
            ({"where": "n = 1 OR"}, BadWhere),
            ({"partitions": "0"}, g.BadOption),
            ({"on_bad_rows": "drop"}, g.BadOption),
            ({"partitions": "2", "rows_per_partition": "5"}, g.BadOption),
            ({"follower": "a b"}, g.BadOption),
            ({"starting": "yesterday"}, BadPositionOption),
        ]:
            with self.subTest(str(more)):
                self.assertRaises(error, o.parse_source_options, {**LEAST, **more})

    def test_options_of_the_other_kind_of_read_are_refused(self) -> None:
        self.assertRaises(o.OptionElsewhere, o.parse_source_options, {**LEAST, "ending": "5"}, True)
        self.assertRaises(
            o.OptionElsewhere, o.parse_source_options, {**LEAST, "follower": "f"}, False
        )

    def subTest(self, _: str) -> _Nothing:
        """Trial has no sub-tests."""
        return _Nothing()


class _Nothing:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


class PositionOptions(TestCase):
    """The options ``starting`` and ``ending``."""

    def test_positions_are_parsed(self) -> None:
        self.assertIs(parse_position("starting", " NOW "), NamedPosition.NOW)
        self.assertEqual(parse_position("starting", "10~w1.12"), PositionVector({"w1": 12}, 10))
        self.assertEqual(
            parse_position("ending", '{"events": "10"}'), {"events": PositionVector(linear=10)}
        )
        for text in ("", "x", "{", '{"events": 5}', '{"events": "x"}', "-1"):
            with self.subTest(text), self.assertRaises(BadPositionOption) as raised:
                parse_position("ending", text)
            self.assertIn("option ending of the synrepl source is", str(raised.exception))

    def test_named_positions_are_resolved(self) -> None:
        low, high = PositionVector(linear=1), PositionVector(linear=9)
        ends = {"events": PositionRange(low, high)}
        self.assertEqual(
            resolve_positions("starting", NamedPosition.EARLIEST, ends), {"events": low}
        )
        self.assertEqual(resolve_positions("starting", NamedPosition.NOW, ends), {"events": high})
        with self.assertRaises(PositionMissing):
            resolve_positions("starting", {"caches": low}, ends)


class OriginalErrors(TestCase):
    """Our errors, recovered from text."""

    def spark(self, error: SynreplError, after: str = "") -> Exception:
        cls = type(error)
        return RuntimeError(
            f'[X] failed: Traceback\n  File "x.py", line 1\n'
            f"{cls.__module__}.{cls.__qualname__}: {error}\n{after}\n\tat org.apache.spark"
        )

    def test_class_and_message_are_recovered(self) -> None:
        for error in [
            MustReland(stream="ev'ents", trimmed=7, after=3),
            OtherServer(then="1/a", now="2/b"),
            g.UnknownOption(end="source", option="x", hint="; did you mean y?", known="y, z"),
        ]:
            with self.subTest(error):
                found = original_error(self.spark(error))
                self.assertIs(type(found), type(error))
                self.assertEqual(str(found), str(error))

    def test_the_last_error_is_recovered(self) -> None:
        first = OtherServer(then="1/a", now="2/b")
        last = MustReland(stream="events", trimmed=7, after=3)
        text = str(self.spark(last))
        found = original_error(self.spark(first, f"During handling\n{text}"))
        self.assertIsInstance(found, MustReland)

    def test_a_message_that_does_not_fit_its_class_is_kept(self) -> None:
        found = original_error(
            RuntimeError("synrepl.pipeline.source.plan.offset.OtherServer: cut off")
        )
        self.assertIsInstance(found, ErrorInTask)
        self.assertEqual(str(found), "cut off")

    def test_other_errors_are_not_recovered(self) -> None:
        for text in ("boom", "synrepl.pipeline.nothing.Here: x", "synrepl.core.errors.inspect: x"):
            self.assertIsNone(original_error(RuntimeError(text)))

    def test_our_own_error_is_returned(self) -> None:
        error = OtherServer(then="1/a", now="2/b")
        self.assertIs(original_error(error), error)


class TokensBehind(TestCase):
    """Lag, computed from Spark's progress."""

    def test_lag_is_computed_per_stream(self) -> None:
        end = '{"version": 1, "server": "s", "streams": {"a": {"linear": 4, "writers": {}}}}'
        latest = (
            '{"version": 1, "server": "s", "streams": {"a": {"linear": 9, "writers": {"w": 12}},'
            ' "b": {"linear": 2, "writers": {}}}}'
        )
        self.assertEqual(
            tokens_behind({"endOffset": end, "latestOffset": latest}), {"a": 5, "b": 2}
        )

    def test_other_sources_have_no_lag(self) -> None:
        for offset in (None, "7", "x", "{}", '{"streams": 5}', '{"streams": {"a": 5}}'):
            source = {"endOffset": offset, "latestOffset": offset}
            self.assertEqual(tokens_behind(source), {}, offset)
