"""For tests of ``synrepl lake``: a database with facts, and commands over it."""

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
from tests.cli.cli_world import CliCase, Done
from tests.pipeline.spark_fixture import shared_session


class LakeCase(CliCase):
    """Commands run in this process, on its one session; those that want a process of their own get one."""

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

    def in_process(self, *arguments: object) -> Done:
        """Run ``synrepl lake`` with these arguments in this process."""
        self.patch(session, "open_session", lambda options: nullcontext(shared_session()))
        return self.without_session(*arguments)

    def without_session(self, *arguments: object) -> Done:
        """Likewise, but who wants a session has to open one."""
        ran = CliRunner().invoke(cli, ["lake", *map(str, arguments)])
        if ran.exception is not None and not isinstance(ran.exception, SystemExit):
            raise ran.exception
        return Done(ran.exit_code, ran.stdout, ran.stderr)

    def done(self, *arguments: object) -> str:
        """Likewise one that succeeds; what it printed."""
        done = self.in_process(*arguments)
        self.assertEqual((done.code, done.err), (0, ""), done)
        return done.out

    def sql(self, dsn: str, statement: str, *params: object) -> Any:
        """Run a statement from outside; the first cell of the answer, if there is one."""
        connection = psycopg2.connect(dsn)
        try:
            with connection, connection.cursor() as cursor:
                cursor.execute(statement, params or None)
                row = cursor.fetchone() if cursor.description else None
                return None if row is None else row[0]
        finally:
            connection.close()

    def notes(self, dsn: str, *texts: str) -> None:
        """A fact of the stream of notes for each."""
        for text in texts:
            rows = json.dumps([{"text": text, "n": len(text)}])
            self.sql(dsn, "SELECT synrepl.append('notes', %s, 'sql')", rows)
