"""Judges a whole recording, and counts the findings by rule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from synrepl.streams.definition import numbered_together
from synrepl.streams.synapse import SYNAPSE_STREAMS
from synrepl.tools.judge.judge import TrafficJudge
from synrepl.tools.judge.rules import RuleFinding, RuleSeverity
from synrepl.tools.judge.track import StreamTraits
from synrepl.tools.tap.recording import (
    EXAMINED_LINES,
    RecordingDialectUnknown,
    read_recording,
    recording_info,
)
from synrepl.wire.dialects import Dialect

SYNAPSE_TRAITS = StreamTraits(
    unordered=frozenset(stream.name for stream in SYNAPSE_STREAMS if stream.unordered),
    in_memory=frozenset(stream.name for stream in SYNAPSE_STREAMS if stream.in_memory),
    shared=frozenset(numbered_together(SYNAPSE_STREAMS)),
)


@dataclass(frozen=True, slots=True)
class Tally:
    """How often a rule was broken, and the line of the first time."""

    count: int
    first: int


class RecordingJudge:
    """Judges one recording. The counts are complete after all :meth:`findings` were read.

    :param dialect: None to detect it
    :ivar lines: number of lines read
    :ivar breaches: tallies of breaches by name of the rule
    :ivar known: tallies of known faults of real servers by name of the rule
    :raises RecordingDialectUnknown: it cannot be detected from the recording
    :raises NoRecording: :raises NotARecording: :raises ScriptedRecording:
    """

    def __init__(
        self,
        path: Path,
        dialect: Dialect | None = None,
        traits: StreamTraits = SYNAPSE_TRAITS,
    ) -> None:
        found = dialect or recording_info(read_recording(path)).dialect
        if found is None:
            raise RecordingDialectUnknown(path=path, lines=EXAMINED_LINES)
        self.dialect = found
        self.lines = 0
        self.breaches: dict[str, Tally] = {}
        self.known: dict[str, Tally] = {}
        self._path = path
        self._judge = TrafficJudge(found, traits)

    def findings(self) -> Iterator[RuleFinding]:
        """All findings, one at a time, nearly in the order of their lines.

        :raises NotARecording: a line is malformed
        :raises TooManyRecordedConnections: :raises TooManyTracks: it cannot be judged in bounded memory
        """
        for recorded in read_recording(self._path):
            self.lines = recorded.number
            yield from map(self._tallied, self._judge.judge(recorded))
        yield from map(self._tallied, self._judge.end())

    def _tallied(self, finding: RuleFinding) -> RuleFinding:
        kind = self.breaches if finding.rule.severity is RuleSeverity.BREACH else self.known
        before = kind.get(finding.rule.name, Tally(0, finding.line))
        kind[finding.rule.name] = Tally(before.count + 1, min(before.first, finding.line))
        return finding
