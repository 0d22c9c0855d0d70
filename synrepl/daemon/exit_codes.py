"""Exit codes of commands, and the report of an error: one line on stderr for each.

0: success; 1: failure; 2: wrong usage (arguments or configuration); 3, from commands that
examine something: no problem was found, but some of it could not be examined.
"""

from __future__ import annotations

import click

from synrepl.core.errors import ConfigError, SynreplError, errors_in
from synrepl.core.names import BadName

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INCOMPLETE = 3


def report(error: SynreplError) -> int:
    """Print an error on stderr, one line for each error that it groups.

    A bad name counts as wrong usage, because names come from the command line or a configuration.

    :returns: the exit code
    """
    for each in errors_in(error):
        click.echo(f"synrepl: error: {each}", err=True)
    return EXIT_USAGE if isinstance(error, (ConfigError, BadName)) else EXIT_FAILED
