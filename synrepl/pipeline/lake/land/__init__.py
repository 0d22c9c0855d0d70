"""Landing: new facts of a database are written to the lake."""
