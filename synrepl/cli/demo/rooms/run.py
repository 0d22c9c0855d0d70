"""Runs the demo, and prints its result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from synrepl.cli.conventions import print_json
from synrepl.cli.demo.rooms.report import rooms_report
from synrepl.cli.demo.rooms.resync_display import ResyncDisplay
from synrepl.cli.demo.rooms.scenario import RoomsScenario
from synrepl.cli.terminal import show

DEFAULT_MEMBERS = 3_000


async def run_rooms(
    reactor: Any, directory: Path, members: int, *, as_json: bool, keep: bool
) -> bool:
    """Run the demo of rooms; whether both servers are equal in the end.

    :param directory: empty, or does not exist yet
    :raises SynreplError: the run could not be completed
    """
    display = ResyncDisplay()
    scenario = RoomsScenario(reactor, directory, members, display)
    try:
        try:
            result = await scenario.run()
        finally:
            display.close()
        if as_json:
            print_json(result.to_json())
        else:
            show(*rooms_report(result))
        if keep:
            click.echo(_instructions(scenario), err=as_json)
            await scenario.keep_running()
    finally:
        await scenario.stop()
    return not result.problems


def _instructions(scenario: RoomsScenario) -> str:
    one, two = scenario.one, scenario.two
    return f"""
Both servers keep running. In another terminal:

  synrepl rooms resync -c {two.config} --ended
  synrepl rooms graph -c {two.config} '{scenario.room_id}'
  synrepl federation destinations -c {one.config}

The status is at {one.url}/ and {two.url}/. Ctrl-C stops everything."""
