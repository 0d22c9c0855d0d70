"""Test case for ``synrepl lake``: commands, and a database with facts."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import psycopg2
from click.testing import CliRunner

from synrepl.cli import cli
from synrepl.cli.dsn import ENVIRONMENT
from synrepl.pipeline.session import session
from system_tests.pipeline.spark_fixture import shared_session
from tests.cli.cli_case import CliCase, CommandResult


class LakeCase(CliCase):
    """Runs lake commands in this process, on the shared Spark session, or as processes."""

    timeout = 600

    def setUp(self) -> None:
        super().setUp()
        self.lake = self.directory / "lake"
        self.patch(os, "environ", {k: v for k, v in os.environ.items() if k != ENVIRONMENT})

    def dsn_file(self, dsn: str, name: str = "dsn") -> Path:
        """A file with a DSN in it, for ``--database-path``."""
        path = self.directory / name
        path.touch(mode=0o600)
        path.write_text(dsn)
        return path

    def in_process(self, *arguments: object) -> CommandResult:
        """Run ``synrepl lake`` with these arguments in this process."""
        self.patch(session, "open_session", lambda options: nullcontext(shared_session()))
        return self.without_session(*arguments)

    def without_session(self, *arguments: object) -> CommandResult:
        """As :meth:`in_process`, but without the shared session."""
        ran = CliRunner().invoke(cli, ["lake", *map(str, arguments)])
        if ran.exception is not None and not isinstance(ran.exception, SystemExit):
            raise ran.exception
        return CommandResult(ran.exit_code, ran.stdout, ran.stderr)

    def output_of(self, *arguments: object) -> str:
        """As :meth:`in_process`; check that the command succeeds, and return its output."""
        done = self.in_process(*arguments)
        self.assertEqual((done.code, done.err), (0, ""), done)
        return done.out

    def sql(self, dsn: str, statement: str, *params: object) -> Any:
        """Run a statement on a new connection; return the first cell of the result, if any."""
        connection = psycopg2.connect(dsn)
        try:
            with connection, connection.cursor() as cursor:
                cursor.execute(statement, params or None)
                row = cursor.fetchone() if cursor.description else None
                return None if row is None else row[0]
        finally:
            connection.close()

    def append_notes(self, dsn: str, *texts: str) -> None:
        """Append a fact to the stream ``notes`` for each text."""
        for text in texts:
            rows = json.dumps([{"text": text, "n": len(text)}])
            self.sql(dsn, "SELECT synrepl.append('notes', %s, 'sql')", rows)
