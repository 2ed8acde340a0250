"""Debezium's connector for PostgreSQL, on PostgreSQL's own log."""
