"""``synrepl lake sql``: prints SQL that registers the tables of a lake in a catalog. Needs no Java."""

from __future__ import annotations

import click

from synrepl.cli.lake.options import lake_argument
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.lake.named_tables import register_statements
from synrepl.pipeline.lake.storage import LakePath


@click.command("sql")
@lake_argument
@click.option(
    "--schema",
    default="synrepl",
    show_default=True,
    help="Where the tables are registered: SCHEMA or CATALOG.SCHEMA.",
)
def command(path: LakePath, schema: str) -> None:
    """Print SQL that registers the tables of the folder LAKE in the catalog of a Spark that reads Delta tables."""
    for statement in register_statements(Lake(path), schema):
        click.echo(f"{statement};")
