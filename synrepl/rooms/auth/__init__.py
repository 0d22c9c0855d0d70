"""Which events authorise one, and whether they do."""
