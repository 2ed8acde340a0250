"""Kafka's wire protocol and record format: bytes in, values out, no I/O."""
