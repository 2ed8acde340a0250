"""Checks that produced records begin with the id of a registered schema, for topics that require it."""
