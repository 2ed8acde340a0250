"""Servers beside the brokers, clients of the cluster like any other: schema registry, console, doctor."""
