"""synrepl and real Synapse processes as peers of each other, shown and counted.

``python -m interop`` installs three published releases of matrix-synapse, each
into an environment of its own, starts them as black boxes on loopback and
compares what they counted with what was sent, in both directions: real workers follow
our writers, over TCP and over Redis, and our worker follows real masters. It also stops
a real process, and checks that ``synrepl watch`` and ``doctor`` report it. Not installed with the
product, imports nothing of Synapse, and ends everything that it starts.
"""
