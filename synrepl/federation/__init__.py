"""The server-server protocol of Matrix, without I/O, clock or sockets."""
