"""A whole deployment in one process, on one clock, out of one seed.

A master, writers, plain SQL and followers run the product's own code over a
database and connections in memory, while the seed decides what breaks when.
After every step checkers compare what was published, sent and applied with
what was committed; readers of caches compare what they get with where their
process stands. ``python -m simulator --help`` replays a seed.
"""
