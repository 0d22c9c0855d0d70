"""Recordings of replication traffic: writing, reading, pseudonymising, judging and replaying."""
