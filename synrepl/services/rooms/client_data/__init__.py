"""What clients are told besides the events of rooms: account data, receipts, typing, presence, messages to devices."""
