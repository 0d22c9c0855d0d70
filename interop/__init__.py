"""synrepl and real Synapse processes as peers of each other, shown and counted.

``python -m interop`` installs two published releases of matrix-synapse, each
into an environment of its own, starts them as black boxes on loopback and
compares what they counted with what was sent, in both directions: their workers
on our master, our worker on their masters. Not installed with the product,
imports nothing of Synapse, and ends everything that it starts.
"""
