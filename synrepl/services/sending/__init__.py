"""Commands that this process sends to others on behalf of handlers."""
