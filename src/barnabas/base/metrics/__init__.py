"""Metrics: a registry and its exposition."""
