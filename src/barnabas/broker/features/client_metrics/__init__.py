"""Metrics that clients push to their brokers (KIP-714)."""
