"""Shows how far the resync is: a bar on a terminal, lines elsewhere; and what happens besides."""

from __future__ import annotations

from contextlib import ExitStack

from rich.console import Console
from rich.markup import escape

from synrepl.cli.rooms.maintenance import ShownProgress
from synrepl.services.rooms.maintenance.room_job import MaintenanceProgress
from synrepl.storage.rooms.reading.partial_states import ResyncProgressRow
from synrepl.storage.rooms.tables.partial_rooms import ResyncPhase

#: Lines without a terminal: one for each phase, and for each so many percent of the events.
_STEP_PERCENT = 20


class ResyncDisplay:
    """Shows events and progress.

    :param console: where to show them; None for stderr
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = Console(stderr=True) if console is None else console
        self._stack = ExitStack()
        self._bar: ShownProgress | None = None
        self._shown: object = None

    def log(self, event: str) -> None:
        """Show an event, permanently."""
        self.close()
        self._console.print(escape(event), highlight=False, soft_wrap=True)

    def show(self, at: ResyncProgressRow) -> None:
        """Show how far the resync is."""
        # Each event is fetched, and then stored.
        total = 2 * at.missing
        done = at.fetched + 2 * at.stored
        if self._console.is_terminal:
            if self._bar is None:
                self._bar = self._stack.enter_context(ShownProgress())
            self._bar.show(MaintenanceProgress("", f"resync, {at.phase.value}", done, total))
            return
        step = 100 * done // total // _STEP_PERCENT if total else 0
        if self._shown != (at.phase, step):
            self._shown = at.phase, step
            self.log(f"  {resync_words(at)}")

    def close(self) -> None:
        """Remove the bar; events can still be logged."""
        self._bar = None
        self._stack.close()


def resync_words(at: ResyncProgressRow) -> str:
    """What is being done, in words."""
    if at.phase is not ResyncPhase.EVENTS or at.reason is not None:
        return at.sentence
    fetched, stored = at.fetched + at.stored, at.stored
    return f"fetched {fetched:,} and stored {stored:,} of {at.missing:,} missing events"
