"""Kafka's settings: known by name, typed, validated once, and resolved in Kafka's order of precedence."""
