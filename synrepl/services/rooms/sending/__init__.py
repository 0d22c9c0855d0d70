"""Events of this server's users: built, sent to the process that persists their room, and idempotent."""
