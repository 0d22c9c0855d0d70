"""The parts of the pipeline that need no Spark."""
