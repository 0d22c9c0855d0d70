"""synrepl and real Synapse processes as peers of each other, shown and counted.

``python -m interop`` installs three published releases of matrix-synapse, each
into an environment of its own, starts them as black boxes on loopback and
compares what they counted with what was sent, in both directions: their workers
on our writers, over TCP and over Redis, our worker on their masters; and it stops
a process of theirs to see whether ours beside them tells. Not installed with the
product, imports nothing of Synapse, and ends everything that it starts.
"""
