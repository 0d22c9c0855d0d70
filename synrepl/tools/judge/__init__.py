"""The judge: checks recorded or live traffic against the rules of the protocol."""
