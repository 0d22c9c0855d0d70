"""Commands on real deployments and lakes."""
