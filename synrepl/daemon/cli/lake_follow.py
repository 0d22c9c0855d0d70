"""Landing again and again, also while the database is away."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import click

from synrepl.driver.connection import DatabaseRefused
from synrepl.pipeline.lake.keep import Kept
from synrepl.pipeline.reading.read import ReadingAway
from synrepl.storage.store import DatabaseAway


def again_and_again(run: Callable[[], Kept], every_s: float) -> Iterator[Kept]:
    """What each run did, without end.

    A database that is away ends nothing: it is told once, and looked for with every run.
    What waiting does not cure is raised.

    :param every_s: from the beginning of one run to that of the next, at least, in seconds
    :raises DatabaseRefused: and what else ``run`` raises
    """
    away = False
    while True:
        begun = time.monotonic()
        try:
            kept = run()
        except DatabaseRefused:
            raise
        except (DatabaseAway, ReadingAway) as error:
            if not away:
                click.echo(f"synrepl: {error}; landing goes on when it is back", err=True)
            away = True
        else:
            if away:
                click.echo("synrepl: the database is back", err=True)
            away = False
            yield kept
        time.sleep(max(0.0, every_s - (time.monotonic() - begun)))
