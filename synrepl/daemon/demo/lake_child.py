"""The lake's act of the demo, in a process of its own: one JSON object on stdout.

The DSN is in the variable ``SYNREPL_DATABASE``, the lake's folder the only argument.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

import click

from synrepl.core.errors import SynreplError
from synrepl.daemon.cli.conventions import print_json
from synrepl.daemon.cli.given import ENVIRONMENT
from synrepl.pipeline.jobs.catalogue import find
from synrepl.pipeline.jobs.run import run
from synrepl.pipeline.lake.check import check
from synrepl.pipeline.lake.erase_mask import mask
from synrepl.pipeline.lake.erase_pending import pending
from synrepl.pipeline.lake.keep import Keeper
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.origin.open import open_origin
from synrepl.pipeline.session.named import named_session
from synrepl.pipeline.session.options import SessionOptions

#: The job whose answer is shown.
JOB = "activity"


def main(path: Path, dsn: str) -> None:
    """Land all streams, check them, and run a job."""
    job = find(JOB)
    origin = open_origin(dsn, "demo lake")
    with named_session(SessionOptions(app_name="synrepl demo")) as spark:
        lake = Lake.begin(path, origin.server, origin.erodes)
        with lake.changing():
            kept = Keeper(spark, lake, origin, dsn).run(origin.streams)
            known = pending(spark, origin, lake).known
            report = check(spark, lake, origin, dsn, mask=partial(mask, erasures=known))
        with lake.reading():
            rows = [list(map(_plain, row)) for row in run(spark, lake, job).collect()]
    print_json(
        {
            "landed": kept.rows,
            "problems": report.problems,
            "job": {"title": job.title, "columns": [f.name for f in job.schema], "rows": rows},
        }
    )


def _plain(cell: object) -> object:
    return cell if cell is None or isinstance(cell, int | str) else str(cell)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), os.environ[ENVIRONMENT])
    except SynreplError as error:
        click.echo(str(error), err=True)
        sys.exit(1)
