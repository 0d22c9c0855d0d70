"""Tools that examine replication: tap, judge, watch, doctor and audit."""
