"""The answers to ``/sync``."""
