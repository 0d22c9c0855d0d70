"""Adapters from Twisted, psycopg2 and txredisapi to the interfaces of the services."""
