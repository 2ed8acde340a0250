"""Produced records must begin with the id of a registered schema, where their topic asks for it."""
