"""Every row that real servers were recorded to send is read, and written back the same."""

from __future__ import annotations

import json
from unittest import TestCase

from synrepl.streams.definition import Generation
from synrepl.streams.rows import RowCodec
from synrepl.streams.synapse import SYNAPSE_STREAMS
from tests.streams.recordings import commands, traffic

#: Words before the row: stream and token, and in between the writer since 1.13.
WORDS = {
    generation: 2 if generation in Generation.until(Generation.LEGACY) else 3
    for generation in Generation
}


class RecordedRows(TestCase):
    def check(self, version: str, generation: Generation, at_least: int) -> None:
        codecs = {stream.name: RowCodec(stream) for stream in SYNAPSE_STREAMS}
        encoders = {name: codec.encoder(generation) for name, codec in codecs.items()}
        lines = {
            (stream, row)
            for path in traffic(version)
            for rest in commands(path, "RDATA")
            for stream, *_, row in [rest.split(" ", WORDS[generation])]
        }
        self.assertGreater(len(lines), at_least)
        for stream, line in lines:
            row = codecs[stream].decode(line.encode())
            self.assertEqual(json.loads(encoders[stream](row)), json.loads(line))
            self.assertIn(generation, codecs[stream].stream.generations)
            codecs[stream].check_storable(row)

    def test_decodes_rows_of_the_oldest_servers(self) -> None:
        self.check("1.0.0", Generation.OLDEST, 1000)

    def test_decodes_rows_of_transitional_servers(self) -> None:
        self.check("1.20.1", Generation.TRANSITIONAL, 2000)

    def test_decodes_rows_of_legacy_servers(self) -> None:
        self.check("1.11.1", Generation.LEGACY, 4000)

    def test_decodes_rows_of_modern_servers(self) -> None:
        self.check("1.43.0", Generation.MODERN, 4000)

    def test_decodes_rows_of_current_servers(self) -> None:
        self.check("1.163.2", Generation.CURRENT, 1500)
