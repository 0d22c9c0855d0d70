"""Deterministic simulation of a whole deployment in one process, on one clock, from one seed.

A master, writers, plain SQL and followers run the product's own code over an in-memory database and
network, while the seed decides which faults happen when. After every step, checkers compare what was
published, sent and applied with what was committed, and cache reads with the position of the reading
process. ``python -m simulator --help`` shows how to replay a seed.
"""
