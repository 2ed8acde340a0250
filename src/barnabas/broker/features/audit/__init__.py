"""A log of changes and of denied requests."""
