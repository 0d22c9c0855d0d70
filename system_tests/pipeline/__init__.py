"""The pipeline, with real Spark."""
