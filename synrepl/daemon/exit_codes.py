"""How a command ends that fails: one line on stderr for each error, and an exit code.

0: done; 1: failed; 2: wrong usage (arguments or configuration); 3, from commands that examine
something: nothing is wrong with what was examined, and some of it could not be.
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

    Names are checked where they are given, on the command line or in a configuration, so a bad
    name is wrong usage.

    :returns: the exit code
    """
    for each in errors_in(error):
        click.echo(f"synrepl: error: {each}", err=True)
    return EXIT_USAGE if isinstance(error, (ConfigError, BadName)) else EXIT_FAILED
