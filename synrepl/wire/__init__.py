"""The wire protocol: commands, dialects, the codec and per-connection sessions. No I/O."""
