"""``spark.read.format("synrepl")`` and ``spark.readStream.format("synrepl")``: options, filters, readers."""
