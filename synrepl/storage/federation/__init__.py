"""What is known of other servers, as functions of a transaction."""
