"""What a real server says on the wire, held against what is in its database."""
